"""Tables that commands print."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

GAP = 2  # columns between cells
NARROWEST = 6  # columns that a cell keeps, however narrow the terminal is
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], groups: Mapping[int, str] | None = None
) -> None:
    """Print rows below their heads.

    On a terminal the cells are wrapped to its width, and groups of rows have a title. Elsewhere
    each row is one plain line, neither wrapped nor cut, whatever the width: for grep, awk and other
    programs.

    Args:
        groups: titles, by the number of the row that each stands above.
    """
    lines = [[" ".join(cell.splitlines()) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        _print_wrapped(lines, widths, groups or {})
        return
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _print_wrapped(
    lines: Sequence[Sequence[str]], widths: list[int], groups: Mapping[int, str]
) -> None:
    columns = shutil.get_terminal_size().columns
    left = columns - GAP * (len(widths) - 1)
    while sum(widths) > left and max(widths[1:], default=0) > NARROWEST:
        widest = max(range(1, len(widths)), key=widths.__getitem__)  # names stay whole
        widths[widest] -= 1
    for number, line in enumerate(lines):
        if (title := groups.get(number - 1)) and number:
            print()
            for part in textwrap.wrap(title, columns):
                print(bold(part))
        cells = [textwrap.wrap(c, w) or [""] for c, w in zip(line, widths, strict=True)]
        for part in range(max(map(len, cells))):
            row = [cell[part] if part < len(cell) else "" for cell in cells]
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            text = (" " * GAP).join(padded).rstrip()
            print(text if number else bold(text))


def bold(text: str) -> str:
    """As a terminal shows what stands out, where it can."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return text if plain else f"{BOLD}{text}{PLAIN}"
