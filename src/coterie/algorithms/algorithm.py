"""What an algorithm is: `local` sees one party's records and hands back a Release or a Contribution; everything else
sees released values only, and is therefore post-processing by signature.

    init(topology, d)                               -> (public, private)     both independent of the data
    inbox(t, public, topology)                      -> what each party hears, party axis first
    local(grant, problem, records, private, inbox, noise) -> (private, Release | Contribution)
    combine(t, public, received, topology)          -> public
    models(public)                                  -> coefficients per party, (n_parties, d) or (1, d)

`received` holds one released value per party (broadcast), or the one aggregate (curator, secure sum). Where not
everybody works in every round (`selection`), a broadcast arrives as `Heard`. `t` counts rounds from 0.0 and may be
traced. Code is written for one repeat; engines add the repeat axis. Private state is changed by grants only; `noise` is
None where the channel adds it.
"""

import dataclasses
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import jax

from coterie.errors import InputError
from coterie.network.channels import Channel, PairwiseSum, SecureSum, Token
from coterie.network.topology import EVERYBODY_WORKS, All, Poisson, Selection, Topology, Walk
from coterie.privacy.mechanisms import Grant, Mechanism
from coterie.privacy.release import Contribution, Release
from coterie.problems import Problem, Records
from coterie.values import Facts

GrantT = TypeVar("GrantT", bound=Grant)


class Heard(NamedTuple):
    """What those who worked in a round released; unused places hold zeros from party n_parties, which is nobody."""

    # (most who work in a round,)
    who: jax.Array
    # (most who work in a round, d)
    values: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Citation:
    """The paper behind an algorithm."""

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


class Algorithm(Generic[GrantT]):
    """`GrantT` is what its mechanism issues, and all that `local` is given to release with."""

    # every algorithm is a dataclass
    __dataclass_fields__: ClassVar[dict[str, Any]]
    mechanism: Mechanism
    channel: Channel
    citation: ClassVar[Citation]
    selection: Selection = EVERYBODY_WORKS
    # False: parties need not have neighbours
    needs_graph: ClassVar[bool] = True
    # lost messages and skipped rounds leave it well defined
    bears_impairments: ClassVar[bool] = True
    # on a walk, a holder that may not work any more still noises the token
    idle_adds_noise: ClassVar[bool] = False
    # what is released before its own steps, in words, a round each
    first_rounds: ClassVar[tuple[str, ...]] = ()
    # in a sum, a party that does not work counts as it did before; else as zero
    absent_stays: ClassVar[bool] = False

    def check(self, topology: Topology, problem: Problem) -> None:
        """Refuse settings that do not fit the graph or the problem."""
        accepted = get_type_hints(type(self))["mechanism"]
        if not isinstance(self.mechanism, accepted):
            names = " or ".join(kind.__name__ for kind in get_args(accepted) or (accepted,))
            raise InputError(
                f"mechanism: got {type(self.mechanism).__name__}; {type(self).__name__} is proved with {names}"
            )
        for name, schedule in self.mechanism.schedules().items():
            schedule.check_parties(name, topology.n_parties)
        self.channel.check(topology.n_parties)
        self.selection.check(topology)
        check_selection(self.selection, self.channel, self.mechanism)
        if self.needs_graph and topology.unrestricted and topology.n_parties > 1:
            raise InputError(f"topology: got 'unrestricted'; {type(self).__name__} needs a graph of neighbours")
        regulariser = getattr(self, "regulariser", problem.regulariser)
        if regulariser != problem.regulariser:
            raise InputError(
                f"regulariser: the algorithm has {regulariser}, the problem {problem.regulariser}; they must agree"
            )

    def for_facts(self, facts: Facts) -> "Algorithm":
        """The same algorithm with those of its settings that are public facts; one that is settled otherwise is
        refused."""
        return self

    def init(self, topology: Topology, d: int) -> tuple[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} has no method 'init'")

    def inbox(self, t: Any, public: Any, topology: Topology) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method 'inbox'")

    def local(
        self, grant: GrantT, problem: Problem, records: Records, private: Any, inbox: Any, noise: Any
    ) -> tuple[Any, Release | Contribution]:
        raise NotImplementedError(f"{type(self).__name__} has no method 'local'")

    def combine(self, t: Any, public: Any, received: Any, topology: Topology) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method 'combine'")

    def models(self, public: Any) -> jax.Array:
        raise NotImplementedError(f"{type(self).__name__} has no method 'models'")

    def clipping(self, public: Any) -> tuple[jax.Array, jax.Array] | None:
        """Centre and scale by which rows were clipped before the model met them, by column, where they were."""
        return None

    def model(self, public: Any) -> jax.Array:
        """The one model everybody ends with: the mean over parties, a function of released values."""
        return self.models(public).mean(axis=0)


def check_selection(selection: Selection, channel: Channel, mechanism: Mechanism) -> None:
    """Refuse selections that a channel cannot carry out, or under which a loss could not be stated."""
    if isinstance(channel, Token) != isinstance(selection, Walk):
        raise InputError(f"selection: got {selection}; a token channel needs a Walk, and a Walk a token channel")
    if isinstance(channel, (SecureSum, PairwiseSum)) and not isinstance(selection, All) and not selection.secret:
        raise InputError(
            f"selection: got {selection}; a {channel.name} needs every party's share of the noise in every round: "
            "use All, a secret Poisson, or a curator"
        )
    if not selection.secret:
        return
    if isinstance(selection, Poisson) and not channel.aggregates:
        raise InputError(f"selection: got {selection}; on a {channel.name} channel everybody sees who works")
    if isinstance(selection, Walk) and (selection.most_visits is None or not mechanism.constant_in_time):
        raise InputError(
            f"selection: got {selection}; a secret walk needs most_visits and a noise that stays the same, "
            "or nothing bounds what a party pays"
        )


# which of the models of all rounds is the model: the last, or an average, in which the noise of rounds cancels
Averaging = Literal["last", "uniform", "linear"]


def check_averaging(averaging: Any) -> None:
    if averaging not in get_args(Averaging):
        raise InputError(f"averaging: got {averaging!r}; one of {', '.join(get_args(Averaging))} is needed")


def running_average(averaging: Averaging, t: Any, average: Any, value: Any) -> Any:
    """Only the last value, or weights 1, 1, 1, ... or 1, 2, 3, ... over rounds t = 0, 1, 2, ..."""
    if averaging == "last":
        return value
    share = 1 / (t + 1) if averaging == "uniform" else 2 / (t + 2)
    return average + share * (value - average)
