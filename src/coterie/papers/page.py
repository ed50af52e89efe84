"""A figure's section of a documentation page: picture, table where there is one, claims, settings."""

from collections.abc import Sequence

from coterie.papers.figure import Choice, Claim, Curves, Figure, Scale


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
