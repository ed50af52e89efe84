"""Work in parts on all cores, for loops in machine code and NumPy's own: both let other threads run meanwhile."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Done = TypeVar("Done")


def n_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(work: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    with ThreadPoolExecutor(n_cores()) as cores:
        return list(cores.map(work, parts))
