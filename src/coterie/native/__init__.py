"""Loops in machine code, made by Numba (the extra `fast`), for what XLA does slowly on a CPU: sparse rows, rows that
are picked, many small problems. Everything here is numbers in, numbers out; without Numba nothing but speed is missing.
"""

import functools
import sys
from importlib.util import find_spec


@functools.cache
def available() -> bool:
    return find_spec("numba") is not None


def loaded() -> bool:
    """Whether somebody has paid for loading it, which takes longer than drawing a few numbers."""
    return "numba" in sys.modules
