"""Tables that commands print."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

GAP = 2  # columns between cells
NARROWEST = 6  # columns that a cell keeps, however narrow the terminal is
BOLD, FAINT, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], groups: Mapping[int, str] | None = None
) -> None:
    """Print rows below their heads.

    On a terminal the cells are wrapped to its width. Elsewhere each row is one plain line, neither
    wrapped nor cut, whatever the width: for grep, awk and other programs.

    Args:
        groups: titles, by the number of the row that each stands above, on a terminal. There the
            last column is no column, but stands above the rows that share it.
    """
    lines = [[" ".join(cell.splitlines()) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if not sys.stdout.isatty():
        for line in lines:
            print(_row(line, widths))
        return
    columns = shutil.get_terminal_size().columns
    if groups is None:
        _fit(widths, columns)
        for number, line in enumerate(lines):
            _print_row(line, widths, BOLD if number == 0 else "")
        return
    widths = _fit(widths[:-1], columns)
    _print_row(lines[0][:-1], widths, BOLD)
    shared = ""
    for number, line in enumerate(lines[1:]):
        if title := groups.get(number):
            print()
            _print_row([title], [columns], BOLD)
        if title or line[-1] != shared:
            shared = line[-1]
            _print_row(["", shared], [0, columns - GAP], FAINT)
        _print_row(line[:-1], widths)


def _fit(widths: list[int], columns: int) -> list[int]:
    """Narrow the widest columns until all fit; the first is of names, which stay whole."""
    while sum(widths) + GAP * (len(widths) - 1) > columns and max(widths[1:]) > NARROWEST:
        widest = max(range(1, len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _print_row(cells: Sequence[str], widths: Sequence[int], style: str = "") -> None:
    """Print a row, of as many lines as its cells need."""
    wrapped = [textwrap.wrap(c, w) if c else [] for c, w in zip(cells, widths, strict=True)]
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    for part in range(max(map(len, wrapped), default=0)):
        text = _row([cell[part] if part < len(cell) else "" for cell in wrapped], widths)
        print(text if plain or not style else f"{style}{text}{PLAIN}")


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return (" " * GAP).join(padded).rstrip()
