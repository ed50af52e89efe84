"""The coordinator: it asks the sites round by round, passes on what they release, and never sees a record.

What was released is written to its disk, round after round, so it can be killed and started again; sites that are asked
for a round again answer with the bytes they have stored. Where the plan has a curator, the coordinator is the curator:
it opens sealed contributions, noises their sum, has it on disk before it is passed on, and passes on nothing else.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.certificate.signatures import check_statement, section
from coterie.engines.moments import Course
from coterie.engines.rounds import set_up
from coterie.errors import CoterieError, InputError
from coterie.keys import PrivateKeys, SignatureError
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.site.messages import (
    COORDINATOR,
    Message,
    MessageError,
    decoded,
    encoded,
    pack,
    packed_array,
    unpack,
    unpacked_array,
)
from coterie.site.proposal import Proposal
from coterie.site.rounds import RoundForm
from coterie.site.site import seal_context
from coterie.site.sockets import Exchange, UnreachableError
from coterie.site.store import locked, write_whole
from coterie.transcript import Interrupted, ReleaseChain, Transcript

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
# whom a run waits for
TELL_AGAIN_S = 5.0


class Progress(NamedTuple):
    """Where a run is: for whoever watches."""

    # "opening", "round", "releases for intervals", "signing", "handing out"
    phase: str
    round: int
    n_rounds: int
    answered: tuple[str, ...]
    waiting: tuple[str, ...]


Watch = Callable[[Progress], None]


class PartyError(CoterieError):
    """A party refused, sent something that cannot be used, or never came; the run ends as was agreed."""


class Coordinator:
    """`folder` keeps what was released; a run that was cut off goes on from it.

    course_of: where the moments of a plan that has them are taken, once all rounds are done.
    """

    def __init__(
        self,
        proposal: Proposal,
        keys: PrivateKeys,
        exchange: Exchange,
        folder: Path,
        *,
        watch: Watch | None = None,
        course_of: Callable[[Transcript], Course] | None = None,
    ) -> None:
        if keys.identity != proposal.coordinator:
            raise InputError(
                f"keys: the key {keys.identity.fingerprint} is not the coordinator's in this proposal, which is "
                f"{proposal.coordinator.fingerprint}"
            )
        self.proposal, self.plan, self.keys, self.exchange = proposal, proposal.plan, keys, exchange
        self.folder, self.watch = folder, watch
        self.form = RoundForm(proposal)
        if self.plan.moments is not None and course_of is None:
            raise InputError("course_of: got none for a plan with moments; where they are taken is needed")
        self._course_of, self._course = course_of, None
        # of every round, as sites are told
        self.packets: list[list[bytes]] = []
        self.releases: list[np.ndarray] = []
        self.chain = ReleaseChain(proposal.digest)
        # rounds that each site has heard
        self.known = dict.fromkeys(proposal.names, 0)
        # set by whoever wants to end this
        self.stop = threading.Event()
        # one thread for each party, and one that writes while sites are at work
        self._pool = ThreadPoolExecutor(len(proposal.names) + 1)
        self._writing: Future[None] | None = None
        seed = proposal.seed
        self.source: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)

    def run(self) -> Transcript:
        """All rounds, from where an earlier start left off."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.folder, "coordinator"), set_up():
            self._resume()
            opening = self._packed("open")
            ready = self._ask_all("opening", self.proposal.names, lambda party: opening, self._opened, kind="ready")
            self._check_told(ready)
            try:
                for t in range(len(self.packets), self.form.n_releases):
                    self._round(t)
            finally:
                self._written()
        return self.transcript

    @property
    def course(self) -> Course:
        """It has heard what was released after the rounds, in order."""
        if self._course is None:
            assert self._course_of is not None
            self._course = self._course_of(self.transcript)
        return self._course

    @property
    def transcript(self) -> Transcript:
        empty = np.zeros((0, self.plan.release_width, self.form.size(0)))
        releases = np.stack(self.releases) if self.releases else empty
        return Transcript(self.plan, releases[None], self.source.reproducible)

    def signatures(self) -> dict[str, Any]:
        """What every site has signed about this run, checked, as a certificate holds it."""
        end = self.form.n_releases
        found = self._ask_all(
            "signing", self.proposal.names, lambda name: self._told("finish", name, end), self._signed, kind="signature"
        )
        signed = [
            (identity, *found[name]) for name, identity in zip(self.proposal.names, self.proposal.parties, strict=True)
        ]
        return section(self.proposal.digest, self.chain.hexdigest, signed)

    def hand_out(self, files: dict[str, bytes]) -> None:
        """The run's directory, to everybody."""
        packet = self._packed("result", files=files)
        self._ask_all("handing out", self.proposal.names, lambda party: packet, lambda message: None, kind="kept")

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _opened(self, message: Message) -> int:
        """How many rounds the site has answered."""
        self.known[message.sender] = message["known"]
        return message["rounds"]

    def _check_told(self, answered: dict[str, int]) -> None:
        """A curator does not noise a sum anew that sites were told: it would be a second release of what they sent."""
        t = len(self.packets)
        for party, name in enumerate(self.proposal.names):
            before = sum(self.form.works(k, party) for k in range(t + 1))
            if self.form.curated and (self.known[name] > t or answered[name] > before):
                raise InputError(
                    f"run: {str(self.folder)!r} has no round {t}, of which {name} was told; bring its file back, for a "
                    "sum is noised once"
                )

    def _round(self, t: int) -> None:
        workers, form, of_rounds = self.form.workers(t), self.form, t < self.plan.n_rounds
        request = {"round": t} if of_rounds else {"round": t, "model": self._model(t)}
        # most parties have heard as much as the others, and are asked by one packet
        packed: dict[int, bytes] = {}

        def told(party: str) -> bytes:
            known = self.known[party]
            if known not in packed:
                packed[known] = self._told("round" if of_rounds else "moments", party, t, **request)
            return packed[known]

        answers = self._ask_all(
            "round" if of_rounds else "releases for intervals",
            workers,
            told,
            lambda m: self._sent(t, m),
            kind=form.sent,
        )
        self.known.update(dict.fromkeys(workers, t))
        values, packets = zip(*(answers[name] for name in workers), strict=True)
        if form.curated:
            total = form.noised_sum(t, np.stack(values), self.source)
            values, packets = [total], [self._packed("sum", round=t, value=total)]
        try:
            released = form.released(t, list(values))
        except MessageError as error:
            raise PartyError(f"round {t} cannot be used ({error}); the run ends, as was agreed") from None
        # one after the other: no round is there without those before it
        self._written()
        self._writing = self._pool.submit(write_whole, self._file(t), encoded(list(packets)))
        if form.curated:
            # what leaves here is on disk first: a sum that was noised is never noised anew
            self._written()
        self._keep(t, list(packets), released)

    def _written(self) -> None:
        """Wait until what was released is on disk. What sites have sent may be passed on meanwhile: it is on their
        disks, and they answer with the same bytes when they are asked again."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _model(self, t: int) -> np.ndarray:
        """Where the moments numbered so are taken: once asked for, always there."""
        path = self.folder / f"model-{t:06d}"
        if not path.exists():
            write_whole(path, packed_array(self.course.at))
        return unpacked_array(path.read_bytes(), (self.form.size(0),))

    def _keep(self, t: int, packets: list[bytes], released: np.ndarray) -> None:
        if t < self.plan.n_rounds:
            self.releases.append(released)
        else:
            self.course.hear(self._model(t), released.sum(axis=0))
        self.packets.append(packets)
        self.chain.add(self.form.signed(t, released))

    def _sent(self, t: int, message: Message) -> tuple[np.ndarray, bytes]:
        """What a party has sent in round t, checked, and the packet itself."""
        if not self.form.curated:
            return self.form.value(t, message), message.packet
        if message["round"] != t:
            raise MessageError(f"an answer to round {message['round']} instead of {t}")
        content = self.keys.open_sealed(message["sealed"], seal_context(self.proposal.digest, t, message.sender))
        return unpacked_array(content, (self.form.size(t),)), message.packet

    def _resume(self) -> None:
        """What was released before, checked as if it came in now."""
        name = self.folder / "proposal.json"
        if name.exists() and Proposal.read(name).digest != self.proposal.digest:
            raise InputError(f"run: {str(self.folder)!r} holds a run of another proposal; choose another folder")
        if not name.exists():
            write_whole(name, self.proposal.to_json().encode())
        while (path := self._file(t := len(self.packets))).exists():
            try:
                packets = decoded(path.read_bytes())
                values = [self._stored(t, packet) for packet in packets]
                released = self.form.released(t, values)
            except (ValueError, TypeError, KeyError, OSError, MessageError) as error:
                way = (
                    "bring it back, for a sum is noised once"
                    if self.form.curated
                    else "remove it to ask for that round again"
                )
                raise InputError(f"run: {str(path)!r} cannot be read ({error}); {way}") from None
            self._keep(t, packets, released)

    def _stored(self, t: int, packet: bytes) -> np.ndarray:
        message = unpack(packet)
        identity = self.proposal.identity_of(message.sender)
        if identity is None:
            raise MessageError("a packet of another run")
        message.check_signature(identity)
        return self.form.value(t, message)

    def _file(self, t: int) -> Path:
        return self.folder / f"round-{t:06d}"

    # --- asking -----------------------------------------------------------------------------------------------------

    def _packed(self, kind: str, **fields: Any) -> bytes:
        return pack(kind, self.proposal.digest, COORDINATOR, self.keys, **fields)

    def _told(self, kind: str, party: str, until: int, **more: Any) -> bytes:
        """A request with all that the party has not heard yet of rounds before `until`."""
        first = min(self.known[party], until)
        return self._packed(kind, first=first, heard=self.packets[first:until], **more)

    def _ask_all(
        self,
        phase: str,
        parties: Sequence[str],
        request: Callable[[str], bytes],
        read: Callable[[Message], Any],
        *,
        kind: str,
    ) -> dict[str, Any]:
        """Everybody's answers, each asked by a thread of its own until it answers."""
        answered: dict[str, Any] = {}

        def tell() -> None:
            if self.watch is not None:
                waiting = tuple(party for party in parties if party not in answered)
                self.watch(Progress(phase, len(self.releases), self.plan.n_rounds, tuple(answered), waiting))

        def ask(party: str) -> None:
            answered[party] = self._ask(party, request, read, kind)
            tell()

        tell()
        asking = [self._pool.submit(ask, party) for party in parties]
        try:
            while not _over(*wait(asking, TELL_AGAIN_S, FIRST_EXCEPTION)):
                # whom the run is waiting for, of whom nothing is heard
                tell()
        finally:
            if not all(future.done() and future.exception() is None for future in asking):
                # nobody goes on waiting for the others
                self.stop.set()
            wait(asking)
        failed = [error for future in asking if (error := future.exception()) is not None]
        for error in failed:
            # which those get who were waiting meanwhile
            if not isinstance(error, Interrupted):
                raise error
        if failed:
            raise failed[0]
        return {party: answered[party] for party in parties}

    def _ask(self, party: str, request: Callable[[str], bytes], read: Callable[[Message], Any], kind: str) -> Any:
        started, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            if self.stop.is_set():
                raise Interrupted(self.transcript)
            try:
                packet = self.exchange(party, request(party))
            except UnreachableError:
                limit = self.proposal.wait_s
                if limit is not None and time.monotonic() - started > limit:
                    raise PartyError(
                        f"{party} has not answered for {limit:g} seconds; the run ends, as was agreed"
                    ) from None
                self.stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            except MessageError as error:
                raise self._unusable(party, error) from None
            message = self._checked(party, packet)
            # it was started again, and remembers what it has committed only
            if message.kind == "behind":
                self.known[party] = message["known"]
                continue
            if message.kind == "refused":
                raise PartyError(f"{party} refused, for a reason that stands in its own log; the run ends")
            try:
                if message.kind != kind:
                    raise MessageError(f"a {message.kind!r} where a {kind!r} belongs")
                return read(message)
            except (MessageError, SignatureError, InputError) as error:
                raise self._unusable(party, error) from None

    def _checked(self, party: str, packet: bytes) -> Message:
        """The message, if the party itself sent it about this run."""
        identity = self.proposal.identity_of(party)
        assert identity is not None
        try:
            message = unpack(packet)
            if message.sender != party:
                raise MessageError(f"a message of {message.sender!r}")
            if message.run != self.proposal.digest:
                raise MessageError("a message about another run")
            message.check_signature(identity)
        except MessageError as error:
            raise self._unusable(party, error) from None
        return message

    def _unusable(self, party: str, error: Exception) -> PartyError:
        return PartyError(f"{party} sent something that cannot be used ({error}); the run ends, as was agreed")

    def _signed(self, message: Message) -> tuple[dict[str, Any], str]:
        try:
            statement = json.loads(message["statement"])
        except ValueError:
            raise MessageError("a statement that is no JSON") from None
        identity = self.proposal.identity_of(message.sender)
        assert identity is not None
        signature = message["signature"].decode("ascii", errors="replace")
        check_statement(statement, identity, signature)
        said = {name: statement[name] for name in ("run", "plan", "party", "transcript")}
        meant = (self.proposal.digest, self.plan.digest, message.sender, self.chain.hexdigest)
        if tuple(said.values()) != meant:
            raise MessageError("a signature under something else than this run")
        return statement, signature


def _over(done: Collection[Future[Any]], left: Collection[Future[Any]]) -> bool:
    """Whether everybody has answered, or somebody never will."""
    return not left or any(future.exception() is not None for future in done)
