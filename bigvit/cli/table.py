"""Tables that commands print."""

import sys
from collections.abc import Sequence


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their heads.

    On a terminal the cells are wrapped to its width. Elsewhere each row is one plain line, neither
    wrapped nor cut, whatever the width: for grep, awk and other programs.
    """
    if sys.stdout.isatty():
        _print_wrapped(heads, rows)
        return
    lines = [[" ".join(cell.splitlines()) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _print_wrapped(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=column == 0)  # names stay whole
    for row in rows:
        table.add_row(*map(Text, row))  # as they are: [...] is no markup
    Console().print(table)
