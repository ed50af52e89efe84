"""Noisy proximal coordinate descent on the pooled problem: a few coordinates of the gradient are released in a round.

    j in b(t):  x_j(t+1) = prox_{step * regulariser_j}( x_j(t) - step * (sum_i grad_i(x(t))_j + noise_j + l2 x_j(t)) )

Mangold, Bellet, Salmon & Tommasi (2022), with one step size; Cyffers, Bellet & Basu (2023), Proposition 2. Each round
is one Gaussian release of a part of the summed gradient, and every record's part is clipped by the mechanism.

    b(t)   `coordinates`: in turn, in turn in a new order each time, or some at random; public, so it hides nothing
"""

import dataclasses
import functools
from typing import ClassVar, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Averaging, Citation, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import SumChannel
from coterie.network.topology import UNRESTRICTED, Cyclic, Sample, Selection, Shuffled, make_topology, participants
from coterie.privacy.mechanisms import GaussianGradient, GradientSumGrant
from coterie.problems import Ball, Regulariser
from coterie.values import ScheduleField, as_schedule, serialisable

Coordinates = Cyclic | Shuffled | Sample
IN_TURN = Cyclic()
# rounds after which a random order may begin again
SHORTEST_ORDER = 1024


class ModelState(NamedTuple):
    x: jax.Array
    # over rounds, or x itself
    average: jax.Array


def check_coordinates(coordinates: object) -> None:
    if not isinstance(coordinates, get_args(Coordinates)):
        names = ", ".join(kind.__name__ for kind in get_args(Coordinates))
        raise InputError(f"coordinates: got {coordinates}; one of {names} is needed")


@functools.lru_cache(maxsize=8)
def order(coordinates: Selection, d: int) -> np.ndarray:
    """Which are at work in each round, (n_rounds, at once): whole turns of all of them, and then again from the top."""
    if isinstance(coordinates, Sample) and coordinates.count > d:
        raise InputError(f"coordinates: got {coordinates}; there are {d} coefficients")
    n_rounds = d * -(-SHORTEST_ORDER // d)
    return participants(coordinates.table(n_rounds, make_topology(UNRESTRICTED, d)))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyCoordinateDescent(Algorithm[GradientSumGrant]):
    mechanism: GaussianGradient
    regulariser: Regulariser
    step: ScheduleField
    channel: SumChannel
    coordinates: Coordinates = IN_TURN
    averaging: Averaging = "last"
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[Citation] = Citation(
        key="mangold-bellet-salmon-tommasi-2022",
        kind="inproceedings",
        authors=("Mangold, Paul", "Bellet, Aurélien", "Salmon, Joseph", "Tommasi, Marc"),
        title="Differentially Private Coordinate Descent for Composite Empirical Risk Minimization",
        venue="International Conference on Machine Learning",
        year=2022,
    )

    def __post_init__(self) -> None:
        check_averaging(self.averaging)
        object.__setattr__(self, "step", as_schedule("step", self.step))
        if self.step.per_party:
            raise InputError(f"step: got {self.step.start}; one number is needed, for there is one model")
        check_coordinates(self.coordinates)

    def check(self, topology, problem):
        super().check(topology, problem)
        if isinstance(self.regulariser, Ball):
            raise InputError(f"regulariser: got {self.regulariser}; one that is a sum over coefficients is needed")

    def init(self, topology, d):
        return ModelState(jnp.zeros(d), jnp.zeros(d)), ()

    def _at_work(self, t, d):
        """1 where a coordinate is in b(t)."""
        rounds = order(self.coordinates, d)
        return jnp.zeros(d).at[jnp.asarray(rounds)[jnp.asarray(t).astype(int) % len(rounds)]].set(1.0)

    def inbox(self, t, public, topology):
        shape = (topology.n_parties, *public.x.shape)
        return jnp.broadcast_to(public.x, shape), jnp.broadcast_to(self._at_work(t, public.x.size), shape)

    def local(self, grant: GradientSumGrant, problem, records, private, inbox, noise):
        x, at_work = inbox
        return private, grant.gradient(problem, records, at=x, coordinates=at_work)

    def combine(self, t, public, received, topology):
        step = jnp.asarray(self.step(t))
        moved = self.regulariser.prox(public.x - step * (received + self.regulariser.l2 * public.x), step)
        x = jnp.where(self._at_work(t, public.x.size) > 0, moved, public.x)
        return ModelState(x, running_average(self.averaging, t, public.average, x))

    def models(self, public):
        return public.average[None]
