"""One thread for LAPACK while rounds run: small factorisations gain nothing from more, and threads that wait spin.

XLA calls LAPACK for factorisations, and has threads of its own for products. On two busy cores a second LAPACK thread
made rounds with many small parties five times slower.
"""

import contextlib
import functools
from typing import Any

from threadpoolctl import ThreadpoolController


@functools.cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - whose LAPACK it is that XLA calls

    return ThreadpoolController()


def one_lapack_thread() -> contextlib.AbstractContextManager[Any]:
    return _controller().limit(limits=1, user_api="blas")
