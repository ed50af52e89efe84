"""The estimators' design, under the name it had before specs and the demo shared it: see `coterie.data.design`."""

from coterie.data.design import make_design, split_intercept

__all__ = ["make_design", "split_intercept"]
