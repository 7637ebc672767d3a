"""The `bigvit` command. `list`, `show` and the help import neither torch nor tyro."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from bigvit import __version__
from bigvit.cli import models, pictures
from bigvit.cli.arguments import Parser


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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bigvit",
        description="Train large Vision Transformers by named recipes: "
        "deepspeed scripts/train.py RECIPE starts a training, these commands do the rest.",
    )
    parser.add_argument("--version", action="version", version=f"bigvit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str, **more: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, **more)
        command.set_defaults(run=run)
        return command

    add("list", _list, "name every recipe, with its model's size, resolution and source")
    command = add("show", _show, "print every value of a recipe")
    command.add_argument("recipe", help="a name, or FILE.py[:NAME]")
    command.add_argument("--json", action="store_true", help="as JSON, as recipe.json holds it")
    command = add("diff", _diff, "print where two recipes differ")
    command.add_argument("first", help="a name, or FILE.py[:NAME]")
    command.add_argument("second", help="a name, or FILE.py[:NAME]")
    command = add("stop", _stop, "ask a running training to stop after a checkpoint")
    command.add_argument("path", type=Path, help="its run folder")
    command = add("status", _status, "say what a run does, or why and where it ended")
    command.add_argument("path", type=Path, help="its run folder")
    command = add("hosts", _hosts, "print a hostfile of those that answer and can share the batch")
    command.add_argument("--hostfile", type=Path, required=True, help="lines HOST slots=N")
    command.add_argument("--ssh-port", type=int, help="ssh's port on the hosts")
    command.add_argument("training", nargs=argparse.REMAINDER, help="a recipe and its options")
    command = add(
        "checkpoints", _checkpoints, "list a run's checkpoints, and whether each is whole"
    )
    command.add_argument("path", type=Path, help="its run folder")
    command = add("verify", _verify, "read a checkpoint's files and compare their digests")
    command.add_argument("path", type=Path, help="a run folder (all its checkpoints), or one")
    text = "run `deepspeed ARGUMENTS`, passing on signals as requests to stop"
    command = add("launch", _launch, text, prefix_chars="\0", add_help=False)  # all are deepspeed's
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="as `deepspeed` takes them")
    command = add("env", _env, "write .deepspeed_env, which carries variables to every host")
    command.add_argument("given", nargs="*", metavar="NAME=VALUE", help="more than is set here")
    command.add_argument("--interface", help="the network that gloo and NCCL use, such as eth0")
    command = add(
        "doctor", _doctor, "examine hosts before a run: is all the same, do they connect?"
    )
    command.add_argument("recipe", nargs="?", help="also its data: a name, or FILE.py[:NAME]")
    command.add_argument("--hostfile", type=Path, help="as DeepSpeed's (default: this machine)")
    command.add_argument("--data-root", type=Path, help="where the data set is")
    command.add_argument("--run-dir", type=Path, help="run folder that is meant to be used")
    command.add_argument("--ssh-port", type=int, help="as DeepSpeed's --ssh_port")
    command.add_argument("--master-addr", help="as DeepSpeed's --master_addr")
    command.add_argument("--master-port", type=int, default=29500, help="as DeepSpeed's (29500)")
    models.add(add)
    pictures.add(add)
    return parser


def _list(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import all_recipes

    rows = [("name", "model", "parameters", "pixels", "source")]
    for name, recipe in all_recipes().items():
        model, size = recipe.model, recipe.data.image_size
        kind = f"{type(model).__name__} {model.summary}"
        parameters = f"{model.parameters(size) / 1e6:.2f} M"
        pixels = f"{size[0]}x{size[1]}" if isinstance(size, tuple) else str(size)
        rows.append((name, kind, parameters, pixels, recipe.source))
    _print_table(rows)


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _show(options: argparse.Namespace) -> None:
    from bigvit.recipe.check import check_recipe, leaves
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import to_json

    name, recipe = find_recipe(options.recipe)
    check_recipe(recipe)
    if options.json:
        print(json.dumps(to_json(recipe), indent=2))
        return
    model, size = recipe.model, recipe.data.image_size
    parts = [part for part in vars(model).values() if is_dataclass(part)]
    of_model = ", ".join(type(part).__name__ for part in (model, *parts))
    kinds = ", ".join(type(objective).__name__ for objective in recipe.objectives)
    rows = [
        ("name", name),
        (
            "kinds",
            f"{of_model}, {type(recipe.data).__name__}, {kinds}, "
            f"{type(recipe.optim).__name__}, {type(recipe.schedule).__name__}",
        ),
        ("parameters", f"{model.parameters(size):,}"),
        ("multiply-accumulates", f"{model.macs(size) / 1e9:.4g} G an image"),
        (
            "updates",
            f"{recipe.updates:,} ({recipe.updates_per_epoch:,} an epoch; "
            f"{recipe.data.train_images % recipe.batch_size:,} of {recipe.data.train_images:,} "
            "slots are left over)",
        ),
        *((path, value) for path, value in leaves(recipe)),
    ]
    width = max(len(path) for path, _ in rows)
    for path, value in rows:
        print(f"{path.ljust(width)}  {value}")


def _diff(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import differences, to_json

    (_, first), (_, second) = find_recipe(options.first), find_recipe(options.second)
    for line in differences(to_json(first), to_json(second)):
        print(line)


def _stop(options: argparse.Namespace) -> None:
    from bigvit.training.run_folder import ask_to_stop

    print(ask_to_stop(options.path))


def _status(options: argparse.Namespace) -> None:
    from bigvit.training.run_folder import status_of

    status = status_of(options.path)
    keys = ("state", "update", "exit_code", "time", "host", "process", "reason")
    _print_table([keys, tuple(str(status.get(key)) for key in keys)])


def _hosts(options: argparse.Namespace) -> int:
    from bigvit.hosts.hostfile import answering, read_hostfile
    from bigvit.recipe import layout
    from bigvit.recipe.parse import parse

    slots = read_hostfile(options.hostfile)
    command = parse(options.training)
    here = answering(list(slots), options.ssh_port)
    for host in slots.keys() - here:
        print(f"warning: {host} does not answer", file=sys.stderr)
    left = [(host, count) for host, count in slots.items() if host in here]
    while left:
        world = sum(count for _, count in left)
        try:
            layout(command.recipe, world, command.run.micro_batch)
        except ValueError as error:
            print(f"warning: not {len(left)} hosts: {error}", file=sys.stderr)
            left.pop()
            continue
        for host, count in left:
            print(f"{host} slots={count}")
        return 0
    return 1


def _checkpoints(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.manifest import batch_of, damage
    from bigvit.checkpoint.run import checkpoints_of

    if not (options.path / "recipe.json").is_file():
        raise ValueError(f"{options.path} is not a run folder")
    rows = [("update", "size", "age", "whole")]
    for path in checkpoints_of(options.path):
        try:
            size = sum(file.stat().st_size for file in path.iterdir())
            age = timedelta(seconds=round(time.time() - path.stat().st_mtime))
        except FileNotFoundError:
            continue  # it was pruned meanwhile
        if (reason := damage(path)) and not os.path.lexists(path):
            continue
        whole = f"NO: {reason}" if reason else "yes"
        rows.append((str(batch_of(path)), f"{size / 1e6:,.1f} MB", str(age), whole))
    _print_table(rows)


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


def _launch(options: argparse.Namespace) -> int:
    from bigvit.hosts.launch import launch

    return launch(options.arguments)


def _env(options: argparse.Namespace) -> None:
    from bigvit.hosts.environment import NAMES, write_variables

    path, variables, left_out = write_variables(options.given, options.interface)
    print(f"{path.absolute()}:")
    for name, value in variables.items():
        print(f"{name}={value}" if name in NAMES else f"{name}=(not shown)")
    if left_out:
        print(f"left out, NAME=VALUE adds one: {', '.join(left_out)}", file=sys.stderr)


def _doctor(options: argparse.Namespace) -> int:
    from bigvit.hosts.hostfile import check_host, read_hostfile
    from bigvit.recipe.find import find_recipe

    slots = None if options.hostfile is None else read_hostfile(options.hostfile)
    recipe = None if options.recipe is None else find_recipe(options.recipe)[1]
    from bigvit.hosts.doctor.examine import Visit, examine

    if options.master_addr is not None:
        check_host(options.master_addr, "--master-addr")
    folders = (options.data_root, options.run_dir)
    master = (options.master_addr, options.master_port)
    return examine(Visit(slots, options.recipe, recipe, *folders, options.ssh_port, *master))
