"""The names that may stand in a spec. Algorithms, graphs and data sets have their tables where they are made."""

from collections.abc import Iterable
from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.data import DATASETS
from coterie.data.checks import nearest
from coterie.errors import InputError
from coterie.network.channels import Curator, SecureSum
from coterie.network.selection import All, Cyclic, Poisson, Sample, Shuffled, Walk
from coterie.network.topology import GRAPHS, UNRESTRICTED
from coterie.problems import Huber, HuberisedHinge, Logistic, Multinomial, Squared
from coterie.rules import TRUST

TOPOLOGIES = (*GRAPHS, UNRESTRICTED)
LOSSES = {
    "logistic": Logistic,
    "huberised-hinge": HuberisedHinge,
    "multinomial": Multinomial,
    "huber": Huber,
    "squared": Squared,
}
CHANNELS = {"curator": Curator, "secure-sum": SecureSum}
SELECTIONS = {"all": All, "cyclic": Cyclic, "shuffled": Shuffled, "sample": Sample, "poisson": Poisson, "walk": Walk}
ENGINES = ("in-process", "mpi")
OPEN_SETTINGS = ("averaging", "penalty", "step", "clip", "hardened")  # of an algorithm without a name

__all__ = [
    "ALGORITHMS",
    "CHANNELS",
    "DATASETS",
    "ENGINES",
    "LOSSES",
    "OPEN_SETTINGS",
    "SELECTIONS",
    "TOPOLOGIES",
    "TRUST",
    "one_of",
]


def one_of(where: str, value: Any, names: Iterable[str]) -> str:
    """The value, if it is one of the names."""
    names = list(names)
    if not isinstance(value, str) or value not in names:
        raise InputError(f"{where}: got {value!r}; one of {', '.join(names)} is needed{nearest(value, names)}")
    return value
