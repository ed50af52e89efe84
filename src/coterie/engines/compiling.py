"""Settings of XLA for most programs.

XLA has two ways to make code of fused operations. The older one compiles in about half the time, and rounds with many
small operations run up to 1.6 times as fast; where rows are picked the newer one is a third faster, so long runs in
which only some parties work keep it.
"""

import os
from importlib.metadata import version
from typing import Any

import jax

_KNOWN = "0.10."  # releases of jaxlib in which these were tried; a setting that XLA does not know is an error


def simple_code() -> dict[str, Any] | None:
    """None where whoever runs this has settings of their own, or XLA is another."""
    chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    if chosen or jax.default_backend() != "cpu" or not version("jaxlib").startswith(_KNOWN):
        return None
    return {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
