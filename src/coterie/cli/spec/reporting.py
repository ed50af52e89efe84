"""The report of a run: made from the other files of its directory, so it needs no sum and can be made again."""

import os
from pathlib import Path

from coterie.plan import Plan
from coterie.report import Published, RunFiles, report_page
from coterie.rundir import REPORT


def report_of(directory: Path) -> str:
    run = RunFiles.read(directory)
    return report_page(run, _published(run.plan))


def write_report(directory: Path) -> Path:
    """In the directory itself, over what an earlier version may have drawn; all of it or nothing."""
    page, path = report_of(directory), directory / REPORT
    temporary = directory.parent / f".{directory.name}-{REPORT}.{os.getpid()}"
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _published(plan: Plan) -> Published | None:
    """What the algorithm's paper states; none of them speaks of Gaussian noise, so most runs need no research."""
    if plan.algorithm.mechanism.law in (None, "gaussian"):
        return None
    from coterie.papers.bounds import published_bound

    found = published_bound(plan)
    return None if found is None else Published(found.theorem, found.total, found.hypotheses)
