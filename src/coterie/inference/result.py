"""A table of coefficients with intervals: to be printed, drawn, written down or read by programs."""

import csv
import dataclasses
import functools
import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2, norm

from coterie.charts import table_html
from coterie.errors import InputError, MissingExtraError
from coterie.inference.estimate import MOST_OF_HESSIAN, Equations, hessian_share, identified, visible
from coterie.privacy.accountants import gaussian_epsilon, gaussian_multiplier
from coterie.privacy.events import Gaussian

LEVEL = 0.95
# on the scale of logarithms, from which on an axis of odds has room for powers of ten alone
_MANY_ODDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What must stand beside the numbers."""

    method: str
    # coefficients are logarithms of odds ratios
    odds: bool
    robust: bool
    n_records: int
    n_parties: int
    epsilon: float
    delta: float
    reproducible: bool
    notes: tuple[str, ...]


class JointTest(NamedTuple):
    """Whether several coefficients are all 0: chi-squared with as many degrees of freedom."""

    statistic: float
    degrees: int
    p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Inference:
    """Everything is worked out from released values; any number of levels and tests cost nothing.

    names: of the coefficients, in the order of every array here. shrunk: the estimate that is meant for prediction,
    drawn towards zero as far as its noise asks for; coefficients of the design.
    """

    names: tuple[str, ...]
    contrasts: np.ndarray
    groups: Mapping[str, tuple[int, ...]]
    equations: Equations
    shrunk: np.ndarray
    setting: Setting

    @functools.cached_property
    def _theta(self) -> np.ndarray:
        return self.equations.solve()

    @functools.cached_property
    def identified(self) -> np.ndarray:
        """Whether curvature can be told from its noise, per coefficient; the others get no numbers."""
        return identified(self.equations, self.contrasts, self._theta)

    def _only_identified(self, values: np.ndarray, otherwise: float = math.nan) -> np.ndarray:
        return np.where(self.identified, values, otherwise)

    @functools.cached_property
    def estimate(self) -> np.ndarray:
        """Corrected for the regulariser's pull and the noise of the fit; without bias to first order."""
        return self._only_identified(self.contrasts @ self._theta)

    @functools.cached_property
    def _covariances(self) -> tuple[np.ndarray, np.ndarray]:
        parts = self.equations.covariances(self.equations(self._theta))
        sampling, noise = (self.contrasts @ part @ self.contrasts.T for part in parts)
        return sampling, noise

    @property
    def sampling_errors(self) -> np.ndarray:
        """Standard errors that another sample of as many records would explain."""
        return self._only_identified(np.sqrt(np.diag(self._covariances[0])))

    @property
    def noise_errors(self) -> np.ndarray:
        """Standard errors that the noise for privacy adds."""
        return self._only_identified(np.sqrt(np.diag(self._covariances[1])))

    @property
    def standard_errors(self) -> np.ndarray:
        return np.hypot(self.sampling_errors, self.noise_errors)

    def intervals(self, level: float = LEVEL) -> np.ndarray:
        """(coefficient, 2): the values that the data do not refuse. Infinite where they refuse none."""
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
            raise InputError(f"level: got {level!r}; a number strictly between 0 and 1 is needed")
        if level not in self._intervals:
            found = self.equations.interval(self._theta, self.contrasts, float(norm.ppf((1 + level) / 2)))
            self._intervals[level] = np.column_stack(
                [self._only_identified(found[0], -math.inf), self._only_identified(found[1], math.inf)]
            )
        return self._intervals[level].copy()

    @functools.cached_property
    def _intervals(self) -> dict[float, np.ndarray]:
        return {}

    @functools.cached_property
    def p_values(self) -> np.ndarray:
        """Of the hypothesis that a coefficient is 0."""
        deviations = self.equations.deviations(self._theta, self.contrasts, np.zeros(len(self.names)))
        return self._only_identified(2 * norm.sf(np.abs(deviations)))

    def odds_ratios(self, level: float = LEVEL) -> np.ndarray:
        """(coefficient, 3): odds ratio per unit of the column, and its interval."""
        if not self.setting.odds:
            raise InputError(f"odds_ratios: {self.setting.method} has no odds; logistic regression does")
        with np.errstate(over="ignore"):
            return np.exp(np.column_stack([self.estimate, self.intervals(level)]))

    def joint_test(self, columns: str | Sequence[str]) -> JointTest:
        """That all coefficients of these are 0: a categorical column by its name, or names of coefficients."""
        if isinstance(columns, str):
            columns = [columns]
        places: list[int] = []
        for name in columns:
            if name in self.groups:
                places += self.groups[name]
            elif name in self.names:
                places.append(self.names.index(name))
            else:
                raise InputError(f"columns: got {name!r}; some of {', '.join((*self.groups, *self.names))} are needed")
        places = list(dict.fromkeys(places))
        if not places:
            raise InputError("columns: got none; at least one name of a column or a coefficient is needed")
        if not self.identified[places].all():
            return JointTest(math.nan, len(places), math.nan)
        misfit, spread = self.equations.misfits(self._theta, self.contrasts[None, places], np.zeros((1, len(places))))
        statistic = float(misfit[0] @ np.linalg.solve(spread[0], misfit[0]))
        return JointTest(statistic, len(places), float(chi2.sf(statistic, len(places))))

    def needed(self, place: int) -> str:
        """What would identify a coefficient that is not."""
        values, vectors = visible(self.equations)
        loads = (self.contrasts[place] @ vectors) ** 2 / (self.contrasts[place] ** 2).sum()
        weakest = float(values[loads > 0.01].min())
        share = float(hessian_share(self.equations, self.contrasts[[place]], self._theta)[0])
        # the share falls with the square of what drives the noise back
        by_share = math.sqrt(max(share, 0.0) / MOST_OF_HESSIAN)
        # what drowns in noise altogether is at most this large
        factor, about = (max(1 / weakest, by_share), "about") if weakest > 0.5 else (2.0, "more than")
        records = float(f"{self.setting.n_records * factor:.2g}")
        whole = 1 / gaussian_multiplier(self.setting.epsilon, self.setting.delta)
        epsilon = gaussian_epsilon([(Gaussian(whole * factor), 1)], self.setting.delta)
        return f"not identified at this epsilon: would need {about} {records:,.0f} records or epsilon >= {epsilon:.2g}"

    # --- for people and programs --------------------------------------------------------------------------------------

    def rows(self, level: float = LEVEL) -> list[dict[str, Any]]:
        """One table of plain numbers per coefficient."""
        low, high = self.intervals(level).T
        odds = self.odds_ratios(level) if self.setting.odds else None
        told = []
        for i, name in enumerate(self.names):
            row: dict[str, Any] = {"name": name, "identified": bool(self.identified[i])}
            numbers = {
                "estimate": self.estimate[i],
                "standard_error": self.standard_errors[i],
                "sampling_error": self.sampling_errors[i],
                "noise_error": self.noise_errors[i],
                "low": low[i],
                "high": high[i],
                "p_value": self.p_values[i],
            }
            if odds is not None:
                numbers |= dict(zip(("odds_ratio", "odds_low", "odds_high"), odds[i], strict=True))
            row |= {key: float(value) for key, value in numbers.items()}
            told.append(row | ({} if self.identified[i] else {"needed": self.needed(i)}))
        return told

    def to_dict(self, level: float = LEVEL) -> dict[str, Any]:
        """Plain JSON values; what is not finite is null, or a text."""
        setting = dataclasses.asdict(self.setting)
        return {
            **_plain(setting),
            "level": level,
            "coefficients": [_plain(row) for row in self.rows(level)],
            "joint_tests": {name: _plain(self.joint_test(name)._asdict()) for name in self.groups},
        }

    def to_json(self, level: float = LEVEL) -> str:
        return json.dumps(self.to_dict(level), indent=1, ensure_ascii=False, allow_nan=False)

    def to_csv(self, level: float = LEVEL) -> str:
        rows, out = self.rows(level), io.StringIO()
        names = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def summary(self, level: float = LEVEL) -> str:
        """A table as statistics packages print it."""
        setting = self.setting
        tail = (1 - level) / 2
        ends = [f"[{tail:.4g}", f"{1 - tail:.4g}]"]
        heading = ["", "coef", "std err", "sampling", "noise", "P>|z|", *ends]
        heading += ["odds ratio", *ends] if setting.odds else []
        lines: list[list[str]] = []
        for row in self.rows(level):
            if not row["identified"]:
                lines.append([row["name"], row["needed"]])
                continue
            keys = ["estimate", "standard_error", "sampling_error", "noise_error", "p_value", "low", "high"]
            keys += ["odds_ratio", "odds_low", "odds_high"] if setting.odds else []
            lines.append([row["name"], *(f"{row[k]:.3f}" if k == "p_value" else _short(row[k]) for k in keys)])
        widths = [max(len(heading[0]), *(len(line[0]) for line in lines))]
        full = [heading, *(line for line in lines if len(line) == len(heading))]
        widths += [max(len(line[j]) for line in full) for j in range(1, len(heading))]

        def shown(line: Sequence[str]) -> str:
            if len(line) == 2:
                return f"{line[0]:<{widths[0]}}  {line[1]}"
            return "  ".join(
                [f"{line[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))]
            )

        bar = "=" * len(shown(heading))
        title = f"{setting.method}: {setting.n_records:,} records of {setting.n_parties} "
        title += "party" if setting.n_parties == 1 else "parties"
        title += f", epsilon = {setting.epsilon:.4g} at delta = {setting.delta:g}"
        if setting.reproducible:
            title = f"NOT PRIVATE: the noise came from a seed\n{title}"
        tests = [f"{name}: all 0?  {_shown_test(self.joint_test(name))}" for name in self.groups]
        said = [bar, title, bar, shown(heading), "-" * len(bar), *map(shown, lines), bar]
        said += [*tests, bar] if tests else []
        return "\n".join([*said, *(textwrap.fill(note, len(bar)) for note in setting.notes)])

    def __repr__(self) -> str:
        return f"<Inference of {len(self.names)} coefficients, {int(self.identified.sum())} identified>"

    def _repr_html_(self) -> str:
        setting, rows = self.setting, []
        for row in self.rows():
            if not row["identified"]:
                rows.append((row["name"], str(row["needed"]), "", "", "", ""))
                continue
            numbers = [row[key] for key in ("estimate", "standard_error", "p_value", "low", "high")]
            rows.append((row["name"], *(f"{number:.4g}" for number in numbers)))
        heading = ("", "estimate", "standard error", "p", f"{LEVEL:.0%} from", "to")
        warning = "NOT PRIVATE: seeded. " if setting.reproducible else ""
        loss = f"ε = {setting.epsilon:.4g} at δ = {setting.delta:g}"
        return table_html(heading, rows, f"{warning}{setting.method}, {loss}")

    def plot(self, ax: Any = None, level: float = LEVEL) -> Any:
        """A forest plot: estimates with intervals, and within them what sampling alone would leave."""
        try:
            import matplotlib.pyplot as plt
            from matplotlib.ticker import LogLocator, NullFormatter
        except ImportError:
            raise MissingExtraError("plot needs matplotlib: pip install 'coterie[report]'") from None
        if ax is None:
            ax = plt.subplots(figsize=(7, 0.4 * len(self.names) + 1.6), layout="constrained")[1]
        z, places = norm.ppf((1 + level) / 2), np.arange(len(self.names))[::-1]
        transform = np.exp if self.setting.odds else np.asarray
        low, high = self.intervals(level).T
        finite = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
        left, right = (finite.min(), finite.max()) if finite.size else (-1.0, 1.0)
        for i, y in enumerate(places):
            if not self.identified[i]:
                # on a ground of its own: the line at no effect runs through it
                ground = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.5}
                ax.text(
                    *(transform(0.0), y, "not identified"),
                    **{"va": "center", "ha": "center", "color": "0.5", "fontsize": "small", "bbox": ground},
                )
                continue
            ends = transform(np.clip([low[i], high[i]], left, right))
            ax.plot(ends, [y, y], color="C0", lw=1.5, solid_capstyle="butt")
            inner = self.estimate[i] + np.array([-1, 1]) * z * self.sampling_errors[i]
            ax.plot(transform(np.clip(inner, left, right)), [y, y], color="C0", lw=5, alpha=0.35, solid_capstyle="butt")
            ax.plot([transform(self.estimate[i])], [y], "o", color="C0", ms=5)
        ax.axvline(transform(0.0), color="0.6", lw=1, ls="--")
        if self.setting.odds:
            ax.set_xscale("log")
            # 0.5, 1, 2: powers of ten alone would leave most axes with one number
            between = (1.0, 2.0, 5.0) if right - left < _MANY_ODDS else (1.0,)
            ax.xaxis.set_major_locator(LogLocator(subs=between))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_yticks(places, self.names)
        ax.set_ylim(-0.7, len(self.names) - 0.3)
        what = "odds ratio" if self.setting.odds else "coefficient"
        ax.set_xlabel(f"{what}, {level:.0%} interval; thick: the width that sampling alone would leave")
        ax.set_title(f"epsilon = {self.setting.epsilon:.3g}, {self.setting.n_records:,} records", fontsize="medium")
        return ax


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    def value(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return None if math.isnan(item) else ("infinite" if item > 0 else "-infinite")
        return list(item) if isinstance(item, tuple) else item

    return {key: value(item) for key, item in content.items()}


def _short(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3g}" if abs(value) >= 1000 or 0 < abs(value) < 0.001 else f"{value:.4f}"


def _shown_test(test: JointTest) -> str:
    if math.isnan(test.statistic):
        return "not identified"
    return f"chi2({test.degrees}) = {test.statistic:.2f}, p = {test.p_value:.3f}"
