"""Several runs on one page: what accuracy each privacy loss has bought."""

import math
from collections.abc import Sequence

from coterie.certificate import shown_loss
from coterie.charts import Lines, Series, percent, short, short_percent, tiny
from coterie.report.page import Markup, figure, joined, page, paragraph, table
from coterie.rundir import RunFiles

# that are told apart by colour and shape
MOST_NAMED = 5


def compare_page(runs: Sequence[tuple[str, RunFiles]]) -> str:
    """(name, files) of each run, in the order of the page."""
    measure = "error" if all(_measured(run, "error") is not None for _, run in runs) else "rmse"
    if not any(_measured(run, measure) is not None for _, run in runs):
        measure = "error"
    parts = []
    chart = _frontier(runs, measure)
    if chart is not None:
        parts.append(figure(chart, "frontier-chart"))
    parts.append(_table(runs))
    left_out = [name for name, run in runs if not _drawn(run, measure)]
    if left_out:
        said = "Not drawn, because nothing bounds their loss or nothing public tells how good they are: "
        parts.append(paragraph(said + ", ".join(left_out) + "."))
    tests = {(_measured(run, "records"), _measured(run, "majority_error")) for _, run in runs if run.result}
    if len(tests) > 1:
        said = "The runs were tested on different records, so their numbers need not be comparable."
        parts.insert(0, paragraph(said, kind="warning"))
    footer = paragraph("Made by Coterie from the files of the runs. This page loads nothing and holds no record.")
    sections = [("frontier", "What each loss has bought", joined(parts))]
    return page(f"{len(runs)} runs compared", "Privacy loss against accuracy", sections, "", footer)


def _measured(run: RunFiles, key: str) -> float | None:
    return None if run.result is None else run.result.get(key)


def _drawn(run: RunFiles, measure: str) -> bool:
    bounded = not run.certificate.verdict and math.isfinite(run.certificate.epsilon)
    return bounded and _measured(run, measure) is not None


def _frontier(runs: Sequence[tuple[str, RunFiles]], measure: str) -> Lines | None:
    """Every run is a point, and the line is the least that any run of at most this loss has reached."""
    # as it is written: losses that were calibrated to one number differ by rounding
    points = [
        (float(shown_loss(run.certificate.epsilon)), float(run.result[measure]))
        for _, run in runs
        if _drawn(run, measure) and run.result
    ]
    if not points:
        return None
    best: list[tuple[float, float]] = []
    for loss, value in sorted(points):
        if not best or value < best[-1][1]:
            best.append((loss, value))
    base, names = ("majority_error", "majority class") if measure == "error" else ("mean_rmse", "always the mean")
    levels = {float(run.result[base]) for _, run in runs if run.result and base in run.result}
    free = {float(run.nonprivate[measure]) for _, run in runs if run.nonprivate and measure in run.nonprivate}
    points_of_runs = [Series("runs", *_columns(points), joined=False)]
    if len(points) <= MOST_NAMED:
        drawn = [name for name, run in runs if _drawn(run, measure)]
        points_of_runs = [Series(n, (x,), (y,), joined=False) for n, (x, y) in zip(drawn, points, strict=True)]
    return Lines(
        title="Error against privacy loss",
        x_label="ε of the run",
        y_label="error on public records" if measure == "error" else "root mean square error",
        series=(
            Series("least error so far", *_columns(best)),
            *points_of_runs,
        ),
        levels=(
            *((names, value) for value in sorted(levels)[:1]),
            *(("without privacy", value) for value in sorted(free)[:1]),
        ),
        log_x=True,
        shown=percent if measure == "error" else short,
        shown_tick=short_percent if measure == "error" else short,
    )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in points), tuple(y for _, y in points)


def _table(runs: Sequence[tuple[str, RunFiles]]) -> Markup:
    rows: list[list[str | tuple[str, float]]] = []
    names = {"error": "error", "auc": "AUC", "rmse": "root mean square error"}
    measured = {key: text for key, text in names.items() if any(_measured(run, key) is not None for _, run in runs)}
    for name, run in runs:
        certificate, result = run.certificate, run.result or {}
        loss = certificate.epsilon
        row: list[str | tuple[str, float]] = [
            name,
            (shown_loss(loss), loss),
            (tiny(certificate.delta), certificate.delta),
        ]
        for key in measured:
            form = {"error": percent, "auc": "{:.3f}".format}.get(key, short)
            row.append((form(result[key]), float(result[key])) if key in result else "")
        row += [certificate.document["mechanism"]["algorithm"], certificate.document["trust_model"]["channel"]]
        rows.append([*row, "; ".join(certificate.verdict) or "private"])
    heading = ["run", "ε", "δ", *measured.values(), "algorithm", "channel", "verdict"]
    return table(heading, rows, "Runs")
