"""Envelopes: every packet between a coordinator and a site is sealed end to end.

    request    sealed to the site's key, which the proposal pins
    answer     sealed to the coordinator's key, which the proposal pins, as the answer to that one request

Whoever carries envelopes sees sizes and times. In one is a signed packet (`site.messages`): the seal hides it, the
signature says whose it is. The one thing that leaves a site unsealed is a "refused" to somebody it does not know.
"""

import hashlib

from coterie.keys import PrivateKeys, Sealer, SignatureError
from coterie.site.messages import MessageError, unpack
from coterie.site.proposal import Proposal
from coterie.site.sockets import Exchange

_REQUEST = b"coterie request 1"


class Sealing:
    """A coordinator's exchange over `carry`, which needs no trust: it gets envelopes and returns envelopes."""

    def __init__(self, proposal: Proposal, keys: PrivateKeys, carry: Exchange) -> None:
        self.keys, self.carry = keys, carry
        self._sealers = {name: Sealer(site) for name, site in zip(proposal.names, proposal.parties, strict=True)}

    def __call__(self, party: str, packet: bytes) -> bytes:
        request = self._sealers[party].seal(packet, _REQUEST)
        answer = self.carry(party, request)
        try:
            return self.keys.open_sealed(answer, _answer_to(request))
        except SignatureError:
            if _is_refusal(answer):
                return answer
            raise MessageError(
                "an answer that is not sealed to the coordinator's key, or one to something else than was asked"
            ) from None


def opened_request(envelope: bytes, keys: PrivateKeys) -> bytes:
    """The packet that a coordinator has sealed to a site."""
    try:
        return keys.open_sealed(envelope, _REQUEST)
    except SignatureError:
        raise MessageError("something that is not sealed to this site's key") from None


def sealed_answer(packet: bytes, to: Sealer, request: bytes) -> bytes:
    """`to` is the coordinator that the proposal pins: nobody else can open it, and only as the answer to this."""
    return to.seal(packet, _answer_to(request))


def _answer_to(request: bytes) -> bytes:
    return b"coterie answer 1 " + hashlib.sha256(request).digest()


def _is_refusal(answer: bytes) -> bool:
    try:
        return unpack(answer).kind == "refused"
    except MessageError:
        return False
