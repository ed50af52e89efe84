"""Programs that are compiled once, however many plans lead to them."""

from collections.abc import Callable
from typing import Any

import jax

_COMPILED: dict[str, Any] = {}


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    """Most plans differ in numbers only, and compiling is all that takes time: equal programs are compiled once."""
    lowered = jax.jit(function).lower(*args)
    program = lowered.as_text()
    if program not in _COMPILED:
        _COMPILED[program] = lowered.compile()
    return _COMPILED[program]
