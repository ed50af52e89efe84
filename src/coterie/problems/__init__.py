"""What is minimised: losses, penalties, and the records they are taken over."""

from coterie.problems.losses import Huber, HuberisedHinge, Logistic, Loss, Multinomial, Squared
from coterie.problems.penalties import L1, L2, Ball, Box, ElasticNet, Penalty
from coterie.problems.problem import Problem, Records

__all__ = [
    "L1",
    "L2",
    "Ball",
    "Box",
    "ElasticNet",
    "Huber",
    "HuberisedHinge",
    "Logistic",
    "Loss",
    "Multinomial",
    "Penalty",
    "Problem",
    "Records",
    "Squared",
]
