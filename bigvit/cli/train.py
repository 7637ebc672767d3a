"""`bigvit train`: a training on all devices of this machine, by DeepSpeed's launcher. `bigvit
scripts`: what starts one on several machines."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from bigvit.cli import arguments
from bigvit.recipe.bounds import allow

SCRIPTS = ("train.py", "slurm.sbatch", "supervise.sh")
USAGE = "usage: bigvit train RECIPE [--ranks N] [--field.of.recipe VALUE] [--run-option VALUE]"


def add(add: arguments.Add) -> None:
    """Add the commands."""
    text = "train a recipe on all devices of this machine, or on --ranks N of them"
    command = add("train", _train, text, prefix_chars="\0", add_help=False)
    command.add_argument("words", nargs=argparse.REMAINDER, help="a recipe and its options")
    command = add("scripts", _scripts, "copy what starts a training on a cluster into a folder")
    command.add_argument("folder", type=Path, help="made where it is not there")


def _train(options: argparse.Namespace) -> int:
    words, ranks = _ranks(options.words)
    if not words or words[0] in ("-h", "--help"):
        print(f"{USAGE}\n`bigvit list` names the recipes; RECIPE --help lists every field.")
        return 0 if words else 2
    from bigvit.recipe.parse import parse

    command = parse(words, "bigvit train")  # what is wrong is said once, and at once
    from bigvit.hosts.launch import ranks_here, train_here

    return train_here(words, ranks_here(command.run.engine, ranks))


def _ranks(words: Sequence[str]) -> tuple[list[str], int | None]:
    """The words without `--ranks N`, and that."""
    rest, found, given = list[str](), None, iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        if name != "--ranks":
            rest.append(word)
            continue
        value = value if equals else next(given, "")
        if not value.isdecimal():
            raise ValueError(f"--ranks: {value or 'nothing'} is not allowed; give a whole number")
        if found is not None:
            raise ValueError("--ranks is given twice; give it once")
        found = int(value)
        allow("--ranks", found, found >= 1, "1 or more")
    return rest, found


def _folder() -> Path:
    """The package's scripts."""
    return Path(__file__).parents[1] / "scripts"


def _scripts(options: argparse.Namespace) -> None:
    folder: Path = options.folder
    there = [name for name in SCRIPTS if (folder / name).exists()]
    if there:
        raise ValueError(f"{folder / there[0]} is there already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        shutil.copy(_folder() / name, folder / name)
        print(folder / name)
