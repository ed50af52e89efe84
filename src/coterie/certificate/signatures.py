"""What every site of a run signs, and who has signed a certificate.

A site's statement names the run (the proposal's digest), the plan, everything that was released, and the entry of the
site's own ledger that pays for it. It is signed by the key that the proposal pins for the site.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from coterie.errors import InputError
from coterie.keys import Identity, PrivateKeys, SignatureError
from coterie.plan import Plan

FORMAT = "coterie-statement-1"
_PURPOSE = b"statement 1"
_FIELDS = {"format", "run", "plan", "party", "transcript", "ledger_entry", "epsilon", "delta"}


def make_statement(
    *, run: str, plan: str, party: str, transcript: str, ledger_entry: str, epsilon: float | str, delta: float
) -> dict[str, Any]:
    """ledger_entry: hash of the entry that reserved the whole plan's price; epsilon: what that entry charges."""
    return {
        "format": FORMAT,
        "run": run,
        "plan": plan,
        "party": party,
        "transcript": transcript,
        "ledger_entry": ledger_entry,
        "epsilon": epsilon,
        "delta": delta,
    }


def sign(statement: dict[str, Any], keys: PrivateKeys) -> str:
    return base64.b64encode(keys.sign(_PURPOSE, _canonical(statement))).decode()


def check_statement(statement: Any, identity: Identity, signature: Any) -> None:
    """Refuse a statement that is none, or that this identity did not sign."""
    if not isinstance(statement, dict) or statement.keys() != _FIELDS or statement["format"] != FORMAT:
        raise InputError(f"certificate: something is signed that is no {FORMAT!r}")
    try:
        raw = base64.b64decode(signature, validate=True)
        identity.check(_PURPOSE, _canonical(statement), raw)
    except (SignatureError, binascii.Error, TypeError, ValueError):
        raise InputError(
            f"certificate: the signature of {statement['party']!r} is not one by the key {identity.fingerprint}"
        ) from None


def section(proposal: str, transcript: str, signed: Sequence[tuple[Identity, dict[str, Any], str]]) -> dict[str, Any]:
    """The part of a certificate that says who has signed what."""
    return {
        "proposal": proposal,
        "transcript": transcript,
        "signed": [
            {"identity": str(identity), "statement": statement, "signature": signature}
            for identity, statement, signature in signed
        ],
    }


def check_section(sites: Any, plan: Plan) -> list[tuple[str, Identity]]:
    """Who has signed; refused unless every party of the plan has, the same run, plan and transcript."""
    if not isinstance(sites, dict) or sites.keys() != {"proposal", "transcript", "signed"}:
        raise InputError("certificate: its signatures are no table of proposal, transcript and signed")
    who: list[tuple[str, Identity]] = []
    for entry in sites["signed"]:
        identity, statement = Identity.parse(entry["identity"], "certificate: a signer"), entry["statement"]
        check_statement(statement, identity, entry["signature"])
        same = {"run": sites["proposal"], "plan": plan.digest, "transcript": sites["transcript"]}
        for name, value in same.items():
            if statement[name] != value:
                raise InputError(f"certificate: {statement['party']!r} has signed another {name}")
        who.append((statement["party"], identity))
    if tuple(name for name, _ in who) != plan.facts.parties:
        raise InputError("certificate: it is not signed by every party of its plan, each once")
    return who


def _canonical(statement: dict[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
