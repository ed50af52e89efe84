"""Make the documentation's pages of reproduced figures from the results of `coterie reproduce --all`.

    python tools/reproduced_pages.py [reproduced]

One page per paper, docs/papers/reproduced-<paper>.md, with each figure's picture, claims and settings; pictures go to
docs/images/reproduced/. Results at quick scale are refused: they are too few to conclude from.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from PIL import Image

from coterie.algorithms import CITATIONS
from coterie.papers.figure import MODULES

DOCS = Path(__file__).parents[1] / "docs"
# bytes
LARGEST_PICTURE = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("reproduced"))
    results: Path = parser.parse_args().results
    papers: dict[str, list[str]] = {}
    for name in MODULES:
        directory = results / name
        if not directory.is_dir():
            print(f"{name}: no results in {results}", file=sys.stderr)
            continue
        settings = json.loads((directory / "settings.json").read_text(encoding="utf-8"))
        if settings["scale"]["quick"]:
            sys.exit(f"{directory}: made with --quick; run at full scale")
        picture = directory / "figure.png"
        pictures = DOCS / "images" / "reproduced"
        pictures.mkdir(parents=True, exist_ok=True)
        _copy_picture(picture, pictures / f"{name}.png")
        section = (directory / "page.md").read_text(encoding="utf-8")
        section = section.replace("(figure.png)", f"(../images/reproduced/{name}.png)")
        papers.setdefault(settings["citation"], []).append(section)
    for citation, sections in papers.items():
        title = "Beyond the papers" if citation == "coterie" else "Figures reproduced"
        page = DOCS / "papers" / f"reproduced-{citation}.md"
        head = f"# {title}\n\n{CITATIONS[citation].text}\n\n{INTRODUCTION}\n"
        page.write_text(head + "\n".join(sections), encoding="utf-8")
        print(page)


def _copy_picture(source: Path, to: Path) -> None:
    """With fewer colours where it would be too large for a page."""
    shutil.copyfile(source, to)
    for colours in (64, 32, 16):
        if to.stat().st_size <= LARGEST_PICTURE:
            return
        Image.open(source).convert("RGB").quantize(colours, method=Image.Quantize.MAXCOVERAGE).save(to, optimize=True)


INTRODUCTION = """\
Every claim that the paper's text makes about a figure, decided by a number. A claim about privacy is decided three
times: with the paper's own bound, with the certified pure loss, and with the certified loss at δ = 1e-6. A claim that
does not hold is a result. The margin is positive where the claim holds. `coterie reproduce` computes all of it again.
"""

if __name__ == "__main__":
    main()
