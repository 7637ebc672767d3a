"""Where a run comes from: what was asked for, by which versions, on which data, by which jobs. No
torch here."""

from collections.abc import Iterator, Sequence
from typing import Any

from bigvit.checkpoint.jobs import Job
from bigvit.recipe import Run
from bigvit.report.blocks import Block, Code, Section, Table, Text
from bigvit.report.skipped import enumerated, skipped_batches
from bigvit.report.told import Told, begins, listed
from bigvit.report.words import counted, moment, size, spoken

REVISION = 10  # characters of a git revision that are shown beside another
FILES = {
    "stopped_images.txt": "Images of the batch that the run stopped before",
    "bad_images.txt": "Images that could not be read, and were replaced",
}


def provenance(runs: Sequence[Told]) -> Section:
    """All of it, run by run."""
    return Section("Provenance", [block for told in runs for block in _of(told, len(runs) > 1)])


def _of(told: Told, several: bool) -> Iterator[Block]:
    if several:
        yield Text(f"{told.name}:")
    rows = list(_facts(told))
    yield Table(f"What was run in {told.path.name or told.path}", ("", ""), rows)
    if words := told.described.get("overrides"):
        yield Text("Beside the recipe's name, its command line said:")
        yield Code(" ".join(map(str, words)))
    yield from _data(told)
    yield from _jobs(told)
    yield from skipped_batches(told)
    yield from _checkpoints(told)
    for name, caption in FILES.items():
        names, count = listed(told.path / name)
        if count:
            more = f", the first {len(names)}" if count > len(names) else ""
            rows = [*enumerated(names)]
            yield Table(f"{caption}: {count:,}{more}", ("", "image"), rows, folded=True)


def _facts(told: Told) -> Iterator[tuple[str, str]]:
    said = told.described
    yield "folder", str(told.path)
    values = told.values
    if "name" in said:
        yield "recipe", str(said["name"])
    if values:
        yield "its source", spoken(values.get("source"))
        yield "starts from", spoken(values.get("starts_from") or "nothing")
    yield "ranks", spoken(said.get("world"))
    options = said.get("run")
    if isinstance(options, dict):
        engine = (options.get("engine"), options.get("sharding"))
        yield "engine and sharding", ", ".join(str(each) for each in engine if each)
        usual = {name: str(value) for name, value in vars(Run()).items()}
        aside = ("engine", "sharding")
        others = [
            f"{name} {value}"
            for name, value in options.items()
            if name not in aside and value != usual.get(name)
        ]
        yield "options that are not the usual ones", "; ".join(others) or "none"
    versions = said.get("versions")
    if isinstance(versions, dict):
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    git = said.get("git")
    if git:
        changed = " (with changes that were not committed)" if str(git).endswith("+") else ""
        yield "git revision", f"{str(git).rstrip('+')}{changed}"
    else:
        yield "git revision", "not known"
    for key, called in (("teacher", "digest of the teacher"), ("label_maps", "digest of the maps")):
        if key in said:
            yield called, str(said[key])


def _data(told: Told) -> Iterator[Block]:
    if told.index is None:
        return
    rows: list[tuple[str, ...]] = []
    heads: tuple[str, ...] = ()
    for split, values in told.index.items():
        if isinstance(values, dict):
            rows.append((split, *(spoken(value) for value in values.values())))
            heads = ("split", *values)
    if rows:
        yield Table("The data, as the newest checkpoint knows them", heads, rows)


def _jobs(told: Told) -> Iterator[Block]:
    if not told.jobs:
        yield Text("Its jobs were not listed: an older bigvit ran it, or none came that far.")
        return
    rows: list[tuple[str, ...]] = []
    before: dict[str, Any] = {}
    for number, job in enumerate(told.jobs, 1):
        over = number < len(told.jobs) or told.state not in ("running", "starting")
        rows.append((str(number), *_job(job, before, over)))
        before = job.start or before
    restarts = sum(begins(job) is not None for job in told.jobs)
    title = f"{counted(len(rows), 'job')}, {counted(restarts, 'restart')} from a checkpoint"
    heads = ("job", "began (UTC)", "from batch", "ranks", "ended", "at update", "how, and why")
    yield Table(title, heads, rows)


def _job(job: Job, before: dict[str, Any], over: bool) -> tuple[str, ...]:
    start, end = job
    batch = begins(job)
    came = "the beginning" if batch is None else f"{batch:,}"
    if not start:
        came = "–"
    changed = list(_changes(before, start)) if before and start else []
    if end:
        code = end.get("exit_code")
        how = f"{end.get('state')} ({code})" if code is not None else str(end.get("state"))
        how = ": ".join(filter(None, (how, str(end.get("reason") or ""))))
    else:
        how = "it said no end: it was killed, or its machine went down" if over else "it runs"
    if changed:
        how += f" (unlike the job before: {', '.join(changed)})"
    return (
        moment(start.get("time")),
        came,
        spoken(start.get("world")) if start else "–",
        moment(end.get("time")) if end else "–",
        f"{end['update']:,}" if type(end.get("update")) is int else "–",
        how,
    )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """In what a job was started otherwise than the one before it."""
    for key in ("git", "world"):
        if before.get(key) != now.get(key):
            new, old = (spoken(each.get(key))[:REVISION] for each in (now, before))
            yield f"{key} {new}, was {old}"
    old, new = before.get("versions"), now.get("versions")
    if isinstance(old, dict) and isinstance(new, dict):
        for name in new:
            if old.get(name) != new[name]:
                yield f"{name} {new[name]}, was {old.get(name)}"
    old, new = before.get("overrides"), now.get("overrides")
    if isinstance(old, list) and isinstance(new, list):
        if more := [str(word) for word in new if word not in old]:
            yield f"with {' '.join(more)}"
        if less := [str(word) for word in old if word not in new]:
            yield f"without {' '.join(less)}"


def _checkpoints(told: Told) -> Iterator[Block]:
    if not told.saved:
        yield Text("There is no checkpoint.")
        return
    rows = [
        (f"{each.batch:,}", f"{told.epoch_at(each.batch):g}", size(each.bytes), each.fault or "yes")
        for each in told.saved
    ]
    heads = ("batch", "epoch", "size", "whole")
    yield Table("Checkpoints", heads, rows, folded=len(rows) > 10)
