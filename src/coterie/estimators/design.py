"""The estimators' design, under the name it had before specs and the demo shared it: see `coterie.data.federation`."""

from coterie.data.federation import make_design, split_intercept

__all__ = ["make_design", "split_intercept"]
