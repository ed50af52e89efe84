"""Compiled programs are kept between processes, in `$XDG_CACHE_HOME/coterie/xla`: compiling often outlasts a run.

A program holds what a plan says and no data: records, noise and grants are its arguments. Machine code fits one kind of
processor, so each kind has a folder of its own. Whoever has set up JAX's own cache, or turned it off, keeps that.
"""

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

WORTH_KEEPING_S = 0.3


@contextlib.contextmanager
def kept_compilations() -> Iterator[None]:
    """What is compiled inside is kept, and looked up first; without a writable folder nothing changes."""
    folder = _folder()
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


def _folder() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "coterie" / "xla" / processor()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def processor() -> str:
    """A name for this kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *kind]).encode()).hexdigest()[:16]
