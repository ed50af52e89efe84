"""Strict JAX for every test: a silent change of dtype or rank is a bug, not a convenience."""

import os

# the tests compile hundreds of small programs and run each once, so optimised machine code would not pay
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# and none of them may depend on what an earlier run has left behind
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import jax
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# the first example of a property compiles, so a time limit per example would measure the compiler
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")
