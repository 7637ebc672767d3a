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
from bigvit.arguments import Parser


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
    command = add("samples", _samples, "draw a training batch as the model sees it")
    command.add_argument("recipe", help="a name, or FILE.py[:NAME]")
    command.add_argument("--data-root", type=Path, help="where the data set is")
    command.add_argument("--batch", type=int, default=0, help="number of the global batch")
    command.add_argument(
        "--count", type=int, help="images drawn (default: 32, or the batch where it is smaller)"
    )
    command.add_argument("--out", type=Path, default=Path("samples.png"), help="picture to write")
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
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("--batch-size", type=int, default=64, help="images at once (default 64)")
    command.add_argument(
        "--data-root", type=Path, help="where the data set is (default: the run's)"
    )
    command.add_argument("--workers", type=int, help="processes that decode (default: by cores)")
    command.add_argument("--image-size", type=int, help="another resolution, pixels")
    command.add_argument("--crop-ratio", type=float, help="another crop ratio")
    command.add_argument("--labels", type=Path, help="ReaL's real.json: what counts as right")
    command.add_argument("--ema", action="store_true", help="the average of the weights instead")
    command = add(
        "offsets", _offsets, "draw where a localization head sees tokens, and where they are"
    )
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("images", type=Path, nargs="*", help="image files (default: test images)")
    command.add_argument("--count", type=int, default=4, help="test images drawn (default 4)")
    command.add_argument("--pairs", type=int, default=64, help="pairs an image (default 64)")
    command.add_argument(
        "--data-root", type=Path, help="where the data set is (default: the run's)"
    )
    command.add_argument("--out", type=Path, default=Path("offsets.png"), help="picture to write")
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    command.add_argument("--ema", action="store_true", help="the average of the weights instead")
    command.add_argument(
        "--image-size", type=int, nargs="+", help="another resolution: side, or height and width"
    )
    command = add("attention", _attention, "picture what a class token attends to in images")
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("images", type=Path, nargs="+", help="image files")
    command.add_argument(
        "--out", type=Path, help="folder to write (default: attention/ of the run)"
    )
    command.add_argument("--layers", type=int, default=2, help="the last so many (default 2)")
    command.add_argument("--image-size", type=int, help="another resolution, pixels")
    command.add_argument("--ema", action="store_true", help="the average of the weights instead")
    command = add("branches", _branches, "measure residual branches beside the main branch")
    command.add_argument("paths", type=Path, nargs="+", help="run folders, or checkpoints")
    command.add_argument("--images", type=int, default=64, help="test images used (default 64)")
    command.add_argument("--data-root", type=Path, help="where the data is (default: the run's)")
    command.add_argument("--out", type=Path, default=Path("branches.png"), help="picture to write")
    return parser


def _list(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import all_recipes
    from bigvit.recipe.model import shape

    rows = [("name", "model", "parameters", "pixels", "source")]
    for name, recipe in all_recipes().items():
        model, size = recipe.model, recipe.data.image_size
        kind = f"{type(model).__name__} {shape(model)}"
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


def _samples(options: argparse.Namespace) -> None:
    from bigvit.data.check import check_data
    from bigvit.recipe import Run
    from bigvit.recipe.check import check_recipe
    from bigvit.recipe.find import find_recipe

    _, recipe = find_recipe(options.recipe)
    check_recipe(recipe)
    if not 0 <= options.batch < recipe.updates:
        raise ValueError(f"--batch: {options.batch} is not one of 0 to {recipe.updates - 1}")
    count = min(32, recipe.batch_size) if options.count is None else options.count
    if not 1 <= count <= recipe.batch_size:
        raise ValueError(
            f"--count: {count} is not allowed; a batch has 1 to {recipe.batch_size} images, "
            "--batch draws another one"
        )
    run = Run(data_root=options.data_root)
    check_data(recipe.data, run)
    from bigvit.samples import draw_samples

    draw_samples(recipe, run, options.batch, count, options.out)
    print(options.out)


def _stop(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.folder import ask_to_stop

    print(ask_to_stop(options.path))


def _status(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.folder import status_of

    status = status_of(options.path)
    keys = ("state", "update", "exit_code", "time", "host", "process", "reason")
    _print_table([keys, tuple(str(status.get(key)) for key in keys)])


def _hosts(options: argparse.Namespace) -> int:
    from bigvit.hosts import answering, read_hostfile
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
    from bigvit.checkpoint.start import checkpoints_of

    if not (options.path / "recipe.json").is_file():
        raise ValueError(f"{options.path} is not a run folder")
    rows = [("update", "size", "age", "whole")]
    for path in checkpoints_of(options.path):
        size = sum(file.stat().st_size for file in path.iterdir())
        age = timedelta(seconds=round(time.time() - path.stat().st_mtime))
        reason = damage(path)
        whole = f"NO: {reason}" if reason else "yes"
        rows.append((str(batch_of(path)), f"{size / 1e6:,.1f} MB", str(age), whole))
    _print_table(rows)


def _verify(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.manifest import STEP, Damaged, verify
    from bigvit.checkpoint.start import checkpoints_of, find_checkpoint

    one = STEP.fullmatch(options.path.name) and options.path.is_dir()
    paths = [options.path] if one else checkpoints_of(options.path)
    if not paths:
        find_checkpoint(options.path)  # says what it is instead
    damaged: list[str] = []
    for path in paths:
        try:
            verify(path)
            print(f"{path} is whole")
        except Damaged as error:
            damaged.append(str(error))
            print(error)
    if damaged:
        raise ValueError(f"{len(damaged)} of {len(paths)} checkpoints are damaged")


def _launch(options: argparse.Namespace) -> int:
    from bigvit.launch import launch

    return launch(options.arguments)


def _env(options: argparse.Namespace) -> None:
    from bigvit.variables import NAMES, write_variables

    path, variables, left_out = write_variables(options.given, options.interface)
    print(f"{path.absolute()}:")
    for name, value in variables.items():
        print(f"{name}={value}" if name in NAMES else f"{name}=(not shown)")
    if left_out:
        print(f"left out, NAME=VALUE adds one: {', '.join(left_out)}", file=sys.stderr)


def _doctor(options: argparse.Namespace) -> int:
    from bigvit.hosts import check_host, read_hostfile
    from bigvit.recipe.find import find_recipe

    slots = None if options.hostfile is None else read_hostfile(options.hostfile)
    recipe = None if options.recipe is None else find_recipe(options.recipe)[1]
    from bigvit.doctor.examine import Visit, examine

    if options.master_addr is not None:
        check_host(options.master_addr, "--master-addr")
    folders = (options.data_root, options.run_dir)
    master = (options.master_addr, options.master_port)
    return examine(Visit(slots, options.recipe, recipe, *folders, options.ssh_port, *master))


def _evaluate(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.start import find_checkpoint

    checkpoint = find_checkpoint(options.path)
    from bigvit.evaluate import evaluate_checkpoint

    root = options.data_root or _data_root_of(checkpoint)
    sizes = (options.image_size, options.crop_ratio)
    found = evaluate_checkpoint(
        checkpoint, options.batch_size, root, options.workers, *sizes, options.labels, options.ema
    )
    print(json.dumps(found, indent=2))


def _data_root_of(checkpoint: Path) -> Path | None:
    """Where the run that wrote a checkpoint found its data."""
    from bigvit.checkpoint.start import run_of
    from bigvit.recipe.words import read_json

    described = run_of(checkpoint) / "recipe.json"
    try:
        root = Path(read_json(described)["run"]["data_root"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if root == Path("None") else root


def _offsets(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.start import find_checkpoint

    checkpoint = find_checkpoint(options.path)
    from bigvit.offsets import draw_offsets, guess

    root = options.data_root or _data_root_of(checkpoint)
    guesses = guess(checkpoint, options.images, options.count, options.pairs, root)
    draw_offsets(guesses, options.out)
    for each in guesses:
        print(f"{each.name}  off by {each.error:.3f} cells; the best constant by {each.blind:.3f}")
    print(options.out)


def _export(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.start import find_checkpoint, run_of

    checkpoint = find_checkpoint(options.path)
    folder = options.out or run_of(checkpoint) / "export"
    from bigvit.export import export, strangers

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: it is not a folder; choose another")
    if folder.exists() and (others := strangers(folder)):
        raise ValueError(f"--out {folder}: it holds other files ({others[0]}); choose another")
    try:
        print(export(checkpoint, folder, _size(options.image_size), options.ema))
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from None


def _attention(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.start import find_checkpoint, run_of

    checkpoint = find_checkpoint(options.path)
    folder = options.out or run_of(checkpoint) / "attention"
    from bigvit import looks
    from bigvit.attention import look

    sizes = (options.layers, options.image_size)
    found = look(checkpoint, options.images, *sizes, options.ema)
    print(looks.write(found, folder, f"{run_of(checkpoint).name}, {checkpoint.name}"))


def _branches(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.start import checkpoints_of, find_checkpoint

    newest = [find_checkpoint(path) for path in options.paths]
    from bigvit.branches import draw, ratios_of

    found = [
        ratios_of(checkpoint, options.images, options.data_root or _data_root_of(checkpoint))
        for path, last in zip(options.paths, newest, strict=True)
        for checkpoint in ([last] if last == path else checkpoints_of(path))
    ]
    for each in found:
        print(json.dumps(each._asdict()))
    draw(found, options.out)
    print(options.out)


def _size(given: list[int] | None) -> int | tuple[int, int] | None:
    if given is None:
        return None
    if len(given) > 2:
        raise ValueError(f"--image-size: {given} is not one or two numbers of pixels")
    return given[0] if len(given) == 1 else (given[0], given[1])


if __name__ == "__main__":
    sys.exit(main())
