"""`bigvit doctor`: asks every host, compares, lets them meet, says what to mend. No torch here."""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bigvit.hosts.doctor.compare import problems_of, size
from bigvit.hosts.doctor.facts import Facts, Question, standing
from bigvit.hosts.doctor.meet import Meeting, Met
from bigvit.hosts.doctor.reduce import Part
from bigvit.hosts.hostfile import Done, run_here, run_on
from bigvit.recipe import Recipe, Run

HERE = str(Path(__file__).parent)  # `python HERE facts` runs the module facts, wherever it starts
FACTS, MEET, REDUCE = 600.0, 20.0, 120.0  # seconds; a large data set takes minutes to list
Ask = Callable[[Mapping[str, list[str]], float], dict[str, Done]]
"""Run a module with its arguments on each host, for so long at most."""


@dataclass(frozen=True)
class Visit:
    """What is examined."""

    slots: dict[str, int] | None  # by host; None: this machine alone
    name: str | None  # of a recipe
    recipe: Recipe | None
    data_root: Path | None
    run_dir: Path | None
    ssh_port: int | None = None
    master_addr: str | None = None
    master_port: int = 29500


def examine(visit: Visit) -> int:
    """Print what was found, and return the exit code: 0, or 1 where something is to be mended."""
    slots = visit.slots or {"localhost": 0}
    problems: list[str] = []

    def say(found: list[str]) -> None:
        problems.extend(found)
        for problem in found:
            print(f"PROBLEM  {problem}", flush=True)

    def ask(words: Mapping[str, list[str]], seconds: float) -> dict[str, Done]:
        commands = {host: [sys.executable, HERE, *own] for host, own in words.items()}
        if visit.slots is None:
            return {host: run_here(command, seconds) for host, command in commands.items()}
        return run_on(list(commands), commands, seconds, visit.ssh_port)

    facts, asked, silent = _ask_facts(visit, ask, list(slots))
    say(silent)
    if visit.slots is None and facts:
        slots = {"localhost": len(facts["localhost"].devices) or 2}
    met, apart = _let_meet(visit, ask, facts)
    _print_table(facts, met)
    found = list(problems_of(facts, slots, asked, _room(visit.recipe)))
    say(found)
    if facts and not (found or silent):
        print(f"ok       facts of {len(facts)} host{'s' if len(facts) > 1 else ''}")
    _print_sameness(facts)
    say(apart)
    if len(facts) > 1 and not apart:
        print("ok       every host connects to every other")
    if silent or apart or not facts:
        print("         the all-reduce was not tried")
    else:
        say(_reduce(visit, ask, facts, slots))
    print(f"{len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def _ask_facts(
    visit: Visit, ask: Ask, hosts: list[str]
) -> tuple[dict[str, Facts], dict[str, tuple[float, float]], list[str]]:
    """Facts by host, when each was asked and answered, and why others did not."""
    folder = visit.run_dir or Path("runs", visit.name or "")
    root = visit.data_root and str(visit.data_root)
    with _mark(folder, visit.run_dir is not None and len(hosts) > 1) as mark:
        question = json.dumps(asdict(Question(visit.name, root, str(folder.absolute()), mark)))
        words = ["facts", question]
        answers = ask(dict.fromkeys(hosts, words), FACTS)
    facts: dict[str, Facts] = {}
    silent: list[str] = []
    for host, done in answers.items():
        try:
            facts[host] = Facts(**_answer(done))
        except ValueError as error:
            silent.append(f"{host}: {error}")
        except TypeError:
            silent.append(f"{host}: another bigvit answers; install the same on every host")
    return facts, {host: (done.began, done.ended) for host, done in answers.items()}, silent


@contextmanager
def _mark(folder: Path, wanted: bool) -> Iterator[str | None]:
    """A file beside or in the run folder, by which a host tells that it sees the same one."""
    path = standing(folder) / f".bigvit-doctor-{os.getpid()}-{random.randrange(1 << 30)}"
    try:
        if wanted:
            path.touch()
    except OSError:  # the host whose folder it is says so, too
        wanted = False
    try:
        yield str(path) if wanted else None
    finally:
        path.unlink(missing_ok=True)


def _answer(done: Done) -> Any:
    """The JSON that a module printed.

    Raises:
        ValueError: there is none; says why.
    """
    if done.code == 0:
        for line in reversed(done.output.splitlines()):
            if line.startswith(("{", "[")):
                return json.loads(line)
    raise ValueError(_reason(done))


def _reason(done: Done) -> str:
    """Why a host gave no answer."""
    last = (done.error.strip() or done.output.strip() or "it said nothing").splitlines()[-1]
    if done.code is None:
        return f"no answer in time ({last}); see what it does"
    if done.code == 255:
        return f"{last}; mend it until `ssh HOST true` works without a password"
    if done.code in (126, 127) or "No module named" in last or "can't open file" in last:
        return f"{last}; have the same environment and bigvit at the same path there"
    return f"exit code {done.code}: {last}"


def _let_meet(
    visit: Visit, ask: Ask, facts: Mapping[str, Facts]
) -> tuple[dict[str, Met], list[str]]:
    """How every host met the others, and who could not."""
    if len(facts) < 2:
        return {}, []
    port = random.randrange(33000, 60000)  # as the system would choose for gloo and NCCL
    doors = {host: [(_reached(own), port)] for host, own in facts.items()}
    first = next(iter(doors))
    doors[first].append((_master(visit, facts), visit.master_port))
    meeting = json.dumps(asdict(Meeting(doors, MEET / 2)))
    answers = ask({host: ["meet", host, meeting] for host in doors}, MEET)
    met: dict[str, Met] = {}
    apart: list[str] = []
    for host, done in answers.items():
        try:
            met[host] = Met(**_answer(done))
        except ValueError as error:
            apart.append(f"{host}: connecting: {error}")
    for host, own in met.items():
        apart += [
            f"{host}: port {busy} is in use; end what listens there, or choose another "
            "(--master-port here, --master_port of deepspeed)"
            for busy in own.occupied
        ]
        for other, address, door, why in own.failed:
            if other in met and door not in met[other].occupied:
                apart.append(
                    f"{host} cannot connect to {other} ({address}, port {door}): {why}; open all "
                    "TCP ports between the hosts, or name another network by `bigvit env "
                    "--interface`"
                )
    return met, apart


def _master(visit: Visit, facts: Mapping[str, Facts]) -> str:
    """Where the ranks meet; by itself DeepSpeed takes what `hostname -I` says first."""
    own = next(iter(facts.values()))
    return visit.master_addr or next(iter(own.addresses), own.address)


def _reached(own: Facts) -> str:
    """The address that others reach a host at."""
    away = own.address and not own.address.startswith("127.")
    return own.address if away else next(iter(own.addresses), own.address)


def _reduce(
    visit: Visit, ask: Ask, facts: Mapping[str, Facts], slots: Mapping[str, int]
) -> list[str]:
    """Time an all-reduce of all ranks; and why it failed."""
    world, first = sum(slots.values()), 0
    alone = len(facts) == 1
    address = "127.0.0.1" if alone else _master(visit, facts)
    port = random.randrange(20000, 30000) if alone else visit.master_port
    words: dict[str, list[str]] = {}
    for host, ranks in slots.items():
        part = Part(first, ranks, world, address, port, REDUCE / 2)
        words[host] = ["reduce", json.dumps(asdict(part))]
        first += ranks
    answers = ask(words, REDUCE)
    failed = [host for host, done in answers.items() if done.code != 0]
    failed.sort(key=lambda host: answers[host].ended)  # the cause comes first
    problems = [f"{host}: the all-reduce failed: {_reason(answers[host])}" for host in failed]
    if not failed:
        for count, seconds in _answer(answers[next(iter(slots))]):
            bus = 2 * (world - 1) / world * count / seconds / 1e9
            print(
                f"ok       all-reduce of {count >> 20} MiB over {world} ranks: "
                f"{seconds * 1e3:.1f} ms, {bus:.2f} GB/s on the bus"
            )
    return problems


def _room(recipe: Recipe | None) -> int:
    """Bytes of the checkpoints that a run keeps, and of the one that is being written."""
    if recipe is None:
        return 0
    each = 12 if recipe.ema is None else 16  # float32: the weight, two moments, the average
    return recipe.model.parameters(recipe.data.image_size) * each * (Run().keep + 1)


def _print_table(facts: Mapping[str, Facts], met: Mapping[str, Met]) -> None:
    heads = (
        "host",
        "GPUs",
        "links",
        "cores",
        "memory",
        "/dev/shm",
        "run folder",
        "address",
        "to 1st",
    )
    rows: list[tuple[str, ...]] = [heads]
    for host, own in facts.items():
        kinds = [f"{own.devices.count(name)} x {name}" for name in dict.fromkeys(own.devices)]
        by = met[host].by if host in met else ""
        rows.append(
            (
                host,
                ", ".join(kinds) or "none",
                " ".join(own.links) or "-",
                str(own.cores),
                size(own.memory),
                "-" if own.shared is None else size(own.shared),
                size(own.disk),
                _named(own.address, own),
                _named(by, own),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    print(flush=True)


def _named(address: str, own: Facts) -> str:
    interface = own.addresses.get(address)
    return f"{address} ({interface})" if interface else address or "-"


def _print_sameness(facts: Mapping[str, Facts]) -> None:
    """What is the same on all hosts."""
    every = list(facts.values())
    if not every:
        return
    first, word = every[0], "same" if len(every) > 1 else "here"
    same = [
        f"{name} {value}"
        for name, value in first.versions.items()
        if all(own.versions.get(name) == value for own in every)
    ]
    print(f"{word}     {', '.join(same)}")
    if first.recipe and all(own.recipe == first.recipe for own in every):
        print(f"{word}     recipe, digest {first.recipe}")
    for split, text in (first.data or {}).items():
        if all((own.data or {}).get(split) == text for own in every):
            print(f"{word}     {split} data, {text}")
