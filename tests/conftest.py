"""Strict JAX for every test: a silent change of dtype or rank is a bug, not a convenience."""

import atexit
import os
import shutil
import tempfile

# the tests compile hundreds of small programs and run each once, so optimised machine code would not pay
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# programs that several tests need are kept, but no test may depend on what an earlier run has left behind; each process
# has a folder of its own, because one that reads what another is writing would be warned
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="coterie-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
from hypothesis import settings

atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# the first example of a property compiles, so a time limit per example would measure the compiler
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")
