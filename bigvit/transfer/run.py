"""Tune a model on one data set after the other, each an ordinary training in a folder of its own.

All that can be wrong is looked for before the first begins. What is wrong with one data set, or in
one training, is said in the table, and the others go on.
"""

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from bigvit.checkpoint import metrics
from bigvit.checkpoint.run import find_checkpoint, run_named
from bigvit.data.check import check_data
from bigvit.hosts.launch import ranks_here, train_here
from bigvit.ranks.stopping import SIGNALS
from bigvit.recipe import Command
from bigvit.recipe.find import find_recipe
from bigvit.recipe.parse import parse
from bigvit.recipe.store import differences, is_named, to_json
from bigvit.training.check import check
from bigvit.training.run_folder import GOING_ON, status_of
from bigvit.training.start import plan_start
from bigvit.transfer.suite import Part, parts_of, pattern_of, published_for
from bigvit.transfer.table import AS_SAID, Row, Table, read_table, write_table

DONE, FAILED, REQUEUE = 0, 1, 85  # exit codes
ENDING = 60.0  # seconds that ranks of a call that was killed have to leave
ASIDE = ("source", "seed", "trainable")  # fields that make a recipe no other than its paper's


@dataclass(frozen=True)
class Asked:
    """A command line."""

    of: str  # a run folder, a checkpoint, an export, a file of weights, or timm:NAME
    roots: Sequence[str]  # as `parts_of` takes them
    recipes: str | None  # a pattern; None: those that start from the run's recipe
    folder: Path | None  # of the runs and the table; None: below runs/transfer
    trainable: str | None  # all, later_stages, attention or head; None: as each recipe says
    ranks: int | None  # of each training; None: as many as there are devices
    options: Sequence[str]  # of each training


@dataclass(frozen=True)
class Prepared:
    """A data set whose training may begin."""

    part: Part
    words: list[str]  # of its command
    command: Command
    done: bool
    fault: str  # what is wrong with the data; nothing where they can be read


def transfer(asked: Asked) -> tuple[Table, int]:
    """Run what is not done yet; the table, and the exit code: 0, 1 where one failed, 85 where it
    was asked to stop.

    Raises:
        ValueError: what is given cannot be right; nothing was begun.
        SystemExit: likewise, and that is said.
    """
    pattern = asked.recipes or pattern_of(asked.of)
    parts, left = parts_of(pattern, asked.roots)
    for folder in left:
        print(f"{folder} is left out: no recipe {pattern} is of such a data set", flush=True)
    folder = asked.folder or Path("runs/transfer") / _called(asked.of)
    before = read_table(folder)
    weights = _weights_of(asked.of) if before is None else before.weights
    table = Table(_whole(asked.of), weights, pattern, asked.trainable or AS_SAID, {})
    if before is not None:
        _refuse_another(folder, before, table)
        table = before
    prepared = [_prepared(part, folder, table, asked) for part in parts]
    ranks = _check(prepared, asked)
    folder.mkdir(parents=True, exist_ok=True)
    rows = {each.part.name: _begun(each) for each in prepared}
    table = replace(table, rows={**table.rows, **rows})
    write_table(folder, table)
    return _run(prepared, folder, table, ranks)


def _called(of: str) -> str:
    """A folder's name for what is transferred."""
    name = Path(_whole(of)).name if not of.startswith("timm:") else of
    return "".join(c if c.isalnum() or c in "._-@" else "_" for c in name)


def _whole(of: str) -> str:
    """What is transferred, by a name that means it from any folder."""
    return of if of.startswith("timm:") else str(Path(of).resolve())


def _weights_of(of: str) -> str:
    """The very weights that are meant: a run's newest checkpoint now, for it may train on.

    Raises:
        ValueError: they are not there.
    """
    path = Path(_whole(of))
    if of.startswith("timm:"):
        return of
    if run_named(path) is not None or (path / "recipe.json").is_file():
        return str(find_checkpoint(path))
    if not path.exists():
        raise ValueError(f"{of}: there is no such file or folder")
    return str(path)


def _refuse_another(folder: Path, before: Table, now: Table) -> None:
    for what, there, here in (
        ("of", before.of, now.of),
        ("by recipes", before.recipes, now.recipes),
        ("with --train", before.trained, now.trained),
    ):
        if there != here:
            raise ValueError(
                f"--run-dir {folder}: it holds a transfer {what} {there}, not {here}; choose "
                "another"
            )


def _prepared(part: Part, folder: Path, table: Table, asked: Asked) -> Prepared:
    """A part's command, checked as far as another recipe or a finished run shows."""
    words = [part.recipe]
    words += ["--data-root", part.root] if part.root is not None else []
    words += ["--run-dir", str(folder / part.name), "--init", table.weights, "--resume", "auto"]
    words += ["--trainable", asked.trainable] if asked.trainable is not None else []
    words += asked.options
    command = parse(words, "bigvit train")
    _wait_for(folder / part.name)
    plan_start(command)
    done, fault = _status(folder / part.name).get("state") == "done", ""
    if not done:
        try:
            check_data(command.recipe.data, command.run)
        except ValueError as error:
            fault = str(error)
    return Prepared(part, words, command, done, fault)


def _check(prepared: Sequence[Prepared], asked: Asked) -> int:
    """Check all that is left to do as its own start would, and the weights; the number of ranks."""
    left = [each for each in prepared if not each.done and not each.fault]
    if not left:
        return 0
    ranks = ranks_here(left[0].command.run.engine, asked.ranks)
    new: dict[str, Command] = {}
    for each in left:
        _, start = check(each.command, ranks)
        if start.checkpoint is None:
            new[each.part.recipe] = each.command
    if new:
        from bigvit.transfer.fit import check_fit

        check_fit(asked.of, new)
    return ranks


def _begun(each: Prepared) -> Row:
    """What is known of a part before its training."""
    name, own = find_recipe(each.part.recipe)
    recipe = each.command.recipe
    changes = differences(to_json(own), to_json(recipe))
    figure = published_for(name)
    row = Row(
        name=each.part.name,
        dataset=getattr(recipe.data, "dataset", each.part.name),
        recipe=name,
        trained=recipe.trainable,
        published=None if figure is None else figure.top1,
        source=None if figure is None else figure.source,
        changed=tuple(line for line in changes if not is_named(line, ASIDE)),
    )
    if each.done:
        return _counted(row, each)
    return replace(row, state="failed", reason=each.fault) if each.fault else row


def _run(prepared: Sequence[Prepared], folder: Path, table: Table, ranks: int) -> tuple[Table, int]:
    """Train what is left, and write the table after each."""
    left = [each for each in prepared if not each.done and not each.fault]
    stopped = False
    with _heard() as heard:
        for number, each in enumerate(left, 1):
            name = each.part.name
            if heard:
                stopped = True
                break
            print(f"{name} ({number} of {len(left)}): {each.part.recipe}", flush=True)
            table = _with(folder, table, replace(table.rows[name], state="running"))
            row = _trained(each, table.rows[name], ranks)
            table = _with(folder, table, row)
            heard.listen()
            if row.state == "stopped":
                stopped = True
                break
    if stopped:
        return table, REQUEUE
    failed = any(table.rows[each.part.name].state == "failed" for each in prepared)
    return table, FAILED if failed else DONE


def _with(folder: Path, table: Table, row: Row) -> Table:
    table = replace(table, rows={**table.rows, row.name: row})
    write_table(folder, table)
    return table


def _trained(each: Prepared, row: Row, ranks: int) -> Row:
    """Train a part, and say what came of it."""
    path = each.command.run.run_dir
    assert path is not None
    began = metrics.utc_now()
    code = train_here(each.words, ranks)
    if code == DONE:
        return _counted(row, each)
    status = _status(path)
    reason = str(status.get("reason") or "") if (status.get("time") or "") >= began else ""
    if code == REQUEUE:
        return replace(row, state="stopped", reason=reason, exit_code=code)
    reason = reason or f"exit code {code}; what it said stands above the table"
    return replace(row, state="failed", reason=reason, exit_code=code)


def _counted(row: Row, each: Prepared) -> Row:
    """The row of a training that is done."""
    path = each.command.run.run_dir
    assert path is not None
    top1 = None
    with contextlib.suppress(OSError):
        for line in metrics.read_kind(path / metrics.NAME, metrics.EVALUATION):
            top1 = line.values.get("top1", top1)
    return replace(row, state="done", top1=top1, reason="", exit_code=DONE)


def _status(path: Path) -> Mapping[str, Any]:
    try:
        return status_of(path)
    except (ValueError, OSError):
        return {}


def _wait_for(path: Path) -> None:
    """Wait for ranks of an earlier call, which was killed, to leave a run folder.

    Raises:
        ValueError: they don't.
    """
    deadline = time.monotonic() + ENDING
    while (status := _status(path)).get("state") in GOING_ON:
        if time.monotonic() > deadline:
            who = f"process {status.get('process')} on {status.get('host')}"
            raise ValueError(f"{path} is in use by another job ({who}); wait for it, or stop it")
        time.sleep(0.5)


class _heard:
    """Requests to stop between trainings; in one they are its launcher's."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_heard":
        self.before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.asked

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
