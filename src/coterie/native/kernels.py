"""Numba's compiler with this package's settings. Kernels, which engines call, are kept between processes."""

# Numba's own cache notices changes in a kernel's file, not in the files of what the kernel calls, and writes next to
# the source; its parts are put together differently here.

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from coterie.machine import cache_folder

# dividing by zero gives infinity, as in NumPy
jit: Any = numba.njit(nogil=True, error_model="numpy")


def kernel(function: Callable[..., Any]) -> Any:
    compiled = jit(function)
    if cache_folder("numba") is not None:
        compiled._cache = _Kept(function)
    return compiled


@functools.cache
def _source(folder: Path) -> str:
    """Of everything that lies there or here, and of Numba."""
    files = sorted({file for place in (folder, Path(__file__).parent) for file in place.glob("*.py")})
    return hashlib.sha256(b"".join([numba.__version__.encode(), *(file.read_bytes() for file in files)])).hexdigest()


class _Place:
    def __init__(self, folder: Path) -> None:
        self.source = _source(folder)

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_Place":
        return cls(Path(file).parent)

    def ensure_cache_path(self) -> None:
        # it is there, or the kernel would not be kept
        pass

    def get_cache_path(self) -> str:
        return str(cache_folder("numba"))

    def get_source_stamp(self) -> str:
        return self.source

    def get_disambiguator(self) -> str:
        return self.source[:16]


class _Kernel(CompileResultCacheImpl):
    _locator_classes = (_Place,)


class _Kept(FunctionCache):
    _impl_class = _Kernel
