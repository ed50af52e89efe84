"""R-ADMM and MR-ADMM: Zhang, Khalili & Liu, "Recycled ADMM: improving the privacy and accuracy of distributed
algorithms", IEEE TIFS 2019, Algorithms 1-3.

    eta_i(2k-1) `penalty`, not decreasing in k        theta `dual_step`; the paper's is eta_i (coupled)
    gamma       `recycle_weight`                      alpha_i(k) `noise_rate`

Odd iterations minimise, as in ADMM; even iterations re-use the gradient that the odd one left behind:

    f_i(2k-1)      = argmin O_i(f) + (2 lambda_i(2k-2) + epsilon_i) . f
                            + eta_i sum_j |f - (f_i(2k-2) + f_j(2k-2))/2|^2                             eq. (18)
    lambda_i(2k-1) = lambda_i(2k-2) + (theta/2) sum_j (f_i - f_j)(2k-1)                                 eq. (15)
    f_i(2k)        = f_i(2k-1) - [ grad O_i(f_i(2k-1)) + epsilon_i + 2 lambda_i(2k-1)
                                   + eta_i sum_j (f_i - f_j)(2k-1) ] / (2 eta_i V_i + gamma)            eq. (19)
    lambda_i(2k)   = lambda_i(2k-1)                                                                     eq. (17)

The optimality condition of the odd step expresses grad O_i + epsilon_i through released values, and eq. (19) becomes

    f_i(2k) = f_i(2k-1) - [ (theta + eta_i) sum_j (f_i - f_j)(2k-1)
                            - eta_i sum_j (2 f_i(2k-1) - f_i(2k-2) - f_j(2k-2)) ] / (2 eta_i V_i + gamma)

That is how it is computed here: in `combine`, which sees no data, so even iterations cost nothing. One round is one
pair of iterations. Odd iterates are the ones that converge, so they are the model.

With penalties that differ between parties the coupled dual step drifts to argmin sum_i O_i / eta_i; a common
`dual_step` reaches the optimum. `mechanism` may also put the noise on the odd iterate before the broadcast
(Section VII-B).
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Citation, running_average
from coterie.algorithms.consensus import GraphADMM, gap, heard_sum
from coterie.errors import InputError
from coterie.privacy.objective import LinearPerturbation, NoNoise, OutputPerturbation
from coterie.values import serialisable


class RecycledState(NamedTuple):
    # (n_parties, d) f_i(2k-1), the last broadcasts that saw data
    odd: jax.Array
    # (n_parties, d) f_i(2k)
    f: jax.Array
    # (n_arcs, d) f_j(2k) as heard
    heard: jax.Array
    # (n_arcs, d) f_j(2k-1) as heard
    heard_odd: jax.Array
    dual: jax.Array
    average: jax.Array


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecycledADMM(GraphADMM):
    mechanism: LinearPerturbation | OutputPerturbation | NoNoise
    recycle_weight: float
    citation: ClassVar[Citation] = Citation(
        key="zhang-khalili-liu-2019",
        kind="article",
        authors=("Zhang, Xueru", "Khalili, Mohammad Mahdi", "Liu, Mingyan"),
        title="Recycled ADMM: Improving the Privacy and Accuracy of Distributed Algorithms",
        venue="IEEE Transactions on Information Forensics and Security",
        year=2019,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.recycle_weight >= 0 and np.isfinite(self.recycle_weight)):
            raise InputError(f"recycle_weight: got {self.recycle_weight}; a finite number >= 0 is needed")
        if np.any(np.asarray(self.mechanism.penalty.ratio) < 1):
            raise InputError(f"penalty: got the ratio {self.mechanism.penalty.ratio}; the penalty must not decrease")

    def init(self, topology, d) -> tuple[Any, Any]:
        state, private = super().init(topology, d)
        return RecycledState(state.f, state.f, state.heard, state.heard, state.dual, state.average), private

    def combine(self, t, public, received, topology):
        # eta_i(2k-1)
        penalty = jnp.asarray(self.mechanism.penalty(t)).reshape(-1, 1)
        degrees = jnp.asarray(topology.degrees[:, None], received.dtype)
        heard_odd = topology.hear(public.heard_odd, public.odd, received)
        differences = gap(topology, heard_odd)
        # eq. (15)
        dual = public.dual + self._dual_step(t) / 2 * differences
        # twice the way from the points between neighbours that the odd step was held to
        from_midpoints = 2 * degrees * received - degrees * public.f - heard_sum(topology, public.heard)
        slope = (self._dual_step(t) + penalty) * differences - penalty * from_midpoints
        # eq. (19)
        even = received - slope / (2 * penalty * degrees + self.recycle_weight)
        heard = topology.hear(public.heard, public.f, even)
        average = running_average(self.averaging, t, public.average, received)
        return RecycledState(received, even, heard, heard_odd, dual, average)

    def models(self, public):
        return public.odd if self.averaging == "last" else public.average
