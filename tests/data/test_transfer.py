"""`bigvit transfer` on publishers' layouts in miniature, by the real launcher: its table, what it
goes on with, what it refuses before anything begins."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pictures
import pytest
import test_listed

from bigvit.checkpoint.load import read_weights
from bigvit.cli import main
from bigvit.ranks.stopping import SIGNALS
from bigvit.recipe import Recipe
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import to_json
from bigvit.train import main as train
from bigvit.transfer.suite import (
    DATASETS,
    _published,
    parts_of,
    pattern_of,
    published_for,
    recipes_of,
)

SINGLE = ["--engine", "single", "--workers", "0"]


def mini(name: str, train_images: int, test_images: int, classes: int) -> Recipe:
    before = pictures.RECIPE
    return replace(
        before,
        model=replace(before.model, num_classes=classes),
        data=replace(
            before.data,
            dataset=name,
            train_images=train_images,
            test_images=test_images,
            classes=classes,
        ),
        batch_size=4,
        starts_from="low",
    )


def write_recipes(path: Path, recipes: dict[str, Recipe]) -> None:
    lines = ["import json", "from bigvit.recipe.store import recipe_from_json as made"]
    for name, each in recipes.items():
        lines.append(f"{name} = made(json.loads({json.dumps(to_json(each))!r}))")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `low`, its recipes, and two data sets called as such."""
    root = tmp_path_factory.mktemp("transfer")
    pictures.write_folders(root / "data", "train", pictures.jpegs(60))
    pictures.write_folders(root / "data", "val", pictures.jpegs(24))
    test_listed.flowers(root / "sets" / "flowers102")
    test_listed.svhn(root / "sets" / "svhn")
    (root / "sets" / "of_my_own").mkdir()
    of_sets = {
        "low": pictures.RECIPE,
        "mini_flowers102": mini("Flowers-102 in miniature", 4, 4, 4),
        "mini_svhn": mini("SVHN in miniature", 5, 2, 10),
        "mini_pets": mini("Pets in miniature", 3, 2, 2),
        "mini_photos": mini("photographs", 60, 24, 2),
        "deep_flowers102": replace(
            mini("Flowers-102 in miniature", 4, 4, 4),
            model=replace(pictures.RECIPE.model, depth=2, num_classes=4),
        ),
    }
    write_recipes(root / "mini.py", of_sets)
    kept = [signal.getsignal(number) for number in SIGNALS]
    run = ["--run-dir", str(root / "low"), "--data-root", str(root / "data"), "--stop-after", "3"]
    assert train([f"{root / 'mini.py'}:low", *run, *SINGLE]) == 85
    for number, handler in zip(SIGNALS, kept, strict=True):
        signal.signal(number, handler)
    return root


def words(before: Path, out: Path, *more: str, roots: tuple[str, ...] = ()) -> list[str]:
    given = list(roots) or [str(before / "sets")]
    suite = ["--recipes", f"{before / 'mini.py'}:mini_*", "--run-dir", str(out)]
    return ["transfer", str(before / "low"), "--data-root", *given, *suite, *SINGLE, *more]


def rows(out: Path) -> dict[str, dict[str, Any]]:
    table = json.loads((out / "transfer.json").read_text())
    return {row["name"]: row for row in table["rows"]}


def last_top1(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(line["top1"] for line in reversed(lines) if "top1" in line)


def test_two_data_sets_of_which_one_is_damaged_at_first(
    before: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other is trained, the table says why, and the next call trains what is mended alone."""
    out, sets = tmp_path / "out", tmp_path / "sets"
    test_listed.flowers(sets / "flowers102")
    test_listed.svhn(sets / "svhn")
    whole = (sets / "svhn" / "train_32x32.mat").read_bytes()
    (sets / "svhn" / "train_32x32.mat").write_bytes(whole[: len(whole) // 2])
    given = words(before, out, "--train", "head", roots=(str(sets),))
    assert main(given) == 1
    assert "svhn" in capfd.readouterr().out
    found = rows(out)
    assert found["flowers102"]["state"] == "done" and found["flowers102"]["exit_code"] == 0
    assert found["flowers102"]["top1"] == last_top1(out / "flowers102")
    assert found["svhn"]["state"] == "failed" and "is damaged" in found["svhn"]["reason"]
    assert found["svhn"]["top1"] is None and not (out / "svhn").exists()
    page = (out / "transfer.md").read_text()
    assert f"| {found['flowers102']['top1']:.2f} |" in page and "failed: --data-root" in page

    # the head alone was trained, from the run's trunk
    _, started = read_weights(before / "low" / "checkpoints" / "step_00000003")
    _, tuned = read_weights(out / "flowers102" / "checkpoints" / "step_00000003")
    moved = {name for name, weight in tuned.items() if not weight.equal(started[name])}
    assert moved == {"model.head.weight", "model.head.bias"}

    (sets / "svhn" / "train_32x32.mat").write_bytes(whole)
    kept = (out / "flowers102" / "metrics.jsonl").stat().st_mtime_ns
    assert main(given) == 0
    assert (out / "flowers102" / "metrics.jsonl").stat().st_mtime_ns == kept
    assert {row["state"] for row in rows(out).values()} == {"done"}
    assert rows(out)["svhn"]["top1"] == last_top1(out / "svhn")
    assert rows(out)["svhn"]["trained"] == "head"


def begun(before: Path, out: Path, *more: str) -> "subprocess.Popen[bytes]":
    """The command as a process, once its first training has a checkpoint."""
    command = [sys.executable, "-m", "bigvit.cli", *words(before, out, *more)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240  # of a machine that others use, too
    try:
        while not list(out.glob("flowers102/checkpoints/step_*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    except AssertionError:
        process.terminate()
        process.wait()
        raise
    return process


LONG = ["--schedule.epochs", "400", "--evaluate-every", "200", "--checkpoint-every", "20"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_interrupted_goes_on(how: signal.Signals, before: Path, tmp_path: Path) -> None:
    """To the weights of a call that was left alone."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    process = begun(before, out, *LONG)
    process.send_signal(how)
    assert process.wait(60) == (-9 if how == signal.SIGKILL else 85)
    found = rows(out)
    assert found["flowers102"]["state"] == ("running" if how == signal.SIGKILL else "stopped")
    assert found["svhn"]["state"] == "to do" and not (out / "svhn").exists()
    assert found["flowers102"]["changed"]
    assert main(words(before, out, *LONG)) == 0
    assert {row["state"] for row in rows(out).values()} == {"done"}
    jobs = (out / "flowers102" / "jobs.jsonl").read_text()
    assert jobs.count('"begins": null') == 1 and "checkpoints/step_" in jobs
    roots = (f"flowers102={before / 'sets' / 'flowers102'}",)
    assert main(words(before, alone, *LONG, roots=roots)) == 0
    for run in (out, alone):
        assert (run / "flowers102" / "checkpoints" / "step_00000400").is_dir()
    _, one = read_weights(out / "flowers102" / "checkpoints" / "step_00000400")
    _, two = read_weights(alone / "flowers102" / "checkpoints" / "step_00000400")
    assert all(weight.equal(two[name]) for name, weight in one.items())


@pytest.mark.slow
def test_by_deepspeed_on_two_ranks_with_images_that_cannot_be_read(
    before: Path, tmp_path: Path
) -> None:
    """A training that ends itself is said with its reason, and the next one begins."""
    sets = tmp_path / "sets"
    test_listed.flowers(sets / "flowers102")
    for file in (sets / "flowers102" / "jpg").iterdir():
        file.write_bytes(b"none")
    test_listed.svhn(sets / "svhn")
    out = tmp_path / "out"
    given = words(before, out, roots=(str(sets),))
    deepspeed = [word for word in given if word not in ("--engine", "single")]
    assert main([*deepspeed, "--ranks", "2", "--model.drop-path.group", "2"]) == 1
    found = rows(out)
    assert found["flowers102"]["state"] == "failed" and found["svhn"]["state"] == "done"
    assert found["flowers102"]["reason"] and found["flowers102"]["exit_code"] in (1, 3)
    assert json.loads((out / "svhn" / "recipe.json").read_text())["world"] == 2


REFUSED: dict[str, tuple[Callable[[Path], tuple[str, ...]], list[str], str]] = {
    "a folder that is not there": (lambda b: (f"svhn={b / 'absent'}",), [], "there is no folder"),
    "an unknown data set": (lambda b: (f"birds={b / 'sets'}",), [], "there are flowers102"),
    "one twice": (
        lambda b: (str(b / "sets"), f"svhn={b / 'sets' / 'svhn'}"),
        [],
        "svhn is given twice",
    ),
    "a root of nothing known": (lambda b: (str(b / "data"),), [], "none of its folders"),
    "a word": (lambda b: ("svnh",), [], "there is no such folder"),
    "attention where there is none": (
        lambda b: (f"cifar10={b / 'sets' / 'svhn'}",),
        ["--recipes", "resmlp_s12_in1k_224_ft_*", "--train", "attention"],
        "ResMLP has none",
    ),
    "another model": (
        lambda b: (f"flowers102={b / 'sets' / 'flowers102'}",),
        ["--recipes", "FILE:deep_*"],
        "does not fit",
    ),
    "a pattern of nothing": (lambda b: (str(b / "sets"),), ["--recipes", "vit_*_x"], "such a name"),
    "no pattern": (lambda b: (str(b / "sets"),), ["--recipes", "vit"], "one *"),
    "an option of the command's own": (lambda b: (str(b / "sets"),), ["--init", "x"], "--init"),
    "a wrong value": (lambda b: (str(b / "sets"),), ["--optim.lr", "-1"], "optim.lr"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_before_anything_begins(
    what: str, before: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    roots, more, said = REFUSED[what]
    own = [word.replace("FILE", str(before / "mini.py")) for word in more]
    given = words(before, tmp_path / "out", roots=roots(before))
    if "--recipes" in own:
        at = given.index("--recipes")
        del given[at : at + 2]
    assert main([*given, *own]) == 2
    assert said in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_there_are_refused(
    before: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = words(before, tmp_path / "out")
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    for of, said in (
        (tmp_path / "absent", "there is no such file"),
        (tmp_path / "no.safetensors", "cannot be read"),
    ):
        assert main(["transfer", str(of), *given[2:]]) == 2
        assert said in capfd.readouterr().err
    assert main(["transfer", str(before / "low"), "--data-root", str(before / "sets")]) == 2
    assert "starts from low" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def run_of(path: Path, name: str) -> str:
    path.mkdir()
    (path / "recipe.json").write_text(json.dumps({"name": name}))
    return str(path)


def test_recipes_follow_from_the_run(tmp_path: Path) -> None:
    assert pattern_of(run_of(tmp_path / "a", "deit3_b16_in1k_224")) == "deit3_b16_in1k_224_ft_*"
    of_s60 = run_of(tmp_path / "b", "patchconvnet_s60_in1k_224")  # at 224 and 320
    assert pattern_of(of_s60) == "patchconvnet_s60_in1k_224_ft_*"
    with pytest.raises(ValueError, match=r"swin_t_\*_ft, drloc_swin_t_\*_ft"):
        pattern_of(run_of(tmp_path / "c", "swin_t_in1k_300e"))
    with pytest.raises(ValueError, match="no recipe on another data set"):
        pattern_of(run_of(tmp_path / "d", "photos_vit_64"))
    assert pattern_of(run_of(tmp_path / "e", "digits_vit")) == "digits_vit_ft_*"
    assert set(recipes_of("deit3_b16_in1k_224_ft_*")) == set(DATASETS[:15])
    assert set(recipes_of("drloc_swin_t_*_ft")) == {
        *("cifar10", "cifar100", "flowers102", "svhn"),
        *DATASETS[9:15],
    }


def test_a_folder_of_data_sets_gives_those_with_their_names(before: Path) -> None:
    pattern = f"{before / 'mini.py'}:mini_*"
    parts, left = parts_of(pattern, [str(before / "sets"), "photos"])
    assert [part.name for part in parts] == ["flowers102", "svhn", "photos"]
    assert parts[0].recipe == f"{before / 'mini.py'}:mini_flowers102"
    assert parts[2].root is None and left == [str(before / "sets" / "of_my_own")]


def test_every_figure_is_of_a_recipe() -> None:
    tables = _published()["tables"]
    known = {
        table["recipes"].replace("*", name): table for table in tables for name in table["top1"]
    }
    assert set(known) <= set(all_recipes()) and len(known) > 150
    assert sum(len(table["top1"]) for table in tables) == len(known)
    figure = published_for("deit3_l16_in1k_224_ft_cars196")
    assert figure is not None and figure == (94.5, "thesis table 6.11")
    assert published_for("deit3_l16_in1k_224_ft_pets") is None
    numbers = {number for table in tables for number in table["top1"].values()}
    assert min(numbers) > 38 and max(numbers) < 100
