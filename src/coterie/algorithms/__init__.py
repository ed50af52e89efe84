"""The algorithms, each a short file that reads like its paper."""

from coterie.algorithms.algorithm import Algorithm
from coterie.algorithms.consensus import ConsensusADMM
from coterie.algorithms.gradient import NoisyGradientDescent
from coterie.algorithms.penalty_perturbed import PenaltyPerturbedADMM

# the one table of names
ALGORITHMS: dict[str, type[Algorithm]] = {
    "admm": ConsensusADMM,
    "penalty-perturbed-admm": PenaltyPerturbedADMM,
    "noisy-gradient-descent": NoisyGradientDescent,
}

__all__ = ["ALGORITHMS", "Algorithm", "ConsensusADMM", "NoisyGradientDescent", "PenaltyPerturbedADMM"]
