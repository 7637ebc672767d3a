"""A recipe without test images, as ImageNet-21k's: trained, resumed, looked at, never evaluated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pictures import DATA, RECIPE, encoded, jpegs, write_folders
from pictures import crop as photo

from bigvit import cli
from bigvit.data.check import check_data
from bigvit.recipe import Images, Run
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import all_recipes
from bigvit.train import main

UNTESTED = replace(RECIPE, data=replace(DATA, test_images=0))


pytestmark = pytest.mark.usefixtures("own_signals")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_folders(tmp_path / "data", "train", jpegs(60))
    return tmp_path / "data"


def train(root: Path, folder: Path, *args: object, recipe: object = UNTESTED) -> int:
    path = folder / "own.py"
    path.write_text(f"from bigvit.recipe import *\nphotos = {recipe!r}\n")
    options = ("--data-root", root, "--run-dir", folder / "run", "--engine", "single")
    return main([f"{path}:photos", *map(str, (*options, "--workers", 0, *args))])


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_recipes_of_imagenet_21k_and_no_others_have_none() -> None:
    without = set[str]()
    for name, recipe in all_recipes().items():
        if isinstance(recipe.data, Images) and not recipe.data.tested:
            assert recipe.data.test_images == 0
            without.add(name)
            check_recipe(recipe)
        if recipe.data.classes == 21_841:
            assert name in without, name
    deit3 = [name for name in without if name.startswith("deit3_")]
    assert len(deit3) == 11 and all("in21k" in name and "_ft" not in name for name in deit3)
    classify = [name for name in without if all_recipes()[name].classifies]
    assert all("in21k" in name and "_ft" not in name for name in classify)


def test_a_recipe_of_imagenet_21k_trains_on_class_folders_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As it is published: one folder a class, n00004475 and so on, and no other split."""
    for number in range(12):
        wnid = ("n00004475", "n00005787", "n00006024")[number % 3]
        file = tmp_path / "data/train" / wnid / f"{wnid}_{number}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(photo(number), "JPEG"))
    small = "--model.embed-dim 16 --model.depth 1 --model.num-heads 2 --model.num-classes 3 "
    small += "--model.drop-path.rate 0 --data.classes 3 --data.train-images 12 --data.image-size 32"
    small += " --batch-size 8 --data.mix.group 8 --precision fp32 --schedule.epochs 6"
    options = ("--data-root", tmp_path / "data", "--run-dir", tmp_path / "run", "--workers", 0)
    args = ["deit3_s16_in21k_224", *small.split(), *map(str, options), "--engine", "single"]
    assert main([*args, "--evaluate-every", "1", "--stop-after", "3"]) == 85
    assert "nothing is evaluated" in capfd.readouterr().out
    assert main([*args, "--resume", "auto"]) == 0
    found = lines(tmp_path / "run")
    assert found[-1]["update"] == 6 and not any("top1" in line for line in found)
    assert cli.main(["status", str(tmp_path / "run")]) == 0
    assert "done" in capfd.readouterr().out


def test_a_run_goes_on_without_what_was_due(root: Path, tmp_path: Path) -> None:
    """One that was stopped before an evaluation, and has no test images any longer."""
    write_folders(root, "val", jpegs(6, first=60))
    assert train(root, tmp_path, "--stop-after", 3, recipe=RECIPE) == 85
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("step_*")
    from bigvit.checkpoint.manifest import read_manifest, write_manifest

    write_manifest(checkpoint, replace(read_manifest(checkpoint), evaluation_due=True))
    before = len([line for line in lines(tmp_path / "run") if "top1" in line])
    assert train(root, tmp_path, "--resume", "auto") == 2
    allowed = ("--resume", "auto", "--allow-change", "data.test_images")
    assert train(root, tmp_path, *allowed) == 0
    assert len([line for line in lines(tmp_path / "run") if "top1" in line]) == before


def test_an_average_is_not_evaluated_either(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(root, tmp_path, "--ema", 0.9, "--evaluate-ema") == 2
    assert "--evaluate-ema: this recipe has no test images" in capfd.readouterr().err


def test_evaluate_names_what_is_missing_or_takes_what_it_is_given(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(root, tmp_path, "--stop-after", 1) == 85
    capfd.readouterr()
    command = ["evaluate", str(tmp_path / "run"), "--workers", "0"]
    assert cli.main(command) == 2
    said = capfd.readouterr().err
    assert "no test images in the recipe" in said and "--data-root" in said
    write_folders(tmp_path / "other", "val", jpegs(6, first=60))
    assert cli.main([*command, "--data-root", str(tmp_path / "other")]) == 0
    assert json.loads(capfd.readouterr().out)["images"] == 6


def test_what_looks_at_the_data_does_without(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "own.py"
    recipe.write_text(f"from bigvit.recipe import *\nphotos = {UNTESTED!r}\n")
    args = ["--data-root", str(root)]
    out = tmp_path / "samples.png"
    assert cli.main(["samples", f"{recipe}:photos", *args, "--out", str(out)]) == 0
    assert out.is_file()
    from bigvit.hosts.doctor.facts import Question, gather

    told = gather(Question(f"{recipe}:photos", str(root), str(tmp_path), None))
    assert told.data is not None and list(told.data) == ["train"]
    assert not [problem for problem in told.problems if "data" in problem]


def test_a_test_split_that_is_there_is_left_alone(root: Path) -> None:
    """Damaged as it may be."""
    (root / "val/stranger").mkdir(parents=True)
    check_data(UNTESTED.data, Run(data_root=root))
