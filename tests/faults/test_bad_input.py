"""Bad input gets one message and exit code 2, before anything expensive, and nothing is lost.

Every case runs in this process; some also on two ranks, one of those through the real launcher,
and all of them through it with the slow marker.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from small import TINY, content

from bigvit.checkpoint.manifest import read_manifest, write_manifest
from bigvit.train import main

LAUNCHED = "an override that is unknown"
ON_TWO_RANKS = ("a run folder in use", "a damaged checkpoint")
Make = Callable[[Path], list[str]]
"""Prepares a folder that holds a copy of a stopped run, and returns the arguments."""


def tiny(*args: object) -> list[str]:
    return ["digits_vit", *TINY, *map(str, args)]


def fresh(folder: Path, *args: object) -> list[str]:
    return tiny("--run-dir", folder / "fresh", *args)


def resume(folder: Path, *args: object) -> list[str]:
    return tiny("--run-dir", folder / "run", "--resume", "auto", *args)


def checkpoint(folder: Path) -> Path:
    return folder / "run" / "checkpoints" / "step_00000004"


def resume_from(folder: Path) -> list[str]:
    """From the checkpoint itself: then no other is taken in its place."""
    return tiny("--run-dir", folder / "run", "--resume", checkpoint(folder))


def damage(folder: Path) -> list[str]:
    path = checkpoint(folder) / "rank_00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    return resume_from(folder)


def truncate(folder: Path) -> list[str]:
    path = checkpoint(folder) / "rank_00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return resume_from(folder)


def empty_manifest(folder: Path) -> list[str]:
    (checkpoint(folder) / "manifest.json").write_text("")
    return resume_from(folder)


def damage_all(folder: Path) -> list[str]:
    for path in (folder / "run" / "checkpoints").iterdir():
        (path / "manifest.json").unlink()
    return resume(folder)


def other_data(folder: Path) -> list[str]:
    """Say in the newest checkpoint that the run began with other images."""
    manifest = read_manifest(checkpoint(folder))
    assert manifest.data is not None
    train = manifest.data["train"] | {"digest": "0" * 32}
    write_manifest(checkpoint(folder), replace(manifest, data=manifest.data | {"train": train}))
    return resume(folder)


def foreign(folder: Path) -> list[str]:
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.tex").write_text("years of work")
    return tiny("--run-dir", folder / "foreign")


def empty(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return fresh(folder, "--resume", folder / "empty")


def below_a_file(folder: Path) -> list[str]:
    (folder / "file").write_text("")
    return tiny("--run-dir", folder / "file" / "run")


def through_a_dead_link(folder: Path) -> list[str]:
    (folder / "link").symlink_to(folder / "absent")
    return tiny("--run-dir", folder / "link" / "run")


def sharding(value: object) -> Make:
    def make(folder: Path) -> list[str]:
        path = folder / "own.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return fresh(folder, "--sharding", path)

    return make


CASES: dict[str, tuple[Make, str]] = {
    "a recipe that is unknown": (lambda f: ["digits_vti"], "the nearest are digits_vit"),
    "no recipe": (lambda f: ["--seed", "1"], "must be a recipe's name"),
    "an override that is unknown": (lambda f: fresh(f, "--optim.lrr", 1), "--optim.lr"),
    "an override of another type": (lambda f: fresh(f, "--optim.lr", "high"), "--optim.lr"),
    "an average that is not kept": (
        lambda f: fresh(f, "--evaluate-ema"),
        "--evaluate-ema: this recipe keeps no average",
    ),
    "missing data": (
        lambda f: ["deit3_h14_in1k_126", "--sharding", "zero0", "--precision", "fp32"],
        "ImageNet",
    ),
    "a batch that does not divide": (
        lambda f: fresh(f, "--micro-batch", 7),
        "--micro-batch 7 does not work",
    ),
    "a sharding that is unknown": (
        lambda f: fresh(f, "--sharding", "zero22"),
        "did you mean zero2",
    ),
    "a sharding with another batch": (sharding({"train_batch_size": 7}), "train_batch_size is 7"),
    "a sharding with other clipping": (
        sharding({"gradient_clipping": 5}),
        "gradient_clipping is 5",
    ),
    "a sharding with another precision": (sharding({"bf16": {"enabled": True}}), "bf16 is"),
    "a sharding with an optimizer": (sharding({"optimizer": {"type": "Adam"}}), "optimizer is not"),
    "a sharding that offloads to a disk": (
        sharding({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}),
        'offload_param.device is "nvme"; it must be "cpu" or "none"',
    ),
    "a sharding at stage 3, compiled": (
        lambda f: fresh(f, "--sharding", "zero3", "--compile"),
        "--compile with --sharding zero3",
    ),
    "resume from an empty folder": (empty, "neither a run folder nor a checkpoint"),
    "resume from a foreign folder": (
        lambda f: fresh(f, "--resume", Path(__file__).parent),
        "neither a run folder nor a checkpoint",
    ),
    "resume from nothing": (
        lambda f: fresh(f, "--resume", f / "absent"),
        "there is no run folder or checkpoint",
    ),
    "a damaged checkpoint": (damage, "rank_00000.safetensors is damaged"),
    "a truncated checkpoint": (truncate, "bytes long instead of"),
    "an emptied manifest": (empty_manifest, "manifest.json is damaged"),
    "no whole checkpoint": (damage_all, "holds no whole checkpoint"),
    "a run on other data": (other_data, f"index.train.digest: {'0' * 32} -> "),
    "a change of what there is not": (
        lambda f: resume(f, "--allow-change", "optim.lrr"),
        "--allow-change optim.lrr: there is no such field; the nearest are optim.lr",
    ),
    "a run of another recipe": (lambda f: resume(f, "--seed", 1), "seed: 0 -> 1"),
    "a run folder that holds a run": (
        lambda f: tiny("--run-dir", f / "run"),
        "go on with it by --resume auto",
    ),
    "a run folder of other files": (foreign, "thesis.tex"),
    "a run folder in use": (resume, "is in use by another job"),
    "a run folder below a file": (below_a_file, "cannot be written to"),
    "a run folder below a link to nothing": (through_a_dead_link, "link cannot be written to"),
    "a stop in the past": (lambda f: resume(f, "--stop-after", 3), "is at 4 already"),
}


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Hold the run folder's lock from another process, where the case says so."""
    if "in use" not in what:
        yield
        return
    import subprocess
    import sys

    code = "import fcntl, sys\nf = open(sys.argv[1], 'a')\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", code + "print('held', flush=True)\nsys.stdin.read()"]
        + [str(folder / "run" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.communicate(b"")


@pytest.fixture
def folder(tmp_path: Path, stopped_run: Path) -> Path:
    shutil.copytree(stopped_run, tmp_path / "run")
    return tmp_path


def without_notes(found: dict[str, bytes]) -> dict[str, bytes]:
    """What must not change: everything but the notes on who ran last, and how that ended."""
    notes = ("lock", "status.json", "recipe.json")
    return {name: data for name, data in found.items() if Path(name).name not in notes}


@pytest.mark.parametrize("what", CASES)
def test_in_process(what, folder, monkeypatch, capfd):
    make, message = CASES[what]
    monkeypatch.chdir(folder)  # where a default run folder would be made
    args = make(folder)
    before = content(folder)
    # what is found after the ranks have met needs no launcher with the plain engine
    plain = [] if "compiled" in what else ["--engine", "single"]
    with held(folder, what):
        assert main([*args, *plain] if args[0].startswith("digits_vit") else args) == 2
    said = " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert message in said
    assert "Traceback" not in said
    assert without_notes(content(folder)) == without_notes(before)


@pytest.mark.parametrize("what", ON_TWO_RANKS)
def test_on_two_ranks(what, folder, warm):
    assert_refused(what, folder, warm)


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[] if what == LAUNCHED else pytest.mark.slow) for what in CASES],
)
def test_through_the_launcher(what, folder, launch):
    assert_refused(what, folder, launch)


def assert_refused(what, folder, start):
    make, message = CASES[what]
    args = make(folder)
    before = content(folder)
    with held(folder, what):
        done = start(2, "scripts/train.py", *args, timeout=60)
    said = " ".join(done.output.replace("│", " ").split())
    assert done.code == 2, done.output
    assert message in said
    assert said.count("error: ") + said.count("╭") == 1, done.output
    assert "Traceback" not in said
    assert without_notes(content(folder)) == without_notes(before)


@pytest.mark.slow
def test_fp16_on_a_cpu_is_refused_through_the_launcher(tmp_path, launch):
    """Found once the ranks have met: both of them end. test_guards.py has it among other runs."""
    done = launch(2, "scripts/train.py", *fresh(tmp_path, "--precision", "fp16"), timeout=60)
    assert done.code == 2, done.output
    assert done.output.count("error: ") == 1 and "Traceback" not in done.output
    assert "error: --precision fp16: DeepSpeed has it on a GPU only" in done.output
    assert content(tmp_path) == {}


def test_another_rank_is_silent_and_waits_for_rank_0(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["digits_vit", "--optim.lrr", "1"]) == 2
    assert capfd.readouterr() == ("", "")


def test_the_lock_is_held_by_the_system(stopped_run):
    """It is free again once a run has ended, whatever its file says."""
    with (stopped_run / "lock").open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
