"""Estimates with confidence intervals from noised gradients and Hessians."""

from coterie.inference.columns import Columns
from coterie.inference.infer import Released, Releasing, conclude, infer, release_moments
from coterie.inference.result import Inference

__all__ = ["Columns", "Inference", "Released", "Releasing", "conclude", "infer", "release_moments"]
