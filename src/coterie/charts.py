"""What a picture shows, drawn twice: as SVG for a page that loads nothing, and on matplotlib axes for notebooks.

A chart holds public numbers and names. `svg` draws with classes that the page colours, `plot` on axes, and `table` is
the same in words, for whoever does not see pictures. Names come from data: everything that is drawn is escaped.
"""

import dataclasses
import html
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from coterie.errors import InputError, MissingExtraError

WIDTH = 480.0
# also of the page, in light
COLOURS = ("#0b6e99", "#b35c00", "#5f6b7a", "#2f7d32", "#7b4fa3", "#a3304a")
MARKERS, _ON_AXES = ("circle", "square", "diamond", "triangle"), ("o", "s", "D", "^")
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def short(value: float) -> str:
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def short_percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def tiny(value: float) -> str:
    """A probability as a power of ten."""
    mantissa, exponent = f"{value:.5e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if float(mantissa) == 1 else f"{float(mantissa):g} · {power}"


def alike(values: Iterable[float]) -> Callable[[float], str]:
    """One number of decimals for all of them, three digits of the largest: what is beside each other lines up."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = 2 if largest == 0 else max(0, 2 - math.floor(math.log10(largest)))
    return short if decimals > 6 else lambda value: f"{value:,.{decimals}f}".replace("-", "−")


def table_html(heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Plain and escaped, for notebooks; a heading of empty texts is none."""
    cells = [[html.escape(cell) for cell in row] for row in rows]
    parts = [f"<caption>{html.escape(caption)}</caption>"] if caption else []
    if any(heading):
        parts.append(
            "<thead><tr>" + "".join(f'<th scope="col">{html.escape(h)}</th>' for h in heading) + "</tr></thead>"
        )
    body = (f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{c}</td>" for c in rest) for first, *rest in cells)
    return "<table>" + "".join(parts) + "<tbody>" + "".join(f"{row}</tr>" for row in body) + "</tbody></table>"


def new_axes(ax: Any, figsize: tuple[float, float] = (6.4, 4.0)) -> Any:
    """The axes that were given, or new ones."""
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise InputError(f"ax: got a {type(ax).__name__}; axes of matplotlib or None are needed")
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("plot needs matplotlib: pip install 'coterie[report]'") from None
    return plt.subplots(figsize=figsize, layout="constrained")[1]


@dataclasses.dataclass(frozen=True)
class Series:
    """A line through points, or with `joined` False points alone."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    joined: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines or points in a plane; `levels` are named horizontal lines to compare with."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: tuple[tuple[str, float], ...] = ()
    log_x: bool = False
    whole_x: bool = False
    from_zero: bool = True
    shown: Callable[[float], str] = short
    shown_tick: Callable[[float], str] = short

    def table(self) -> Table:
        heading = ("line", self.x_label, self.y_label)
        points = [(s.name, short(x), self.shown(y)) for s in self.series for x, y in zip(s.x, s.y, strict=True)]
        return heading, [*points, *((name, "", self.shown(value)) for name, value in self.levels)]

    def svg(self, name: str) -> str:
        left, right, top, height = 58.0, WIDTH - 14.0, 30.0, 210.0
        bottom = top + height
        ys = [y for s in self.series for y in s.y] + [value for _, value in self.levels]
        xs = [x for s in self.series for x in s.x]
        y_ticks = _ticks(0.0 if self.from_zero else min(ys), max(ys), above=True)
        x_ticks = _log_ticks(min(xs), max(xs)) if self.log_x else _ticks(min(xs), max(xs), whole=self.whole_x)
        x_low, x_high = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
        y_low, y_high = y_ticks[0], y_ticks[-1]

        def across(x: float) -> float:
            low, high, at = (math.log(x_low), math.log(x_high), math.log(x)) if self.log_x else (x_low, x_high, x)
            return left + (right - left) * (0.5 if high == low else (at - low) / (high - low))

        def up(y: float) -> float:
            return bottom - height * (0.5 if y_high == y_low else (y - y_low) / (y_high - y_low))

        parts = []
        for tick in y_ticks:
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
            parts.append(_text(left - 7, up(tick) + 4, self.shown_tick(tick), "end"))
        for tick in x_ticks:
            parts.append(_text(across(tick), bottom + 17, short(tick), "middle"))
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        parts.append(_text((left + right) / 2, bottom + 35, self.x_label, "middle"))
        parts.append(_text(left - 40, 13, self.y_label, "start"))
        legend: list[tuple[str, str]] = []
        for k, s in enumerate(self.series):
            colour = k % len(COLOURS)
            points = [(across(x), up(y)) for x, y in zip(s.x, s.y, strict=True)]
            if s.joined and len(points) > 1:
                drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                parts.append(f'<polyline class="line c{colour}" points="{drawn}"/>')
            parts += [
                _mark(x, y, k, f"{s.name}: {short(p)}, {self.shown(q)}")
                for (x, y), p, q in zip(points, s.x, s.y, strict=True)
            ]
            line = f'<line class="line c{colour}" x1="0" x2="24" y1="-4" y2="-4"/>' if s.joined else ""
            legend.append((line + _mark(12, -4, k, ""), s.name))
        for k, (label, value) in enumerate(self.levels):
            dash = f"level d{k % 3}"
            parts.append(f'<line class="{dash}" x1="{left}" x2="{right}" y1="{up(value):.1f}" y2="{up(value):.1f}"/>')
            legend.append((f'<line class="{dash}" x1="0" x2="24" y1="-4" y2="-4"/>', f"{label}: {self.shown(value)}"))
        for k, (swatch, label) in enumerate(legend):
            y = bottom + 60 + 19 * k
            parts.append(f'<g transform="translate({left} {y})">{swatch}{_text(32, 0, _fit(label, 390), "start")}</g>')
        described = f"{self.y_label} against {self.x_label}. The table beside it has the numbers."
        return _picture(name, self.title, described, bottom + 52 + 19 * len(legend), parts)

    def plot(self, ax: Any = None) -> Any:
        """On matplotlib axes, which are returned."""
        ax = new_axes(ax)
        for k, s in enumerate(self.series):
            style = "-" if s.joined else ""
            ax.plot(s.x, s.y, f"{_ON_AXES[k % 4]}{style}", ms=5, color=COLOURS[k % len(COLOURS)], label=s.name)
        for k, (name, value) in enumerate(self.levels):
            ax.axhline(value, color=COLOURS[2], ls=("--", ":", "-.")[k % 3], lw=1.2, label=name)
        if self.log_x:
            ax.set_xscale("log")
        if self.from_zero:
            ax.set_ylim(bottom=0)
        if self.whole_x:
            ax.xaxis.get_major_locator().set_params(integer=True)
        return _finished(ax, self, legend=len(self.series) + len(self.levels) > 1)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A number with a name; with (low, high), a point in an interval instead of a bar from zero."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    # not the thing itself, but what it is compared with
    other: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars:
    """Numbers beside each other, one a row, from a common zero."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    shown: Callable[[float], str] = short

    def table(self) -> Table:
        if any(bar.interval is not None for bar in self.bars):
            rows = [
                (b.name, self.shown(b.value), *map(self.shown, b.interval or (math.nan, math.nan))) for b in self.bars
            ]
            return ("name", self.x_label, "from", "to"), rows
        return ("name", self.x_label), [(bar.name, self.shown(bar.value)) for bar in self.bars]

    def svg(self, name: str) -> str:
        left, right, step = 168.0, WIDTH - 62.0, 26.0
        ends = [0.0] + [v for bar in self.bars for v in (bar.value, *(bar.interval or ()))]
        low, high = min(ends), max(ends)

        def across(value: float) -> float:
            return left + (right - left) * (0.5 if high == low else (value - low) / (high - low))

        bottom = 10 + step * len(self.bars)
        parts = [f'<line class="axis" x1="{across(0):.1f}" x2="{across(0):.1f}" y1="6" y2="{bottom:.1f}"/>']
        for k, bar in enumerate(self.bars):
            y, tone = 10 + step * k, "other" if bar.other else "own"
            parts.append(_text(left - 10, y + 17, _fit(bar.name, 154), "end", whole=bar.name))
            told = html.escape(f"{bar.name}: {self.shown(bar.value)}")
            if bar.interval is None:
                start, end = sorted((across(0), across(bar.value)))
                width = max(end - start, 1.0)
                box = f'x="{start:.1f}" y="{y + 4:.1f}" width="{width:.1f}" height="17"'
                parts.append(f'<rect class="bar {tone}" {box} rx="2"><title>{told}</title></rect>')
            else:
                a, b = map(across, bar.interval)
                parts.append(
                    f'<path class="whisker" d="M{a:.1f} {y + 12}H{b:.1f}M{a:.1f} {y + 8}v8M{b:.1f} {y + 8}v8"/>'
                    f'<circle class="dot {tone}" cx="{across(bar.value):.1f}" cy="{y + 12}" r="4.5"><title>{told}'
                    "</title></circle>"
                )
                end = b
            parts.append(_text(max(end, across(0)) + 7, y + 17, self.shown(bar.value), "start"))
        parts.append(_text((left + right) / 2, bottom + 18, self.x_label, "middle"))
        described = f"{self.x_label}, {len(self.bars)} rows. The table beside it has the numbers."
        return _picture(name, self.title, described, bottom + 28, parts)

    def plot(self, ax: Any = None) -> Any:
        """On matplotlib axes, which are returned."""
        ax = new_axes(ax, (6.4, 0.32 * len(self.bars) + 1.4))
        for place, bar in enumerate(self.bars):
            colour = COLOURS[2 if bar.other else 0]
            if bar.interval is None:
                ax.barh(place, bar.value, color=colour)
            else:
                ax.plot(bar.interval, (place, place), color=COLOURS[2])
                ax.plot(bar.value, place, "o", color=colour)
        ax.axvline(0, color="black", lw=0.8)
        ax.set_yticks(range(len(self.bars)), [cut(bar.name, 40).replace("$", r"\$") for bar in self.bars])
        ax.invert_yaxis()
        ax.set(xlabel=self.x_label, title=self.title)
        ax.spines[["top", "right"]].set_visible(False)
        return ax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """Parties on a circle, as large as their numbers of records; `centre` is what stands between them, if anything."""

    title: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    centre: str | None = None

    def table(self) -> Table:
        heard: dict[int, list[str]] = {i: [] for i in range(len(self.names))}
        for i, j in self.edges:
            heard[i].append(self.names[j])
            heard[j].append(self.names[i])
        whom = {i: self.centre or "nobody" for i in heard} | {
            i: ", ".join(others) for i, others in heard.items() if others
        }
        return ("party", "records", "exchanges with"), [
            (name, f"{size:,}", whom[i]) for i, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
        ]

    def _places(self) -> Iterator[tuple[float, float, float]]:
        """(x, y, radius) in a square of side 2 around 0."""
        n, largest = len(self.names), max(self.sizes)
        for i, size in enumerate(self.sizes):
            angle = 2 * math.pi * i / n - math.pi / 2
            ring = 0.0 if n == 1 else 1.0
            yield ring * math.cos(angle), ring * math.sin(angle), max(0.3, math.sqrt(size / largest))

    def svg(self, name: str) -> str:
        cx, cy, reach = WIDTH / 2, 165.0, 105.0
        biggest = min(20.0, 260.0 / len(self.names))
        places = [(cx + reach * x, cy + reach * y, biggest * r, x, y) for x, y, r in self._places()]
        parts = []
        for i, j in self.edges:
            (x1, y1, *_), (x2, y2, *_) = places[i], places[j]
            parts.append(f'<line class="edge" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        if self.centre is not None:
            for x, y, *_ in places:
                parts.append(f'<line class="edge d1" x1="{cx}" y1="{cy}" x2="{x:.1f}" y2="{y:.1f}"/>')
            width = 7.2 * len(self.centre) + 18
            parts.append(
                f'<rect class="hub" x="{cx - width / 2:.1f}" y="{cy - 13}" width="{width:.1f}" height="26" rx="6"/>'
            )
            parts.append(_text(cx, cy + 4.5, self.centre, "middle"))
        for (x, y, radius, dx, dy), label, size in zip(places, self.names, self.sizes, strict=True):
            told = html.escape(f"{label}: {size:,} records")
            parts.append(
                f'<circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{told}</title></circle>'
            )
            if len(self.names) > 16:
                continue
            anchor = "middle" if abs(dx) < 0.3 else ("start" if dx > 0 else "end")
            gap, written = radius + 6, [*_two_lines(label, 104), f"{size:,}"]
            at_x = x + (0 if anchor == "middle" else math.copysign(gap, dx))
            if anchor == "middle":
                at_y = y + (gap + 11 if dy > 0 else 4 - gap - 15 * (len(written) - 1))
            else:
                at_y = y + 1 - 7.5 * (len(written) - 2)
            for k, line in enumerate(written):
                parts.append(_text(at_x, at_y + 15 * k, line, anchor, whole=label if line.endswith("…") else None))
        described = (
            f"{len(self.names)} parties, drawn as large as their numbers of records. The table beside it lists them."
        )
        return _picture(name, self.title, described, 345, parts)

    def plot(self, ax: Any = None) -> Any:
        """On matplotlib axes, which are returned."""
        ax = new_axes(ax, (5.2, 5.2))
        places = list(self._places())
        for i, j in self.edges:
            ax.plot((places[i][0], places[j][0]), (places[i][1], places[j][1]), color=COLOURS[2], lw=1, zorder=1)
        for (x, y, radius), name, size in zip(places, self.names, self.sizes, strict=True):
            if self.centre is not None:
                ax.plot((0, x), (0, y), color=COLOURS[2], lw=1, ls=":", zorder=1)
            ax.scatter([x], [y], s=900 * radius**2, color=COLOURS[0], zorder=2)
            if len(places) <= 16:
                label = f"{cut(name, 17)}\n{size:,}".replace("$", r"\$")
                ax.annotate(label, (1.3 * x, 1.3 * y), ha="center", va="center")
        if self.centre is not None:
            ax.annotate(self.centre, (0, 0), ha="center", va="center", bbox={"boxstyle": "round", "fc": "white"})
        ax.set(title=self.title, xlim=(-1.6, 1.6), ylim=(1.6, -1.6), aspect="equal")
        ax.axis("off")
        return ax


Chart = Lines | Bars | Network


# --- parts of pictures ------------------------------------------------------------------------------------------------


def _picture(name: str, title: str, described: str, height: float, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-desc">{html.escape(described)}</desc>'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, *, whole: str | None = None) -> str:
    tip = "" if whole is None or whole == text else f"<title>{html.escape(whole)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}{tip}</text>'


def _mark(x: float, y: float, k: int, told: str) -> str:
    colour, kind = k % len(COLOURS), MARKERS[k % len(MARKERS)]
    tip = f"<title>{html.escape(told)}</title>" if told else ""
    if kind == "circle":
        return f'<circle class="mark c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">{tip}</circle>'
    outline = {
        "square": f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z",
        "diamond": f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5-5z",
        "triangle": f"M{x:.1f} {y - 5:.1f}l4.8 8.6h-9.6z",
    }[kind]
    return f'<path class="mark c{colour}" d="{outline}">{tip}</path>'


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _fit(text: str, room: float) -> str:
    """As much as fits into so many units of a picture, by the widths of a broad font."""
    wide = 0.0
    for place, letter in enumerate(text):
        if unicodedata.east_asian_width(letter) in "WF":
            wide += 14.0
        elif letter.isupper() or letter in "<>=+~mw%@#&_…—":
            wide += 11.5
        else:
            wide += 5.5 if letter in "iljtfr.,:;|!'()[] /" else 8.4
        if wide > room:
            return text[: max(1, place - 1)] + "…"
    return text


def _two_lines(text: str, room: float) -> list[str]:
    """A name as it is where it fits, else in two lines, broken at the space nearest its middle, else cut."""
    if _fit(text, room) == text:
        return [text]
    spaces = sorted((abs(place - len(text) / 2), place) for place, letter in enumerate(text) if letter == " ")
    for _, place in spaces:
        lines = [text[:place].rstrip(), text[place + 1 :].lstrip()]
        if all(line and _fit(line, room) == line for line in lines):
            return lines
    return [_fit(text, room)]


def _ticks(low: float, high: float, *, whole: bool = False, above: bool = False) -> list[float]:
    """Round numbers from below the lowest to the highest, or to the first above it, some five of them."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    step = max(1.0, float(math.ceil(step))) if whole else step
    first = math.ceil(low / step) if whole else math.floor(low / step)
    last = math.ceil(high / step - 1e-9) if above else math.floor(high / step + 1e-9)
    ticks = [round(step * k, 12) for k in range(first, last + 1)]
    return ticks or [low]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [round(factor * 10.0**power, 12) for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) > 1 else [low, high] if high > low else [low]


def _finished(ax: Any, chart: Lines, *, legend: bool) -> Any:
    ax.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(frameon=False, fontsize=9)
    return ax
