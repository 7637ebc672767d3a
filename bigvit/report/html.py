"""A report as one HTML page that asks for nothing else: no network, no other file. Whatever text
comes from outside is escaped here, and a policy in the page forbids all but what is in it."""

import base64
import json
from html import escape
from importlib.resources import files
from typing import Any

from bigvit.report.blocks import (
    Block,
    Cell,
    Chart,
    Charts,
    Code,
    Figures,
    Gallery,
    Picture,
    Report,
    Section,
    Series,
    Table,
    Text,
)
from bigvit.report.chart import COLOURS, axes, rows, short, svg, thinned

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
ROUGH = 128  # pixels across, below which an image's pixels are shown as squares
SHORT = 24  # characters that stay on one line
DIGITS = 5  # of numbers that are read off a chart


def to_html(report: Report) -> str:
    """The whole page."""
    return _Page().page(report)


class _Page:
    """Writes blocks; charts are numbered as they come."""

    def __init__(self) -> None:
        self.charts: list[dict[str, Any]] = []
        self.scrolls = 0

    def page(self, report: Report) -> str:
        overview = self.blocks(report.overview)
        sections = "".join(map(self.section, report.sections))
        links = "".join(
            f'<li><a href="#{escape(each.anchor)}">{escape(each.title)}</a></li>'
            for each in report.sections
        )
        # "<" cannot end the script that holds them
        data = json.dumps(self.charts, separators=(",", ":")).replace("<", "\\u003c")
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(report.title)} · bigvit report</title>
<link rel="icon" href="data:,">
<style>{_file("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<div class="shell">
<header class="top"><div><p class="eyebrow">bigvit report</p><h1>{escape(report.title)}</h1>
<p>{escape(report.subtitle)}</p></div>
<button type="button" class="theme" hidden><i aria-hidden="true"></i><span>Theme</span></button>
</header>
<div class="columns">
<nav class="contents" aria-label="Contents"><div class="rail"><ol>{links}</ol></div>
<details><summary>Contents</summary><ol>{links}</ol></details></nav>
<main id="main">
<div class="overview blocks">{overview}</div>
{sections}
<footer>{escape(report.made)}</footer>
</main>
</div>
</div>
<script type="application/json" id="charts">{data}</script>
<script>{_file("page.js")}</script>
</body>
</html>
"""

    def section(self, section: Section) -> str:
        name = escape(section.anchor)
        return (
            f'<section id="{name}" aria-labelledby="{name}-title">'
            f'<h2 id="{name}-title">{escape(section.title)}</h2>'
            f'<div class="blocks">{self.blocks(section.blocks)}</div></section>\n'
        )

    def blocks(self, blocks: Any) -> str:
        return "\n".join(map(self.block, blocks))

    def block(self, block: Block) -> str:
        match block:
            case Text(text, "plain"):
                return f"<p>{escape(text)}</p>"
            case Text(text, tone):
                return f'<p class="note {tone}">{escape(text)}</p>'
            case Code(text):
                inside = f"<pre><code>{escape(text)}</code></pre>"
                return f'<div class="code" {self._named("Commands")}>{inside}</div>'
            case Table():
                return self.table(block)
            case Figures():
                return _figures(block)
            case Charts(charts):
                parts = (self.table(e) if isinstance(e, Table) else self.chart(e) for e in charts)
                return f'<div class="charts">{"".join(parts)}</div>'
            case Gallery(pictures, wide):
                kind = "gallery wide" if wide else "gallery"
                return f'<div class="{kind}">{"".join(map(_picture, pictures))}</div>'

    def table(self, table: Table) -> str:
        """A table that scrolls inside itself where it is too wide; what it is called does not."""
        if table.shares is not None:
            inside, kind = _matrix(table), "card matrix"
        else:
            facts = "" if any(table.heads) else ' class="facts"'
            inside, kind = f"<table{facts}>{_head(table)}{_body(table)}</table>", "card"
        scroll = f'<div class="scroll" {self._named(table.caption)}>{inside}</div>'
        if table.folded:
            summary = f"<summary>{escape(table.caption)}</summary>"
            return f'<details class="{kind} folded">{summary}{scroll}</details>'
        return f'<div class="{kind}"><p class="caption">{escape(table.caption)}</p>{scroll}</div>'

    def chart(self, chart: Chart) -> str:
        number = len(self.charts)
        across, up = axes(chart)
        shown = [s for s in chart.series if s.kind not in ("faint", "diagonal")]
        read = [] if chart.square else shown
        self.charts.append(
            {
                "across": chart.across,
                "low": across.low,
                "high": across.high,
                "series": [_read(series, key) for key, series in enumerate(read)],
            }
        )
        ys = "".join(
            f'<span style="bottom:{100 * up.place(tick):.4g}%">{short(tick)}</span>'
            for tick in up.ticks
        )
        xs = "".join(
            f'<span style="left:{100 * across.place(tick):.4g}%">{short(tick)}</span>'
            for tick in across.ticks
        )
        legend = "".join(
            f'<li data-key="{key}">{_swatch(series)}<span>{escape(series.name)}</span></li>'
            for key, series in enumerate(shown)
        )
        note = chart.described
        values = ""
        if not chart.square:
            table = Table("", *rows(chart))
            named = self._named(f"Values of {chart.title}")
            table = f"<table>{_head(table)}{_body(table)}</table>"
            scroll = f'<div class="scroll" {named}>{table}</div>'
            values = f"<details><summary>Values</summary>{scroll}</details>"
        hint = f"{chart.title}; arrow keys read its values"
        reach = f' tabindex="0" role="group" aria-label="{escape(hint)}"' if read else ""
        kind = "card chart square" if chart.square else "card chart"
        return (
            f'<figure class="{kind}" data-chart="{number}">'
            f'<figcaption><h3>{escape(chart.title)}</h3><span class="unit">{escape(chart.unit)}'
            f"</span></figcaption>"
            f'<ul class="legend"{"" if len(shown) > 1 else " hidden"}>{legend}</ul>'
            f'<div class="plot"{reach}>'
            f'<div class="ys" aria-hidden="true">{ys}</div>'
            f'<div class="area">{svg(chart, number)}</div>'
            f'<div class="xs" aria-hidden="true">{xs}</div>'
            f'<div class="across" aria-hidden="true">{escape(chart.across)}</div></div>'
            f"{f'<p>{escape(note)}</p>' if note else ''}"
            f"{values}</figure>"
        )

    def _named(self, name: str) -> str:
        """Of what scrolls: reached by the keyboard, and named."""
        self.scrolls += 1
        return f'tabindex="0" role="region" aria-label="{escape(name)} ({self.scrolls})"'


def _file(name: str) -> str:
    return (files("bigvit.report") / name).read_text(encoding="utf-8")


def _figures(block: Figures) -> str:
    parts: list[str] = []
    for each in block.figures:
        detail = f"<small>{escape(each.detail)}</small>" if each.detail else ""
        bar = ""
        if each.share is not None:
            width = 100 * min(1.0, max(0.0, each.share))
            bar = f'<span class="bar"><b style="width:{width:.1f}%"></b></span>'
        value = f"<dd>{escape(each.value)}{detail}{bar}</dd>"
        parts.append(f"<div><dt>{escape(each.label)}</dt>{value}</div>")
    dot = "" if block.run is None else _swatch(Series("", [], [], block.run))
    name = f"<h2>{escape(block.name)}</h2>" if block.name else ""
    badge = f'<span class="badge {block.tone}">{escape(block.state)}</span>'
    head = f'<div class="run">{dot}{name}{badge}</div>'
    return f'<div>{head}<dl class="figures">{"".join(parts)}</dl></div>'


def _picture(picture: Picture) -> str:
    content = base64.b64encode(picture.content).decode()
    width, height = picture.size
    fine = "" if width < ROUGH else ' class="fine"'
    lines = "".join(
        f'<span class="tone-{tone}">{escape(text)}</span>' for text, tone in picture.lines
    )
    caption = f"<figcaption>{lines}</figcaption>" if lines else ""
    return (
        f'<figure class="card"><img{fine} src="data:image/webp;base64,{content}" width="{width}" '
        f'height="{height}" alt="{escape(picture.alt)}">{caption}</figure>'
    )


def _matrix(table: Table) -> str:
    """Numbers of each class beside each."""
    heads = "".join(
        f'<th scope="col"><span title="{escape(head)}">{escape(head)}</span></th>'
        for head in table.heads[1:]
    )
    head = f'<tr><th scope="col">{escape(table.heads[0])}</th>{heads}</tr>'
    return f"<table><thead>{head}</thead>{_shaded(table)}</table>"


def _body(table: Table) -> str:
    numbers = _numbers(table)
    lines = [
        f'<tr><th scope="row"{_kind(row[0], False)}>{_cell(row[0])}</th>'
        + "".join(
            f"<td{_kind(cell, i in numbers)}>{_cell(cell)}</td>"
            for i, cell in enumerate(row[1:], 1)
        )
        + "</tr>"
        for row in table.rows
    ]
    return f"<tbody>{''.join(lines)}</tbody>"


def _kind(cell: Cell, is_number: bool) -> str:
    """Numbers stand to the right, and what is short on one line."""
    if is_number:
        return " class=n"
    return " class=s" if isinstance(cell, str) and len(cell) <= SHORT else ""


def _head(table: Table) -> str:
    if not any(table.heads):
        return ""
    numbers = _numbers(table)
    heads = "".join(
        f'<th scope="col"{" class=n" if i in numbers else ""}>{escape(head)}</th>'
        if head
        else "<td></td>"
        for i, head in enumerate(table.heads)
    )
    return f"<thead><tr>{heads}</tr></thead>"


def _shaded(table: Table) -> str:
    """The body of a matrix: its diagonal in one colour, what lies beside it in another."""
    assert table.shares is not None
    lines: list[str] = []
    for i, (row, shares) in enumerate(zip(table.rows, table.shares, strict=True)):
        cells: list[str] = []
        for j, (cell, share) in enumerate(zip(row[1:], shares, strict=True)):
            miss = "" if i == j else ' class="miss"'
            style = f' style="--share:{share:.2f}"' if share else ""
            cells.append(f"<td{miss}{style}>{_cell(cell)}</td>")
        name = _cell(row[0])
        name = f'<th scope="row"><span title="{name}">{name}</span></th>'
        lines.append(f"<tr>{name}{''.join(cells)}</tr>")
    return f"<tbody>{''.join(lines)}</tbody>"


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return short(cell)
    return f"{cell:,}" if isinstance(cell, int) else escape(cell)


def _numbers(table: Table) -> set[int]:
    """Columns of numbers, which stand to the right."""
    return {
        column
        for column in range(1, len(table.heads))
        if table.rows and all(_is_number(row[column]) for row in table.rows)
    }


def _is_number(cell: Cell) -> bool:
    if not isinstance(cell, str):
        return True
    text = cell.rstrip(" %kM").replace(",", "").replace("–", "0") or "0"
    try:
        float(text)
    except ValueError:
        return False
    return True


def _swatch(series: Series) -> str:
    kind = "dots" if series.kind == "dots" else series.kind
    path = f'<path class="{kind} s{series.colour % COLOURS}" d="M0 4H18"/>'
    if kind == "dots":
        path = path.replace("M0 4H18", "M9 4h0")
    return f'<svg class="swatch" viewBox="0 0 18 8" aria-hidden="true">{path}</svg>'


def _read(series: Series, key: int) -> dict[str, Any]:
    """What is read off a curve."""
    thin = thinned(series)
    x, y = ([float(f"{value:.{DIGITS}g}") for value in values] for values in (thin.x, thin.y))
    return {"key": key, "name": series.name, "x": x, "y": y}
