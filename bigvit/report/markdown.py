"""A report as Markdown, for a model's card: charts as short tables, pictures as files beside it."""

import re
from collections.abc import Iterator, Sequence

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
    Table,
    Text,
)
from bigvit.report.chart import rows, short

SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")  # what Markdown or HTML could read as its own


def to_markdown(report: Report, folder: str = "") -> tuple[str, dict[str, bytes]]:
    """The text, and the files that it shows, by name.

    Args:
        folder: that these will lie in, as the text names it; without one they are left out.
    """
    pictures: dict[str, bytes] = {}
    parts = [f"# {plain(report.title)}", plain(report.subtitle)]
    parts += _all(report.overview, folder, pictures)
    for section in report.sections:
        parts.append(f"## {plain(section.title)}")
        parts += _all(section.blocks, folder, pictures)
    parts.append(plain(report.made))
    return "\n\n".join(filter(None, parts)) + "\n", pictures


def plain(text: str) -> str:
    """Text that is read as nothing else, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _all(blocks: Sequence[Block], folder: str, pictures: dict[str, bytes]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Text(text, "plain"):
                yield plain(text)
            case Text(text):
                yield f"> {plain(text)}"
            case Code(text):
                fence = "`" * max(3, *(len(each) + 1 for each in re.findall("`+", text)), 3)
                yield f"{fence}\n{text}\n{fence}"
            case Table():
                yield _table(block)
            case Figures(name, state, _, figures):
                cells = [(each.label, each.value, each.detail) for each in figures]
                table = Table(f"{name}: {state}", ("", "", ""), cells)
                yield _table(table)
            case Charts(charts):
                yield from (_table(e) if isinstance(e, Table) else _chart(e) for e in charts)
            case Gallery(shown):
                if folder:
                    yield "\n".join(_picture(each, folder, pictures) for each in shown)


def _table(table: Table) -> str:
    lines = [f"**{plain(table.caption)}**", ""] if table.caption else []
    lines.append(_row([plain(head) for head in table.heads]))
    lines.append(_row(["---"] * len(table.heads)))
    lines += [_row([plain(_cell(cell)) for cell in row]) for row in table.rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _chart(chart: Chart) -> str:
    if chart.square:
        return ""
    heads, cells = rows(chart)
    unit = f", {chart.unit}" if chart.unit else ""
    return _table(Table(f"{chart.title}{unit}", heads, cells))


def _picture(picture: Picture, folder: str, pictures: dict[str, bytes]) -> str:
    name = f"{len(pictures):03d}.webp"
    pictures[name] = picture.content
    said = "; ".join(text for text, _ in picture.lines)
    return f"![{plain(picture.alt)}](<{folder}/{name}>) {plain(said)}  "


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return short(cell)
    return f"{cell:,}" if isinstance(cell, int) else cell
