"""What a run released, and nothing else: it can be saved, loaded and replayed to the same model."""

import dataclasses
import functools
import hashlib
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Heard
from coterie.charts import Lines, Series
from coterie.data.federation import Clipping
from coterie.errors import InputError
from coterie.network.channels import ImpairedTopology, Impairments
from coterie.network.topology import All, participants
from coterie.plan import Plan
from coterie.privacy.accountants import Ledger
from coterie.values import decode, encode

_MEMBERS = ("header.npy", "releases.npy")
# bytes, four to a letter: it holds the whole plan
LARGEST_HEADER = 4 * 10**8
_MOST_COMPRESSED = 100
RANDOMNESS = {True: "seeded: not private", False: "operating-system entropy"}


@dataclasses.dataclass(frozen=True)
class Transcript:
    """What a run released, and nothing else; models are recomputed from it.

    plan: what was run.
    releases: (repeat, round, party, coefficient); aggregated channels and tokens release once a round (party axis 1),
        and where only some parties work in a round they stand side by side, in the order of their numbers.
    reproducible: whether the noise can be drawn again, and so be subtracted.
    impairments: which messages were lost or late.

    Repeats are independent runs of one plan on the same data: for research. Publishing more than one costs each one's
    loss again.
    """

    plan: Plan
    releases: np.ndarray
    reproducible: bool
    impairments: Impairments | None = None

    @property
    def n_rounds(self) -> int:
        return self.releases.shape[1]

    @property
    def complete(self) -> bool:
        return self.n_rounds == self.plan.n_rounds

    @functools.cached_property
    def party_models(self) -> np.ndarray:
        """Coefficients every party ends with, (repeat, party, coefficient)."""
        return np.asarray(self._replayed[0])

    @functools.cached_property
    def models(self) -> np.ndarray:
        """The model of each repeat, (repeat, coefficient)."""
        return np.asarray(self._replayed[1])

    @functools.cached_property
    def models_by_round(self) -> np.ndarray:
        """The model after each round, (repeat, round, coefficient)."""
        return np.asarray(self._replayed[2])

    @property
    def clipping(self) -> Clipping | None:
        """How rows are to be clipped before the model of the first repeat is applied; None where they stay."""
        found = self._replayed[3]
        return None if found is None else Clipping(*(values[0] for values in found))

    @functools.cached_property
    def _replayed(self) -> Any:
        """Run the public half of the algorithm over the releases."""
        algorithm, topology = self.plan.algorithm, self.plan.topology
        d = self.releases.shape[-1]
        received: Any = self.releases if not algorithm.channel.aggregates else self.releases[:, :, 0]
        who = self._who

        def one_repeat(received: jax.Array) -> Any:
            def body(public: Any, xs: Any) -> Any:
                t, value, delivery, who = xs
                network: Any = topology if delivery is None else ImpairedTopology(topology, delivery)
                value = value if who is None else Heard(who, value)
                public = algorithm.combine(t, public, value, network)
                return public, algorithm.model(public)

            public = algorithm.init(topology, d)[0]
            rounds = jnp.arange(received.shape[0], dtype=received.dtype)
            deliveries = None
            if self.impairments is not None:
                deliveries = jax.tree.map(lambda a: a[: self.n_rounds], self._deliveries)
            public, by_round = jax.lax.scan(body, public, (rounds, received, deliveries, who))
            return algorithm.models(public), algorithm.model(public), by_round, algorithm.clipping(public)

        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(one_repeat))(received))

    @property
    def _who(self) -> np.ndarray | None:
        who = who_released(self.plan)
        return None if who is None else who[: self.n_rounds]

    def ledger(self, party: int) -> Ledger:
        """What a record of this party has paid for all that is in here: every repeat pays, and rounds that did not
        happen or were skipped cost nothing."""
        repeats = self.releases.shape[0]
        if self.impairments is None:
            return [(event, count * repeats) for event, count in self.plan.ledger(party, n_rounds=self.n_rounds)]
        grants, index = self.plan.issued
        rounds = np.broadcast_to(index[:, party], self.plan.n_rounds)[: self.n_rounds]
        kinds, counts = np.unique(rounds[self._deliveries.speaks[: self.n_rounds, party]], return_counts=True)
        return [(grants[g].event, int(count) * repeats) for g, count in zip(kinds, counts, strict=True)]

    @property
    def _deliveries(self) -> Any:
        assert self.impairments is not None
        return self.impairments.deliveries(self.plan.topology, self.plan.n_rounds)

    def plot_loss(self, public: Any, ax: Any = None) -> Any:
        """Mean loss of the model after each round on the records of `public`, on matplotlib axes.

        public: a Federation of records that everybody may know, encoded as those of the run: the numbers are exact.
        """
        X, y, weights = public.pooled
        loss, models = self.plan.problem.loss, self.models_by_round[0]
        if X.shape[1] != self.plan.facts.n_features:
            raise InputError(
                f"public: got {X.shape[1]} features; those of the run, {self.plan.facts.n_features}, are needed"
            )
        if self.clipping is not None:
            X = self.clipping.of_design(np.asarray(X), self.plan.facts.row_norm)
        with jax.enable_x64(True):
            losses = []
            for model in models:
                matrix = model if loss.n_outputs == 1 else model.reshape(-1, loss.n_outputs)
                each = np.asarray(loss.value(jnp.asarray(np.asarray(X) @ matrix), jnp.asarray(y)))
                losses.append(float(np.average(each, weights=weights)))
        return Lines(
            title="Loss after each round, on public records",
            x_label="round",
            y_label=f"mean {type(loss).__name__.lower()} loss",
            series=(Series("model", tuple(range(1, len(losses) + 1)), tuple(losses)),),
            whole_x=True,
            from_zero=False,
        ).plot(ax)

    def save(self, path: str | Path) -> Path:
        """Write one .npz file, all of it or nothing, never over an existing file."""
        path = Path(path)
        if path.exists():
            raise InputError(f"path: {str(path)!r} exists already; a transcript is never overwritten")
        header = {
            "plan": json.loads(self.plan.to_json()),
            "digest": self.plan.digest,
            "reproducible": self.reproducible,
            "impairments": encode(self.impairments),
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "xb") as file:
                np.savez_compressed(file, releases=self.releases, header=np.array(json.dumps(header)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Transcript":
        """Read what `save` wrote and nothing else; sizes are checked before anything of that size is made."""
        try:
            with zipfile.ZipFile(path) as archive:
                if sorted(archive.namelist()) != sorted(_MEMBERS):
                    raise ValueError(f"it holds {', '.join(archive.namelist())[:200] or 'nothing'}")
                header = json.loads(str(_member(archive, "header.npy", _is_header)))
                if not isinstance(header, dict) or header.keys() != {"plan", "digest", "reproducible", "impairments"}:
                    raise ValueError("its header has other keys")
                plan = Plan.from_json(json.dumps(header["plan"]))
                if plan.digest != header["digest"]:
                    raise InputError(f"path: {str(path)!r} carries a plan that does not match its digest")
                impairments, reproducible = decode(header["impairments"]), header["reproducible"]
                if not isinstance(impairments, (Impairments, type(None))) or not isinstance(reproducible, bool):
                    raise ValueError("its header holds values of other types")
                width, d = plan.release_width, plan.problem.n_coefficients(plan.facts)

                def fits(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
                    rounds_fit = len(shape) == 4 and shape[0] >= 1 and shape[1] <= plan.n_rounds
                    return rounds_fit and shape[2:] == (width, d) and dtype == np.float64

                releases = _member(archive, "releases.npy", fits)
        except InputError:
            raise
        except (
            OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error, RecursionError,
            NotImplementedError, RuntimeError, MemoryError, OverflowError, struct.error,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"path: {str(path)!r} is no transcript ({type(error).__name__}: {reason})") from None
        if not np.isfinite(releases).all():
            raise InputError(f"path: {str(path)!r} holds releases that are no finite numbers, which no run releases")
        return cls(plan=plan, releases=releases, reproducible=reproducible, impairments=impairments)


class ReleaseChain:
    """A hash of what a run has released so far, that everybody who takes part can compute and sign."""

    def __init__(self, run: str) -> None:
        self.hexdigest = hashlib.sha256(f"coterie releases {run}".encode()).hexdigest()

    def add(self, released: np.ndarray) -> None:
        """Of the next round, (width, d), as it stands in a transcript."""
        content = np.ascontiguousarray(released, dtype="<f8").tobytes()
        self.hexdigest = hashlib.sha256(bytes.fromhex(self.hexdigest) + content).hexdigest()


def who_released(plan: Plan) -> np.ndarray | None:
    """(n_rounds, width): who released what, where not everybody does; a secret walk's values do not tell."""
    if plan.algorithm.channel.aggregates or isinstance(plan.algorithm.selection, All):
        return None
    if plan.participation is None:
        return np.full((plan.n_rounds, 1), plan.facts.n_parties)
    return participants(plan.participation)


def _is_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return shape == () and dtype.kind == "U" and dtype.itemsize <= LARGEST_HEADER


def _member(archive: zipfile.ZipFile, name: str, fits: Callable[[tuple[int, ...], np.dtype[Any]], bool]) -> np.ndarray:
    """One array, if its shape and type are wanted and the archive holds as much as they say."""
    info = archive.getinfo(name)
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            shape, _, dtype = read(file)
        except Exception as error:
            # NumPy reads it as Python, which can fail in every way that Python knows
            raise ValueError(f"{name} has no header ({error})") from None
        if dtype.hasobject or not fits(shape, dtype):
            raise ValueError(f"{name} of shape {shape} and type {dtype} does not fit its plan")
        if info.file_size - file.tell() != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} is not as long as its shape {shape} says")
        if info.file_size > 10**6 + _MOST_COMPRESSED * info.compress_size:
            raise ValueError(f"{name} would take {info.file_size:,} bytes, more than noised values can be packed from")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


class Interrupted(KeyboardInterrupt):
    """A run was stopped by the user; `transcript` holds the rounds that were completed."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(f"stopped after {transcript.n_rounds} of {transcript.plan.n_rounds} rounds")
        self.transcript = transcript
