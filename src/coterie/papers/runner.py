"""Compute figures part by part, keep what is finished, and write one directory per figure, complete or not at all.

OUT/NAME/     figure.png, curves.csv, claims.json, settings.json, page.md
OUT/.parts/   finished parts, so that a stopped run resumes
"""

import csv
import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

import coterie
from coterie.errors import InputError, MissingExtraError
from coterie.machine import end_with_parent
from coterie.papers.figure import Choice, Claim, Curve, Curves, Figure, Scale, find
from coterie.rundir import new_directory

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Progress = Callable[[int, int], None]
# of the progress bar per unit of cost
_UNITS = 1000
_POLLED_S = 0.1


@dataclasses.dataclass(frozen=True)
class Reproduced:
    figure: Figure
    directory: Path
    claims: tuple[dict[str, Any], ...]
    # it was there already
    resumed: bool

    def summary(self) -> dict[str, Any]:
        failing = [claim["text"] for claim in self.claims if not claim["holds"]]
        held = len(self.claims) - len(failing)
        return {"name": self.figure.name, "directory": str(self.directory), "claims_hold": held, "claims_fail": failing}


def reproduce(
    figures: Sequence[Figure],
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    scale: Scale | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    finished: Callable[[Reproduced], None] | None = None,
) -> list[Reproduced]:
    """`scale` replaces every figure's own; `finished` is told about each figure as it comes. With several `workers`,
    processes of their own compute the parts of registered figures."""
    _check_matplotlib()
    scales = [scale or figure.scale(quick=quick, seed=seed) for figure in figures]
    for figure, at in zip(figures, scales, strict=True):
        _check_resumable(figure, at, out / figure.name)
    clock = _Clock(sum(part.cost for figure in figures for part in figure.parts.values()), progress)
    done = []
    with _Workers(workers, figures, scales, out) as parts:
        for figure, at in zip(figures, scales, strict=True):
            result = _one(figure, at, out, clock, parts)
            done.append(result)
            if finished is not None:
                finished(result)
    return done


class _Workers:
    """Parts that processes of their own compute and keep, in the order in which they will be asked for.

    At quick scale all parts of a paper go to one process: they share programs, and compiling is most of the work.
    """

    def __init__(self, workers: int, figures: Sequence[Figure], scales: Sequence[Scale], out: Path) -> None:
        self.pool, self.coming = None, {}
        if workers <= 1:
            return
        # JAX does not survive a fork
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)
        tasks: dict[Any, list[tuple[str, str, Scale]]] = {}
        for figure, scale in zip(figures, scales, strict=True):
            for name in figure.parts if not _there(out / figure.name) else ():
                if _kept(_place(figure, name, scale, out)) is None:
                    task = figure.citation if scale.quick else (figure.name, name)
                    tasks.setdefault(task, []).append((figure.name, name, scale))
        for parts in tasks.values():
            future = self.pool.submit(compute_parts, parts, out)
            self.coming |= {(figure, name): future for figure, name, _ in parts}

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def wait_for(self, figure: str, part: str, place: Path) -> None:
        future = self.coming.get((figure, part))
        # parts that are computed after it may take a while yet
        while future is not None and _kept(place) is None:
            if future.done():
                return future.result()
            wait([future], timeout=_POLLED_S)


def compute_parts(parts: Sequence[tuple[str, str, Scale]], out: Path) -> None:
    """What a worker does: it knows figures by their names."""
    for figure, part, scale in parts:
        found = find([figure])[0]
        _keep(_place(found, part, scale, out), found.parts[part].compute(scale))


class _Clock:
    def __init__(self, total: float, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0.0, total, progress
        self.tick(0.0)

    def tick(self, cost: float) -> None:
        self.done += cost
        if self.progress is not None:
            self.progress(round(_UNITS * self.done), round(_UNITS * self.total))


def _there(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _place(figure: Figure, part: str, scale: Scale, out: Path) -> Path:
    return out / ".parts" / f"{figure.name}-{part}-{_key(figure, part, scale)}.npz"


def _one(figure: Figure, scale: Scale, out: Path, clock: _Clock, parts: _Workers) -> Reproduced:
    directory = out / figure.name
    if _there(directory):
        clock.tick(sum(part.cost for part in figure.parts.values()))
        claims = json.loads((directory / "claims.json").read_text(encoding="utf-8"))
        return Reproduced(figure, directory, tuple(claims), resumed=True)
    found: list[Curve] = []
    for name, part in figure.parts.items():
        kept = _place(figure, name, scale, out)
        parts.wait_for(figure.name, name, kept)
        curves = _kept(kept)
        if curves is None:
            curves = part.compute(scale)
            _keep(kept, curves)
        found += curves
        clock.tick(part.cost)
    curves = Curves([*found, *figure.derived(Curves(found))])
    claims = figure.claims(curves, scale)
    with new_directory(directory) as partial:
        _write_picture(partial / "figure.png", figure.draw(curves))
        _write_csv(partial / "curves.csv", curves)
        (partial / "claims.json").write_text(_json([claim.as_dict() for claim in claims]), encoding="utf-8")
        (partial / "settings.json").write_text(_json(_settings(figure, scale)), encoding="utf-8")
        (partial / "page.md").write_text(section(figure, curves, claims, scale), encoding="utf-8")
    return Reproduced(figure, directory, tuple(claim.as_dict() for claim in claims), resumed=False)


# --- identity ---------------------------------------------------------------------------------------------------------


def _settings(figure: Figure, scale: Scale) -> dict[str, Any]:
    return {
        "figure": figure.name,
        "citation": figure.citation,
        "title": figure.title,
        "scale": dataclasses.asdict(scale),
        "choices": [dataclasses.asdict(choice) for choice in figure.choices],
        "coterie": coterie.__version__,
        "revision": figure.revision,
    }


def _key(figure: Figure, part: str, scale: Scale) -> str:
    """What a part's curves depend on: claims and words about settings may change under parts that are kept."""
    computed = {
        "figure": figure.name,
        "part": part,
        "revision": figure.revision,
        "scale": dataclasses.asdict(scale),
        "coterie": coterie.__version__,
    }
    return hashlib.sha256(_json(computed).encode()).hexdigest()[:16]


def _check_resumable(figure: Figure, scale: Scale, directory: Path) -> None:
    """Refuse, before any work, a directory that holds something else than this figure at these settings."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    settings = directory / "settings.json"
    try:
        same = json.loads(settings.read_text(encoding="utf-8")) == json.loads(_json(_settings(figure, scale)))
    except (OSError, ValueError):
        same = False
    if not same:
        raise InputError(f"out: {str(directory)!r} was made with other settings; choose another directory or remove it")


# --- files ------------------------------------------------------------------------------------------------------------


def _keep(path: Path, curves: list[Curve]) -> None:
    """All of a part or nothing: written beside its place and moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"names": np.array([(c.panel, c.name) for c in curves], dtype=np.str_)}
    for i, curve in enumerate(curves):
        for field in ("x", "y", "low", "high"):
            if (values := getattr(curve, field)) is not None:
                arrays[f"{i} {field}"] = np.asarray(values, dtype=float)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **arrays)
    os.replace(partial, path)


def _kept(path: Path) -> list[Curve] | None:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            stored = {key: arrays[key] for key in arrays.files}
        return [
            Curve(
                str(panel),
                str(name),
                stored[f"{i} x"],
                stored[f"{i} y"],
                stored.get(f"{i} low"),
                stored.get(f"{i} high"),
            )
            for i, (panel, name) in enumerate(stored["names"])
        ]
    except (OSError, BadZipFile, KeyError, ValueError):
        return None


def _write_picture(path: Path, picture: "Picture") -> None:
    """A PNG with a palette: a third of the size, so that pages can carry many. Rare colours keep a place in it: a
    legend has lines that others hide in the plot."""
    # matplotlib needs it, too
    from PIL import Image

    drawn = io.BytesIO()
    picture.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def _write_csv(path: Path, curves: Curves) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("panel", "curve", "x", "y", "low", "high"))
        for curve in curves:
            nothing = [None] * len(curve.x)
            low, high = (nothing if bound is None else bound.tolist() for bound in (curve.low, curve.high))
            for row in zip(curve.x.tolist(), curve.y.tolist(), low, high, strict=True):
                writer.writerow((curve.panel, curve.name, *("" if value is None else f"{value:.10g}" for value in row)))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("the figures need matplotlib: pip install 'coterie[report]'") from None


# --- a section of a page: picture, table where there is one, claims, settings -----------------------------------------


def section(figure: Figure, curves: Curves, claims: Sequence[Claim], scale: Scale) -> str:
    """Markdown; the picture is figure.png beside it."""
    table = figure.table(curves)
    lines = [
        f"## {figure.title}",
        "",
        f"`coterie reproduce {figure.name}`, {scale.runs} run{'s' if scale.runs > 1 else ''} of {scale.iterations} "
        f"iterations, seed {scale.seed}"
        + (" (quick: too few runs to conclude from, and not all of the settings below)" if scale.quick else "")
        + ".",
        "",
        f"![{figure.title}](figure.png)",
        "",
        *([table, ""] if table else []),
        "| claim | where | accounting | holds | margin |",
        "|---|---|---|---|---|",
        *(_row(claim) for claim in claims),
        "",
        "| setting | value | from |",
        "|---|---|---|",
        *(f"| {_cell(c.name)} | {_cell(c.value)} | {_source(c)} |" for c in figure.choices),
    ]
    return "\n".join(lines) + "\n"


def _row(claim: Claim) -> str:
    holds = "yes" if claim.holds else "**no**"
    where, text, means = map(_cell, (claim.where, claim.text, claim.margin_means))
    return f"| {text} | {where} | {claim.accounting} | {holds} | {claim.margin:.3g}: {means} |"


def _source(choice: Choice) -> str:
    reason = f": {choice.reason}" if choice.reason else ""
    return _cell(("the paper" if choice.printed else "chosen") + reason)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
