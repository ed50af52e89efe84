"""What the tests of sites share: plans of each kind, sites in folders of their own, and proposals to them."""

import threading

import numpy as np

from coterie.algorithms import (
    NoisyGradientDescent,
    PenaltyPerturbedADMM,
    StandardisedGradientDescent,
    fixed_point_admm,
)
from coterie.data import Federation
from coterie.engines.rounds import set_up
from coterie.keys import PrivateKeys
from coterie.network.channels import Broadcast, Curator, PairwiseSum, Token
from coterie.network.topology import Walk
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.objective import PenaltyPerturbation
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2, Logistic, Problem
from coterie.site.policy import template
from coterie.site.proposal import Proposal
from coterie.site.records import write_encoded
from coterie.site.site import Site

NAMES = ("east", "north", "south", "west")
# alike, so that sites in one process share compiled steps
SIZES = (22, 22, 22, 22)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(sum(SIZES), 4))
DATA = Federation.from_arrays(X, (X @ [1, 2, -1, 0] > 0).astype(int), parties=np.repeat(NAMES, SIZES), labels=(0, 1))
DELTA = 1e-5
GAUSS = {"noise_multiplier": 20.0}
ALGORITHMS = {
    "graph": PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=6.0, **GAUSS), dual_step=6.0),
    "gradient": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=Curator()
    ),
    "gradient, nobody trusted": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=Broadcast(), momentum=0.9
    ),
    "standardised": StandardisedGradientDescent(
        mechanism=StandardisedGradient(**GAUSS, column_std=3.0),
        regulariser=L2(1.0),
        step=0.01,
        channel=PairwiseSum(colluders=1),
        momentum=0.9,
    ),
    "pairs": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=PairwiseSum(colluders=1)
    ),
    "states": fixed_point_admm(channel=Curator(), regulariser=L2(1.0), prox_step=0.3, **GAUSS),
    "walk": fixed_point_admm(
        channel=Token(), regulariser=L2(1.0), prox_step=0.3, selection=Walk(seed=1), **GAUSS
    ),
}  # fmt: skip


def plan_of(kind="graph", rounds=5):
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return Plan.make(ALGORITHMS[kind], problem, "ring", DATA.facts, rounds=rounds, adjacency="replace-one")


def policy_of(name, *, epsilon="inf", more="curator = true\nseeded = true"):
    text = template(name, "records.npz", None, None, None)
    text = text.replace("# epsilon = 1.0\n# delta = 1e-6", f"epsilon = {epsilon}\ndelta = {DELTA}")
    for line in more.splitlines():
        key = line.split(" = ")[0]
        text = "\n".join(line if old.startswith(f"{key} = ") else old for old in text.splitlines())
    return text + "\n"


def make_sites(folder, *, epsilon="inf", more="curator = true\nseeded = true"):
    """A site for each party, with its own records in its own folder."""
    sites = []
    for name, shard in zip(NAMES, DATA.shards, strict=True):
        place = folder / name
        site = Site.create(place, name=name, data="records.npz", policy=policy_of(name, epsilon=epsilon, more=more))
        write_encoded(place / "records.npz", shard)
        sites.append(site)
    return sites


def propose(plan, sites, *, seed=None, keys=None, **settings):
    """A proposal to these sites, and the coordinator's keys."""
    keys = keys or PrivateKeys.generate()
    parties = tuple(site.keys.identity for site in sites)
    return Proposal(plan, DELTA, None, parties, keys.identity, seed=seed, **settings), keys


def approved(plan, sites, **settings):
    proposal, keys = propose(plan, sites, **settings)
    for site in sites:
        assert site.approve(proposal).fits, site.review(proposal).refusals
    return proposal, keys


def direct(sites, *, sealed=False):
    """An exchange without any transport: of packets, or as an engine has it, of envelopes."""
    by_name, one_at_a_time = {site.policy.name: site for site in sites}, threading.Lock()

    def exchange(party, packet):
        # settings belong to a thread
        with one_at_a_time, set_up():
            site = by_name[party]
            return site.handle_sealed(packet) if sealed else site.handle(packet)

    return exchange
