"""How large a plan may be that is read from a file: checked on plain JSON, before anything of that size is made."""

from collections.abc import Iterator
from typing import Any

from coterie.errors import InputError

MOST_ROUNDS = 10**5
MOST_PARTIES = 10**6
MOST_FEATURES = 10**6
MOST_PARTY_ROUNDS = 10**8  # parties times rounds: who works when is a table of so many cells
MOST_GRANTS = 10**6  # parties times rounds, where grants differ from round to round
LONGEST_TEXT = 10**8  # characters of a plan or a certificate


def check_text(what: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise InputError(f"{what}: got {len(text):,} characters; at most {LONGEST_TEXT:,} are read")


def check_size(plan: Any) -> None:
    """Refuse a plan, as JSON gives it, whose numbers ask for more than any plan needs."""
    if not isinstance(plan, dict):
        return
    facts, topology = _table(plan.get("facts")), _table(plan.get("topology"))
    rounds, parties = _number(plan.get("n_rounds")), _length(facts.get("parties"))
    bounds = {
        "n_rounds": (rounds, MOST_ROUNDS),
        "parties": (parties, MOST_PARTIES),
        "topology.n_parties": (_number(topology.get("n_parties")), MOST_PARTIES),
        "n_features": (_number(facts.get("n_features")), MOST_FEATURES),
        "n_rounds times parties": (rounds * parties, MOST_PARTY_ROUNDS),
    }
    if any(_number(schedule.get("ratio", 1)) != 1 for schedule in _schedules(plan.get("algorithm"))):
        bounds["n_rounds times parties, with grants that change,"] = (rounds * parties, MOST_GRANTS)
    for name, (found, most) in bounds.items():
        if found > most:
            raise InputError(f"plan: {name} got {found:g}; at most {most:,} can be read from a file")


def _schedules(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if "ratio" in content:
            yield content
        for value in content.values():
            yield from _schedules(value)
    elif isinstance(content, list):
        for value in content:
            yield from _schedules(value)


def _number(value: Any) -> float:
    """Whatever is no number is refused where the plan is made."""
    if isinstance(value, list):
        return max(map(_number, value), default=0.0)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else (0.0 if value is None else 1e300)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
