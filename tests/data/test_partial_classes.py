"""Test sets with other folders than the run's: some of its classes, as ImageNet-A and -R have them;
all of them; others; in another order."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import DATA, RECIPE, crop, encoded
from saving import save
from torch.nn.functional import cross_entropy

from bigvit.cli import main
from bigvit.data import augment
from bigvit.data.prepare import Normalise
from bigvit.data.sources import open_source
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe.store import to_json
from bigvit.task import Task

WNIDS = [f"n0144{number}" for number in range(12)]
SOME = ["n014410", "n01443", "n01448"]  # as ImageNet-A's README lists them, in no order
RUN = replace(
    RECIPE,
    model=replace(RECIPE.model, num_classes=12),
    data=replace(DATA, classes=12, dataset="ImageNet of 12"),
)
IMAGES = 21


def new_task() -> Task:
    task = Task(RUN)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return task


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    engine = SingleEngine(new_task, RUN, replace(alone(), device=torch.device("cpu")))
    save(engine, folder / "checkpoints", 5, to_json(RUN), keep=1)
    described = {"recipe": to_json(RUN), "run": {"data_root": "None"}}
    (folder / "recipe.json").write_text(json.dumps(described))
    (folder / "classes.json").write_text(json.dumps(sorted(WNIDS)))
    return folder


def write(root: Path, names: list[str]) -> Path:
    for number in range(IMAGES):
        file = root / names[number % len(names)] / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(crop(number)))
    return root


@torch.no_grad()
def logits_and_targets(root: Path) -> tuple[torch.Tensor, list[int]]:
    """Literally: each image's logits, and its folder's place among the run's classes."""
    task, logits, targets = new_task().eval(), list[torch.Tensor](), list[int]()
    normalise = Normalise(RUN.data)
    for file in sorted(root.glob("*/*.png")):
        from PIL import Image

        pixels = augment.test_image(Image.open(file).convert("RGB"), RUN.data)
        logits.append(task.model(normalise(torch.from_numpy(pixels)[None])).logits[0])
        targets.append(sorted(WNIDS).index(file.parent.name))
    return torch.stack(logits).double(), targets


def scores(logits: torch.Tensor, targets: list[int], among: list[int]) -> dict[str, Any]:
    rows = [sorted(among, key=lambda k: -row[k]) for row in logits.tolist()]
    top1 = sum(row[0] == target for row, target in zip(rows, targets, strict=True))
    top5 = sum(target in row[:5] for row, target in zip(rows, targets, strict=True))
    here = torch.tensor([among.index(target) for target in targets])
    loss = cross_entropy(logits[:, among], here).item()
    return {
        "top1_correct": top1,
        "top5_correct": top5,
        "top1": pytest.approx(100 * top1 / IMAGES),
        "top5": pytest.approx(100 * top5 / IMAGES),
        "test_loss": pytest.approx(loss, rel=1e-5),
    }


def evaluate(run: Path, root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    command = ["evaluate", str(run), "--workers", "0", "--batch-size", "8", *more]
    code = main([*command, "--data-root", str(root)])
    said = capsys.readouterr()
    return json.loads(said.out) if code == 0 else said.err


def test_some_of_the_classes_are_found_by_name_and_their_logits_compared(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path / "imagenet-a", SOME)
    found = evaluate(run, root, capsys)
    logits, targets = logits_and_targets(root)
    among = sorted(sorted(WNIDS).index(name) for name in SOME)
    assert (found["classes"], found["of_classes"], found["classes_by"]) == (3, 12, "name")
    wanted = scores(logits, targets, among)
    assert {name: found[name] for name in wanted} == wanted
    assert found["among_all_classes"] == scores(logits, targets, list(range(12)))
    assert found["images"] == IMAGES and found["bad_images"] == 0
    assert 0 < found["top1_correct"] != found["among_all_classes"]["top1_correct"]


def test_all_of_the_classes_are_compared_with_each_other(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ImageNet-Sketch has them."""
    root = write(tmp_path / "sketch", WNIDS)
    found = evaluate(run, root, capsys)
    logits, targets = logits_and_targets(root)
    assert (found["classes"], found["of_classes"], found["classes_by"]) == (12, 12, "name")
    wanted = scores(logits, targets, list(range(12)))
    assert {name: found[name] for name in wanted} == wanted
    assert "among_all_classes" not in found


def test_folders_called_0_to_the_last_are_the_classes_of_these_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ImageNet-V2 has them."""
    root = write(tmp_path / "v2", [str(number) for number in range(12)])
    by_name = write(tmp_path / "named", sorted(WNIDS))
    found, wanted = evaluate(run, root, capsys), evaluate(run, by_name, capsys)
    assert found["classes_by"] == "number" and wanted["classes_by"] == "name"
    assert found["top1_correct"] == wanted["top1_correct"]
    assert found["test_loss"] == pytest.approx(wanted["test_loss"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([*SOME, "n99", "tench"], r"2 of 5 classes are not among the other 12 (n99, tench)"),
        (["0", "1"], "2 of 2 classes are not among the other 12 (0, 1)"),
        ([f"m{name}" for name in WNIDS], "12 of 12 classes are not among the other 12"),
    ],
    ids=["some strangers", "some numbers", "as many strangers"],
)
def test_classes_that_the_run_does_not_know_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str], said: str
) -> None:
    found = evaluate(run, write(tmp_path / "other", names), capsys)
    assert isinstance(found, str) and said in found and "classes.json" in found


def test_without_the_runs_names_all_classes_are_needed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a checkpoint that was copied out of its run folder."""
    (copied := tmp_path / "elsewhere").mkdir()
    (checkpoint,) = (run / "checkpoints").glob("step_*")
    (copied / checkpoint.name).symlink_to(checkpoint)
    import shutil

    shutil.copytree(checkpoint, copied / "away/checkpoints" / checkpoint.name)
    lone = copied / "away/checkpoints" / checkpoint.name
    found = evaluate(lone, write(tmp_path / "some", SOME), capsys)
    assert isinstance(found, str) and "no " in found and "classes.json" in found
    found = evaluate(lone, write(tmp_path / "all", sorted(WNIDS)), capsys)
    assert (found["classes"], found["classes_by"]) == (12, "order")


def test_the_test_set_of_a_run_is_found_in_parquet_of_another_order(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_parquet_shards import write_shard

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    turned = sorted(WNIDS)[::-1]
    folders = write(tmp_path / "folders", WNIDS)
    files = sorted(folders.glob("*/*.png"))
    labels = [turned.index(file.parent.name) for file in files]
    shard = tmp_path / "parquet/validation.parquet"
    write_shard(shard, [file.read_bytes() for file in files], labels, turned)
    one, other = evaluate(run, folders, capsys), evaluate(run, shard.parent, capsys)
    assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-6)
    assert one["top5_correct"] == other["top5_correct"]
    assert list(open_source(RUN.data, "test", shard.parent).targets) == labels
