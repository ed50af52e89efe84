"""A site: it decides what leaves its records. Packets come in, packets go out; whoever carries them needs no trust.

    open     the run is approved, its price is reserved in the ledger           -> ready
    round    what was heard is checked; the site's step; commit, then           -> what `site.rounds` says
    moments  the same after the rounds, at a model, for intervals               -> what `site.rounds` says
    finish   everything released is checked, and signed with the ledger entry   -> signature
    result   the run's directory, checked against what was signed               -> kept

Reserve, compute, commit, send: a reply leaves when the ledger holds it, and a round that is asked for again gets the
stored bytes. Whatever cannot be used is answered by "refused"; the reason goes to the site's own log.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coterie.certificate import Certificate, party_price
from coterie.certificate.signatures import make_statement, sign
from coterie.certificate.statements import number
from coterie.engines.own_steps import OneParty
from coterie.errors import CoterieError, InputError, LocalSolveError
from coterie.keys import PrivateKeys, Sealer
from coterie.ledger import Ledger, Price, Reservation, Terms
from coterie.network.channels import PairwiseSum
from coterie.plan import Plan
from coterie.privacy.noise import KeyedEntropy, NoiseSource, Seeded, SystemEntropy
from coterie.privacy.pairs import PairStreams, pair_secret
from coterie.rundir import SUMS, files_of, new_directory, sums
from coterie.site.envelope import opened_request, sealed_answer
from coterie.site.messages import (
    COORDINATOR,
    REQUESTS,
    Message,
    MessageError,
    numbers,
    pack,
    packed_array,
    unpack,
)
from coterie.site.policy import FILE as POLICY_FILE
from coterie.site.policy import Policy, template
from coterie.site.proposal import Proposal
from coterie.site.records import Misfit, misfits, read_shard
from coterie.site.rounds import RoundForm
from coterie.site.store import Store
from coterie.transcript import ReleaseChain, Transcript
from coterie.values import read_json

# the run in an answer to something that names none
NOBODY = "0" * 64


@dataclasses.dataclass(frozen=True)
class Review:
    """What a site finds when it looks at a proposal; for its operator."""

    proposal: Proposal
    party: int
    refusals: list[str]
    misfits: list[Misfit]
    loss: float
    spent: float
    after: float

    @property
    def fits(self) -> bool:
        return not self.refusals and not any(row.refused for row in self.misfits)


class Site:
    """Everything of one site, in its folder.

    check_result: looks at the directory of a run that was handed out, beyond what this site has signed, and raises
    what is wrong with it.
    """

    def __init__(self, folder: Path, *, check_result: Callable[[Path], Any] | None = None) -> None:
        self.store, self.check_result = Store(folder), check_result
        self.policy = Policy.read(folder)
        self.keys = PrivateKeys.load(self.store.key_file)
        self.ledger = Ledger.open(self.store.ledger_file, key=self.keys.signing)
        self.read_policy()
        self._runs: dict[str, _Run] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        name: str,
        data: Path,
        schema: Path | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        keys: PrivateKeys | None = None,
        policy: str | None = None,
    ) -> "Site":
        """A new folder with keys, an empty ledger and a `site.toml` to be read and changed, or the one given."""
        text = template(name, str(data), None if schema is None else str(schema), epsilon, delta)
        with new_directory(folder) as partial:
            store = Store(partial)
            (keys or PrivateKeys.generate()).save(store.key_file)
            (partial / POLICY_FILE).write_text(text if policy is None else policy, encoding="utf-8")
            Policy.read(partial)
            Ledger.create(store.ledger_file, key=PrivateKeys.load(store.key_file).signing).close()
        folder.chmod(0o700)
        site = cls(folder)
        site.store.log("made", identity=str(site.keys.identity))
        return site

    def read_policy(self) -> None:
        """What `site.toml` says now."""
        self.policy = policy = Policy.read(self.store.folder)
        if policy.epsilon is not None and policy.delta is not None:
            # an entry of the ledger, where it is another limit than before
            self.ledger.set_limit(policy.epsilon, policy.delta, days=policy.period_days)

    def close(self) -> None:
        self.ledger.close()

    @property
    def data_file(self) -> Path:
        return self.store.folder / self.policy.data

    @property
    def body_of_data(self) -> str:
        """What the ledger calls the records: what the site was called when it first spent, for they stay the same when
        another study calls it otherwise."""
        return next(iter(self.ledger.bodies()), self.policy.name)

    # --- what its operator asks -------------------------------------------------------------------------------------

    def review(self, proposal: Proposal) -> Review:
        """Whether records, policy and budget allow it; nothing is changed or charged."""
        party = proposal.party_of(self.keys.identity)
        refusals = self.policy.refusals(proposal, party)
        found = misfits(self.data_file, proposal, party)
        if not any(row.refused for row in found):
            try:
                read_shard(self.data_file, proposal, party)
            except InputError as error:
                refusals.append(str(error))
        booked = self.ledger.reservation(proposal.digest)
        if booked is not None and booked.given_back:
            refusals.append("withdrawn: this run was given back before; a new proposal is needed")
        delta = self.policy.delta or proposal.delta
        spent = self.ledger.total(self.body_of_data, delta=delta).epsilon
        plus = price_of(proposal, party) if booked is None else None
        after = self.ledger.total(self.body_of_data, delta=delta, plus=plus).epsilon
        if self.policy.epsilon is not None and after > self.policy.epsilon * (1 + 1e-9):
            refusals.append(f"budget: {after:.4g} would be spent of {self.policy.epsilon:g} at delta = {delta:g}")
        return Review(proposal, party, refusals, found, proposal.losses[party], spent, after)

    def approve(self, proposal: Proposal) -> Review:
        review = self.review(proposal)
        if not review.fits:
            self.store.log("not approved", run=proposal.digest, reasons=review.refusals)
            return review
        self.store.approve(proposal)
        self.store.log("approved", run=proposal.digest, plan=proposal.plan.digest, loss=_shown(review.loss))
        return review

    def withdraw(self, digest: str) -> bool:
        """Take an approval back; True where nothing had been released, so that nothing was spent."""
        self.store.withdraw(digest)
        booked = self.ledger.reservation(digest)
        if booked is not None and not booked.committed:
            self.ledger.give_back(digest)
        self.store.forget_states(digest)
        given_back = booked is None or not booked.committed
        self.store.log("withdrawn", run=digest, given_back=given_back)
        return given_back

    # --- what a coordinator asks ------------------------------------------------------------------------------------

    def handle_sealed(self, envelope: bytes) -> bytes:
        """The answer to an envelope, sealed to the coordinator; a plain "refused" where it is not known who asks."""
        try:
            packet = opened_request(envelope, self.keys)
        except MessageError as error:
            self._log_refusal(NOBODY, str(error))
            return pack("refused", NOBODY, self.policy.name, self.keys)
        digest, answer = self._handled(packet)
        run = self._runs.get(digest)
        return answer if run is None else sealed_answer(answer, run.to_coordinator, envelope)

    def handle(self, packet: bytes) -> bytes:
        """The answer to a packet, whatever it is."""
        return self._handled(packet)[1]

    def _handled(self, packet: bytes) -> tuple[str, bytes]:
        """The run that a packet names, and the answer."""
        run = NOBODY
        try:
            message = unpack(packet)
            run = message.run
            return run, self._answer(message)
        except (CoterieError, OSError) as error:
            reason = " ".join(str(error).split())[:500] or type(error).__name__
        except Exception as error:
            # a defect must not tell anything outside, nor stop the site
            reason = f"a defect ({type(error).__name__}: {' '.join(str(error).split())[:300]})"
        self._log_refusal(run, reason)
        return run, pack("refused", run, self.policy.name, self.keys)

    def _log_refusal(self, run: str, reason: str) -> None:
        # a full disk is why it was refused, most likely
        with contextlib.suppress(OSError):
            self.store.log("refused", run=run, reason=reason)

    def _answer(self, message: Message) -> bytes:
        if message.kind not in REQUESTS or message.sender != COORDINATOR:
            raise MessageError(f"a {message.kind!r} from {message.sender!r}; requests come from the coordinator")
        if not self.store.is_approved(message.run):
            self._runs.pop(message.run, None)
            raise MessageError("a run that is not approved here, or not any more")
        run = self._runs.get(message.run)
        proposal = self.store.approved(message.run) if run is None else run.proposal
        assert proposal is not None
        # before any work is done for it
        message.check_signature(proposal.coordinator)
        if run is None:
            run = _Run(self, proposal)
        self._runs[message.run] = run
        answers = {
            "open": run.open,
            "round": run.round,
            "moments": run.moments,
            "finish": run.finish,
            "result": run.result,
        }
        return answers[message.kind](message)


class _Run:
    """One run as this site sees it; what is not in memory any more comes from the ledger and the coordinator."""

    def __init__(self, site: Site, proposal: Proposal) -> None:
        self.site, self.proposal, self.plan = site, proposal, proposal.plan
        self.digest = proposal.digest
        self.party = proposal.party_of(site.keys.identity)
        self.form, self.to_coordinator = RoundForm(proposal), Sealer(proposal.coordinator)
        self.chain, self.released, self.heard = ReleaseChain(self.digest), [], []
        self.chains = [self.chain.hexdigest]
        self.step: OneParty | None = None

    @property
    def known(self) -> int:
        return len(self.heard)

    def open(self, message: Message) -> bytes:
        """Reserve the whole plan's price, once."""
        site = self.site
        site.read_policy()
        # which may have changed since it was approved
        refusals = site.policy.refusals(self.proposal, self.party)
        if refusals:
            raise MessageError(f"the policy does not allow this run: {'; '.join(refusals)}")
        self._ready_step()
        new, plan, proposal = site.ledger.reservation(self.digest) is None, self.plan, self.proposal
        booked = site.ledger.reserve(
            self.digest,
            data=site.body_of_data,
            plan=plan.digest,
            price=price_of(proposal, self.party),
            terms=terms_of(plan),
            rounds=self.form.n_releases,
            what=proposal.title,
            by=proposal.coordinator.fingerprint,
        )
        if new:
            site.store.log("reserved", run=self.digest, loss=_shown(proposal.losses[self.party]))
        return self._reply("ready", rounds=len(booked.committed), known=self.known)

    def round(self, message: Message) -> bytes:
        t = message["round"]
        if t >= self.plan.n_rounds or not self.form.works(t, self.party):
            raise MessageError(f"round {t}, in which this site does not work")
        known = self._answered(message)
        if known is not None:
            return known
        step = self._ready_step()
        after, value = step.work()
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(after)]

        def keep() -> None:
            if leaves:
                self.site.store.save_state(self.digest, t, leaves)

        reply = self._committed(t, value, self._request_digest(t), keep)
        step.private = after
        return reply

    def moments(self, message: Message) -> bytes:
        """Any public model will do: the price is that of the worst."""
        t, number = message["round"], message["round"] - self.plan.n_rounds
        if number < 0 or t >= self.form.n_releases:
            raise MessageError(f"moments numbered {number}; the plan has {self.form.n_releases - self.plan.n_rounds}")
        model = numbers(message["model"], (self.plan.problem.n_coefficients(self.plan.facts),))
        known = self._answered(message)
        if known is not None:
            return known
        return self._committed(t, self._ready_step().moments(number, model), self._request_digest(t, model))

    def _answered(self, message: Message) -> bytes | None:
        """The reply to a round that was asked for before, or that more must be told first; what was told is heard."""
        t = message["round"]
        committed = self._reserved().committed
        behind = self._hear(message, t)
        if behind is not None:
            return behind
        stored = self.site.ledger.reply(self.digest, t) if t in committed else None
        if stored is None and t != self.known:
            raise MessageError(f"round {t} after {self.known} rounds were heard; it was not asked for in time")
        return stored

    def _committed(self, t: int, value: np.ndarray, request: str, keep: Callable[[], None] = lambda: None) -> bytes:
        """`value` as the one reply to this round; "refused" where it may not leave, and the run ends with that."""
        reason = self._withheld(t, value)
        if reason is not None:
            # whoever asks again must not get another draw: how many were too large tells about the records as well
            self.site.ledger.commit(self.digest, t, self._reply("refused"), request)
            self.site.ledger.end(self.digest)
            raise LocalSolveError(reason)
        reply = self._packed(t, value)
        keep()
        # from here on this is the one reply of this round
        reply = self.site.ledger.commit(self.digest, t, reply, request)
        self.site.store.log("released", run=self.digest, round=t, bytes=len(reply))
        return reply

    def _withheld(self, t: int, value: np.ndarray) -> str | None:
        """Why it may not leave."""
        if not np.isfinite(value).all():
            return f"round {t} could not be computed to the plan's tolerance; nothing of it left"
        largest = self.proposal.largest_norm
        if self.form.sent == "release" and not np.linalg.norm(value) <= largest:
            return f"round {t} has a norm above {largest:g}; nothing of it left"
        return None

    def finish(self, message: Message) -> bytes:
        booked = self._reserved()
        behind = self._hear(message, self.form.n_releases)
        if behind is not None:
            return behind
        proposal, site = self.proposal, self.site
        meant = [t for t in range(self.form.n_releases) if self.form.works(t, self.party)]
        if sorted(booked.committed) != meant:
            raise MessageError("the end of a run in which this site was not asked whenever the plan says so")
        statement = make_statement(
            run=self.digest,
            plan=self.plan.digest,
            party=proposal.names[self.party],
            transcript=self.chain.hexdigest,
            ledger_entry=self._ledger_entry(),
            epsilon=number(proposal.losses[self.party]),
            delta=proposal.delta,
        )
        site.store.log("signed", run=self.digest, transcript=self.chain.hexdigest)
        content = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
        return self._reply("signature", statement=content, signature=sign(statement, site.keys).encode())

    def result(self, message: Message) -> bytes:
        """Keep the run's directory, if it is what this site has signed."""
        if self.known != self.form.n_releases:
            raise MessageError("the result of a run that this site has not seen to its end")
        place = self.site.store.result(self.digest)
        if not place.exists():
            files = message["files"]
            wanted = files_of(True, ("proposal.json",), intervals=self.plan.moments is not None)
            for name in sorted(files.keys() ^ wanted):
                raise MessageError(f"a result {'with' if name in files else 'without'} a file called {name!r}")
            with new_directory(place) as partial:
                for name, content in files.items():
                    (partial / name).write_bytes(content)
                self._check_result(partial)
            self.site.store.forget_states(self.digest)
            self.site.store.log("kept", run=self.digest, result=place.name)
        return self._reply("kept")

    def _check_result(self, folder: Path) -> None:
        try:
            certificate = Certificate.from_json((folder / "certificate.json").read_text(encoding="utf-8"))
            releases = Transcript.load(folder / "transcript.npz").releases
        except (OSError, UnicodeDecodeError) as error:
            raise MessageError(f"a result that cannot be read ({type(error).__name__})") from None
        certificate.verify()
        sites = certificate.document.get("sites", {})
        if (sites.get("proposal"), sites.get("transcript")) != (self.digest, self.chain.hexdigest):
            raise MessageError("a certificate of another run, or of other releases than those of this one")
        if (certificate.delta, certificate.not_private) != (self.proposal.delta, self.proposal.seed is not None):
            raise MessageError("a certificate with another delta, or other randomness, than was proposed")
        if releases.shape[0] != 1 or not np.array_equal(releases[0], np.stack(self.released)):
            raise MessageError("a transcript of other releases than those of this run")
        if self.plan.moments is not None:
            self._check_moments(folder)
        if Proposal.read(folder).digest != self.digest:
            raise MessageError("a result with another proposal")
        if (folder / SUMS).read_bytes() != sums(folder).encode():
            raise MessageError(f"a result whose {SUMS} does not fit its files")
        if self.site.check_result is not None:
            self.site.check_result(folder)

    def _check_moments(self, folder: Path) -> None:
        """They are said to be taken where this site was asked for them."""
        booked = self.site.ledger.reservation(self.digest)
        assert booked is not None
        try:
            content = read_json("moments", (folder / "moments.json").read_text(encoding="utf-8"))
            models = np.asarray(content["models"], dtype=float)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise MessageError(f"a result whose moments cannot be read ({type(error).__name__})") from None
        for t, model in zip(range(self.plan.n_rounds, self.form.n_releases), models, strict=False):
            if booked.committed[t][0] != self._request_digest(t, model):
                raise MessageError("moments at another model than this site was asked for")

    # --- what the others released -----------------------------------------------------------------------------------

    def _hear(self, message: Message, until: int) -> bytes | None:
        """Take in what was released before round `until`; a reply where the coordinator must tell more first."""
        first, heard = message["first"], message["heard"]
        if first + len(heard) != until:
            raise MessageError(f"rounds {first} to {first + len(heard)} were told, up to {until} are needed")
        if first > self.known:
            return self._reply("behind", known=self.known)
        for t, packets in enumerate(heard, start=first):
            digest = hashlib.sha256(b"".join(hashlib.sha256(packet).digest() for packet in packets)).hexdigest()
            if t < self.known:
                if digest != self.heard[t]:
                    raise MessageError(f"round {t} told again with other content")
                continue
            released = self._checked(t, packets)
            if t < self.plan.n_rounds:
                self._ready_step().hear(released)
                self.released.append(released)
            self.heard.append(digest)
            self.chain.add(self.form.signed(t, released))
            self.chains.append(self.chain.hexdigest)
            self._restore(t)
        return None

    def _checked(self, t: int, packets: list[bytes]) -> np.ndarray:
        """What a round's packets say, (width, d); each signed by whom the plan lets speak, in order."""
        expected, own = self.form.tellers(t), self.proposal.names[self.party]
        if len(packets) != len(expected):
            raise MessageError(f"round {t} with {len(packets)} packets; {len(expected)} are what the plan says")
        values: list[np.ndarray] = []
        for packet, sender in zip(packets, expected, strict=True):
            said = unpack(packet)
            if said.sender != sender:
                raise MessageError(f"round {t}: a {said.kind!r} from {said.sender!r} where one by {sender!r} belongs")
            if sender == own:
                if packet != self.site.ledger.reply(self.digest, t):
                    raise MessageError(f"round {t}: a release in this site's name that it has not made")
            else:
                identity = self.proposal.identity_of(sender)
                assert identity is not None
                said.check_signature(identity)
            values.append(self.form.value(t, said))
        return self.form.released(t, values)

    def _restore(self, t: int) -> None:
        """After a restart: the private state after round t, where this site had committed that round."""
        step = self._ready_step()
        leaves, shape = jax.tree.flatten(step.private)
        if not leaves or t >= self.plan.n_rounds or self._reserved().last_round != t:
            return
        loaded = self.site.store.load_state(self.digest, t, [np.shape(leaf) for leaf in leaves])
        step.private = jax.tree.unflatten(shape, loaded)

    def _reserved(self) -> Reservation:
        booked = self.site.ledger.reservation(self.digest)
        if booked is None or booked.given_back:
            raise MessageError("a run whose price is not reserved")
        return booked

    def _ledger_entry(self) -> str:
        """The hash of the entry that reserved this run's price."""
        booked = self.site.ledger.reservation(self.digest)
        assert booked is not None
        return next(entry.hash for entry in self.site.ledger.entries() if entry.number == booked.number)

    # --- replies ----------------------------------------------------------------------------------------------------

    def _ready_step(self) -> OneParty:
        """Records in memory and a compiled step, made once and kept while the site serves."""
        if self.step is None:
            seed = self.proposal.seed
            source: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)
            shard = read_shard(self.site.data_file, self.proposal, self.party)
            self.step = OneParty(self.plan, self.party, shard, source, self._pairs())
        return self.step

    def _pairs(self) -> PairStreams | None:
        """Noise that only this site and a partner can draw: from X25519 between the keys that the proposal pins."""
        channel = self.plan.algorithm.channel
        if not isinstance(channel, PairwiseSum):
            return None
        n_parties, own = self.plan.facts.n_parties, self.site.keys.sealing.private_bytes_raw()
        streams = {
            partner: KeyedEntropy(pair_secret(own, self.proposal.parties[partner].sealing, self.digest))
            for partner in channel.partners(n_parties).neighbours[self.party]
        }
        return PairStreams(self.party, streams, channel.pairs(n_parties))

    def _packed(self, t: int, value: np.ndarray) -> bytes:
        if self.form.masked:
            return self._reply("masked", round=t, steps=value)
        if self.form.curated:
            context = seal_context(self.digest, t, self.proposal.names[self.party])
            sealed = self.to_coordinator.seal(packed_array(value), context)
            return self._reply("contribution", round=t, sealed=sealed)
        return self._reply("release", round=t, value=value)

    def _reply(self, kind: str, **fields: Any) -> bytes:
        return pack(kind, self.digest, self.proposal.names[self.party], self.site.keys, **fields)

    def _request_digest(self, t: int, model: np.ndarray | None = None) -> str:
        """Of everything that the reply to round t depends on, however it was told."""
        at = "" if model is None else f" {np.ascontiguousarray(model, dtype='<f8').tobytes().hex()}"
        return hashlib.sha256(f"{self.digest} {t} {self.chains[t]}{at}".encode()).hexdigest()


def price_of(proposal: Proposal, party: int) -> Price:
    """What a party's records pay for the whole plan, as a ledger adds it up."""
    return party_price(proposal.plan, party, proposal.delta, reproducible=proposal.seed is not None)[0]


def terms_of(plan: Plan) -> Terms:
    return Terms.of(
        plan.adjacency,
        plan.unit,
        plan.facts.parties,
        plan.facts.sizes,
        records_per_person=plan.records_per_person,
        people_span_parties=plan.people_span_parties,
    )


def seal_context(run: str, t: int, sender: str) -> bytes:
    return f"{run} {t} {sender}".encode()


def _shown(loss: float) -> float | str:
    return "infinite" if math.isinf(loss) else round(loss, 6)
