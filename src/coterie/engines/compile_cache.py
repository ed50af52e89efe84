"""Compiled programs are kept between processes, in `$XDG_CACHE_HOME/coterie/xla`: compiling often outlasts a run.

A program holds what a plan says and no data: records, noise and grants are its arguments. Whoever has set up JAX's own
cache, or turned it off, keeps that.
"""

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from coterie.caches import cache_folder

WORTH_KEEPING_S = 0.3


@contextlib.contextmanager
def kept_compilations() -> Iterator[None]:
    """What is compiled inside is kept, and looked up first; without a writable folder nothing changes."""
    folder = cache_folder("xla")
    config = jax.config
    if folder is None or config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        yield
        return
    before = config.jax_persistent_cache_min_compile_time_secs  # type: ignore[attr-defined]
    _point_to(str(folder), WORTH_KEEPING_S)
    try:
        yield
    finally:
        _point_to(None, before)


def _point_to(folder: str | None, worth_keeping_s: float) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", worth_keeping_s)
    compilation_cache.reset_cache()  # JAX looks at its settings once
