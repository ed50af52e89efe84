"""The general noisy fixed-point iteration and private methods that are cases of it (Cyffers, Bellet & Basu, 2023)."""

from coterie.fixed_point.gradients import (
    EmpiricalRisk,
    coordinate_descent,
    gradient_descent,
    stochastic_gradient_descent,
)
from coterie.fixed_point.iteration import BlockIteration, Trajectory
from coterie.fixed_point.operators import largest_stretch, looks_nonexpansive
from coterie.fixed_point.sensitivity import OwnBlock, OwnRounds, PerBlock, Sensitivity, WholeUpdate
from coterie.fixed_point.splitting import consensus_admm, douglas_rachford

__all__ = [
    "BlockIteration",
    "EmpiricalRisk",
    "OwnBlock",
    "OwnRounds",
    "PerBlock",
    "Sensitivity",
    "Trajectory",
    "WholeUpdate",
    "consensus_admm",
    "coordinate_descent",
    "douglas_rachford",
    "gradient_descent",
    "largest_stretch",
    "looks_nonexpansive",
    "stochastic_gradient_descent",
]
