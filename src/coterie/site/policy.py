"""What a site agrees to: `site.toml`, which its operator writes and nothing else changes."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.errors import InputError
from coterie.keys import Identity
from coterie.privacy.accountants import check_delta, check_epsilon
from coterie.problems import LOSSES
from coterie.site.proposal import Proposal
from coterie.values import check_plain, nearest, read_toml

FILE = "site.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """`site.toml`, checked.

    name: what the site calls itself, as proposals must. data, schema: files, from the site's folder.
    epsilon, delta: the most that all runs on these records together may lose, in any `period_days` where that is given.
    algorithms, losses: those that are allowed; None: all of them.
    smallest_parties: how many parties a plan must have. colluders: how many parties that work together a plan must be
        priced for, where its loss counts on others' noise.
    curator: whether a coordinator may be trusted with contributions that are not noised.
    seeded: whether runs whose noise can be taken off may run here: only with records that are public anyway.
    coordinators: who may ask; None: whoever's proposal was approved.
    """

    name: str
    data: str
    schema: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    period_days: float | None = None
    algorithms: tuple[str, ...] | None = None
    losses: tuple[str, ...] | None = None
    smallest_parties: int = 2
    colluders: int = 0
    curator: bool = False
    seeded: bool = False
    coordinators: tuple[Identity, ...] | None = None

    def __post_init__(self) -> None:
        check_plain("name", [self.name])
        if (self.epsilon is None) != (self.delta is None):
            raise InputError("budget: got one of epsilon and delta; both or neither are needed")
        if self.epsilon is not None and self.epsilon != math.inf:
            check_epsilon(self.epsilon)
        if self.delta is not None:
            check_delta(self.delta)

    @classmethod
    def read(cls, folder: Path) -> "Policy":
        path = folder / FILE
        try:
            content = read_toml(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"site: cannot read {str(path)!r} ({error.strerror}); `coterie site init` makes a site's folder"
            ) from None
        except ValueError as error:
            raise InputError(f"site: {str(path)!r} is not TOML ({error})") from None
        return cls(**_fields(content, str(path)))

    def refusals(self, proposal: Proposal, party: int) -> list[str]:
        """Why this policy does not allow the proposal, all reasons; the budget is the ledger's to judge."""
        plan = proposal.plan
        found: list[str] = []
        if proposal.names[party] != self.name:
            found.append(f"name: the proposal calls this site {proposal.names[party]!r}, site.toml {self.name!r}")
        if self.epsilon is None:
            found.append("budget: site.toml has no [budget] with epsilon and delta, so nothing may be spent")
        if self.coordinators is not None and proposal.coordinator not in self.coordinators:
            found.append(f"coordinators: the key {proposal.coordinator.fingerprint} is not among those who may ask")
        names = [name for name, kind in ALGORITHMS.items() if kind is type(plan.algorithm)]
        if self.algorithms is not None and not set(names) & set(self.algorithms):
            found.append(f"algorithms: {', '.join(names) or type(plan.algorithm).__name__} is not allowed")
        losses = [name for name, kind in LOSSES.items() if kind is type(plan.problem.loss)]
        if self.losses is not None and not set(losses) & set(self.losses):
            found.append(f"losses: {', '.join(losses)} is not allowed")
        if plan.facts.n_parties < self.smallest_parties:
            found.append(f"smallest_parties: {plan.facts.n_parties} take part, {self.smallest_parties} are needed")
        priced_for = getattr(plan.algorithm.channel, "colluders", None)
        if priced_for is not None and priced_for < self.colluders:
            found.append(f"colluders: the plan is priced for {priced_for}, {self.colluders} are needed")
        if proposal.curated and not self.curator:
            found.append("curator: the coordinator would see contributions without noise, which is not allowed here")
        if proposal.seed is not None and not self.seeded:
            found.append("seeded: the noise would come from a seed and could be taken off, which is not allowed here")
        return found


_TABLES = {
    "budget": ("epsilon", "delta", "period_days"),
    "policy": ("algorithms", "losses", "smallest_parties", "colluders", "curator", "seeded", "coordinators"),
}
_TOP = ("name", "data", "schema", *_TABLES)


def _fields(content: dict[str, Any], where: str) -> dict[str, Any]:
    _refuse_unknown(where, content, _TOP)
    for name in ("name", "data"):
        if name not in content:
            raise InputError(f"{where}: key {name!r} is missing")
    fields = {name: _text(where, name, content[name]) for name in ("name", "data", "schema") if name in content}
    for table, known in _TABLES.items():
        part = content.get(table, {})
        if not isinstance(part, dict):
            raise InputError(f"{where}: {table} got {part!r}; a table is needed")
        _refuse_unknown(f"{where}: [{table}]", part, known)
        for name, value in part.items():
            fields[name] = _value(f"{where}: {table}.{name}", name, value)
    return fields


def _value(where: str, name: str, value: Any) -> Any:
    if name in ("curator", "seeded"):
        if not isinstance(value, bool):
            raise InputError(f"{where}: got {value!r}; true or false is needed")
        return value
    if name in ("smallest_parties", "colluders"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{where}: got {value!r}; an integer >= 0 is needed")
        return value
    if name in ("algorithms", "losses", "coordinators"):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{where}: got {value!r}; a list of texts is needed")
        if name == "coordinators":
            return tuple(Identity.parse(one, where) for one in value)
        known = ALGORITHMS if name == "algorithms" else LOSSES
        for one in value:
            if one not in known:
                raise InputError(f"{where}: unknown {one!r}{nearest(one, known)}; known are {', '.join(known)}")
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise InputError(f"{where}: got {value!r}; a positive number is needed")
    return float(value)


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {name} got {value!r}; a text is needed")
    return value


def _refuse_unknown(where: str, content: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in content:
        if name not in known:
            raise InputError(f"{where}: unknown key {name!r}{nearest(name, known)}; known are {', '.join(known)}")


def template(name: str, data: str, schema: str | None, epsilon: float | None, delta: float | None) -> str:
    """A first `site.toml`, with every setting in it and what it means."""
    budget = f"epsilon = {epsilon}\ndelta = {delta}" if epsilon is not None else "# epsilon = 1.0\n# delta = 1e-6"

    def quoted(text: str) -> str:
        import tomli_w

        return tomli_w.dumps({"k": text}).removeprefix("k = ").rstrip("\n")

    return f"""\
# What this site is, and what it agrees to. Nothing but its operator changes this file.

name = {quoted(name)} # as proposals must call it
data = {quoted(data)} # the records; they never leave this machine
{f"schema = {quoted(schema)}" if schema is not None else '# schema = "schema.toml"'}

[budget] # the most that all runs on these records together may lose; without it nothing can be approved
{budget}
# period_days = 365 # where the budget is meant for any such period, not for ever

[policy]
smallest_parties = 2 # of a plan
colluders = 0 # parties that work together, for whom a plan must be priced where its loss counts on others' noise
curator = false # true: a coordinator may see contributions without noise, where the plan says so
seeded = false # true: noise that can be taken off, for records that are public anyway
# algorithms = ["penalty-perturbed-admm"] # all of them when left out
# losses = ["logistic"] # all of them when left out
# coordinators = ["coterie1:..."] # who may ask; left out: whoever's proposal is approved
"""
