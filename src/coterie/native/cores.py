"""Work in parts on all cores, for loops in machine code and NumPy's own: both let other threads run meanwhile."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Done = TypeVar("Done")


def on_cores(work: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        return list(cores.map(work, parts))
