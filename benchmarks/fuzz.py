"""Feed the package changed specs, schemas, tables, plans, certificates, transcripts, checkpoints and run directories.

python benchmarks/fuzz.py [--times 10000] [--seed 0] [--workers 2] [--only plan ...]

Each input is what a run wrote or a user would write, changed at random. It must be refused in a sentence, or accepted
where nothing that it says has changed or all that was changed is kept. Faults: any other error, more than ten seconds
of computing, more than a gigabyte of memory, and an acceptance that is wrong. Workers are processes with a limit on
their address space and an alarm for each input. A fault is told with the number of its input, which `--first N --times
1` repeats.
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coterie.certificate import Certificate
from coterie.cli.main import main as command
from coterie.cli.spec import prepare, read_spec
from coterie.cli.spec.verification import ONLY_SAID, verify_path
from coterie.data import Schema
from coterie.engines.checkpoint import Checkpoint, records_mark
from coterie.errors import CoterieError
from coterie.plan import Plan
from coterie.transcript import Transcript

SECONDS, BYTES = 10, 2**30
SPEC = """\
[data]
file = "patients.csv"
row_norm = 1.0
[schema]
party_column = "hospital"
[schema.label]
name = "outcome"
values = ["no", "yes"]
[[schema.columns]]
name = "age"
minimum = 0
maximum = 100
[[schema.columns]]
name = "smoker"
categories = ["never", "ever"]
[parties]
topology = "complete"
[problem]
loss = "logistic"
l2 = 1.0
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
unit = "record"
records_per_person = 1
trust = "none"
[algorithm]
name = "penalty-perturbed-admm"
rounds = 3
penalty = 1.0
[engine]
name = "in-process"
"""
SCHEMA = """\
party_column = "hospital"
[label]
name = "outcome"
values = ["no", "yes"]
[[columns]]
name = "age"
minimum = 0
maximum = 100
[[columns]]
name = "smoker"
categories = ["never", "ever"]
"""
ROWS = [(30 + i, ("never", "ever")[i % 2], ("north", "south")[i % 2], ("no", "yes")[i % 3 == 0]) for i in range(12)]
TABLE = "age,smoker,hospital,outcome\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)
IDENTITY = {"plan": "a digest", "ranks": 1}
RECORDS = [np.arange(6.0).reshape(2, 3), np.ones(2)]
# words that numbers and texts are replaced by
ODD: tuple[str, ...] = (
    "nan", "inf", "-inf", "-1", "0", "1e308", "1e-320", "1e400", "9" * 30, "-0.0", "true", '""', "[]", "{}", "null",
    '"x"', "1_0", "0x10", "\u202e", "\u200b", "\x00", "'" * 3, "\\", "\ud800", "a" * 5000, "[" * 300, "{" * 300,
    "NaN", "Infinity", "1979-05-27", "../../etc/passwd", "/dev/zero", "<b>", "\x1b[31m", "%s", "é", "2e9", "1000000000",
)  # fmt: skip


class WronglyAcceptedError(Exception):
    """What was accepted is not what was given."""


class TooLong(BaseException):
    pass


# --- changes ---------------------------------------------------------------------------------------------------------


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and place < len(out):
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[place:place] = rng.randbytes(rng.choice((1, 2, 8, 300)))
        elif kind == 2:
            del out[place : place + rng.choice((1, 2, 8, 300))]
        elif kind == 3:
            del out[place:]
        elif kind == 4:
            out[place:place] = out[place : place + rng.choice((1, 20, 400))]
        else:
            out[place : place + 4] = rng.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")
            )
    return bytes(out)


def changed_text(text: str, rng: random.Random) -> bytes:
    """A word, a number or a line replaced, doubled, moved or taken away; now and then bytes."""
    if rng.random() < 0.2:
        return changed_bytes(text.encode(), rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.6:
            words = _pieces(text)
            place = rng.randrange(len(words))
            words[place] = rng.choice((*ODD, "", words[rng.randrange(len(words))], words[place] * 2))
            text = "".join(words)
        else:
            lines = text.splitlines(keepends=True) or [""]
            place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            kind = rng.randrange(4)
            if kind == 0:
                del lines[place]
            elif kind == 1:
                lines.insert(other, lines[place])
            elif kind == 2:
                lines[place], lines[other] = lines[other], lines[place]
            else:
                lines[place] = lines[place].rstrip("\n") * rng.choice((2, 50)) + "\n"
            text = "".join(lines)
    return text.encode("utf-8", "surrogatepass")


def _pieces(text: str) -> list[str]:
    """Words, and what is between them."""
    pieces, inside = [""], False
    for letter in text:
        if (letter.isalnum() or letter in "._-+") == inside:
            pieces[-1] += letter
        else:
            pieces.append(letter)
            inside = not inside
    return pieces


def changed_json(text: str, rng: random.Random) -> bytes:
    """One value of a document replaced, doubled or taken away; now and then its text is changed."""
    if rng.random() < 0.3:
        return changed_text(text, rng)
    content = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        holders = [node for node in _nodes(content) if node]
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(("extra", "type", "", "__class__", "n_rounds"))] = _odd_value(rng)
        elif kind == 2 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * rng.choice((0.5, 2, -1, 1e9, 1 + 1e-12)) + rng.choice((0, 1))
        elif kind == 3:
            holder[key] = rng.choice([*_nodes(content), rng.choice(holders)])
            with contextlib.suppress(ValueError, RecursionError):
                content = json.loads(json.dumps(content))
                continue
            content = json.loads(text)
        else:
            holder[key] = _odd_value(rng)
        if not isinstance(content, dict) or not content:
            content = json.loads(text)
    return json.dumps(content, indent=1, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _nodes(content: Any) -> list[Any]:
    found = []
    if isinstance(content, (dict, list)):
        found.append(content)
        for value in content.values() if isinstance(content, dict) else content:
            found += _nodes(value)
    return found


def _odd_value(rng: random.Random) -> Any:
    deep: Any = []
    for _ in range(rng.choice((1, 50))):
        deep = [deep]
    odd = (
        math.nan,
        math.inf,
        -1,
        0,
        10**30,
        1e308,
        True,
        None,
        "",
        "x",
        "\u202e",
        [],
        {},
        deep,
        [0] * 1000,
        2.5,
        10**9,
    )
    return rng.choice(odd)


# --- kinds of inputs: each takes the untouched material, a folder of its own and a generator -------------------------


def fuzz_spec(base: Path, folder: Path, rng: random.Random) -> str:
    _copy(base, folder, "patients.csv")
    (folder / "spec.toml").write_bytes(changed_text(SPEC, rng))
    spec = read_spec(folder / "spec.toml")
    prepared = prepare(spec)
    prepared.certificate()
    loss = prepared.plan.epsilon(spec.privacy.delta)
    if not 0 <= loss <= spec.privacy.epsilon * (1 + 1e-9):
        raise WronglyAcceptedError(f"a loss of {loss} is planned where {spec.privacy.epsilon} was asked for")
    return "accepted"


def fuzz_schema(base: Path, folder: Path, rng: random.Random) -> str:
    (folder / "schema.toml").write_bytes(changed_text(SCHEMA, rng))
    schema = Schema.read(folder / "schema.toml")
    schema.write(folder / "again.toml")
    if Schema.read(folder / "again.toml").to_dict() != schema.to_dict():
        raise WronglyAcceptedError("the schema is another one when it is written and read again")
    return "accepted"


def fuzz_table(base: Path, folder: Path, rng: random.Random) -> str:
    _copy(base, folder, "spec.toml")
    (folder / "patients.csv").write_bytes(changed_text(TABLE, rng))
    prepared = prepare(read_spec(folder / "spec.toml"))
    for shard in prepared.records.federation.shards:
        norms = np.linalg.norm(shard.X, axis=1)
        if not (np.isfinite(shard.X).all() and (norms <= 1 + 1e-9).all() and np.isin(shard.y, (0.0, 1.0)).all()):
            raise WronglyAcceptedError("records beyond the public bounds were accepted")
    return "accepted"


def fuzz_plan(base: Path, folder: Path, rng: random.Random) -> str:
    plan = Plan.from_json(_decoded(changed_json((base / "run" / "plan.json").read_text(), rng)))
    loss = plan.epsilon(1e-5)
    if not loss >= 0:
        raise WronglyAcceptedError(f"a plan has the loss {loss}")
    if Plan.from_json(plan.to_json()).digest != plan.digest:
        raise WronglyAcceptedError("a plan is another one when it is written and read again")
    return "accepted"


def fuzz_certificate(base: Path, folder: Path, rng: random.Random) -> str:
    original = (base / "run" / "certificate.json").read_text()
    (folder / "certificate.json").write_bytes(changed_json(original, rng))
    verify_path(folder / "certificate.json")
    # a certificate of another plan may be right in itself; one of this plan says what it said
    text = (folder / "certificate.json").read_text()
    one, two = Certificate.from_json(original), Certificate.from_json(text)
    if one.plan.digest == two.plan.digest and _promise(one) != _promise(two):
        raise WronglyAcceptedError("a changed promise was verified")
    return "accepted"


def _promise(certificate: Certificate) -> Any:
    document = certificate.document
    return certificate.epsilon, certificate.delta, document["guarantee"], certificate.verdict


def fuzz_transcript(base: Path, folder: Path, rng: random.Random) -> str:
    path, stored = folder / "transcript.npz", base / "run" / "transcript.npz"
    original = Transcript.load(stored)
    if rng.random() < 0.5:
        path.write_bytes(changed_bytes(stored.read_bytes(), rng))
        loaded = Transcript.load(path)
        if not np.array_equal(loaded.releases, original.releases) or loaded.plan.digest != original.plan.digest:
            raise WronglyAcceptedError("changed bytes were read as other releases")
        return "accepted"
    with np.load(stored) as arrays:
        parts = {name: arrays[name] for name in arrays.files}
    kind = rng.randrange(4)
    if kind == 0:
        parts["header"] = np.array(_decoded(changed_json(str(parts["header"]), rng)))
    elif kind == 1:
        odd = (np.nan, np.inf, 1j, "x", 2**40, None)
        parts["releases"] = parts["releases"].astype(object)
        parts["releases"].flat[rng.randrange(parts["releases"].size)] = rng.choice(odd)
        with contextlib.suppress(TypeError, ValueError):
            parts["releases"] = np.array(parts["releases"].tolist())
    elif kind == 2:
        axis = rng.randrange(4)
        parts["releases"] = rng.choice(
            (np.repeat(parts["releases"], 2, axis), parts["releases"][:0], np.zeros((1,) * 6))
        )
    else:
        parts[rng.choice(("extra", "../up", "private", "header2"))] = np.zeros(3)
    out = io.BytesIO()
    np.savez(out, **parts)
    path.write_bytes(out.getvalue())
    loaded = Transcript.load(path)
    if not np.isfinite(loaded.releases).all() or loaded.releases.shape[2:] != original.releases.shape[2:]:
        raise WronglyAcceptedError("releases that no run makes were read")
    return "accepted"


def fuzz_run(base: Path, folder: Path, rng: random.Random) -> str:
    """One file of a directory changed, in every other case with its sum made right again."""
    copy = folder / "run"
    shutil.copytree(base / "run", copy)
    path = rng.choice(sorted(copy.iterdir()))
    before = path.read_bytes()
    # what the log says is told by the run, and nothing implies it
    if path.name == "run.log":
        return "accepted"
    change = changed_json if path.suffix == ".json" else changed_text
    changed = changed_bytes(before, rng) if path.suffix in (".npz", "") else change(before.decode(), rng)
    path.write_bytes(changed)
    if rng.random() < 0.5 and path.name != "SHA256SUMS":
        lines = (
            (copy / "SHA256SUMS")
            .read_text()
            .replace(hashlib.sha256(before).hexdigest(), hashlib.sha256(changed).hexdigest())
        )
        (copy / "SHA256SUMS").write_text(lines)
    verify_path(copy)
    if changed != before and not _says_the_same(path, before, changed):
        raise WronglyAcceptedError(f"{path.name} was changed and verified")
    return "accepted"


def _says_the_same(path: Path, before: bytes, after: bytes) -> bool:
    """White space, comments, the order of keys, dates in an archive and the last digits of a number carry nothing."""
    if path.suffix == ".json":
        return _nearly(json.loads(before), json.loads(after))
    if path.suffix == ".npz":
        one, two = (np.load(io.BytesIO(content)) for content in (before, after))
        return one.files == two.files and all((one[name] == two[name]).all() for name in one.files)
    if path.suffix == ".toml":
        import tomllib

        # a key that is not there has its default, and the plan that follows was compared; what nothing implies is told
        specs = [tomllib.loads(content.decode()) for content in (before, after)]
        for spec in specs:
            for table, keys in ONLY_SAID.items():
                for key in keys:
                    spec.get(table, {}).pop(key, None)
        return _where_both_speak(*specs)
    return path.name == "SHA256SUMS" and set(before.splitlines()) == set(after.splitlines())


def _nearly(one: Any, two: Any) -> bool:
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_nearly(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_nearly, one, two))
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (one, two))
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12) if numbers else (type(one), one) == (type(two), two)


def _where_both_speak(one: Any, two: Any) -> bool:
    if isinstance(one, dict) and isinstance(two, dict):
        return all(_where_both_speak(one[key], two[key]) for key in one.keys() & two.keys())
    return one == two and isinstance(one, bool) == isinstance(two, bool)


def fuzz_checkpoint(base: Path, folder: Path, rng: random.Random) -> str:
    shutil.copytree(base / "state", folder / "state")
    path = rng.choice(sorted((folder / "state").iterdir()))
    before = path.read_bytes()
    kind = rng.randrange(4)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(rng.choice(sorted((base / "state").iterdir())).read_bytes())
    elif path.name == "run.json":
        path.write_bytes(changed_json(before.decode(), rng))
    else:
        path.write_bytes(changed_bytes(before, rng))
    checkpoint = Checkpoint(folder / "state", rank=0)
    if not checkpoint.exists:
        return "gone"
    key = checkpoint.key(IDENTITY)
    if not checkpoint.same_records(records_mark(RECORDS, key)):
        raise WronglyAcceptedError("the records seem to be others")
    releases, private = checkpoint.load(checkpoint.rounds_done, 1) if checkpoint.rounds_done else (None, None)
    if releases is not None and not (releases == np.arange(24.0).reshape(2, 3, 4)).all():
        raise WronglyAcceptedError("changed releases were read")
    if private is not None and not (private[0] == 0.5).all():
        raise WronglyAcceptedError("changed states were read")
    return "accepted"


KINDS: dict[str, tuple[int, Callable[[Path, Path, random.Random], str]]] = {
    "spec": (8, fuzz_spec),
    "schema": (15, fuzz_schema),
    "table": (12, fuzz_table),
    "plan": (20, fuzz_plan),
    "certificate": (12, fuzz_certificate),
    "transcript": (15, fuzz_transcript),
    "run": (8, fuzz_run),
    "checkpoint": (10, fuzz_checkpoint),
}


# --- workers ---------------------------------------------------------------------------------------------------------


def material(base: Path) -> None:
    """What runs write, made once."""
    for name, text in (("spec.toml", SPEC), ("patients.csv", TABLE)):
        (base / name).write_text(text)
    before, sys.argv = sys.argv, ["coterie", "run", str(base / "spec.toml"), "--out", str(base / "run"), "--json"]
    try:
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            command()
    finally:
        sys.argv = before
    checkpoint = Checkpoint(base / "state", rank=0)
    checkpoint.begin(IDENTITY, [["before", 1.0, 1e-6]])
    checkpoint.same_records(records_mark(RECORDS, checkpoint.key(IDENTITY)))
    checkpoint.records_known()
    checkpoint.save(0, np.arange(24.0).reshape(2, 3, 4), [np.full((3, 4), 0.5)])
    checkpoint.all_saved(2)


def _copy(base: Path, folder: Path, *names: str) -> None:
    for name in names:
        shutil.copy(base / name, folder / name)


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def limited(base: str) -> None:
    """In each worker: an alarm for computing time, and no more than a gigabyte beyond what untouched inputs take."""
    prepare(read_spec(Path(base) / "spec.toml")).certificate()
    verify_path(Path(base) / "run")

    def ring(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, ring)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))


def one(base: str, seed: int, number: int, only: tuple[str, ...]) -> tuple[str, str, str, float]:
    """(kind, what came of it, why that is a fault, seconds)."""
    rng = random.Random(f"{seed} {number}")
    kinds = only or tuple(KINDS)
    kind = rng.choices(kinds, [KINDS[name][0] for name in kinds])[0]
    began = time.process_time()

    def fault(what: str) -> tuple[str, str, str, float]:
        return kind, "fault", what, time.process_time() - began

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            outcome = KINDS[kind][1](Path(base), Path(folder), rng)
        except CoterieError as error:
            if "\n" in str(error).strip() or len(str(error)) > 2000:
                return fault(f"no sentence: {str(error)[:200]!r}")
            return kind, "refused", "", time.process_time() - began
        except TooLong:
            return fault(f"more than {SECONDS} seconds")
        except WronglyAcceptedError as error:
            return fault(str(error))
        except MemoryError:
            return fault("more than a gigabyte")
        except BaseException:
            return fault(traceback.format_exc()[-900:])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return kind, outcome, "", time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], choices=list(KINDS))
    options = parser.parse_args()
    found, faults, longest = Counter(), [], Counter()
    with tempfile.TemporaryDirectory() as base:
        material(Path(base))
        # JAX does not survive a fork
        context = multiprocessing.get_context("spawn")
        numbers = range(options.first, options.first + options.times)
        arguments = [
            (base,) * len(numbers),
            (options.seed,) * len(numbers),
            numbers,
            (tuple(options.only),) * len(numbers),
        ]
        with ProcessPoolExecutor(options.workers, context, initializer=limited, initargs=(base,)) as pool:
            for number, (kind, outcome, why, seconds) in zip(
                numbers, pool.map(one, *arguments, chunksize=20), strict=True
            ):
                found[f"{kind}: {outcome}"] += 1
                longest[kind] = max(longest[kind], round(seconds, 2))
                if why:
                    faults.append(f"input {number}, {kind}: {why}")
                    print(faults[-1], file=sys.stderr, flush=True)
    result = {"times": options.times, "seed": options.seed, "found": dict(sorted(found.items()))}
    print(json.dumps({**result, "longest_seconds": dict(longest), "faults": len(faults)}, indent=1))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
