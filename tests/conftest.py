"""Strict JAX for every test: a silent change of dtype or rank is a bug, not a convenience."""

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version

import pytest
from hypothesis import settings

# the tests compile hundreds of small programs and run each once, so optimised machine code would not pay; of XLA's two
# ways to write code of fused operations, the older one, which runs have too (`engines.rounds`), compiles in half the
# time
FLAGS = ["--xla_backend_optimization_level=0"]
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# Programs that several tests need are kept in a folder of this run, which all of its processes share: no test may
# depend on what an earlier run has left behind. A folder with a limit is locked by whoever reads or writes, so nobody
# reads what another is still writing.
if "PYTEST_XDIST_WORKER" not in os.environ:
    # whoever runs tests again and again within one such run, as tools/mutants.py does, names the folder
    programs = os.environ.get("COTERIE_TEST_PROGRAMS")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs or tempfile.mkdtemp(prefix="coterie-tests-")
    if programs is None:
        atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**31)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# the first example of a property compiles, so a time limit per example would measure the compiler
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")


def pytest_configure():
    # which looks at what was set above
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


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
