"""M-ADMM with penalty perturbation: Zhang, Khalili & Liu, "Improving the privacy and accuracy of ADMM-based distributed
algorithms", ICML 2018, Algorithm 1.

    eta_i(t)   `penalty`: private to the node in the paper; here it may differ by party, and is public
    theta      `dual_step`: fixed and common, apart from the penalty (Section 3)
    alpha_i(t) `noise_rate`: density of epsilon_i(t) proportional to exp(-alpha_i(t) |epsilon|)

    f_i(t+1) = argmin O_i(f) + 2 lambda_i . f + eta_i sum_j |f + epsilon_i - (f_i + f_j)/2|^2       eq. (25)

The noise enters as 2 eta_i V_i epsilon_i . f. Besides the paper's gamma noise there is Gaussian noise, which composes
over rounds at a fraction of the price.
"""

import dataclasses
from typing import ClassVar

from coterie.algorithms.consensus import GraphADMM
from coterie.privacy.mechanisms import PenaltyPerturbation
from coterie.schedules import Schedule
from coterie.serialise import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyPerturbedADMM(GraphADMM):
    mechanism: PenaltyPerturbation
    dual_step: Schedule
    citation: ClassVar[str] = "zhang-khalili-liu-2018"
