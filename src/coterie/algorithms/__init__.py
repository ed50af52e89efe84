"""The algorithms, each a short file that reads like its paper."""

import coterie
from coterie.algorithms.algorithm import Algorithm, Citation
from coterie.algorithms.consensus import ConsensusADMM
from coterie.algorithms.coordinate import NoisyCoordinateDescent
from coterie.algorithms.dual_perturbed import DualPerturbedADMM
from coterie.algorithms.fixed_point import (
    BroadcastNoisedADMM,
    LocallyNoisedADMM,
    MemorylessWalk,
    SumNoisedADMM,
    WalkADMM,
    fixed_point_admm,
)
from coterie.algorithms.general import GeneralADMM
from coterie.algorithms.gradient import NoisyGradientDescent, StandardisedGradientDescent
from coterie.algorithms.one_release import OneReleaseAverage
from coterie.algorithms.penalty_perturbed import EdgewiseADMM, PenaltyPerturbedADMM
from coterie.algorithms.primal_perturbed import PrimalPerturbedADMM
from coterie.algorithms.recycled import RecycledADMM

# the one table of names
ALGORITHMS: dict[str, type[Algorithm]] = {
    "admm": ConsensusADMM,
    "dual-perturbed-admm": DualPerturbedADMM,
    "primal-perturbed-admm": PrimalPerturbedADMM,
    "penalty-perturbed-admm": PenaltyPerturbedADMM,
    "edgewise-admm": EdgewiseADMM,
    "recycled-admm": RecycledADMM,
    "one-release-average": OneReleaseAverage,
    "noisy-gradient-descent": NoisyGradientDescent,
    "standardised-gradient-descent": StandardisedGradientDescent,
    "noisy-coordinate-descent": NoisyCoordinateDescent,
    "locally-noised-admm": LocallyNoisedADMM,
    "sum-noised-admm": SumNoisedADMM,
    "broadcast-noised-admm": BroadcastNoisedADMM,
    "walk-admm": WalkADMM,
    "memoryless-walk": MemorylessWalk,
    "general-admm": GeneralADMM,
}

# --- what to cite: Coterie itself, and the paper behind each algorithm, by key

SOFTWARE = Citation(
    key="coterie",
    kind="software",
    authors=("The Coterie developers",),
    title="Coterie: private learning among parties, with a privacy loss that can be checked",
    venue=f"Version {coterie.__version__}",
    year=None,
)
CITATIONS = {cited.key: cited for cited in (SOFTWARE, *(algorithm.citation for algorithm in ALGORITHMS.values()))}

__all__ = [
    "ALGORITHMS",
    "CITATIONS",
    "SOFTWARE",
    "Algorithm",
    "BroadcastNoisedADMM",
    "Citation",
    "ConsensusADMM",
    "DualPerturbedADMM",
    "EdgewiseADMM",
    "GeneralADMM",
    "LocallyNoisedADMM",
    "MemorylessWalk",
    "NoisyCoordinateDescent",
    "NoisyGradientDescent",
    "OneReleaseAverage",
    "PenaltyPerturbedADMM",
    "PrimalPerturbedADMM",
    "RecycledADMM",
    "StandardisedGradientDescent",
    "SumNoisedADMM",
    "WalkADMM",
    "fixed_point_admm",
]
