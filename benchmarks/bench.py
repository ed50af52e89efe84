"""All benchmarks with one command: a table, `results/bench.json` and `results/bench.png`.

    python benchmarks/bench.py                                 everything at full scale
    python benchmarks/bench.py NAME ...                        some of it, the table alone
    python benchmarks/bench.py --quick                         small scales, ratios compared with bench_reference.json
    python benchmarks/bench.py --quick --update-reference      and the reference replaced by what is found

Each benchmark runs in a process of its own and can be run alone. Machines and their other users differ, so only ratios
of things measured side by side are compared with the reference. With `--quick`, a ratio that has lost more than 30 % is
measured once more; if it is still lost, the exit code is 1.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from figures import RATIO, Figure, in_new_process, table

HERE = Path(__file__).parent
RESULTS, REFERENCE = HERE / "results", HERE / "bench_reference.json"
BENCHMARKS = ("sweep", "federated_lasso", "many_parties", "people_scale", "mpi_scaling", "draws", "start_up")
# share of the reference below which a ratio counts as lost
KEPT = 0.7


def kept(figure: Figure, reference: float) -> float:
    """The share of the reference that is left: 1 is as good as it was, more is better."""
    return reference / figure.value if figure.less_is_better else figure.value / reference


def losses(figures: list[Figure], reference: dict[str, float]) -> dict[str, str]:
    """Name -> a sentence, for each ratio of the reference that is lost or missing."""
    ratios, found = {figure.name: figure for figure in figures if figure.unit == RATIO}, {}
    for name, before in reference.items():
        if name not in ratios:
            found[name] = f"{name}: was not measured, and the reference has {before:.3g}."
        elif (share := kept(ratios[name], before)) < KEPT:
            now, worse = ratios[name].value, 1 - share
            found[name] = (
                f"{name}: {now:.3g} where the reference has {before:.3g}, a loss of {worse:.0%} (30% allowed)."
            )
    return found


def better_of(first: list[Figure], second: list[Figure]) -> list[Figure]:
    """Ratios measured twice: the better of both."""
    again = {figure.name: figure for figure in second if figure.unit == RATIO}
    return [again[f.name] if f.name in again and kept(again[f.name], f.value) > 1 else f for f in first]


def beside_reference(figures: list[Figure], reference: dict[str, float]) -> dict[str, str]:
    """Name -> what to print behind a ratio."""
    return {
        figure.name: f"reference {reference[figure.name]:.4g}, {kept(figure, reference[figure.name]):.0%} kept"
        if figure.name in reference
        else "no reference"
        for figure in figures
        if figure.unit == RATIO
    }


def run(name: str, quick: bool) -> tuple[list[Figure], dict]:
    """Figures and details of one benchmark."""
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    done = in_new_process(command)
    print(f"{done.seconds:.1f} s", file=sys.stderr)
    details = json.loads(done.output)
    return [Figure.from_row(row) for row in details.pop("figures")], {"seconds": done.seconds, **details}


def draw(figures: list[Figure], path: Path) -> None:
    """How many times over each target is met; 1 is the target."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    one_sided = [f for f in figures if (f.at_least is None) != (f.at_most is None)]
    times = [f.at_most / f.value if f.less_is_better else f.value / f.at_least for f in one_sided]  # type: ignore[operator]
    fig, ax = plt.subplots(figsize=(9, 0.8 + 0.32 * len(one_sided)), layout="constrained")
    ax.hlines(range(len(times)), 1, times, color="0.7")
    ax.plot(times, range(len(times)), "o", color="0.2")
    ax.axvline(1, color="0.2", linestyle="--")
    ax.set_yticks(range(len(times)), [f"{f.name}\n{f.value:.3g} {f.unit} ({f.target})" for f in one_sided], fontsize=7)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("times the target is met (right of the line: met)")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="small scales, compared with the reference")
    parser.add_argument("--update-reference", action="store_true", help="with --quick: keep these ratios")
    arguments = parser.parse_args()
    names = arguments.names or BENCHMARKS
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"NAME: got {', '.join(sorted(unknown))}; {', '.join(BENCHMARKS)} are known")
    if arguments.update_reference and (not arguments.quick or arguments.names):
        parser.error("--update-reference: needs --quick and all benchmarks, which is what is compared")
    started = time.perf_counter()
    found = {name: run(name, arguments.quick) for name in names}
    if arguments.quick:
        code = _quick(found, arguments.update_reference, whole=not arguments.names)
        print(f"{time.perf_counter() - started:.0f} s in all")
        return code
    figures = [figure for some, _ in found.values() for figure in some]
    print(table(figures))
    # files hold everything or nothing
    if arguments.names:
        return 0
    RESULTS.mkdir(exist_ok=True)
    content = {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "figures": [figure.row() for figure in figures],
        "details": {name: details for name, (_, details) in found.items()},
    }
    (RESULTS / "bench.json").write_text(json.dumps(content, indent=1) + "\n")
    draw(figures, RESULTS / "bench.png")
    print(f"written: {RESULTS / 'bench.json'}, {RESULTS / 'bench.png'}")
    return 0


def _quick(found: dict[str, tuple[list[Figure], dict]], update: bool, whole: bool) -> int:
    reference = json.loads(REFERENCE.read_text()) if REFERENCE.exists() and not update else {}
    # of the reference, what these benchmarks measure
    if not whole:
        measured = {figure.name for figures, _ in found.values() for figure in figures}
        reference = {name: value for name, value in reference.items() if name in measured}
    by_benchmark = {name: figures for name, (figures, _) in found.items()}
    for name, figures in by_benchmark.items():
        own = {figure.name: reference[figure.name] for figure in figures if figure.name in reference}
        if losses(figures, own):
            by_benchmark[name] = better_of(figures, run(name, quick=True)[0])
    figures = [figure for some in by_benchmark.values() for figure in some]
    print(table(figures, beside_reference(figures, reference)))
    if update:
        ratios = {figure.name: float(f"{figure.value:.4g}") for figure in figures if figure.unit == RATIO}
        REFERENCE.write_text(json.dumps(ratios, indent=1) + "\n")
        print(f"written: {REFERENCE}")
    lost = losses(figures, reference)
    for sentence in lost.values():
        print(sentence, file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
