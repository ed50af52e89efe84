"""Messages that nobody should send: no crash, no release, no charge."""

import json

import msgpack
import numpy as np
import pytest
from made import NAMES, approved, make_sites, plan_of

from coterie.engines.rounds import set_up
from coterie.keys import PrivateKeys
from coterie.site.messages import array, pack, unpack

FEW, MANY = 400, 10_000
ROUNDS = 6
VICTIM = 0


class Halfway:
    """Four sites of which everybody has released rounds 0 and 1, and the victim is about to be asked for round 2."""

    def __init__(self, folder):
        self.sites = make_sites(folder)
        self.proposal, self.keys = approved(plan_of("gradient", ROUNDS), self.sites)
        self.site, self.run = self.sites[VICTIM], self.proposal.digest
        self.heard = []
        with set_up():
            self.opening = self.asked("open")
            assert unpack(self.site.handle(self.opening)).kind == "ready"
            self.past = []
            for t in range(2):
                request = self.asked("round", round=t, first=0, heard=self.heard)
                self.past.append((request, self.site.handle(request)))
                assert unpack(self.past[-1][1]).kind == "contribution"
                self.heard = [*self.heard, [self.total(t)]]
        # which is never sent as it is
        self.next = self.asked("round", round=2, first=0, heard=self.heard)
        self.requests = [self.opening, *(asked for asked, _ in self.past), self.next]

    def asked(self, kind, keys=None, run=None, **fields):
        return pack(kind, run or self.run, "coordinator", keys or self.keys, **fields)

    def total(self, t, value=(0.1, 0.2, 0.3, 0.4), keys=None):
        return pack("sum", self.run, "coordinator", keys or self.keys, round=t, value=np.asarray(value))

    def signed(self, kind, content, version=1):
        """Whatever the content, signed by the coordinator: a coordinator that is out to break the site."""
        body = msgpack.packb(content)
        return msgpack.packb([version, kind, body, self.keys.sign(b"message " + kind.encode(), body)])


def garbage(rng, half):
    return rng.bytes(int(rng.integers(0, 400)))


def flipped(rng, half):
    packet = bytearray(half.requests[rng.integers(len(half.requests))])
    for _ in range(int(rng.integers(1, 4))):
        packet[rng.integers(len(packet))] ^= 1 << int(rng.integers(8))
    return bytes(packet)


def cut(rng, half):
    packet = half.requests[rng.integers(len(half.requests))]
    return packet[: rng.integers(len(packet))] + rng.bytes(int(rng.integers(0, 20)))


def of_others(rng, half):
    keys = PrivateKeys.generate() if rng.integers(2) else half.sites[1].keys
    return half.asked("round", keys, round=2, first=0, heard=half.heard)


def of_other_runs(rng, half):
    return half.asked("round", run=rng.bytes(32).hex(), round=2, first=0, heard=half.heard)


def out_of_order(rng, half):
    """Rounds before, after and beyond, with as much history as they would need, or less."""
    t = int(rng.choice([0, 1, 3, 4, 5, 6, 7, 1000, 10**6]))
    heard = (half.heard * 4)[: min(t, 6)]
    return half.asked("round", round=t, first=int(rng.integers(0, 4)), heard=heard)


def other_history(rng, half):
    """Round 2 after sums that are not finite, too large, of another shape, unsigned, swapped, doubled or missing."""
    bad = [
        half.total(1, [np.nan] * 4),
        half.total(1, [np.inf, 0, 0, 0]),
        half.total(1, [1e308, 1e308, 0, 0]),
        half.total(1, [1e10, 0, 0, 0]),
        half.total(1, np.zeros(int(rng.choice([0, 1, 3, 5, 50])))),
        half.total(1, np.zeros((2, 2))),
        half.total(1, keys=half.sites[1].keys),
        half.total(0),
        half.heard[0][0],
        half.past[0][1],
        half.opening,
        rng.bytes(50),
    ]
    chosen = bad[rng.integers(len(bad))]
    heard = [half.heard[0], [chosen]]
    if rng.integers(4) == 0:
        heard = [[half.heard[0][0], chosen], half.heard[1]][:: int(rng.choice([1, -1]))]
    if rng.integers(4) == 0:
        heard = [[], []]
    return half.asked("round", round=2, first=0, heard=heard)


def other_types(rng, half):
    """Fields of other types and sizes, more fields, fewer fields; signed by the coordinator."""
    odd = [None, True, -1, 2**63, 1.5, float("nan"), "2", b"2", [], [[]], [[[]]], {}, {"a": 1}, [[1]], [["x"]], [b"x"]]
    odd += [
        array(np.zeros(3)),
        {"shape": [4], "dtype": "<f8", "data": b""},
        {"shape": [2**40], "dtype": "<f8", "data": b""},
    ]
    odd += [{"shape": [-1], "dtype": "<f8", "data": b""}, {"shape": [1], "dtype": "O", "data": b"12345678"}]
    content = {"run": half.run, "sender": "coordinator", "round": 2, "first": 0, "heard": half.heard}
    name = str(rng.choice(list(content)))
    if rng.integers(3) == 0:
        del content[name]
    else:
        content[name] = odd[rng.integers(len(odd))]
    if rng.integers(5) == 0:
        content["more"] = odd[rng.integers(len(odd))]
    kind = str(rng.choice(["round", "open", "finish", "result", "release", "ready", "sum", "nonsense"]))
    return half.signed(kind, content)


def other_shells(rng, half):
    version, kind, body, signature = msgpack.unpackb(half.next)
    shells = [
        [2, kind, body, signature], [True, kind, body, signature], [version, "finish", body, signature],
        [version, kind, body, signature[:-1]], [version, kind, body, b""], [version, kind, body],
        [version, kind, body, signature, b""], [version, None, body, signature], [version, kind, None, signature],
        {"version": 1}, [], [version, ["round"], body, signature], [version, kind, [body], signature],
    ]  # fmt: skip
    return msgpack.packb(shells[rng.integers(len(shells))])


def results(rng, half):
    """Results of a run that is not over."""
    names = ["certificate.json", "../../site.toml", "/etc/passwd", ".hidden", "a" * 150, "transcript.npz"]
    return half.asked("result", files={str(rng.choice(names)): rng.bytes(20)})


def endings(rng, half):
    return half.asked("finish", first=0, heard=half.heard * int(rng.integers(1, 3)))


KINDS = [
    garbage, flipped, cut, of_others, of_other_runs, out_of_order, other_history, other_types, other_shells, results,
    endings,
]  # fmt: skip


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_nothing_leaves_and_nothing_is_charged(tmp_path, count):
    half = Halfway(tmp_path / "sites")
    rng = np.random.default_rng(20)
    site, head = half.site, half.site.ledger.head()
    answers = []
    with set_up():
        for number in range(count):
            # replays of what was answered before
            if number % 50 == 49:
                request, reply = half.past[rng.integers(2)]
                assert site.handle(request) == reply
                continue
            packet = KINDS[rng.integers(len(KINDS))](rng, half)
            if packet in half.requests:
                continue
            answer = unpack(site.handle(packet))
            answer.check_signature(site.keys.identity)
            answers.append(answer.kind)
            stored = [reply for _, reply in half.past]
            assert answer.kind in ("refused", "behind", "ready") or answer.packet in stored, packet
    assert answers.count("refused") > 0.8 * len(answers)
    assert site.ledger.head() == head
    site.ledger.verify()
    log = [json.loads(line) for line in (site.store.folder / "log.jsonl").read_text().splitlines()]
    assert not any("a defect" in line.get("reason", "") for line in log)
    # and the site still does its work
    with set_up():
        assert unpack(site.handle(half.next)).kind == "contribution"
    assert NAMES[VICTIM] == site.policy.name
