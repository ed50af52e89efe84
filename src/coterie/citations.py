"""What to cite: Coterie itself and the paper behind each algorithm, by the key that algorithms carry."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import coterie
from coterie.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Citation:
    key: str
    # BibTeX's word: article, inproceedings, software
    kind: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int | None

    @property
    def text(self) -> str:
        """One line for people."""
        year = "" if self.year is None else f" ({self.year})"
        venue = f" {self.venue}." if self.venue else ""
        return f"{_joined(self.authors)}{year}. {self.title}.{venue}"

    @property
    def bibtex(self) -> str:
        # braces around a name without a comma keep BibTeX from splitting it
        authors = (name if "," in name else f"{{{name}}}" for name in self.authors)
        fields = {"author": " and ".join(authors), "title": f"{{{self.title}}}"}
        if self.venue:
            fields[{"article": "journal", "inproceedings": "booktitle"}.get(self.kind, "note")] = self.venue
        if self.year is not None:
            fields["year"] = str(self.year)
        body = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{body}}}"

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "text": self.text, "bibtex": self.bibtex}


def _joined(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{'; '.join(names[:-1])} and {names[-1]}"


def _table(*citations: Citation) -> dict[str, Citation]:
    return {citation.key: citation for citation in citations}


SOFTWARE = Citation(
    key="coterie",
    kind="software",
    authors=("The Coterie developers",),
    title="Coterie: private learning among parties, with a privacy loss that can be checked",
    venue=f"Version {coterie.__version__}",
    year=None,
)

CITATIONS = _table(
    SOFTWARE,
    Citation(
        key="zhang-zhu-2016",
        kind="inproceedings",
        authors=("Zhang, Tao", "Zhu, Quanyan"),
        title="A Dual Perturbation Approach for Differential Private ADMM-Based Distributed Empirical Risk "
        "Minimization",
        venue="ACM Workshop on Artificial Intelligence and Security",
        year=2016,
    ),
    Citation(
        key="zhang-zhu-2017",
        kind="article",
        authors=("Zhang, Tao", "Zhu, Quanyan"),
        title="Dynamic Differential Privacy for ADMM-Based Distributed Classification Learning",
        venue="IEEE Transactions on Information Forensics and Security",
        year=2017,
    ),
    Citation(
        key="zhang-khalili-liu-2018",
        kind="inproceedings",
        authors=("Zhang, Xueru", "Khalili, Mohammad Mahdi", "Liu, Mingyan"),
        title="Improving the Privacy and Accuracy of ADMM-Based Distributed Algorithms",
        venue="International Conference on Machine Learning",
        year=2018,
    ),
    Citation(
        key="zhang-khalili-liu-2019",
        kind="article",
        authors=("Zhang, Xueru", "Khalili, Mohammad Mahdi", "Liu, Mingyan"),
        title="Recycled ADMM: Improving the Privacy and Accuracy of Distributed Algorithms",
        venue="IEEE Transactions on Information Forensics and Security",
        year=2019,
    ),
    Citation(
        key="chaudhuri-monteleoni-sarwate-2011",
        kind="article",
        authors=("Chaudhuri, Kamalika", "Monteleoni, Claire", "Sarwate, Anand D."),
        title="Differentially Private Empirical Risk Minimization",
        venue="Journal of Machine Learning Research",
        year=2011,
    ),
    Citation(
        key="bassily-smith-thakurta-2014",
        kind="inproceedings",
        authors=("Bassily, Raef", "Smith, Adam", "Thakurta, Abhradeep"),
        title="Private Empirical Risk Minimization: Efficient Algorithms and Tight Error Bounds",
        venue="IEEE Symposium on Foundations of Computer Science",
        year=2014,
    ),
    Citation(
        key="mangold-bellet-salmon-tommasi-2022",
        kind="inproceedings",
        authors=("Mangold, Paul", "Bellet, Aurélien", "Salmon, Joseph", "Tommasi, Marc"),
        title="Differentially Private Coordinate Descent for Composite Empirical Risk Minimization",
        venue="International Conference on Machine Learning",
        year=2022,
    ),
    Citation(
        key="cyffers-bellet-basu-2023",
        kind="inproceedings",
        authors=("Cyffers, Edwige", "Bellet, Aurélien", "Basu, Debabrota"),
        title="From Noisy Fixed-Point Iterations to Private ADMM for Centralized and Federated Learning",
        venue="International Conference on Machine Learning",
        year=2023,
    ),
)


def cite(names: Iterable[str], algorithms: Mapping[str, Any]) -> list[Citation]:
    """Coterie and the papers behind `names`: keys of CITATIONS or of `algorithms`; without names, everything."""
    from coterie.data.checks import nearest

    names = list(names)
    keys = [SOFTWARE.key] if names else list(CITATIONS)
    known = (*algorithms, *CITATIONS)
    for name in names:
        if name not in known:
            raise InputError(
                f"name: got {name!r}; an algorithm or the key of a paper is needed{nearest(name, known)} "
                f"(algorithms: {', '.join(algorithms)})"
            )
        keys.append(algorithms[name].citation if name in algorithms else name)
    return [CITATIONS[key] for key in dict.fromkeys(keys)]
