"""The `bigvit` command. `list`, `show` and the help import neither torch nor tyro."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from bigvit import __version__
from bigvit.cli import (
    completion,
    export,
    hosts,
    models,
    neighbours,
    new,
    pictures,
    plan,
    recipes,
    rehearse,
    report,
    runs,
    status,
    train,
    transfer,
)
from bigvit.cli.arguments import Parser

SUBJECTS = {
    "Recipes": ("list", "show", "diff", "new", "samples"),
    "Before a run": ("plan", "rehearse", "doctor"),
    "A run": ("train", "transfer", "status", "report", "stop", "checkpoints", "verify"),
    "A trained model": ("evaluate", "compare", "predict", "export", "label-maps"),
    "Its features": ("neighbours", "retrieve", "probe"),
    "Inside a model": ("attention", "offsets", "branches", "patches"),
    "Several hosts": ("hosts", "env", "launch", "scripts"),
    "The shell": ("completion",),
}
"""The commands, as the help groups them; others come last."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 for bad input."""
    code = 0
    try:
        try:
            options = _parser().parse_args(sys.argv[1:] if args is None else args)
            code = options.run(options) or 0
        finally:
            sys.stdout.flush()  # here, where a closed pipe is noticed: `bigvit list | head`
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> Parser:
    parser = Parser(
        prog="bigvit",
        description="Train large Vision Transformers by named recipes: "
        "deepspeed scripts/train.py RECIPE starts a training, these commands do the rest.",
        groups=SUBJECTS,
    )
    parser.add_argument("--version", action="version", version=f"bigvit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str, **more: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, **more)
        command.set_defaults(run=run, command=command)
        parser.commands[name] = command
        return command

    about_runs = (train, transfer, plan, rehearse, runs, status, report)
    for subject in (recipes, new, *about_runs, hosts, models, neighbours, export, pictures):
        subject.add(add)
    completion.add(add, parser)
    return parser
