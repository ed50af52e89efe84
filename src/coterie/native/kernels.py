"""Numba's compiler with this package's settings. Kernels, which engines call, are kept between processes."""

from typing import Any

import numba

# dividing by zero gives infinity, as in NumPy
jit: Any = numba.njit(nogil=True, error_model="numpy")
kernel: Any = numba.njit(nogil=True, error_model="numpy", cache=True)
