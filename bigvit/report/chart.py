"""A chart as SVG: the curves alone, stretched to whatever room there is, with lines that stay as
thin and dots that stay round. What is written around it is HTML, and keeps its size on a phone.

Coordinates: x to the right in 0 to WIDTH, y down in 0 to HEIGHT.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from bigvit.report.blocks import Chart, Series

WIDTH, HEIGHT = 1000, 400
POINTS = 360  # of a curve, at most
COLOURS = 6  # of the palette
TICKS = 5  # about
MANY = 80  # points of a curve from which on it is smoothed
WINDOW = 1 / 25  # of its points that are averaged


@dataclass(frozen=True)
class Axis:
    """From the least to the largest value that has room."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands, 0 to 1."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def short(value: float) -> str:
    """A number with four digits at most."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    for limit, name in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e6 if name == 'M' else 1e3):.4g}{name}"
    return f"{value:.4g}"


def axis(values: Sequence[float], log: bool = False, from_zero: bool = False) -> Axis:
    """An axis for values, with ticks at round numbers."""
    low, high = min(values), max(values)
    if log and low > 0:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        last += first == last
        every = -(-(last - first) // TICKS)
        ticks = tuple(10.0**power for power in range(first, last + 1, every))
        return Axis(10.0**first, 10.0**last, ticks, True)
    low = min(low, 0.0) if from_zero else low
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - (abs(low) / 10 or 0.5), high + (abs(high) / 10 or 0.5)
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 12) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def along(values: Sequence[float]) -> Axis:
    """An axis that ends where the values do."""
    whole = axis(values)
    low, high = min(values), max(values)
    if low == high:
        return whole
    ticks = tuple(tick for tick in whole.ticks if low <= tick <= high)
    return Axis(low, high, ticks)


def thinned(series: Series, most: int = POINTS) -> Series:
    """As few points as are seen: of each part of the axis the least and the largest value."""
    x, y = series.x, series.y
    if len(x) <= most:
        return series
    kept: list[int] = [0]
    parts = most // 2
    for part in range(parts):
        first, last = part * len(x) // parts, (part + 1) * len(x) // parts
        within = range(first, max(last, first + 1))
        kept += sorted({min(within, key=y.__getitem__), max(within, key=y.__getitem__)})
    kept = sorted({*kept, len(x) - 1})
    return replace(series, x=[x[i] for i in kept], y=[y[i] for i in kept])


def smoothed(series: Series) -> list[Series]:
    """A curve of many points, faint, and its mean over a window; one of few as it is."""
    count = len(series.x)
    if count < MANY:
        return [series]
    half = max(1, round(count * WINDOW / 2))
    sums = [0.0]
    for value in series.y:
        sums.append(sums[-1] + value)
    means: list[float] = []
    for i in range(count):
        first, last = max(0, i - half), min(count, i + half + 1)
        means.append((sums[last] - sums[first]) / (last - first))
    return [replace(series, kind="faint"), replace(series, y=means)]


def axes(chart: Chart) -> tuple[Axis, Axis]:
    """Both axes of a chart."""
    x = [value for series in chart.series for value in series.x]
    y = [value for series in chart.series for value in series.y]
    if chart.square:
        both = axis([*x, *y])
        return both, both
    return along(x), axis(y, chart.log, chart.from_zero)


def svg(chart: Chart, number: int) -> str:
    """The plot itself; its number makes the names of its parts different from others'."""
    across, up = axes(chart)
    title, described = f"c{number}t", f"c{number}d"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{title} {described}"><title id="{title}">{escape(chart.title)}</title>'
        f'<desc id="{described}">{escape(summary(chart))}</desc>'
    ]
    for tick in up.ticks:
        y = _number(HEIGHT * (1 - up.place(tick)))
        parts.append(f'<path class="grid" d="M0 {y}H{WIDTH}"/>')
    for place, _ in chart.marks:
        if across.low <= place <= across.high:
            x = _number(WIDTH * across.place(place))
            parts.append(f'<path class="mark" d="M{x} 0V{HEIGHT}"/>')
    for series in chart.series:
        thin = thinned(series)
        dots = series.kind == "dots" or len(thin.x) == 1
        points = [
            (_number(WIDTH * across.place(x)), _number(HEIGHT * (1 - up.place(y))))
            for x, y in zip(thin.x, thin.y, strict=True)
        ]
        if dots:
            path = "".join(f"M{x} {y}h0" for x, y in points)
        else:
            path = "M" + "L".join(f"{x} {y}" for x, y in points)
        kind = "dots" if dots else series.kind
        parts.append(f'<path class="{kind} s{series.colour % COLOURS}" d="{path}"/>')
    return "".join([*parts, "</svg>"])


def summary(chart: Chart) -> str:
    """A chart in words."""
    said = [chart.described] if chart.described else []
    said += [f"At {chart.across} {short(x)} it {text}." for x, text in chart.marks]
    for series in chart.series:
        if series.kind in ("faint", "diagonal") or not series.x:
            continue
        first, last = short(series.y[0]), short(series.y[-1])
        said.append(
            f"{series.name}: {first} at {chart.across} {short(series.x[0])}, {last} at "
            f"{short(series.x[-1])}; least {short(min(series.y))}, largest {short(max(series.y))}."
        )
    return " ".join(said)


def rows(chart: Chart, most: int = 12) -> tuple[list[str], list[list[str]]]:
    """A chart as a table: heads, and rows at places all over its x axis."""
    shown = [s for s in chart.series if s.kind not in ("faint", "diagonal")]
    places = sorted({x for series in shown for x in series.x})
    if len(places) > most:
        places = [places[i * (len(places) - 1) // (most - 1)] for i in range(most)]
    heads = [chart.across, *(series.name for series in shown)]
    return heads, [[short(x), *(_at(series, x) for series in shown)] for x in places]


def _at(series: Series, place: float) -> str:
    """The value next to a place; nothing beyond a curve's ends."""
    if not series.x or not series.x[0] <= place <= series.x[-1]:
        return ""
    after = bisect_left(series.x, place)
    near = range(max(0, after - 1), min(len(series.x), after + 1))
    return short(series.y[min(near, key=lambda i: abs(series.x[i] - place))])


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
