"""Dual variable perturbation: Zhang & Zhu, "A dual perturbation approach for differential private ADMM-based
distributed empirical risk minimization", AISec 2016, Algorithm 2.

    mu_p(t+1) = lambda_p(t) + (C/2B_p) epsilon_p(t+1)                                                   eq. (14)
    f_p(t+1)  = argmin (C/B_p) sum loss + rho R(f) + 2 mu_p . f + (Phi/2) |f|^2
                       + eta sum_j |f - (f_p(t) + f_j(t))/2|^2                                          eqs. (13), (15)
    lambda_p  += (eta/2) sum_j (f_p - f_j)                                                              eq. (16)

The paper's rho is one party's share of our `l2`. The noise enters as (C/B_p) epsilon_p . f, which is what the mechanism
calibrates: to a loss alpha_p(t) per step with gamma noise, or by a multiplier with Gaussian noise.
"""

import dataclasses
from typing import ClassVar

from coterie.algorithms.algorithm import Citation
from coterie.algorithms.consensus import ZHANG_ZHU_2016, GraphADMM
from coterie.privacy.objective import DualPerturbation
from coterie.values import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class DualPerturbedADMM(GraphADMM):
    mechanism: DualPerturbation
    citation: ClassVar[Citation] = ZHANG_ZHU_2016
