"""A proposal: everything that parties are asked to agree to, as one file that can be read, compared and pinned.

Its digest is the name of the one run that it is about: whoever approves it approves that run and no other. The page
`proposal.md` is a function of it, for people who decide.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.certificate import make_certificate, price, shown_loss
from coterie.certificate.certificate import plain
from coterie.data import Schema
from coterie.engines.moments import moment_size, n_moments
from coterie.errors import InputError
from coterie.keys import Identity
from coterie.network.channels import Broadcast, Curator, PairwiseSum, Token
from coterie.plan import Plan
from coterie.privacy.accountants import check_delta
from coterie.site.messages import COORDINATOR, LARGEST_PACKET
from coterie.values import check_plain, file_text, read_json, spelt_out

FORMAT = "coterie-proposal-1"
# of a released value: no run that gets anywhere comes near it
LARGEST_NORM = 1e9
# characters
LONGEST_TITLE = 200
# bytes of a packet besides its numbers and the name of its sender, and some to spare
_AROUND_NUMBERS = 256
_KEYS = {
    "format", "title", "plan", "plan_digest", "delta", "tuning", "schema", "intercept", "parties", "coordinator",
    "wait_s", "largest_norm", "seed", "nonce",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """`parties` are identities in the order of the plan's parties; `schema` is None where records come encoded, and
    `intercept` says whether a constant column is added to what it encodes.

    wait_s: how long the run waits for a party that does not answer before it ends; None: for ever.
    seed: of noise that can be taken off, for research; None in a run that is meant to be private.
    """

    plan: Plan
    delta: float
    schema: Schema | None
    parties: tuple[Identity, ...]
    coordinator: Identity
    title: str = "A model from several parties' records"
    intercept: bool = False
    tuning: str | None = None
    wait_s: float | None = None
    largest_norm: float = LARGEST_NORM
    seed: int | None = None
    nonce: str = dataclasses.field(default_factory=lambda: os.urandom(16).hex())

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_plain("title", [self.title])
        if len(self.title) > LONGEST_TITLE:
            raise InputError(f"title: got {len(self.title)} characters; at most {LONGEST_TITLE} are needed")
        facts = self.plan.facts
        if len(self.parties) != facts.n_parties:
            raise InputError(f"proposal: {len(self.parties)} identities for {facts.n_parties} parties; one each")
        if len({*self.parties, self.coordinator}) != facts.n_parties + 1:
            raise InputError("proposal: two of parties and coordinator have the same identity; everybody has their own")
        if COORDINATOR in facts.parties:
            raise InputError(f"proposal: a party is called {COORDINATOR!r}; that is the coordinator's name")
        for name, value in (("wait_s", self.wait_s), ("largest_norm", self.largest_norm)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and value > 0 and math.isfinite(value)):
                raise InputError(f"{name}: got {value!r}; a positive number is needed")
        if self.schema is not None and len(self.schema.feature_names) + self.intercept != facts.n_features:
            raise InputError(
                f"proposal: its schema has {len(self.schema.feature_names)} features, its plan {facts.n_features}"
            )
        check_plan(self.plan)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @property
    def _canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, without the digest."""
        facts = self.plan.facts
        return {
            "format": FORMAT,
            "title": self.title,
            "plan": json.loads(self.plan.to_json()),
            "plan_digest": self.plan.digest,
            "delta": self.delta,
            "tuning": self.tuning,
            "schema": None if self.schema is None else json.loads(json.dumps(self.schema.to_dict())),
            "intercept": self.intercept,
            "parties": {name: str(one) for name, one in zip(facts.parties, self.parties, strict=True)},
            "coordinator": str(self.coordinator),
            "wait_s": self.wait_s,
            "largest_norm": self.largest_norm,
            "seed": self.seed,
            "nonce": self.nonce,
        }

    def to_json(self) -> str:
        return json.dumps({**self.to_dict(), "digest": self.digest}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Proposal":
        """Refused unless it says what its digest covers, nothing more and nothing less."""
        content = read_json("proposal", text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"proposal: no {FORMAT!r} is in this file; a proposal.json is needed")
        stated = content.pop("digest", None)
        if content.keys() != _KEYS:
            odd = sorted(content.keys() ^ _KEYS)[0]
            raise InputError(f"proposal: the key {odd!r} is missing or does not belong there")
        plan = Plan.from_json(json.dumps(content["plan"]))
        identities = content["parties"]
        if not isinstance(identities, dict) or tuple(identities) != plan.facts.parties:
            raise InputError("proposal: its parties are not those of its plan")
        if not isinstance(content["title"], str) or not isinstance(content["nonce"], str):
            raise InputError("proposal: title and nonce must be texts")
        for name in ("tuning", "seed"):
            if not isinstance(content[name], {"tuning": str, "seed": int}[name] | None):
                raise InputError(f"proposal: {name} got a {type(content[name]).__name__}")
        if not isinstance(content["intercept"], bool):
            raise InputError(f"proposal: intercept got {content['intercept']!r}; true or false is needed")
        if isinstance(content["delta"], bool) or not isinstance(content["delta"], (int, float)):
            raise InputError(f"proposal: delta got {content['delta']!r}; a number is needed")
        proposal = cls(
            plan=plan,
            delta=content["delta"],
            schema=None if content["schema"] is None else Schema.from_dict(content["schema"]),
            parties=tuple(Identity.parse(one, f"proposal: party {name!r}") for name, one in identities.items()),
            coordinator=Identity.parse(content["coordinator"], "proposal: coordinator"),
            **{
                key: content[key] for key in ("title", "intercept", "tuning", "wait_s", "largest_norm", "seed", "nonce")
            },
        )
        if proposal.digest != stated or content["plan_digest"] != plan.digest:
            raise InputError("proposal: its digest does not fit its content; it was changed after it was made")
        return proposal

    @classmethod
    def read(cls, path: str | Path) -> "Proposal":
        """From a proposal.json, or the folder that `coterie propose` made."""
        path = Path(path)
        path = path / "proposal.json" if path.is_dir() else path
        try:
            return cls.from_json(file_text(path))
        except OSError as error:
            raise InputError(f"proposal: cannot read {str(path)!r} ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"proposal: {str(path)!r} is not UTF-8 text") from None

    # --- what follows from it ---------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return self.plan.facts.parties

    def party_of(self, identity: Identity) -> int:
        """Which of the parties this is."""
        if identity not in self.parties:
            raise InputError(f"proposal: the key {identity.fingerprint} is not among its parties' keys")
        return self.parties.index(identity)

    def identity_of(self, sender: str) -> Identity | None:
        if sender == COORDINATOR:
            return self.coordinator
        return self.parties[self.names.index(sender)] if sender in self.names else None

    @property
    def curated(self) -> bool:
        """The coordinator sees contributions before they are noised, and noises their sum."""
        return isinstance(self.plan.algorithm.channel, Curator)

    @functools.cached_property
    def losses(self) -> tuple[float, ...]:
        """Of each party's records, against whoever sees most; infinite where nothing bounds them."""
        whole, _ = price(self.plan, self.delta, reproducible=self.seed is not None)
        if math.isinf(whole):
            return (math.inf,) * len(self.names)
        if self.plan.people_span_parties:
            return (whole,) * len(self.names)
        return self.plan.party_epsilons(self.delta)

    def to_markdown(self) -> str:
        return _page(self)


def check_plan(plan: Plan) -> None:
    """Refuse, before anybody is asked, what cannot be carried out between sites."""
    algorithm = plan.algorithm
    if type(algorithm.channel) not in (Broadcast, Token, PairwiseSum, Curator):
        raise InputError(
            f"channel: got {algorithm.channel.name!r}; between sites nothing stands behind that word, which a process "
            "simulates: use trust = 'pairs' or 'none', or 'curator' where every site's policy trusts the coordinator"
        )
    if isinstance(algorithm.channel, PairwiseSum) and plan.participation is not None:
        raise InputError(
            f"selection: got {algorithm.selection}; noise of pairs cancels where everybody works in every round"
        )
    if algorithm.selection.secret:
        raise InputError(
            f"selection: got {algorithm.selection}; the coordinator would know a secret selection, so no loss that "
            "counts on the secret could be stated: give it a seed"
        )
    if algorithm.absent_stays and plan.participation is not None:
        raise InputError(
            f"selection: got {algorithm.selection}; between sites {type(algorithm).__name__} needs everybody in every "
            "round"
        )
    if plan.facts.data_derived:
        raise InputError(
            f"bounds: {', '.join(plan.facts.data_derived)} were read off data; between sites every bound is public"
        )
    if getattr(algorithm, "as_published", False):
        raise InputError("algorithm: a paper's algorithm exactly as printed is for research in one process")
    if algorithm.mechanism.law is None:
        raise InputError(f"algorithm: got {type(algorithm).__name__}, which adds no noise; sites release noised values")
    told = most_told(plan)
    if told > LARGEST_PACKET:
        raise InputError(
            f"plan: a site would be told {told:,} bytes in one message, all that was released since its last one; at "
            f"most {LARGEST_PACKET:,} can be sent: fewer coefficients, parties or rounds are needed"
        )


def most_told(plan: Plan) -> int:
    """Bytes of the longest message to a site: it hears, when it works and at the end, all packets since it last did."""
    name = max(len(name.encode()) for name in (*plan.facts.parties, COORDINATOR))
    p, everybody = plan.problem.n_coefficients(plan.facts), plan.facts.n_parties
    packet = 8 * p + name + _AROUND_NUMBERS
    works, curated = plan.participation, isinstance(plan.algorithm.channel, Curator)
    if works is None:
        most = 1 if curated else everybody
    else:
        before = np.cumsum([0, *([1] * plan.n_rounds if curated else works.sum(axis=1))])
        heard = [before[np.flatnonzero([*of_party, True])] for of_party in works.T]
        most = max(int(np.diff(packets, prepend=0).max()) for packets in heard)
    # after the rounds, what everybody released last, and the next model
    sizes = [8 * moment_size(plan, number) + name + _AROUND_NUMBERS for number in range(n_moments(plan))]
    of_moments = max(sizes, default=0) * (1 if curated else everybody) + 8 * p * bool(sizes)
    return max(packet * most, of_moments) + _AROUND_NUMBERS


# --- a page for people who decide -------------------------------------------------------------------------------------

_TO_ALL = "the coordinator, who passes it on to all other parties"
_TRAVELS = {
    Broadcast: ("noised coefficients, moves or gradients of a model, {d} numbers", _TO_ALL),
    Token: ("a noised change of the common model, {d} numbers", _TO_ALL),
    PairwiseSum: (
        "a contribution to a sum, {d} numbers, with noise of its own and noise that cancels in the sum",
        "the coordinator, who passes it on to all other parties",
    ),
    Curator: (
        "a contribution to a sum, {d} numbers, WITHOUT noise, sealed to the coordinator",
        "the coordinator, who is trusted with it, adds the noise and passes on the noised sum",
    ),
}


def _page(proposal: Proposal) -> str:
    plan, facts = proposal.plan, proposal.plan.facts
    document = make_certificate(
        plan,
        proposal.delta,
        reproducible=proposal.seed is not None,
        tuning=proposal.tuning,
        engine="sites",
        design="schema",
    ).document
    what, to_whom = _TRAVELS[type(plan.algorithm.channel)]
    working = plan.participation
    often = [plan.n_rounds if working is None else int(working[:, party].sum()) for party in range(facts.n_parties)]
    often = [rounds + n_moments(plan) for rounds in often]
    lines = [f"# Proposal: {plain(proposal.title)}", ""]
    for warning in document["verdict"]:
        lines += [f"**{warning}.**", ""]
    lines += [
        "## What is computed",
        "",
        f"One model ({type(plan.problem.loss).__name__} loss) from the records of {facts.n_parties} parties, by "
        f"`{document['mechanism']['algorithm']}` in {plan.n_rounds} rounds. No record leaves the party that holds it.",
        "",
        "## What leaves each site, to whom, how often",
        "",
        f"- In each round, {what.format(d=plan.problem.n_coefficients(facts))}.",
        *(
            f"- In round {t}, in their place: {other}, as many numbers, noised by the same rule."
            for t, other in enumerate(plan.algorithm.first_rounds, start=1)
        ),
        *_after_the_rounds(plan),
        f"- To {to_whom}.",
        "- At the end, a signature under the certificate of the run. Nothing else.",
        "",
        "| party | records | releases | privacy loss ε | key |",
        "|---|---|---|---|---|",
    ]
    for name, size, count, loss, one in zip(
        facts.parties, facts.sizes, often, proposal.losses, proposal.parties, strict=True
    ):
        shown = "infinite" if math.isinf(loss) else shown_loss(loss)
        lines.append(f"| {plain(name)} | {size} | {count} | {shown} | {one.fingerprint} |")
    guarantee = document["guarantee"]
    lines += [
        "",
        f"The loss is at δ = {proposal.delta:g}, {guarantee['adjacency']}, of {guarantee['unit_of_privacy']}, against "
        f"anybody who sees {document['views'][0]['sees']}. It is charged to each site's own ledger before the first "
        "release.",
        "",
        f"Trust: {document['trust_model']['who_is_trusted']}.",
        "",
        f"Coordinator: key {proposal.coordinator.fingerprint}. "
        + ("It sees contributions without noise." if proposal.curated else "It never sees a record."),
        "",
        "## What must hold at each site",
        "",
        f"- Rows of 2-norm at most {facts.row_norm:g}; longer ones are clipped.",
        f"- Weights of records at most {facts.weight_bound:g}; larger ones are clipped.",
    ]
    if facts.labels is not None:
        lines.append(f"- Labels: {', '.join(map(plain, facts.labels))}.")
    if facts.label_bound is not None:
        lines.append(f"- Labels between -{facts.label_bound:g} and {facts.label_bound:g}; larger ones are clipped.")
    if proposal.schema is not None:
        lines += ["", "| column | allowed |", "|---|---|"]
        lines += [f"| {plain(column.name)} | {_allowed(column)} |" for column in proposal.schema.columns]
        lines.append(f"| {plain(proposal.schema.label.name)} (label) | {_allowed(proposal.schema.label)} |")
    waits = "for ever" if proposal.wait_s is None else f"{proposal.wait_s:g} seconds, then ends"
    lines += [
        "",
        "## Rules agreed beforehand",
        "",
        f"- For a party that does not answer the run waits {waits}.",
        "- A party whose answer cannot be used (wrong shape, no finite numbers, a norm above "
        f"{proposal.largest_norm:g}, a wrong signature) is named, and the run ends.",
        "- A run that ends early is charged in full.",
        "- A site can withdraw at any time; what it has released stays released.",
        "",
        "## What is left open",
        "",
        *(f"- {sentence}" for sentence in document["not_covered"]),
        f"- Tuning: {document['tuning']}.",
        "",
        f"Plan `{plan.digest}`, proposal `{proposal.digest}`.",
        "",
    ]
    return "\n".join(lines)


def _after_the_rounds(plan: Plan) -> Iterator[str]:
    names = {"derivatives": "gradient and Hessian", "second_moment": "the second moment of gradients"}
    for number, granted in enumerate(plan.moment_grants(0)):
        numbers = f"{names[granted.purpose]} of its records, {moment_size(plan, number)} numbers"
        yield f"- After the rounds, once, for intervals: {numbers}, over the same channel, noised by their own rule."


def _allowed(column: Any) -> str:
    texts = getattr(column, "categories", None) or getattr(column, "values", None)
    if texts is not None:
        allowed = ", ".join(map(plain, texts)) + (", or anything else" if getattr(column, "other", False) else "")
    else:
        allowed = f"a number from {spelt_out(column.minimum)} to {spelt_out(column.maximum)}"
    return allowed + (", or nothing" if getattr(column, "missing", False) is not False else "")
