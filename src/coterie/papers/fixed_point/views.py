"""Three views of one run side by side: what is certified against each kind of onlooker, and what the paper says.

    local     sees every message of every party          central   sees aggregates and the model only
    network   is one of the parties and sees what comes by

The published numbers are of Cyffers, Bellet & Basu (2023) and never used; several are false (`coterie errata`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from coterie.algorithms.fixed_point import LocallyNoisedADMM, MemorylessWalk, WalkADMM
from coterie.algorithms.general import GeneralADMM
from coterie.network.topology import All
from coterie.papers.fixed_point import published as fp
from coterie.plan import Plan
from coterie.privacy.events import PEER

Onlooker = Literal["local", "central", "network"]


@dataclasses.dataclass(frozen=True)
class Published:
    theorem: str
    # infinite where its own hypotheses hold at no order
    epsilon: float


@dataclasses.dataclass(frozen=True)
class View:
    onlooker: Onlooker
    # None: nothing is certified, and `why` says why
    certified: float | None
    why: str
    published: tuple[Published, ...] = ()


def three_views(plan: Plan, delta: float) -> tuple[View, View, View]:
    """Local, central and network loss of one plan at one delta."""
    loss, published = plan.epsilon(delta), _published(plan, delta)
    if plan.algorithm.channel.aggregates:
        local = View("local", None, f"parts reach the {plan.algorithm.channel.name} un-noised: who saw them saw data")
        central = View("central", loss, "the noised sum of every round is seen")
        network = View("network", loss, "a party sees what everybody sees: the noised sums")
    else:
        local = View("local", loss, "every message is noised by its own party", published["local"])
        central = View("central", loss, "the noise stays in states that others send on: not less", published["central"])
        if PEER in plan.algorithm.channel.observers:
            peer = plan.epsilon(delta, observer=PEER.name)
            why = "the token is seen at one's own visits" if peer < loss else "no smaller loss is proved"
            network = View("network", peer, why, published["network"])
        else:
            network = View("network", loss, "a party may see every message", published["network"])
    return local, central, network


def _published(plan: Plan, delta: float) -> dict[Onlooker, tuple[Published, ...]]:
    """The paper's theorems about this algorithm, by the onlooker they speak of."""
    found: dict[Onlooker, tuple[Published, ...]] = {"local": (), "central": (), "network": ()}
    algorithm, n_parties = plan.algorithm, plan.facts.n_parties

    if not isinstance(algorithm, (GeneralADMM, LocallyNoisedADMM, WalkADMM, MemorylessWalk)):
        return found
    common = _settings(plan)

    def stated(theorem: Callable[..., fp.PublishedLoss], **settings: Any) -> Published:
        def at(order: float) -> fp.PublishedLoss:
            return theorem(**common, **settings, order=order)

        return Published(at(2.0).theorem, fp.published_epsilon(at, delta))

    if isinstance(algorithm, GeneralADMM):
        A = algorithm.mechanism.A
        norms = {"matrix_norm": float(np.linalg.norm(A.dense, 2)), "smallest_singular_value": A.smallest_singular_value}
        found["central"] = (stated(fp.theorem_7, n_parties=plan.facts.sizes[0], n_rounds=plan.n_rounds, **norms),)
        return found
    works, rounds = plan.participation, {"n_parties": n_parties, "n_rounds": plan.n_rounds}
    visits = {"n_visits": max(1, plan.most_charged)}
    found["local"] = (stated(fp.theorem_3_local, **visits),)
    if not isinstance(algorithm, LocallyNoisedADMM):
        found["network"] = (stated(fp.theorem_4, n_parties=n_parties, **visits),)
        return found
    n_sampled = n_parties if works is None else max(1, int(works.sum(axis=1).max()))
    everybody = isinstance(algorithm.selection, All)
    found["central"] = (
        stated(fp.theorem_2, **rounds) if everybody else stated(fp.theorem_3_central, n_sampled=n_sampled, **rounds),
        stated(fp.remark_4, n_sampled=n_sampled, **visits),
    )
    return found


def _settings(plan: Plan) -> dict[str, float]:
    """L, gamma and sigma of the paper; its sigma is twice our noise, which is on x - z and not on u."""
    facts = max((plan.party_facts(party) for party in plan.kinds[1]), key=lambda f: f.n_records * f.record_weight)
    mechanism: Any = plan.algorithm.mechanism
    clip = getattr(mechanism, "clip", None)
    slope = facts.record_slope(plan.problem) if clip is None else 0.0
    lipschitz = facts.n_records * facts.record_weight * slope if clip is None else clip / mechanism.prox_step
    return {
        "lipschitz": lipschitz,
        "prox_step": mechanism.prox_step,
        "noise_std": 2 * float(np.min(plan.grant_table().noise_std)),
    }
