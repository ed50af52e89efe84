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
import pytest
from hypothesis import settings

atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# the first example of a property compiles, so a time limit per example would measure the compiler
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")

# The second tier, run by `make test-slow`, besides single tests that are marked: files that take most of the time and
# would not notice a privacy mutant. They compare solvers with each other and with other packages' optima, run engines
# against each other, whole figures, demos, and processes that are killed or started by a cluster.
SECOND_TIER = {
    "contract": (
        "test_bench",
        "test_block_iteration",
        "test_engine",
        "test_estimators_optimum",
        "test_estimators_sklearn",
        "test_fixed_point_family",
        "test_graph_family",
        "test_interrupted_runs",
        "test_mpi_engine",
        "test_mpi_interrupts",
        "test_optimum",
        "test_people_engine",
        "test_people_native",
        "test_reproduce",
        "test_reproduce_recycled",
        "test_run_many",
    ),
    "unit": (
        "test_attack",
        "test_compile_cache",
        "test_convergence",
        "test_errata",
        "test_errata_fixed_point",
        "test_matrices_minimiser",
        "test_native_minimiser",
        "test_newton_minimiser",
        "test_shared_minimiser",
        "test_xla_settings",
    ),
    "statistical": ("test_demo", "test_estimators_adult"),
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in SECOND_TIER.get(item.path.parent.name, ()):
            item.add_marker(pytest.mark.slow)
