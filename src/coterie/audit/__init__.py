"""Checks of the stated privacy loss that do not trust the proofs behind it.

`coterie audit` runs them on every algorithm of the package, `check` on one of your own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.audit.suite import audit, audit_plan, check

__all__ = ["audit", "audit_plan", "check"]


def __getattr__(name: str) -> Any:
    # the whole suite is loaded when it is asked for: exact densities are used without it
    if name in __all__:
        from coterie.audit import suite

        return getattr(suite, name)
    raise AttributeError(f"module 'coterie.audit' has no attribute {name!r}")
