"""Settings of XLA.

For code of fused operations on a processor it has two ways. The older one compiles in about half the time, and rounds
with many small operations run up to 1.6 times as fast; where rows are picked the newer one is a third faster, so long
runs in which only some parties work keep it.
"""

import os
from importlib.metadata import version
from typing import Any

import jax


def simple_code() -> dict[str, Any] | None:
    """For most programs; None where whoever runs this has settings of their own, or XLA is another."""
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
