"""Files written before recipes had an average, and checkpoints a count of batches and format 2,
still serve."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from saving import as_format_1, rewrite
from small import TINY

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.run import checkpoints_of
from bigvit.cli import main as bigvit
from bigvit.recipe.store import recipe_from_json
from bigvit.train import main

SAID = "an older bigvit wrote this recipe; it meant: ema: (absent) -> None"
OPTIONS = ("--engine", "single", "--workers", "0", "--log-every", "1", "--stop-after")


def make_older(run: Path) -> None:
    """Remove from a run's files what came later."""
    described = json.loads((run / "recipe.json").read_text())
    del described["recipe"]["ema"]
    (run / "recipe.json").write_text(json.dumps(described))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["batch"]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for checkpoint in checkpoints_of(run):
        as_format_1(checkpoint)
        rewrite(checkpoint, lacking)


def lacking(body: dict[str, Any]) -> None:
    del body["batch"], body["recipe"]["ema"], body["losses"]


def resume(run: Path, stop: int = 6) -> int:
    return main(
        ["digits_vit", *TINY, "--run-dir", str(run), "--resume", "auto", *OPTIONS, str(stop)]
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    assert main(["digits_vit", *TINY, "--run-dir", str(folder), *OPTIONS, "4"]) == 85
    return folder


@pytest.fixture
def runs(tmp_path: Path, stopped: Path) -> tuple[Path, Path]:
    """A run stopped at its fourth update, and the same as an older bigvit would have left it."""
    for name in ("new", "old"):
        shutil.copytree(stopped, tmp_path / name)
    make_older(tmp_path / "old")
    return tmp_path / "new", tmp_path / "old"


def test_what_is_left_out_is_read_as_it_was_meant(runs, caplog):
    new, old = (read_manifest(checkpoints_of(run)[-1]) for run in runs)
    assert "ema" not in old.recipe and "ema" in new.recipe
    assert (old.batch, old.update) == (new.batch, new.update) == (4, 4)
    recipe = recipe_from_json(old.recipe)
    assert [record.getMessage() for record in caplog.records] == [SAID]
    assert recipe == recipe_from_json(new.recipe) and recipe.ema is None
    assert len(caplog.records) == 1, "a whole recipe has nothing said of it"


def test_an_older_run_goes_on_as_a_new_one_and_says_so_once(runs, capfd):
    new, old = runs
    assert resume(new) == 85
    assert SAID not in "".join(capfd.readouterr())
    assert resume(old) == 85
    assert "".join(capfd.readouterr()).count(SAID) == 1
    weights = {}
    for run in runs:
        *_, last = checkpoints_of(run)
        assert last.name == "step_00000006"
        found, weights[run] = read_weights(last)
        assert (found.batch, found.recipe["ema"]) == (6, None)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["update"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(torch.equal(weights[old][name], weights[new][name]) for name in weights[new])
    described = [json.loads((run / "recipe.json").read_text())["recipe"] for run in runs]
    assert described[0] == described[1]
    assert resume(old, stop=7) == 85
    assert SAID not in "".join(capfd.readouterr()), "files are new by now"


def test_another_recipe_is_refused_for_what_differs_alone(runs, capfd):
    _, old = runs
    args = ["digits_vit", *TINY, "--run-dir", str(old), "--resume", "auto", *OPTIONS, "6"]
    assert main([*args, "--ema", "0.5"]) == 2
    said = capfd.readouterr().err
    assert "ema: None -> 0.5" in said and "(absent)" not in said


def test_an_older_checkpoint_is_evaluated_and_exported(runs, tmp_path, capsys, caplog):
    found = []
    for run in runs:
        assert bigvit(["evaluate", str(run), "--workers", "0"]) == 0
        found.append(json.loads(capsys.readouterr().out))
        del found[-1]["checkpoint"], found[-1]["images_per_second"]
        assert bigvit(["export", str(run), "--out", str(tmp_path / f"{run.name} export")]) == 0
        capsys.readouterr()
    assert [record.getMessage() for record in caplog.records] == [SAID] * 2  # once a command
    assert found[0] == found[1]
    exported = [(tmp_path / f"{run.name} export" / "model.safetensors") for run in runs]
    assert exported[0].read_bytes() == exported[1].read_bytes()


# a run on two ranks at ZeRO-3, with LAMB, an average and a head of its own, as it was left when it
# was written down (tests/faults/older_run/), and how it went on then
BEFORE = Path(__file__).with_name("older_run")
DIGESTS = {"": "7b31cfa50d6643c1305458a739929998", "--ema": "a17f3a1336e86af3d75c1a0281814273"}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return shutil.copytree(BEFORE / "run", tmp_path / "run")


def test_a_run_of_before_goes_on_as_it_went_on_then(before: Path):
    words = [f"{BEFORE / 'small.py'}:small", "--run-dir", str(before), "--resume", "auto"]
    assert main([*words, *OPTIONS[:-1], "--evaluate-ema"]) == 0
    lines = [json.loads(line) for line in (before / "metrics.jsonl").read_text().splitlines()]
    then = [json.loads(line) for line in (BEFORE / "went_on.jsonl").read_text().splitlines()]
    now = lines[-len(then) :]
    assert [line["batch"] for line in then] == [*range(8, 11), 10, *range(11, 21), 20]
    for was, found in zip(then, now, strict=True):
        assert {key: found[key] for key in was} == pytest.approx(was, rel=1e-6)


@pytest.mark.parametrize("average", DIGESTS)
def test_a_checkpoint_of_before_is_exported_to_the_bit(average: str, before: Path, tmp_path: Path):
    words = ["export", str(before), "--out", str(tmp_path / "export"), *average.split()]
    assert bigvit(words) == 0
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config["weights_xxh3_128"] == DIGESTS[average]
