"""Commands about a run: what it does, and what its checkpoints are worth."""

import argparse
import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path

from bigvit.cli.arguments import Add
from bigvit.cli.table import print_table


def add(add: Add) -> None:
    """Add the commands."""
    for name, run, text in (
        ("stop", _stop, "ask a running training to stop after a checkpoint"),
        ("checkpoints", _checkpoints, "list a run's checkpoints, and whether each is whole"),
    ):
        add(name, run, text).add_argument("path", type=Path, help="its run folder")
    command = add("verify", _verify, "read a checkpoint's files and compare their digests")
    command.add_argument("path", type=Path, help="a run folder (all its checkpoints), or one")


def _stop(options: argparse.Namespace) -> None:
    from bigvit.training.run_folder import ask_to_stop

    print(ask_to_stop(options.path))


def _checkpoints(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.best import metric_of
    from bigvit.checkpoint.manifest import batch_of, damage
    from bigvit.checkpoint.run import best_checkpoint, checkpoints_of, run_named

    if (run := run_named(options.path)) is not None:
        raise ValueError(f"{options.path}: it names one checkpoint; list all by {run}")
    if not (options.path / "recipe.json").is_file():
        raise ValueError(f"{options.path} is not a run folder")
    rows: list[tuple[str, ...]] = []
    metric, best = metric_of(options.path), None
    if metric is not None:
        with contextlib.suppress(ValueError):  # of no evaluation yet
            best = best_checkpoint(options.path)
    for path in checkpoints_of(options.path):
        try:
            size = sum(file.stat().st_size for file in path.iterdir())
            age = timedelta(seconds=round(time.time() - path.stat().st_mtime))
        except FileNotFoundError:
            continue  # it was pruned meanwhile
        if (reason := damage(path)) and not os.path.lexists(path):
            continue
        whole = f"NO: {reason}" if reason else "yes"
        whole += f", the best by {metric}" if path == best else ""
        rows.append((str(batch_of(path)), f"{size / 1e6:,.1f} MB", str(age), whole))
    print_table(("update", "size", "age", "whole"), rows)


def _verify(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.manifest import STEP, Damaged, verify
    from bigvit.checkpoint.run import checkpoints_of, find_checkpoint

    one = STEP.fullmatch(options.path.name) and options.path.is_dir()
    paths = [options.path] if one else checkpoints_of(options.path)
    if not paths:
        find_checkpoint(options.path)  # says what it is instead
    damaged: list[str] = []
    for path in paths:
        try:
            verify(path)
            print(f"{path} is whole")
        except (OSError, Damaged) as error:
            if not os.path.lexists(path):
                print(f"{path} was removed meanwhile")
                continue
            damaged.append(str(error))
            print(error)
    if damaged:
        raise ValueError(f"{len(damaged)} of {len(paths)} checkpoints are damaged")
