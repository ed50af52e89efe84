"""Primal variable perturbation: the exact minimiser is found first and noise is added before it is broadcast.

Zhang & Zhu (2017), named in Zhang, Khalili & Liu (2018), Section 2.4. A party's own next step starts from what it
broadcast, not from what it knows: otherwise the un-noised value would leak through the next message.
"""

import dataclasses
from typing import ClassVar

from coterie.algorithms.algorithm import Citation
from coterie.algorithms.consensus import GraphADMM
from coterie.privacy.objective import OutputPerturbation
from coterie.values import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrimalPerturbedADMM(GraphADMM):
    mechanism: OutputPerturbation
    citation: ClassVar[Citation] = Citation(
        key="zhang-zhu-2017",
        kind="article",
        authors=("Zhang, Tao", "Zhu, Quanyan"),
        title="Dynamic Differential Privacy for ADMM-Based Distributed Classification Learning",
        venue="IEEE Transactions on Information Forensics and Security",
        year=2017,
    )
