"""Everything a certificate states, worked out from a plan and a few declarations; nothing here is taken on trust.

Words follow NIST SP 800-226: unit of privacy, trust model, bounded and unbounded neighbours, privacy loss.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from coterie.algorithms import ALGORITHMS, SOFTWARE
from coterie.errors import InputError
from coterie.network.channels import Broadcast, Channel, Curator, PairwiseSum, SecureSum, Token
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_multiplier
from coterie.privacy.composition import Price
from coterie.privacy.standardising import standardising_pays
from coterie.values import encode

Past = Sequence[tuple[str, float, float]]

SEEDED = "NOT PRIVATE: the noise came from a seed, and whoever knows the seed can remove it"
NO_TUNING = "not declared: settings chosen by looking at these data would cost more"
UNPROTECTED = "NOT PRIVATE: nothing bounds the privacy loss, epsilon is infinite"
SPENT = "NOT PRIVATE: something released from these data before has no bound"

_NEIGHBOURS = {
    "replace-one": "bounded: one unit is replaced by any other within the public bounds; sizes stay the same",
    "zero-out": "one unit is replaced by one that contributes nothing; sizes stay the same",
}
_TRUST = {
    Broadcast: (
        "local at the level of parties",
        "each party noises its own releases; nobody else is trusted, and all of them together may be watching",
    ),
    Curator: (
        "central",
        "a curator sees every party's un-noised contribution, and is trusted with it and with the noise",
    ),
    SecureSum: (
        "central by secure computation",
        "nobody sees a contribution as long as the secure sum is sound; every party is trusted to add its share of the "
        "noise, and a party that takes off its own share sees noise smaller by sqrt((n - 1)/n) for n parties",
    ),
    PairwiseSum: (
        "local at the level of parties, if few enough collude",
        "each party noises what it sends, with noise of its own and noise that it shares with each partner and that "
        "cancels in the sum; nobody else is trusted, and all may be watching, as long as no more parties than counted "
        "here put together what they know",
    ),
    Token: ("local at the level of parties", "whoever holds the token noises what it hands on; nobody else is trusted"),
}
EXECUTION = {
    "in-process": "one process held the records of all parties and carried out everybody's steps; the losses are those "
    "of the protocol it simulates, against people who see what is listed and do not own that process",
    "mpi": "the processes of one cluster held the records of all parties, each those of its own; the losses are those "
    "of the protocol they simulate, against people who see what is listed and do not own the cluster",
    "sites": "every party's own process held its records, its noise and its ledger; a coordinator, which no record "
    "reaches, passed messages on",
}
DESIGN = {
    "declared": "declared public by the user: that scales, categories and all other preprocessing of the columns came "
    "from public knowledge is their word, and nothing here shows it",
    "schema": "a public schema encoded every column by constants that stand in it; that these came from public "
    "knowledge is the word of whoever wrote it",
}
_ACCOUNTANTS = {
    "pure": "sum of the pure losses of all releases",
    "rdp": "Rényi composition, each direction by itself, converted as by Canonne, Kamath and Steinke (2020)",
    "gaussian": "exact composition of Gaussian releases (Balle and Wang, 2018)",
    "mixed": "exact composition of the Gaussian releases after the rounds, with Rényi divergences of the rounds",
}
_GAMMA_TAIL = (
    "Gamma noise inside an objective: how far a draw is from the exact one is bounded and paid for but in one draw in "
    "2^80, which is as much more delta.",
)
_NEVER_COVERED = (
    "Timing, power and memory side channels.",
    "Numbers of records: party sizes are public constants.",
    "Other releases from the same data, unless they are listed here: their losses add up.",
    "Settings chosen by looking at private data, unless that is paid for under tuning.",
    "What the data themselves say about groups of people: only the unit of privacy is protected.",
    "Anything computed from these records before the run, such as a scaler or an encoder fitted on them.",
)


class Declared(NamedTuple):
    """What a certificate has to be told, because no plan knows it."""

    delta: float
    reproducible: bool
    rounds_done: int | None
    past: Past
    tuning: str | None
    audit: dict[str, Any] | None
    engine: str
    design: str
    sites: dict[str, Any] | None = None


def number(value: float) -> float | str:
    """JSON has no word for infinity."""
    return float(value) if math.isfinite(value) else "infinite"


def statements(plan: Plan, declared: Declared) -> dict[str, Any]:
    """The certificate's content but for software and digests: a function of its arguments alone."""
    views = list(_views(plan, declared))
    epsilon = float(views[0]["epsilon"]) if views[0]["epsilon"] != "infinite" else math.inf
    return {
        "verdict": list(_verdict(plan, declared, epsilon)),
        "guarantee": {
            "definition": "approximate differential privacy, (epsilon, delta)",
            "epsilon": number(epsilon),
            "delta": declared.delta,
            "unit_of_privacy": _unit(plan),
            "adjacency": plan.adjacency,
            "neighbouring_data": _NEIGHBOURS[plan.adjacency],
        },
        "views": views,
        "trust_model": _trust(plan.algorithm.channel),
        "execution": {"engine": declared.engine, "what": EXECUTION[declared.engine]},
        "mechanism": _mechanism(plan),
        **({"first_rounds": list(_first_rounds(plan))} if plan.algorithm.first_rounds else {}),
        **({} if plan.moments is None else {"after_the_rounds": list(_after_the_rounds(plan))}),
        "accountant": _accountant(plan, declared.delta, epsilon),
        "randomness": {"source": _source(declared.reproducible), "reproducible": declared.reproducible},
        "design": {"by": declared.design, "what": DESIGN[declared.design]},
        "bounds": list(_bounds(plan)),
        "public_facts": {
            "parties": list(plan.facts.parties),
            "sizes": list(plan.facts.sizes),
            "n_features": plan.facts.n_features,
            "labels": None if plan.facts.labels is None else list(plan.facts.labels),
            "graph": {"edges": len(plan.topology.edges), "unrestricted": plan.topology.unrestricted},
        },
        "rounds": _rounds(plan, declared.rounds_done),
        "tuning": declared.tuning or NO_TUNING,
        "past": [{"what": what, "epsilon": number(eps), "delta": delta} for what, eps, delta in declared.past],
        "total": _total(plan, epsilon, declared),
        "audit": declared.audit or "not audited",
        "not_covered": list(_not_covered(plan)),
        "cite": [SOFTWARE.text, plan.algorithm.citation.text],
        **({} if declared.sites is None else {"sites": declared.sites}),
    }


def void_reasons(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{name} read off the data" for name in plan.facts.data_derived)


def price(plan: Plan, delta: float, *, reproducible: bool) -> tuple[float, str]:
    """What a run costs whoever keeps a ledger, and why where that is everything: no number bounds the loss of a run
    whose noise can be taken off, or whose bounds were read off the data."""
    reason = _unbounded(plan, reproducible)
    return (math.inf if reason else plan.epsilon(delta)), reason


def party_price(plan: Plan, party: int, delta: float, *, reproducible: bool) -> tuple[Price, str]:
    """As `price`, what a run costs the records of one party, with the curves by which a ledger adds prices up."""
    reason = _unbounded(plan, reproducible)
    if reason:
        return Price.unbounded(delta), reason
    stated = plan.epsilon(delta) if plan.people_span_parties else plan.party_epsilons(delta)[party]
    return Price.of(plan.person_ledger(party), delta, stated=stated, records=plan.records_per_person), ""


def _unbounded(plan: Plan, reproducible: bool) -> str:
    reasons = ["seeded"] if reproducible else []
    if plan.facts.data_derived:
        reasons.append(f"void: {', '.join(plan.facts.data_derived)} read off the data")
    return "; ".join(reasons)


def _verdict(plan: Plan, declared: Declared, epsilon: float) -> Iterator[str]:
    """What a reader must see before any number."""
    if declared.reproducible:
        yield SEEDED
    if math.isinf(epsilon):
        yield UNPROTECTED
    if any(math.isinf(eps) for _, eps, _ in declared.past):
        yield SPENT
    for reason in void_reasons(plan):
        yield f"VOID as a guarantee: {reason}"


def _views(plan: Plan, declared: Declared) -> Iterator[dict[str, Any]]:
    observers, delta = plan.algorithm.channel.observers, declared.delta
    if declared.engine == "sites":
        # the coordinator sees every message, so a view of one party alone is nobody's
        observers = observers[:1]
    for observer in observers:
        by_party = plan.party_epsilons(delta, observer=observer.name)
        whole = plan.epsilon(delta, observer=observer.name) if plan.people_span_parties else max(by_party)
        yield {
            "observer": observer.name,
            "sees": observer.sees,
            "epsilon": number(whole),
            "party_epsilons": [number(loss) for loss in by_party],
        }


def _unit(plan: Plan) -> str:
    if plan.unit == "party":
        return "everything one party holds"
    if plan.records_per_person == 1 and not plan.people_span_parties:
        return "one record of one party (event-level: somebody with several records loses more)"
    where = "at every party" if plan.people_span_parties else "at one party"
    records = "one record" if plan.records_per_person == 1 else f"up to {plan.records_per_person} records"
    return f"one person with {records} {where} (user-level)"


def _trust(channel: Channel) -> dict[str, str]:
    model, trusted = _TRUST[type(channel)]
    return {"channel": channel.name, "model": model, "who_is_trusted": trusted}


def _mechanism(plan: Plan) -> dict[str, Any]:
    algorithm = plan.algorithm
    names = [name for name, cls in ALGORITHMS.items() if cls is type(algorithm)]
    return {
        "algorithm": names[0] if names else type(algorithm).__name__,
        "mechanism": type(algorithm.mechanism).__name__,
        "noise": algorithm.mechanism.law or "none",
        "settings": encode(algorithm),
    }


_MOMENTS = {
    "derivatives": "gradient and Hessian of all records as one vector, at the model of stage {}",
    "second_moment": "second moment of the gradients of all records",
}


def _first_rounds(plan: Plan) -> Iterator[dict[str, Any]]:
    """As `_after_the_rounds`, of rounds that release something else than the algorithm's own steps."""
    grants, index = plan.issued
    for t, what in enumerate(plan.algorithm.first_rounds):
        issued = [grants[place] for place in sorted(set(index[t].tolist()))]
        ratios = [one.event.gaussian_ratio for one in issued if one.event is not None]
        yield {
            "what": f"{what}, of all records",
            "noise": "gaussian",
            "noise_std": issued[0].scales.noise_std,
            "sensitivity_over_noise": max(ratio for ratio in ratios if ratio is not None),
        }


def _after_the_rounds(plan: Plan) -> Iterator[dict[str, Any]]:
    """What is released for inference; `sensitivity_over_noise` is that of the party whose records move it most."""
    by_kind = [plan.moment_grants(party) for party in plan.kinds[1]]
    for alike in zip(*by_kind, strict=True):
        first = alike[0]
        yield {
            "what": _MOMENTS[first.purpose].format(first.stage + 1),
            "noise": "gaussian",
            "noise_std": first.grant.scales.noise_std,
            "sensitivity_over_noise": max(one.grant.event.ratio for one in alike),
        }


def _source(reproducible: bool) -> str:
    if reproducible:
        return "a seed"
    return "operating-system entropy through ChaCha20"


def _not_covered(plan: Plan) -> tuple[str, ...]:
    return (_GAMMA_TAIL if plan.algorithm.mechanism.law == "gamma-sphere" else ()) + _NEVER_COVERED


def _accountant(plan: Plan, delta: float, epsilon: float) -> dict[str, Any]:
    """Which of the valid upper bounds is the least one, the one that is stated."""
    bounds: dict[str, float] = {}
    for name in ("gaussian", "mixed", "rdp", "pure"):
        try:
            bounds[name] = plan.epsilon(delta, accountant=name)
        except InputError:
            # this accountant does not know the plan's events
            continue
    used = min(bounds, key=lambda name: bounds[name])
    how = _ACCOUNTANTS[used]
    if epsilon < bounds[used]:
        used, how = "least by party", "for every party the least of the bounds below that apply to it"
    return {"used": used, "how": how, "bounds": {name: number(value) for name, value in bounds.items()}}


def _bounds(plan: Plan) -> Iterator[dict[str, Any]]:
    facts = plan.facts
    enforced = {
        "row_norm": (facts.row_norm, "longer rows are clipped to it"),
        "labels": (None if facts.labels is None else list(facts.labels), "other labels are refused"),
        "label_bound": (facts.label_bound, "larger labels are clipped to it"),
        "weight_bound": (facts.weight_bound, "larger weights are clipped to it"),
    }
    for name, (value, how) in enforced.items():
        if value is not None:
            source = "read off the data: VOID" if name in facts.data_derived else "public constant"
            yield {"bound": name, "value": value, "source": source, "enforced": how}
    for name in facts.data_derived:
        if name not in enforced:
            yield {"bound": name, "value": None, "source": "read off the data: VOID", "enforced": "by preprocessing"}


def _rounds(plan: Plan, rounds_done: int | None) -> dict[str, Any]:
    """A run that stops early may have stopped because of the data, so all planned rounds count as spent."""
    done = plan.n_rounds if rounds_done is None else rounds_done
    return {
        "planned": plan.n_rounds,
        "done": done,
        "charged": plan.n_rounds,
        "fixed_in_advance": "the number of rounds is part of the plan; a run that stops early is charged in full",
    }


def _total(plan: Plan, epsilon: float, declared: Declared) -> dict[str, Any]:
    unbounded = declared.reproducible or plan.facts.data_derived
    return {
        "epsilon": number(math.inf if unbounded else epsilon + sum(eps for _, eps, _ in declared.past)),
        "delta": min(1.0, declared.delta + sum(delta for _, _, delta in declared.past)),
        "releases": 1 + len(declared.past),
        "how": "basic composition: the epsilons and the deltas of everything listed as past and of this run are added",
    }


# --- what people should know before they rely on it -------------------------------------------------------------------

LARGE_EPSILON = 10.0
# of the noise on a sum of gradients against the largest that the records of all parties can make together
# from here on, of models on invented tables 78 % and more err more than the majority class (docs/benchmarks.md)
USELESS = 0.5


def cautions(plan: Plan, delta: float) -> tuple[str, ...]:
    """One sentence for each; empty where there is nothing to say."""
    n_records, epsilon = sum(plan.facts.sizes), plan.epsilon(delta)
    told = []
    if delta * n_records >= 1:
        told.append(
            f"delta = {delta:g} is at least 1/n for the {n_records:,} records: showing one of them in the clear would "
            "keep it; less than a tenth of 1/n is usual"
        )
    if LARGE_EPSILON < epsilon < math.inf:
        told.append(f"epsilon = {epsilon:.3g} is more than {LARGE_EPSILON:g}: as a promise it says next to nothing")
    if 0 < epsilon < math.inf and noise_share(plan, epsilon, delta) >= USELESS:
        told.append(
            "the result is expected to be no better than the majority class: the noise is as large as what all records "
            "together can say; more records, a larger epsilon, fewer features or a trusted sum would help"
        )
    if plan.algorithm.first_rounds and 0 < epsilon < math.inf:
        # of a sum of gradients of rows of norm 1 and weight 1
        noise_std = _unit_moved(plan) * gaussian_multiplier(epsilon, delta) * math.sqrt(_n_noises(plan))
        if not standardising_pays(noise_std, plan.facts.n_features, n_records):
            told.append(
                "standardising is expected to hurt: the noise on sums of columns is as large as what columns can say; "
                "leave standardise out"
            )
    return tuple(told)


def _unit_moved(plan: Plan) -> int:
    """How many records' parts of a sum a unit of privacy can move, one put in the place of another counting twice."""
    unit = max(plan.facts.sizes) if plan.unit == "party" else plan.records_per_person
    return (2 if plan.adjacency == "replace-one" else 1) * unit


def _n_noises(plan: Plan) -> int:
    return plan.facts.n_parties if plan.algorithm.channel.name in ("broadcast", "token") else 1


def noise_share(plan: Plan, epsilon: float, delta: float) -> float:
    """Norm of Gaussian noise that spends all of (epsilon, delta) on one sum of gradients, over the largest norm of that
    sum. A record weighs at most w, so replacing a unit of k of them moves the sum by 2 k w L X, and n of them make at
    most n w L X; each of N noises has d coordinates."""
    facts, problem = plan.facts, plan.problem
    weights = [problem.largest_record_weight(size, facts) for size in facts.sizes]
    largest_sum = sum(size * weight for size, weight in zip(facts.sizes, weights, strict=True))
    moved, n_noises = _unit_moved(plan) * max(weights), _n_noises(plan)
    coordinates = problem.n_coefficients(facts)
    return moved * gaussian_multiplier(epsilon, delta) * math.sqrt(n_noises * coordinates) / largest_sum
