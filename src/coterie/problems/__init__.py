"""What is minimised: losses, regularisers, and the records they are taken over."""

from coterie.problems.losses import Huber, HuberisedHinge, Logistic, Loss, Multinomial, Squared
from coterie.problems.problem import Problem, Records
from coterie.problems.regularisers import L1, L2, Ball, Box, ElasticNet, Regulariser

# the one table of names
LOSSES: dict[str, type[Loss]] = {
    "logistic": Logistic,
    "huberised-hinge": HuberisedHinge,
    "multinomial": Multinomial,
    "huber": Huber,
    "squared": Squared,
}

__all__ = [
    "L1",
    "L2",
    "LOSSES",
    "Ball",
    "Box",
    "ElasticNet",
    "Huber",
    "HuberisedHinge",
    "Logistic",
    "Loss",
    "Multinomial",
    "Problem",
    "Records",
    "Regulariser",
    "Squared",
]
