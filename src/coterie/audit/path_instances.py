"""Instances that go down one path of the engine each (`engines.in_process`), however small: a path that users' large
plans take is a path that is audited."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from coterie import machine
from coterie.algorithms import BroadcastNoisedADMM, PenaltyPerturbedADMM, SumNoisedADMM
from coterie.audit.instances import LIGHT, NOISE_VALUES, REGULARISER, VALUES, Instance, instances_of
from coterie.engines.in_process import Paths
from coterie.network.channels import Curator
from coterie.privacy.objective import PenaltyPerturbation
from coterie.privacy.proximal import BroadcastNoise, SumNoise
from coterie.problems.losses import Logistic, Squared

_NOISE: dict[str, Any] = {"noise_multiplier": NOISE_VALUES["noise_multiplier"]}
_PROXIMAL: dict[str, Any] = {"prox_step": VALUES["prox_step"][0], "relaxation": VALUES["relaxation"][0], **_NOISE}
_PENALTY_PERTURBED: Any = (
    "penalty-perturbed-admm",
    PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=1.0, **_NOISE), dual_step=1.0),
)
_ONE_RECORD: dict[str, Any] = {"records_per_party": 1}
# an algorithm that uses the path, and what is special about the problem it is examined on
_EXAMINED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "argmin by matrices": (*_PENALTY_PERTURBED, {}),
    "argmin in machine code": (*_PENALTY_PERTURBED, {"loss": Logistic()}),
    "people in machine code": (
        "sum-noised-admm",
        SumNoisedADMM(mechanism=SumNoise(clip=0.002, **_PROXIMAL), regulariser=REGULARISER, channel=Curator()),
        # in one round nothing is clipped that noise has moved, so that releases are affine in the noise
        {"loss": Squared(), "label_bound": 1.0, "rounds": 1, **_ONE_RECORD},
    ),
    "people": (
        "broadcast-noised-admm",
        BroadcastNoisedADMM(mechanism=BroadcastNoise(**_PROXIMAL), regulariser=REGULARISER, channel=Curator()),
        _ONE_RECORD,
    ),
    "solved together": (*_PENALTY_PERTURBED, {}),
}
_NEED_NUMBA = ("argmin in machine code", "people in machine code")


def path_instances() -> Iterator[Instance]:
    """One for each path besides the general one, which small plans take anyway; paths in machine code need Numba."""
    for path, (name, algorithm, changes) in _EXAMINED.items():
        if path in _NEED_NUMBA and not machine.has_numba():
            continue
        paths = Paths(
            only=(path,),
            matrices_on=("cpu", "gpu"),
            native_work=0,
            native_few_problems=10**9,
            people_work=0,
            together_from=0,
        )
        setting = dataclasses.replace(LIGHT, **changes)
        yield instances_of(name, algorithm, adjacency="zero-out", light=setting, paths=paths)[0]
