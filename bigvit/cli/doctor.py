"""`bigvit doctor`: asks every host, compares, lets them meet, says what to mend. No torch here."""

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bigvit.cli.table import print_table
from bigvit.data.workers import image_bytes
from bigvit.hosts import doctor
from bigvit.hosts.doctor.compare import kinds, problems_of, size
from bigvit.hosts.doctor.facts import Facts, Question, standing
from bigvit.hosts.doctor.meet import Meeting, Met
from bigvit.hosts.doctor.reduce import Part
from bigvit.hosts.hostfile import Done, check_host, read_hostfile, run_here, run_on
from bigvit.plan.weights import size_of
from bigvit.recipe import Recipe, Run
from bigvit.recipe.find import find_recipe

DOCTOR = doctor.__path__[0]  # `python DOCTOR facts` runs the module facts, wherever it starts
FACTS, MEET, REDUCE = 600.0, 20.0, 120.0  # seconds; a large data set takes minutes to list
Ask = Callable[[Mapping[str, list[str]], float], dict[str, Done]]
"""Run a module with its arguments on each host, for so long at most."""


def examine(options: argparse.Namespace) -> int:
    """Print what was found, and return the exit code: 0, or 1 where something is to be mended."""
    here = options.hostfile is None  # this machine alone
    slots = {"localhost": 0} if here else read_hostfile(options.hostfile)
    recipe = None if options.recipe is None else find_recipe(options.recipe)[1]
    if options.master_addr is not None:
        check_host(options.master_addr, "--master-addr")
    problems: list[str] = []

    def say(found: list[str]) -> None:
        problems.extend(found)
        for problem in found:
            print(f"PROBLEM  {problem}", flush=True)

    def ask(words: Mapping[str, list[str]], seconds: float) -> dict[str, Done]:
        commands = {host: [sys.executable, DOCTOR, *own] for host, own in words.items()}
        if here:
            return {host: run_here(command, seconds) for host, command in commands.items()}
        return run_on(list(commands), commands, seconds, options.ssh_port)

    facts, asked, silent = _ask_facts(options, ask, list(slots))
    say(silent)
    if here and facts:
        slots = {"localhost": len(facts["localhost"].devices) or 2}
    met, apart = _let_meet(options, ask, facts)
    _print_table(facts, met)
    data = None if recipe is None else recipe.data
    image = 0 if data is None else image_bytes(data)
    batch = 0 if recipe is None else recipe.batch_size
    found = list(problems_of(facts, slots, asked, _room(recipe), image, batch))
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
        say(_reduce(options, ask, facts, slots))
    print(f"{len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def compare_with_rehearsal(options: argparse.Namespace) -> int:
    """Print how a run that has begun differs from what was rehearsed; 1 where it does."""
    if options.run_dir is None:
        raise ValueError("--certificate: name the run that is to be compared by --run-dir")
    from bigvit.rehearse.certificate import compare, read_certificate  # tyro

    certificate = read_certificate(options.certificate)
    problems = list(compare(certificate, options.run_dir))
    for problem in problems:
        print(f"PROBLEM  {problem}")
    if not problems:
        print(f"ok       {options.run_dir} is as it was rehearsed")
    return 1 if problems else 0


def _ask_facts(
    options: argparse.Namespace, ask: Ask, hosts: list[str]
) -> tuple[dict[str, Facts], dict[str, tuple[float, float]], list[str]]:
    """Facts by host, when each was asked and answered, and why others did not."""
    folder = options.run_dir or Path("runs", options.recipe or "")
    root = options.data_root and str(options.data_root)
    coarser = options.classes_map and str(options.classes_map)
    with _mark(folder, options.run_dir is not None and len(hosts) > 1) as mark:
        named = str(folder.absolute())
        question = asdict(Question(options.recipe, root, named, mark, coarser))
        answers = ask(dict.fromkeys(hosts, ["facts", json.dumps(question)]), FACTS)
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
    options: argparse.Namespace, ask: Ask, facts: Mapping[str, Facts]
) -> tuple[dict[str, Met], list[str]]:
    """How every host met the others, and who could not."""
    if len(facts) < 2:
        return {}, []
    port = random.randrange(33000, 60000)  # as the system would choose for gloo and NCCL
    doors = {host: [(_reached(own), port)] for host, own in facts.items()}
    first = next(iter(doors))
    doors[first].append((_master(options, facts), options.master_port))
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


def _master(options: argparse.Namespace, facts: Mapping[str, Facts]) -> str:
    """Where the ranks meet; by itself DeepSpeed takes what `hostname -I` says first."""
    own = next(iter(facts.values()))
    return options.master_addr or next(iter(own.addresses), own.address)


def _reached(own: Facts) -> str:
    """The address that others reach a host at."""
    away = own.address and not own.address.startswith("127.")
    return own.address if away else next(iter(own.addresses), own.address)


def _reduce(
    options: argparse.Namespace, ask: Ask, facts: Mapping[str, Facts], slots: Mapping[str, int]
) -> list[str]:
    """Time an all-reduce of all ranks; and why it failed."""
    world, first = sum(slots.values()), 0
    alone = len(facts) == 1
    address = "127.0.0.1" if alone else _master(options, facts)
    port = random.randrange(20000, 30000) if alone else options.master_port
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
    return size_of(recipe).parameters * each * (Run().keep + 1)


def _print_table(facts: Mapping[str, Facts], met: Mapping[str, Met]) -> None:
    rows = [
        {
            "host": host,
            "GPUs": kinds(own.devices),
            "links": " ".join(own.links) or "-",
            "cores": str(own.cores),
            "memory": size(own.memory),
            "/dev/shm": "-" if own.shared is None else size(own.shared),
            "run folder": size(own.disk),
            "JPEGs": "by Pillow" if own.slow else "extension",
            "address": _named(own.address, own),
            "to 1st": _named(met[host].by if host in met else "", own),
        }
        for host, own in facts.items()
    ]
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
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
    if all(own.slow for own in every):
        print(f"note     {first.slow}")
    for split, text in (first.data or {}).items():
        if all((own.data or {}).get(split) == text for own in every):
            print(f"{word}     {split} data, {text}")
