"""Public facts: the constants of a federation that everybody may know before a run."""

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable

from coterie.checks import positive_number
from coterie.errors import InputError
from coterie.serialise import serialisable

# control, zero-width and private characters, and lone surrogates
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def check_plain(what: str, texts: Iterable[str]) -> None:
    """Refuse names that a terminal or a page would not show as they are, such as one that hides another."""
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InputError(f"{what}: got {text!r}; texts that are not empty are needed")
        if not text.isprintable():
            for character in text:
                if unicodedata.category(character) in _UNSEEN:
                    raise InputError(f"{what}: got {text!r}; the character {character!r} in it cannot be seen")


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything about the data that is public, and nothing else.

    `labels` is the public label set (None for regression); labels travel as positions in it.
    `data_derived` names the facts that were read off the data: each one voids the guarantee.
    """

    parties: tuple[str, ...]
    sizes: tuple[int, ...]
    n_features: int
    row_norm: float
    labels: tuple[str, ...] | None = None
    label_bound: float | None = None
    weight_bound: float = 1.0
    data_derived: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parties) != len(self.sizes) or not self.parties:
            raise InputError(f"sizes: {len(self.sizes)} given for {len(self.parties)} parties; one per party is needed")
        for what, texts in (
            ("parties", self.parties),
            ("labels", self.labels or ()),
            ("data_derived", self.data_derived),
        ):
            check_plain(what, texts)
        if len(set(self.parties)) != len(self.parties):
            raise InputError(f"parties: names must differ, got {self.parties}")
        for name, size in zip(self.parties, self.sizes, strict=True):
            if size < 1:
                raise InputError(f"parties: party {name!r} has {size} records; at least 1 is needed")
        if self.n_features < 1:
            raise InputError(f"n_features: got {self.n_features}; at least 1 is needed")
        positive_number("row_norm", self.row_norm)
        positive_number("weight_bound", self.weight_bound)
        if not 1e-100 <= self.row_norm <= 1e100:
            raise InputError(f"row_norm: got {self.row_norm}; a number between 1e-100 and 1e100 is needed")
        if self.label_bound is not None:
            positive_number("label_bound", self.label_bound)
        if self.labels is not None and (len(self.labels) < 2 or len(set(self.labels)) != len(self.labels)):
            raise InputError(f"labels: got {self.labels}; at least two different labels are needed")

    @functools.cached_property
    def smallest(self) -> int:
        return min(self.sizes)

    @functools.cached_property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def n_parties(self) -> int:
        return len(self.parties)
