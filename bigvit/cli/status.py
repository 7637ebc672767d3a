"""`bigvit status`: what runs do, and how far they have come."""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

from bigvit.cli.arguments import Add
from bigvit.cli.table import print_table
from bigvit.recipe.bounds import Bound

Seconds = Annotated[float, Bound(0.1, 86_400.0)]
PAUSE = 5.0  # seconds between looks


def add(add: Add) -> None:
    """Add the command."""
    text = "say what runs do and how far they have come, or why and where they ended"
    command = add("status", _status, text)
    command.add_argument("path", metavar="RUN", type=Path, nargs="+", help="a run folder")
    command.add_argument("--watch", action="store_true", help="again and again, until they end")
    text = f"seconds between looks, with --watch (default {PAUSE:g})"
    command.add_argument("--every", number=Seconds, default=PAUSE, help=text)
    command.add_argument("--json", action="store_true", help="all of it, as a list")


def _status(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.run import run_named
    from bigvit.training.status import any_goes_on, standing

    paths = [run_named(path) or path for path in options.path]  # RUN@best is of RUN
    while True:
        found = [standing(path) for path in paths]
        if options.watch and sys.stdout.isatty():
            print("\033[H\033[2J", end="")  # top left, and nothing below
        _print(options, found)
        if not options.watch or not any_goes_on(found):
            return
        sys.stdout.flush()
        try:
            time.sleep(options.every)
        except KeyboardInterrupt:
            return


def _print(options: argparse.Namespace, found: list) -> None:
    from bigvit.training.status import COLUMNS, TABLE, cells, paragraph, row

    if options.json:
        print(json.dumps([each.as_json() for each in found], indent=2))
    elif len(found) > 1:
        print_table(TABLE, [row(each) for each in found])
        for each in found:
            if each.skipped:
                print(f"{each.run}: {each.skipped}")
            if each.asked_to_stop:
                print(f"{each.run}: it was asked to stop, and has not yet")
    elif sys.stdout.isatty():
        import textwrap

        width = shutil.get_terminal_size().columns
        for line in paragraph(found[0]):
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            lines = textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True)
            print("\n".join(lines))
    else:
        print_table(COLUMNS, [cells(found[0])])
