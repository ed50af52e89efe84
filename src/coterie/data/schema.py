"""A public schema: what columns, categories, ranges and labels a federation agreed on before anyone looked at data, and
the preprocessing that follows from them alone.

Every constant is public, so encoding looks at no record but the one it encodes. Where they are left open, the centre of
a number is the middle of its range, and its scale the root mean square distance from the centre of a value that is
spread evenly over the range; one feature for each of k categories, less 1/k, is centred in the same way. All features
are divided by `longest_row`, so that rows of that norm get norm 1, to which longer ones are clipped. Left open, it is
the root mean square norm of rows whose values are spread evenly over their ranges, or the longest that there can be if
that is less: rows of categories alone are never clipped. Dividing by the longest possible row would clip none, and
leave the others too short against the noise (`docs/schema.md`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import InputError
from coterie.values import check_plain, file_text, is_missing, nearest, quoted, read_toml, spelt_out

NUMBER = "no finite number"
MISSING = "missing"
UNLISTED = "something else"
OUTSIDE = "outside the range"
# of the largest amount: below it a logarithm is nearly a line and resolves little; as a share of the range, so that the
# unit in which amounts are written makes no difference (benchmarks/schema_encodings.py)
LOG_KNEE = 1 / 3000
# thirds of a range, from its middle, where a value that is spread evenly over it has mean square 1
_BEND = 1 / math.sqrt(3)
# mean and variance of the squared norm of the three features of such a value, by integration
_BENT_USUAL = (5 / 9, 209 / 405 - (5 / 9) ** 2)
# texts of a list in a sentence
_SHOWN = 12
_OR_MISSING = ", or missing = true in the schema,"


class Misfit(NamedTuple):
    """Cells of one column that do not fit, for one reason.

    rows: positions, from 0. values: as they stand there, never to leave the place of the data. `needed` is what would
    fit. What is only clipped (`refused` is False) is encoded all the same.
    """

    column: str
    what: str
    rows: np.ndarray
    values: tuple[Any, ...]
    needed: str
    refused: bool = True

    @property
    def example(self) -> str:
        """The first of the values, as a CSV file would have it."""
        return _text(self.values[0])

    def sentence(self, place: Callable[[int], str]) -> str:
        more = "" if len(self.rows) == 1 else f" (so are {len(self.rows) - 1:,} more)"
        what = self.what if self.what == MISSING else f"{self.what}{quoted(self.values[0])}"
        return f"column {self.column!r}: {place(int(self.rows[0]))} is {what}{more}; {self.needed} is needed"


def _check_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: got name {name!r}; a non-empty text is needed")
    check_plain(what, [name])
    return str(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _check_range(name: str, minimum: Any, maximum: Any) -> tuple[float, float]:
    if not (_is_number(minimum) and _is_number(maximum) and minimum < maximum):
        raise InputError(f"column {name!r}: got range {minimum!r} to {maximum!r}; finite minimum < maximum is needed")
    if not math.isfinite(float(maximum) - float(minimum)):
        raise InputError(f"column {name!r}: got range {minimum!r} to {maximum!r}; a narrower one is needed")
    return float(minimum), float(maximum)


def _check_flag(name: str, key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InputError(f"column {name!r}: got {key} {value!r}; true or false is needed")


def _check_texts(name: str, what: str, texts: Any, *, at_least: int) -> tuple[str, ...]:
    is_list = isinstance(texts, Sequence | np.ndarray) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"column {name!r}: got {what} {texts!r}; a list of non-empty texts is needed")
    if len(texts) < at_least or len(set(texts)) != len(texts):
        raise InputError(f"column {name!r}: got {what} {tuple(texts)}; at least {at_least} different ones are needed")
    check_plain(f"column {name!r}", texts)
    return tuple(str(text) for text in texts)


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise InputError(f"column {name!r}: got {type(values).__name__}; a list with one value per row is needed")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _numbers(name: str, values: Any) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """(numbers, which of them are missing, the cells); NaN where a cell is none. Text such as "39" counts as a number,
    as it does in a CSV file."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == 1:
        return values, np.isnan(values), []
    rows = _values(name, values)
    try:
        numbers = np.empty((0, 0)) if any(map(_underscored, rows)) else np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    # some cell is no number: find it
    if numbers.ndim != 1:
        numbers = np.array([_number_or_nan(value) for value in rows])
    missing = np.isnan(numbers)
    missing[missing] = [is_missing(rows[row]) for row in np.flatnonzero(missing)]
    return numbers, missing, rows


def _underscored(value: Any) -> bool:
    """Python takes 3_0 for thirty; whoever writes it in a table means something else."""
    return isinstance(value, str) and "_" in value


def _number_or_nan(value: Any) -> float:
    try:
        return math.nan if _underscored(value) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _number_text(value: float) -> str:
    """As short as it can be without becoming another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _text(value: Any) -> str:
    """As a CSV file would have it: whole numbers without a point."""
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _positions(name: str, values: Any, listed: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """(positions in `listed`, -1 where a value is not there; which of those are missing; the cells)."""
    position = {text: number for number, text in enumerate(listed)}
    rows = _values(name, values)
    positions = np.array([position.get(_text(value), -1) for value in rows], dtype=np.int64)
    missing = positions < 0
    missing[missing] = [is_missing(rows[row]) for row in np.flatnonzero(missing)]
    return positions, missing, rows


def _found(column: str, needed: str, where: Mapping[str, np.ndarray], cells: Any) -> list[Misfit]:
    misfits = []
    for what, mask in where.items():
        rows = np.flatnonzero(mask)
        if len(rows):
            values = tuple(cells[row] for row in rows.tolist()) if len(cells) else (math.nan,) * len(rows)
            misfits.append(Misfit(column, what, rows, values, needed, refused=what != OUTSIDE))
    return misfits


def _listed(texts: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, texts[:_SHOWN]))
    return f"({shown})" if len(texts) <= _SHOWN else f"({shown}, ... {len(texts)} in all)"


def at_row(row: int) -> str:
    return f"row {row}"


def _refuse(misfits: Iterable[Misfit], place: Callable[[int], str]) -> None:
    for misfit in misfits:
        if misfit.refused:
            raise InputError(misfit.sentence(place))


def _one_of_k(positions: np.ndarray, k: int, *, centred: bool = True) -> np.ndarray:
    """One feature for each of k levels, less 1/k: the shortest rows in which they are as far apart."""
    features = np.full((len(positions), k), -1.0 / k if centred else 0.0)
    features[np.arange(len(positions)), positions] += 1.0
    return features


@dataclasses.dataclass(frozen=True)
class NumberColumn:
    """A number with a public range: clipped into it, centred and scaled.

    name: of the column.
    minimum, maximum: the range.
    centre, scale: the feature is (value - centre) / scale; left open, the middle of the range, and the root mean square
        distance from the centre of a value that is spread evenly over the range.
    log: sign(value) log(1 + |value|/knee) takes the value's place, for amounts and counts; the knee is a 3000th of the
        largest amount in the range. `centre` is still said as a value, `scale` in the units of the logarithm.
    bins: increasing inner edges, in the range: one feature for each interval [edge, next edge) instead.
    missing: blanks are refused (False); filled with the centre and told by a feature of their own (True), filled with
        a number (that number), or, with bins, an interval of their own.
    weight: the features are multiplied by it, where somebody knows that a column matters more or less than others.
    bends: the line may bend at both ends of the middle third of the logarithm's range: three features, the parts of the
        one that are below, within and above, which add up to it. Beside `log`, with centre and scale left open.
    """

    name: str
    minimum: float
    maximum: float
    centre: float | None = None
    scale: float | None = None
    log: bool = False
    bins: tuple[float, ...] = ()
    missing: bool | float = False
    weight: float = 1.0
    bends: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("column", self.name))
        minimum, maximum = _check_range(self.name, self.minimum, self.maximum)
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)
        for key in ("log", "bends"):
            _check_flag(self.name, key, getattr(self, key))
        if self.bends and not (self.log and self.centre is None and self.scale is None):
            raise InputError(
                f"column {self.name!r}: got bends without log, or beside centre or scale; log = true and neither of "
                "them is needed"
            )
        self._check_bins()
        for key in ("centre", *(("missing",) if not isinstance(self.missing, bool) else ())):
            value = getattr(self, key)
            if value is not None and not (_is_number(value) and minimum <= value <= maximum):
                raise InputError(
                    f"column {self.name!r}: got {key} {value!r}; a number from {minimum:g} to {maximum:g} is needed"
                )
        for key in ("scale", "weight"):
            value = getattr(self, key)
            if value is not None and not (_is_number(value) and 1e-100 <= value <= 1e100):
                raise InputError(f"column {self.name!r}: got {key} {value!r}; a positive finite number is needed")
        low, high, _, scale = self._line
        if not self.bins and not (scale > 0 and (high - low) / scale < 1e100):
            raise InputError(
                f"column {self.name!r}: got scale {self.scale!r} for the range {minimum:g} to {maximum:g}; its numbers "
                "leave the range of floating point"
            )
        if self.bends and any(not low < high for low, high in itertools.pairwise(self.edges)):
            raise InputError(
                f"column {self.name!r}: got bends in the range {minimum:g} to {maximum:g}; a wider one is needed"
            )

    def _check_bins(self) -> None:
        is_list = isinstance(self.bins, Sequence | np.ndarray) and not isinstance(self.bins, str)
        edges = tuple(self.bins) if is_list else (math.nan,)
        if not all(map(_is_number, edges)) or any(
            not low < high for low, high in zip((self.minimum, *edges), (*edges, self.maximum), strict=True)
        ):
            raise InputError(
                f"column {self.name!r}: got bins {self.bins!r}; increasing numbers between {self.minimum:g} and "
                f"{self.maximum:g} are needed"
            )
        object.__setattr__(self, "bins", tuple(map(float, edges)))
        if edges and (self.log or self.centre is not None or self.scale is not None):
            raise InputError(f"column {self.name!r}: got bins beside log, centre or scale; bins need none of them")
        if edges and not isinstance(self.missing, bool):
            raise InputError(f"column {self.name!r}: got missing {self.missing!r} beside bins; true or false is needed")

    @property
    def bound(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def knee(self) -> float:
        """Of the logarithm."""
        # something to divide by, however narrow the range is
        return max(LOG_KNEE * self.bound, math.ulp(0.0))

    def curved(self, values: Any) -> Any:
        """What stands in the place of values: their logarithm, or themselves."""
        return np.sign(values) * np.log1p(np.abs(values) / self.knee) if self.log else values

    @property
    def levels(self) -> int:
        """Features of a column with bins."""
        return len(self.bins) + 1 + bool(self.missing)

    @property
    def _line(self) -> tuple[float, float, float, float]:
        """(lowest, highest, centre, scale), all after the logarithm if there is one."""
        low, high = float(self.curved(self.minimum)), float(self.curved(self.maximum))
        centre = low + (high - low) / 2 if self.centre is None else float(self.curved(self.centre))
        # mean square around the centre = variance + squared distance of the middle, in a form that does not overflow
        evenly = math.hypot((high - low) / (2 * math.sqrt(3)), low + (high - low) / 2 - centre)
        return low, high, centre, evenly if self.scale is None else float(self.scale)

    @property
    def edges(self) -> tuple[float, ...]:
        """Between which bins lie, or straight parts of a line."""
        if not self.bends:
            return (self.minimum, *self.bins, self.maximum)
        _, _, centre, scale = self._line
        bends = (centre - _BEND * scale, centre + _BEND * scale)
        return (self.minimum, *(math.copysign(self.knee * math.expm1(abs(u)), u) for u in bends), self.maximum)

    @property
    def feature_names(self) -> tuple[str, ...]:
        names = [self.name, *(f"{self.name} is missing" for _ in range(self.missing is not False))]
        if self.bends:
            names[:1] = [f"{self.name}, {part}" for part in self.parts]
        elif self.bins:
            ends = itertools.pairwise(map(_number_text, self.edges))
            names[:1] = [f"{self.name} from {low} to {high}" for low, high in ends]
        return tuple(names)

    @property
    def parts(self) -> tuple[str, ...]:
        """Of a line that may bend, in words."""
        ends = itertools.pairwise(f"{edge:.0f}" if 1e3 <= abs(edge) < 1e15 else f"{edge:.4g}" for edge in self.edges)
        thirds = ("lower", "middle", "upper")
        return tuple(f"{third} third ({low} to {high})" for third, (low, high) in zip(thirds, ends, strict=True))

    def _features(self, line: np.ndarray) -> np.ndarray:
        """(rows, features) of (value - centre) / scale."""
        if not self.bends:
            return line[:, None]
        middle = np.clip(line, -_BEND, _BEND)
        return np.column_stack([np.minimum(line - middle, 0), middle, np.maximum(line - middle, 0)])

    @property
    def longest(self) -> float:
        """The largest 2-norm that the features of one record can have."""
        if self.bins:
            return self.weight * math.sqrt(1 - 1 / self.levels)
        low, high, centre, scale = self._line
        ends = np.array([max(high - centre, centre - low) / scale, self._filled])
        reach, filled = np.linalg.norm(self._features(ends), axis=1).tolist()
        if self.missing is not False:
            reach = max(reach, math.hypot(filled, 1.0))
        return self.weight * reach

    @property
    def usual(self) -> tuple[float, float]:
        """Mean and variance of the squared norm of the features: if values are spread evenly over the range, or, where
        a scale was said, normally around the centre."""
        if self.bins:
            return self.longest**2, 0.0
        low, high, centre, scale = self._line
        low, high = (low - centre) / scale, (high - centre) / scale
        second = (low * low + low * high + high * high) / 3
        fourth = (low**4 + low**3 * high + low**2 * high**2 + low * high**3 + high**4) / 5
        mean, variance = (second, fourth - second**2) if self.scale is None else (min(second, 1.0), 2.0)
        if self.bends:
            mean, variance = _BENT_USUAL
        return self.weight**2 * mean, self.weight**4 * variance

    @property
    def _filled(self) -> float:
        if isinstance(self.missing, bool):
            return 0.0
        _, _, centre, scale = self._line
        return (float(self.curved(self.missing)) - centre) / scale

    def misfits(self, values: Any) -> list[Misfit]:
        numbers, missing, cells = _numbers(self.name, values)
        return self._misfits(numbers, missing, cells)

    def _misfits(self, numbers: np.ndarray, missing: np.ndarray, cells: Any) -> list[Misfit]:
        finite = np.isfinite(numbers)
        cells = cells if len(cells) else numbers
        where = {NUMBER: ~finite & ~missing}
        found = _found(self.name, "a finite number", where, cells)
        if self.missing is False:
            found += _found(self.name, f"a finite number{_OR_MISSING}", {MISSING: missing}, cells)
        outside = finite & ((numbers < self.minimum) | (numbers > self.maximum))
        found += _found(self.name, f"{spelt_out(self.minimum)} to {spelt_out(self.maximum)}", {OUTSIDE: outside}, cells)
        return sorted(found, key=lambda misfit: (not misfit.refused, misfit.rows[0]))

    def encode(self, values: Any, *, place: Callable[[int], str] = at_row) -> np.ndarray:
        numbers, missing, cells = _numbers(self.name, values)
        if not np.isfinite(numbers).all() and (self.missing is False or not np.isfinite(numbers[~missing]).all()):
            _refuse(self._misfits(numbers, missing, cells), place)
        numbers = np.clip(numbers, self.minimum, self.maximum)
        if self.bins:
            positions = np.searchsorted(self.bins, numbers, side="right")
            return self.weight * _one_of_k(np.where(missing, self.levels - 1, positions), self.levels)
        _, _, centre, scale = self._line
        line = (self.curved(numbers) - centre) / scale
        if self.missing is False:
            return self.weight * self._features(line)
        return self.weight * np.column_stack([self._features(np.where(missing, self._filled, line)), missing])


@dataclasses.dataclass(frozen=True)
class CategoryColumn:
    """One of k public categories: one feature for each, in the declared order, 1 - 1/k or -1/k.

    name: of the column.
    categories: texts.
    other: texts that nobody listed are one more category; otherwise they are refused.
    missing: blanks are one more category; otherwise they are refused.
    centred: False leaves the features at 1 or 0.
    weight: as of a number.
    """

    name: str
    categories: tuple[str, ...]
    other: bool = False
    missing: bool = False
    centred: bool = True
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("column", self.name))
        for key in ("other", "missing", "centred"):
            _check_flag(self.name, key, getattr(self, key))
        at_least = 1 if self.other or self.missing else 2
        object.__setattr__(
            self, "categories", _check_texts(self.name, "categories", self.categories, at_least=at_least)
        )
        if not (_is_number(self.weight) and 1e-100 <= self.weight <= 1e100):
            raise InputError(f"column {self.name!r}: got weight {self.weight!r}; a positive finite number is needed")

    @property
    def levels(self) -> int:
        return len(self.categories) + self.other + self.missing

    @property
    def feature_names(self) -> tuple[str, ...]:
        more = (*(("other",) if self.other else ()), *(("missing",) if self.missing else ()))
        return (*(f"{self.name}={category}" for category in self.categories), *(f"{self.name} is {m}" for m in more))

    @property
    def longest(self) -> float:
        return self.weight * (math.sqrt(1 - 1 / self.levels) if self.centred else 1.0)

    @property
    def usual(self) -> tuple[float, float]:
        """As of a number; of categories all rows have the same norm, or very nearly."""
        return self.longest**2, 0.0

    def misfits(self, values: Any) -> list[Misfit]:
        return self._misfits(*_positions(self.name, values, self.categories))

    def _misfits(self, positions: np.ndarray, missing: np.ndarray, cells: Any) -> list[Misfit]:
        needed = f"one of {_listed(self.categories)}"
        found = [] if self.missing else _found(self.name, f"{needed}{_OR_MISSING}", {MISSING: missing}, cells)
        if not self.other:
            unlisted = (positions < 0) & ~missing
            found += _found(self.name, f"{needed}, or other = true in the schema,", {UNLISTED: unlisted}, cells)
        return sorted(found, key=lambda misfit: misfit.rows[0])

    def encode(self, values: Any, *, place: Callable[[int], str] = at_row) -> np.ndarray:
        positions, missing, cells = _positions(self.name, values, self.categories)
        unlisted = positions < 0
        if unlisted.any():
            _refuse(self._misfits(positions, missing, cells), place)
            positions[unlisted] = len(self.categories)
            positions[missing] = self.levels - 1
        return self.weight * _one_of_k(positions, self.levels, centred=self.centred)


@dataclasses.dataclass(frozen=True)
class Label:
    """A label out of a public set.

    name: of its column.
    values: the set, in order.
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("label", self.name))
        object.__setattr__(self, "values", _check_texts(self.name, "values", self.values, at_least=2))

    def misfits(self, values: Any) -> list[Misfit]:
        return self._misfits(*_positions(self.name, values, self.values))

    def _misfits(self, positions: np.ndarray, missing: np.ndarray, cells: Any) -> list[Misfit]:
        where = {MISSING: missing, UNLISTED: (positions < 0) & ~missing}
        found = _found(self.name, f"one of {_listed(self.values)}", where, cells)
        return sorted(found, key=lambda misfit: misfit.rows[0])

    def encode(self, values: Any, *, place: Callable[[int], str] = at_row) -> np.ndarray:
        return np.array(self.values)[self.positions(values, place=place)]

    def positions(self, values: Any, *, place: Callable[[int], str] = at_row) -> np.ndarray:
        positions, missing, cells = _positions(self.name, values, self.values)
        if (positions < 0).any():
            _refuse(self._misfits(positions, missing, cells), place)
        return positions


@dataclasses.dataclass(frozen=True)
class NumberLabel:
    """A number to predict, clipped into its public range but not scaled; `bound` serves as `label_bound`.

    name: of its column.
    minimum, maximum: the range.
    """

    name: str
    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        # the same checks
        column = NumberColumn(self.name, self.minimum, self.maximum)
        object.__setattr__(self, "minimum", column.minimum)
        object.__setattr__(self, "maximum", column.maximum)

    @property
    def bound(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    def misfits(self, values: Any) -> list[Misfit]:
        found = NumberColumn(self.name, self.minimum, self.maximum).misfits(values)
        # what a feature can be encoded as, a label cannot
        return [misfit._replace(needed=misfit.needed.removesuffix(_OR_MISSING)) for misfit in found]

    def encode(self, values: Any, *, place: Callable[[int], str] = at_row) -> np.ndarray:
        numbers, _, _ = _numbers(self.name, values)
        if not np.isfinite(numbers).all():
            _refuse(self.misfits(values), place)
        return np.clip(numbers, self.minimum, self.maximum)


Column = NumberColumn | CategoryColumn


@dataclasses.dataclass(frozen=True)
class Schema:
    """What a federation agreed on before anyone looked at data.

    columns: feature columns (`NumberColumn`, `CategoryColumn`), in order.
    label: what is predicted, a `Label` or a `NumberLabel`.
    party_column: the name of the column that names each row's party, if there is one.
    longest_row: features are divided by it, so that a row of this norm becomes one of norm 1, to which longer ones are
        then clipped; left open, it follows from the columns.
    """

    columns: tuple[Column, ...]
    label: Label | NumberLabel
    party_column: str | None = None
    longest_row: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InputError("columns: got none; a schema needs at least one feature column")
        names = [column.name for column in self.columns] + [self.label.name]
        if self.party_column is not None:
            names.append(_check_name("party_column", self.party_column))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"columns: the name {repeated[0]!r} is used twice; every column needs its own name")
        if self.longest_row is not None and not (_is_number(self.longest_row) and 1e-100 <= self.longest_row <= 1e100):
            raise InputError(f"longest_row: got {self.longest_row!r}; a positive finite number is needed")

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def longest(self) -> float:
        """The norm of the longest row that can be encoded; at most 1 where no row can be clipped."""
        longest = self._longest / self._unit
        return 1.0 if math.isclose(longest, 1.0, rel_tol=1e-12) else longest

    @property
    def _unit(self) -> float:
        if self.longest_row is not None:
            return float(self.longest_row)
        return min(math.sqrt(self._usual[0]), self._longest)

    @property
    def _longest(self) -> float:
        return math.hypot(*(column.longest for column in self.columns))

    @property
    def _usual(self) -> tuple[float, float]:
        means, variances = zip(*(column.usual for column in self.columns), strict=True)
        return sum(means), sum(variances)

    @property
    def share_clipped(self) -> float:
        return self.share_clipped_at(1.0)

    def share_clipped_at(self, row_norm: float) -> float:
        """The share of rows longer than a row norm, where values are spread as `NumberColumn.usual` has it; from the
        schema alone, by the normal law with the same mean and variance of the squared norm."""
        if self.longest <= row_norm:
            return 0.0
        (mean, variance), limit = self._usual, (row_norm * self._unit) ** 2
        if variance == 0:
            return float(mean > limit * (1 + 1e-9))
        return math.erfc((limit - mean) / math.sqrt(2 * variance)) / 2

    @property
    def rows_clipped(self) -> str:
        """How many rows can be clipped, in words; from the schema alone."""
        if self.longest <= 1:
            return "no row can be clipped"
        longest = f"the longest that the schema allows is {self.longest:.3g} times the row norm"
        return (
            f"about {self.share_clipped:.0%} of rows would be clipped if values filled their ranges evenly; {longest}"
        )

    def misfits(self, table: Mapping[str, Any], *, with_label: bool = True) -> list[Misfit]:
        """Everything in a table that does not fit, column by column; for whoever holds the table."""
        parts = [*self.columns, *((self.label,) if with_label else ())]
        return [misfit for part in parts for misfit in part.misfits(self._column_of(table, part.name))]

    def encode(self, table: Mapping[str, Any]) -> np.ndarray:
        """The feature matrix of a table given as column name -> values; other columns are ignored.

        A table of `coterie.data.tables` loses each column as it is used, so that no two copies of all of them exist.
        """
        take = getattr(table, "take", None)
        place = getattr(table, "place", at_row)
        X, start = np.empty((0, 0)), 0
        for column in self.columns:
            values = self._column_of(table, column.name) if take is None else take(column.name)
            block = column.encode(values, place=place)
            if start == 0:
                X = np.empty((len(block), len(self.feature_names)))
            if len(block) != len(X):
                first = f"column {self.columns[0].name!r} has {len(X)}"
                raise InputError(f"column {column.name!r}: got {len(block)} values but {first}")
            X[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        X /= self._unit
        return X

    def _column_of(self, table: Mapping[str, Any], name: str) -> Any:
        if name not in table:
            raise InputError(f"table: column {name!r} is missing{nearest(name, map(str, table))}")
        return table[name]

    def encode_label(self, values: Iterable[Any], *, place: Callable[[int], str] = at_row) -> np.ndarray:
        """Labels as texts of the public label set, or numbers clipped into the public range."""
        return self.label.encode(values, place=place)

    def label_positions(self, values: Iterable[Any], *, place: Callable[[int], str] = at_row) -> np.ndarray:
        """Labels as positions in the public label set, or numbers clipped into the public range."""
        label = self.label
        return label.positions(values, place=place) if isinstance(label, Label) else label.encode(values, place=place)

    def to_dict(self) -> dict[str, Any]:
        """What was said, and nothing of what was left open."""
        whole = {key: getattr(self, key) for key in ("party_column", "longest_row")}
        said = {key: value for key, value in whole.items() if value is not None}
        return {**said, "label": _said(self.label), "columns": [_said(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Schema":
        _check_keys("schema", content, needed=("label", "columns"), optional=("party_column", "longest_row"))
        if not isinstance(content["columns"], list | tuple):
            raise InputError(f"columns: got {content['columns']!r}; a list of tables is needed")
        columns, refused = [], []
        parts = [("columns", part, CategoryColumn, NumberColumn) for part in content["columns"]]
        for words in (*parts, ("label", content["label"], Label, NumberLabel)):
            try:
                columns.append(_read_part(*words))
            except InputError as error:
                refused.append((error, words[1]))
        if refused:
            # of a draft that is not filled in, all at once
            names = [part.get("name") for _, part in refused[1:] if isinstance(part, Mapping)]
            more = f"; to be filled in or mended too: {', '.join(map(repr, names[:_SHOWN]))}" if names else ""
            raise InputError(f"{refused[0][0]}{more}") from refused[0][0]
        *columns, label = columns
        return cls(tuple(columns), label, content.get("party_column"), content.get("longest_row"))

    @classmethod
    def read(cls, path: str | Path) -> "Schema":
        """Read a schema from a TOML file."""
        try:
            content = read_toml(file_text(path))
        except OSError as error:
            raise InputError(f"path: cannot read {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"path: {str(path)!r} is not a TOML file: {error}") from error
        return cls.from_dict(content)

    def write(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the schema as a TOML file; an existing file is kept unless `overwrite` is asked for."""
        # reading needs only the standard library
        import tomli_w

        try:
            with Path(path).open("wb" if overwrite else "xb") as file:
                tomli_w.dump(self.to_dict(), file)
        except FileExistsError as error:
            raise InputError(f"path: {str(path)!r} exists already; overwrite=True replaces it") from error
        except OSError as error:
            raise InputError(f"path: cannot write {str(path)!r}: {error.strerror}") from error


def _said(part: Any) -> dict[str, Any]:
    told = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.default is dataclasses.MISSING or value != field.default or type(value) is not type(field.default):
            told[field.name] = list(value) if isinstance(value, tuple) else value
    return told


def _check_keys(where: str, content: Any, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: got {content!r}; a table is needed")
    for key in content:
        if key not in (known := needed + optional):
            hint = nearest(key, known)
            raise InputError(f"{where}: unknown key {key!r}{hint}; keys are {', '.join(known)}")
    for key in needed:
        if key not in content:
            raise InputError(f"{where}: key {key!r} is missing")


def _read_part(where: str, content: Any, of_texts: type, of_numbers: type) -> Any:
    """One column or the label: texts where it has their list, a number with a range otherwise."""
    fields = {cls: [field.name for field in dataclasses.fields(cls)] for cls in (of_texts, of_numbers)}
    list_key = fields[of_texts][1]
    known = tuple(dict.fromkeys([*fields[of_numbers], *fields[of_texts]]))
    _check_keys(where, content, needed=("name",), optional=known)
    where = f"{where} {content['name']!r}"
    cls = of_texts if list_key in content else of_numbers
    needed = ("name", list_key) if cls is of_texts else ("name", "minimum", "maximum")
    _check_keys(where, content, needed=needed, optional=tuple(fields[cls]))
    return cls(**content)


def wanted_columns(schema: Schema) -> tuple[list[str], list[str]]:
    """The names of all columns that a schema needs, the label's last, and of those that are numbers."""
    parts = (*schema.columns, schema.label)
    return [part.name for part in parts], [part.name for part in parts if isinstance(part, (NumberColumn, NumberLabel))]
