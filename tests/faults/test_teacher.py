"""A teacher that is not there, not the recipe's, not the run's, or the student itself is refused;
the same one is taken from wherever it lies, and nothing but training asks for it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import TINY, content

from bigvit.cli import main as bigvit
from bigvit.evaluate import evaluate_checkpoint
from bigvit.train import main

FILE = """
from dataclasses import replace
from bigvit.recipe import SoftDistillation, Teacher
from bigvit.recipes.digits import digits_vit
model = replace(digits_vit.model, embed_dim=16, depth=1, num_heads=2)
data = digits_vit.data
teacher = Teacher(model=model, image_size=8, mean=data.mean, std=data.std, precision="fp32")
soft = SoftDistillation(weight=0.5, tau=2.0, mean="images", head="class")
objectives = (*digits_vit.objectives, soft)
student = replace(digits_vit, model=model, objectives=objectives, teacher=teacher)
"""
ALONE = ("--engine", "single", "--workers", "0")
Make = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, stopped_run: Path) -> Path:
    """A folder with a teacher's run and export, a recipe that learns from it, and such a run, which
    was stopped."""
    root = tmp_path_factory.mktemp("studied")
    shutil.copytree(stopped_run, root / "teacher")
    assert bigvit(["export", str(root / "teacher"), "--out", str(root / "export")]) == 0
    (root / "own.py").write_text(FILE)
    assert main(student(root, "run", "--teacher", root / "teacher", "--stop-after", 2)) == 85
    return root


@pytest.fixture
def root(studied: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(studied, tmp_path / "all"))


def student(root: Path, run: str, *words: object) -> list[str]:
    at = ("--run-dir", root / run)
    return [f"{root / 'own.py'}:student", *map(str, (*ALONE, *at, *words))]


def fresh(root: Path, *words: object) -> list[str]:
    return student(root, "fresh", "--stop-after", 2, *words)


def resumed(root: Path, *words: object) -> list[str]:
    return student(root, "run", "--resume", "auto", "--stop-after", 3, *words)


def weights(root: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A file of the teacher's weights, changed."""
    found = load_file(root / "export" / "model.safetensors")
    change(found)
    save_file(found, root / "changed.safetensors")
    return root / "changed.safetensors"


def other(found: dict[str, torch.Tensor]) -> None:
    found["head.bias"] += 1e-3


def damaged(root: Path) -> list[str]:
    path = root / "teacher" / "checkpoints" / "step_00000004"
    file = path / "rank_00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    return fresh(root, "--teacher", path)


def through_a_link(root: Path) -> list[str]:
    (root / "link").symlink_to(root / "run")
    return resumed(root, "--teacher", root / "link" / "checkpoints" / "step_00000002")


def empty(root: Path) -> list[str]:
    (root / "empty").mkdir()
    return fresh(root, "--teacher", root / "empty")


def before_a_checkpoint(root: Path) -> list[str]:
    """A job that was killed before it saved anything had begun with another."""
    shutil.rmtree(root / "run" / "checkpoints")
    return resumed(root, "--teacher", weights(root, other))


def nan(found: dict[str, torch.Tensor]) -> None:
    found["norm.weight"][3] = float("nan")


CUT = ("--teacher-sharding", "host")
CASES: dict[str, tuple[Make, str]] = {
    "none": (fresh, "student learns from a teacher; give its weights by --teacher: a run,"),
    "none at resume": (resumed, "learns from a teacher; give its weights by --teacher"),
    "for a recipe without": (
        lambda r: ["digits_vit", *TINY, *ALONE, "--run-dir", str(r / "x"), "--teacher", "y"],
        "--teacher: digits_vit has no teacher; leave it out",
    ),
    "an average for a recipe without": (
        lambda r: ["digits_vit", *TINY, *ALONE, "--run-dir", str(r / "x"), "--teacher-ema"],
        "--teacher-ema: digits_vit has no teacher; leave it out",
    ),
    "cut for a recipe without": (
        lambda r: [*["digits_vit", *TINY, *ALONE], "--run-dir", str(r / "x"), *CUT],
        "--teacher-sharding: digits_vit has no teacher; leave it out",
    ),
    "absent": (lambda r: fresh(r, "--teacher", r / "absent"), "there is no such file or folder"),
    "gone at resume": (lambda r: resumed(r, "--teacher", r / "gone"), "there is no such file"),
    "an empty folder": (empty, "empty is neither a run folder nor a checkpoint"),
    "no weights": (lambda r: fresh(r, "--teacher", r / "own.py"), "not a file that torch.save"),
    "a damaged checkpoint": (damaged, "rank_00000.safetensors is damaged"),
    "no average": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher-ema"),
        "holds no average of the weights, as its recipe's ema is None; leave --teacher-ema out",
    ),
    "no model of timm's": (
        lambda r: fresh(r, "--teacher", "timm:no_such_model"),
        "--teacher timm:no_such_model: cannot be read",
    ),
    "itself": (
        lambda r: resumed(r, "--teacher", r / "run"),
        "it is the run itself",
    ),
    "itself through a link": (through_a_link, "which cannot be its own teacher; name another run"),
    "more blocks": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.model.depth", 2),
        "not of the recipe's teacher.model: 14 weights are missing, blocks.1.attn.proj.bias the",
    ),
    "fewer blocks": (
        lambda r: fresh(r, "--teacher", weights(r, lambda w: w.update(more=w["norm.bias"] + 1))),
        "not of the recipe's teacher.model: 1 weights are unexpected, more first",
    ),
    "another width": (
        lambda r: fresh(r, "--teacher", r / "export", "--teacher.model.embed-dim", 18),
        "blocks.0.attn.proj.bias is (16,), but that of the recipe's teacher.model is (18,)",
    ),
    "another size": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.image-size", 12),
        "its positions are 4 x 4, but teacher.image_size makes them 6 x 6",
    ),
    "a size that it cannot be fed": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.image-size", 9),
        "teacher.image_size: 9 is not allowed; it must be a multiple of teacher.model.patch_size",
    ),
    "other classes": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.model.num-classes", 11),
        "teacher.model.num_classes: 11 is not allowed; it must be 10, as many as the student has",
    ),
    "other channels": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.model.in-chans", 3),
        "teacher.model.in_chans: 3 is not allowed; it must be 1",
    ),
    "a mean of other channels": (
        lambda r: fresh(r, "--teacher", r / "teacher", "--teacher.mean", 0.1, 0.2),
        "teacher.mean: (0.1, 0.2) is not allowed; it must be 1 numbers",
    ),
    "not a number": (
        lambda r: fresh(r, "--teacher", weights(r, nan)),
        "norm.weight holds values that are not finite",
    ),
    "other weights at resume": (
        lambda r: resumed(r, "--teacher", weights(r, other)),
        "--allow-change teacher.digest",
    ),
    "other weights before a checkpoint": (before_a_checkpoint, "another teacher than"),
    "another precision at resume": (
        lambda r: resumed(r, "--teacher", r / "teacher", "--teacher.precision", "bf16"),
        "teacher.precision: fp32 -> bf16",
    ),
}


def unnoted(found: dict[str, bytes]) -> dict[str, bytes]:
    return {n: d for n, d in found.items() if Path(n).name not in ("lock", "status.json")}


@pytest.mark.parametrize("what", CASES)
def test_refused(what: str, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(root)
    make, message = CASES[what]
    args = make(root)
    before = content(root)
    assert main(args) == 2
    said = " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert message in said
    assert said.count("error: ") == 1 and "Traceback" not in said
    assert unnoted(content(root)) == unnoted(before)


@pytest.mark.parametrize("where", ["teacher", "teacher/checkpoints/step_00000004", "export"])
def test_the_same_weights_are_taken_from_elsewhere(where: str, root: Path) -> None:
    digest = json.loads((root / "run" / "recipe.json").read_text())["teacher"]
    there = root / "elsewhere" / Path(where).name
    there.parent.mkdir()
    there.symlink_to(root / where)
    assert main(resumed(root, "--teacher", there)) == 85
    assert json.loads((root / "run" / "recipe.json").read_text())["teacher"] == digest


def test_another_teacher_may_be_allowed_and_is_the_runs_from_then_on(root: Path) -> None:
    changed = weights(root, other)
    assert main(resumed(root, "--teacher", changed, "--allow-change", "teacher.digest")) == 85
    at_4 = student(root, "run", "--resume", "auto", "--stop-after", 4, "--teacher")
    assert main([*at_4, str(root / "teacher")]) == 2
    assert main([*at_4, str(changed)]) == 85


def test_a_checkpoint_that_lies_elsewhere_knows_its_teacher(root: Path, capfd: Any) -> None:
    shutil.copytree(root / "run" / "checkpoints" / "step_00000002", root / "step_00000002")
    branch = student(root, "branch", "--resume", root / "step_00000002", "--stop-after", 3)
    assert main([*branch, "--teacher", str(weights(root, other))]) == 2
    assert "teacher.digest: " in capfd.readouterr().err
    assert main([*branch, "--teacher", str(root / "teacher")]) == 85


def test_nothing_but_training_asks_for_it(root: Path, capfd: Any) -> None:
    shutil.rmtree(root / "teacher")
    run, recipe = str(root / "run"), f"{root / 'own.py'}:student"
    assert evaluate_checkpoint(root / "run" / "checkpoints" / "step_00000002", 60)["images"] == 300
    for words in (
        ("export", run),
        ("show", recipe),
        ("status", run),
        ("plan", recipe, "--gpus", "2"),
        ("rehearse", recipe, "--ranks", "2", "--sharding", "zero1"),
    ):
        assert bigvit([*words]) == 0, (words, capfd.readouterr())
