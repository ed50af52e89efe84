"""Compiled programs are kept in the user's cache folder, and only there, and only while an engine compiles."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from coterie.engines import rounds
from coterie.engines.rounds import kept_compilations

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")


@pytest.fixture
def enabled(monkeypatch, tmp_path):
    """The tests keep programs in a folder of JAX's own; here there is none, as there is for users."""
    monkeypatch.setattr(rounds, "WORTH_KEEPING_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_compiled_inside_is_kept_and_what_is_compiled_outside_is_not(enabled):
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    with kept_compilations():
        jax.jit(lambda x: jnp.sin(x) + 1)(1.0)
    kept = files(enabled / "coterie" / "xla")
    assert kept
    assert (jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs) == before
    jax.jit(lambda x: jnp.cos(x) + 1)(1.0)
    assert files(enabled) == kept
    (place,) = (enabled / "coterie" / "xla").iterdir()
    assert place.stat().st_mode & 0o077 == 0


def test_settings_of_the_user_come_first(enabled, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        with kept_compilations():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    with kept_compilations():
        assert jax.config.jax_compilation_cache_dir is None


def test_without_a_folder_nothing_is_kept_and_nothing_fails(enabled, monkeypatch):
    (enabled / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(enabled / "a file"))
    with kept_compilations():
        assert jax.config.jax_compilation_cache_dir is None
        jax.jit(lambda x: jnp.tan(x) + 1)(1.0)
