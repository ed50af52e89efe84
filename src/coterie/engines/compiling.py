"""Settings of XLA for programs that run for about as long as they take to compile."""

import os
from importlib.metadata import version
from typing import Any

import jax

_KNOWN = "0.10."  # releases of jaxlib in which these were tried; a setting that XLA does not know is an error


def quick_to_compile() -> dict[str, Any] | None:
    """Half the time to compile, a few percent more to run; None where whoever runs this has settings of their own."""
    chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    if chosen or jax.default_backend() != "cpu" or not version("jaxlib").startswith(_KNOWN):
        return None
    return {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
