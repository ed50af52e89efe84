"""Private ADMM for  min f(x) + regulariser(z)  subject to  A x + B z = c: Cyffers, Bellet & Basu (2023), Algorithm 5.

    z  = argmin regulariser(z) + |B z + u|^2 / (2 gamma)
    x  = argmin f(x) + |A x + 2 B z + u - c|^2 / (2 gamma)
    u += 2 lambda (A x + B z - c),   A x noised

One party, a curator, holds all records. Only z is returned; A x leaves the party noised, in the coordinates of
`privacy.image`, and u is a function of what was released.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Averaging, Citation, check_averaging, running_average
from coterie.algorithms.fixed_point import CYFFERS_BELLET_BASU_2023
from coterie.errors import InputError
from coterie.matrices import Matrix
from coterie.minimisers.one_party import minimise
from coterie.network.channels import Broadcast
from coterie.privacy.image import ImageGrant, ImageNoise
from coterie.problems import Records, Regulariser, Squared
from coterie.values import serialisable


class ConstraintState(NamedTuple):
    # (rows of A,)
    u: jax.Array
    # (columns of B,)
    z: jax.Array
    average: jax.Array


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralADMM(Algorithm[ImageGrant]):
    """`B` and `c` default to -I and 0: x and z are then tied by z = A x."""

    mechanism: ImageNoise
    regulariser: Regulariser
    relaxation: float
    B: Matrix | None = None
    c: tuple[float, ...] | None = None
    averaging: Averaging = "last"
    channel: ClassVar[Broadcast] = Broadcast()
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[Citation] = CYFFERS_BELLET_BASU_2023

    def __post_init__(self) -> None:
        check_averaging(self.averaging)
        m = self.mechanism.A.shape[0]
        B = Matrix.of("B", -np.eye(m) if self.B is None else self.B)
        c = np.zeros(m) if self.c is None else np.asarray(self.c, dtype=float)
        object.__setattr__(self, "B", B)
        object.__setattr__(self, "c", tuple(c.tolist()))
        if not 0 < self.relaxation <= 1:
            raise InputError(f"relaxation: got {self.relaxation}; a number in (0, 1] is needed")
        for name, size in (("B", B.shape[0]), ("c", c.size)):
            if size != m:
                raise InputError(f"{name}: got {size} rows; A has {m}")
        if not (B.smallest_singular_value > 0 or self.regulariser.l2 > 0):
            raise InputError("B: its columns are linearly dependent; that needs a regulariser with l2 > 0")

    def check(self, topology, problem):
        super().check(topology, problem)
        if topology.n_parties != 1:
            raise InputError(f"parties: got {topology.n_parties}; one party must hold all records, parties=None")

    def init(self, topology, d) -> tuple[Any, Any]:
        if self.mechanism.A.shape[1] != d:
            raise InputError(f"A: got {self.mechanism.A.shape[1]} columns; there are {d} coefficients")
        u = jnp.zeros(self.mechanism.A.shape[0])
        z = self._z(u)
        return ConstraintState(u, z, z), ()

    def inbox(self, t, public, topology):
        basis, (B, c) = jnp.asarray(self.mechanism.basis), self._constraint
        towards = c - 2 * B.times(public.z) - public.u
        return (basis.T @ self.mechanism.A.transposed.times(towards))[None], basis[None]

    def local(self, grant: ImageGrant, problem, records, private, inbox, noise):
        target, basis = inbox
        return private, grant.noised_solution(problem, records, noise, target=target, basis=basis)

    def combine(self, t, public, received, topology):
        image = self.mechanism.A.times(jnp.asarray(self.mechanism.basis) @ received[0])
        B, c = self._constraint
        u = public.u + 2 * self.relaxation * (image + B.times(public.z) - c)
        z = self._z(u)
        return ConstraintState(u, z, running_average(self.averaging, t, public.average, z))

    def models(self, public):
        return public.average[None]

    @property
    def _constraint(self) -> tuple[Matrix, jax.Array]:
        """B and c, which are there once the algorithm is made."""
        assert self.B is not None
        return self.B, jnp.asarray(self.c)

    def _z(self, u):
        """argmin regulariser(z) + |B z + u|^2 / (2 gamma): a least-squares problem with the rows of B as records."""
        B = self._constraint[0].dense
        rows = Records(jnp.asarray(B), -u, jnp.full(len(B), 1 / self.mechanism.prox_step))
        largest = jnp.linalg.norm(B.T @ u) / self.mechanism.prox_step
        start = jnp.zeros(B.shape[1])
        z, _ = minimise(
            Squared(),
            self.regulariser,
            rows,
            linear=start,
            target=start,
            curvature=jnp.zeros(()),
            tolerance=1e-13 * (1 + largest),
        )
        return z
