"""XLA as rounds need it: its settings, its compiled programs kept between processes, one thread for its LAPACK."""

import contextlib
import functools
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from threadpoolctl import ThreadpoolController

from coterie.machine import cache_folder

WORTH_KEEPING_S = 0.3


@contextlib.contextmanager
def set_up() -> Iterator[None]:
    """What rounds run in: double precision, programs that are kept, and LAPACK on one thread."""
    with jax.enable_x64(True), kept_compilations(), one_lapack_thread():
        yield


def simple_code() -> dict[str, Any] | None:
    """For most programs; None where whoever runs this has settings of their own, or XLA is another.

    For code of fused operations on a processor XLA has two ways. The older one compiles in about half the time, and
    rounds with many small operations run up to 1.6 times as fast; where rows are picked the newer one is a third
    faster, so long runs in which only some parties work keep it.
    """
    return _settings("cpu", "0.10.", xla_backend_optimization_level=1, xla_cpu_use_fusion_emitters=False)


def loops_on_device() -> dict[str, Any] | None:
    """For programs with many small steps on a GPU, which else asks the processor beside it after each turn of a loop
    whether to go on; None as above."""
    return _settings("gpu", "0.11.", xla_gpu_enable_command_buffer="FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,WHILE")


def _settings(backend: str, release: str, **settings: Any) -> dict[str, Any] | None:
    """Where they were tried: a setting that a release of jaxlib does not know is an error."""
    chosen = os.environ.get("XLA_FLAGS", "")
    tried = jax.default_backend() == backend and version("jaxlib").startswith(release)
    return settings if tried and not any(name in chosen for name in settings) else None


@contextlib.contextmanager
def kept_compilations() -> Iterator[None]:
    """What is compiled inside is kept in `$XDG_CACHE_HOME/coterie/xla`, and looked up first: compiling often outlasts a
    run. A program holds what a plan says and no data: records, noise and grants are its arguments.

    Without a writable folder nothing changes; whoever has set up JAX's own cache, or turned it off, keeps that.
    """
    folder = cache_folder("xla")
    config: Any = jax.config
    if folder is None or config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        yield
        return
    before = config.jax_persistent_cache_min_compile_time_secs
    _point_to(str(folder), WORTH_KEEPING_S)
    try:
        yield
    finally:
        _point_to(None, before)


def _point_to(folder: str | None, worth_keeping_s: float) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", worth_keeping_s)
    # JAX looks at its settings once
    compilation_cache.reset_cache()


def one_lapack_thread() -> contextlib.AbstractContextManager[Any]:
    """Small factorisations gain nothing from more, and threads that wait spin: on two busy cores a second LAPACK thread
    made rounds with many small parties five times slower. XLA has threads of its own for products."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - whose LAPACK it is that XLA calls

    return ThreadpoolController()
