"""`bigvit transfer`: one model tuned on many data sets, and a table of what came of it."""

import argparse
from pathlib import Path
from typing import Annotated

from bigvit.cli.arguments import Add
from bigvit.cli.table import print_table
from bigvit.recipe.bounds import Bound

Ranks = Annotated[int, Bound(1, 10**6)]
TRAINED = ("all", "later_stages", "attention", "head")


def add(add: Add) -> None:
    """Add the command."""
    text = "tune a model on many data sets, and fill a table beside the papers' figures"
    more = (
        "Each data set is an ordinary training in a folder of its own, one after the other; other "
        "options are those of each training, as `bigvit train` takes them. The same command again "
        "goes on: what is done stays, what was interrupted or failed is resumed. Exit code 0: all "
        "is done; 1: one failed, which the table says; 2: bad input, nothing began; 85: stopped "
        "on request."
    )
    command = add("transfer", _transfer, text, epilog=more, allow_abbrev=False)
    text = "what starts: a run folder (its newest checkpoint), RUN@best, a checkpoint, an export, "
    command.add_argument("model", metavar="RUN", help=f"{text}a file of weights, or timm:NAME")
    text = (
        "NAME=FOLDER, as flowers102=/data/flowers-102, NAME alone of bundled data, or a folder "
        "whose folders are called as data sets are (cifar10, cifar100, flowers102, cars196, "
        "inat18, inat19, food101, pets, svhn, clipart, infograph, painting, quickdraw, real, "
        "sketch)"
    )
    command.add_argument("--data-root", nargs="+", required=True, metavar="WHERE", help=text)
    text = (
        "their names with * where the data set's stands, or FILE.py[:PATTERN] (default: those "
        "that start from the run's recipe)"
    )
    command.add_argument("--recipes", metavar="PATTERN", help=text)
    text = "what is trained: all, all but the stem and the first stage (later_stages), attention "
    text += "(with positions and head), or the head alone "
    command.add_argument("--train", choices=TRAINED, help=f"{text}(default: as each recipe says)")
    text = "of the runs, called as their data sets, and of transfer.md and transfer.json "
    text += "(default: runs/transfer/ and the name of RUN)"
    command.add_argument("--run-dir", type=Path, metavar="FOLDER", help=text)
    text = "processes of each training (default: one a device)"
    command.add_argument("--ranks", number=Ranks, metavar="N", help=text)
    command.set_defaults(overrides=[])


def _transfer(options: argparse.Namespace) -> int:
    from bigvit.transfer.run import Asked, transfer
    from bigvit.transfer.table import HEADS, cells

    table, code = transfer(
        Asked(
            of=options.model,
            roots=options.data_root,
            recipes=options.recipes,
            folder=options.run_dir,
            trainable=options.train,
            ranks=options.ranks,
            options=options.overrides,
        )
    )
    print_table(HEADS, [cells(row) for row in table.rows.values()])
    return code
