"""Evaluation on class folders: each image once, right by its class or by other labels.

Shapes: B images, K classes.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import CLASSES, DATA, RECIPE, bad_contents, jpegs, spread, write_folders
from saving import save
from torch import Tensor

from bigvit import models
from bigvit.checkpoint.resampling import resample_positions
from bigvit.cli import main
from bigvit.data import augment
from bigvit.data.loader import test_batches as batches_of
from bigvit.data.sources import DigitsSource, Source, open_source
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import Counts, _read_labels, evaluate, evaluate_checkpoint
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Images
from bigvit.recipe.store import to_json
from bigvit.task import Task

TEST = 23
HEAD = replace(RECIPE, model=replace(RECIPE.model, num_classes=12))
"""A head of more classes than the data have, so that the best five are not all."""
Predict = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 test images, whose order by file name is not that by class."""
    folder = tmp_path_factory.mktemp("photographs")
    write_folders(folder, "val", jpegs(TEST, first=60))
    return folder


@pytest.fixture(scope="module")
def with_bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and two that cannot be read: one before all others, one the very last."""
    folder = tmp_path_factory.mktemp("photographs_and_worse")
    write_folders(folder, "val", jpegs(TEST, first=60))
    content = bad_contents()["cut.jpg"]
    assert content is not None
    write_folders(folder, "val", [("000.jpg", 0, content), ("999.jpg", 1, content)])
    return folder


def new_task() -> Task:
    """Of weights under which some images are right, and some are not even among the best five."""
    return spread(HEAD, 27)


@pytest.fixture(scope="module")
def task() -> Task:
    return new_task()


@pytest.fixture(scope="module")
def checkpoint(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = SingleEngine(new_task, HEAD, replace(alone(), device=torch.device("cpu")))
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    return save(engine, folder, 5, to_json(HEAD), keep=1)


def predict_by(task: Task) -> Predict:
    def predict(images: Tensor) -> Tensor:
        with torch.no_grad():
            return task.predict(images)

    return predict


@torch.no_grad()
def logits_of(source: Source, data: Images, task: Task) -> Tensor:
    """(B, K) of all images of a source, one by one."""
    weights = task.model.state_dict()
    grid = HEAD.model.grid(data.image_size)
    if data.image_size != HEAD.data.image_size:
        weights["pos_embed"] = resample_positions(
            weights["pos_embed"], HEAD.model.grid(HEAD.data.image_size), grid
        )
    model = models.build(HEAD.model, data.image_size)
    model.load_state_dict(weights)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.mean, data.std))
    pixels = [torch.from_numpy(augment.test_image(source.read(i), data)) for i in range(TEST)]
    return torch.cat([model(((x / 255 - mean) / std)[None]).logits for x in pixels])


def ranking(logits: Tensor) -> list[list[int]]:
    """Classes from the best, per image."""
    return [sorted(range(len(row)), key=lambda k: -row[k]) for row in logits.tolist()]


def loss_of(logits: Tensor, targets: list[int]) -> float:
    return torch.nn.functional.cross_entropy(logits.double(), torch.tensor(targets)).item()


@pytest.mark.parametrize("batch_size", [1, 7, 23, 64])
def test_counts_and_loss_are_those_of_all_images(root: Path, task: Task, batch_size: int):
    source = open_source(DATA, "test", root)
    logits, targets = logits_of(source, DATA, task), [int(target) for target in source.targets]
    found = evaluate(predict_by(task), source, DATA, batch_size, alone())
    best = ranking(logits)
    top1 = sum(best[i][0] == target for i, target in enumerate(targets))
    top5 = sum(target in best[i][:5] for i, target in enumerate(targets))
    assert found == Counts(TEST, top1, top5, (), 0, 0)
    assert 0 < top1 < top5 < TEST, "counts tell"
    assert found.loss == pytest.approx(loss_of(logits, targets), rel=1e-5)
    assert found.as_json()["top1"] == pytest.approx(100 * top1 / TEST)
    assert found.as_json()["test_loss"] == found.loss


def test_images_that_cannot_be_read_are_named_and_not_counted(
    root: Path, with_bad: Path, task: Task
):
    good = evaluate(predict_by(task), open_source(DATA, "test", root), DATA, 7, alone())
    worse = open_source(DATA, "test", with_bad)
    assert len(worse) == TEST + 2
    found = evaluate(predict_by(task), worse, DATA, 7, alone())
    assert found == replace(good, bad=("val/china/000.jpg", "val/flower/999.jpg"))
    assert found.loss == pytest.approx(good.loss, rel=1e-9)


@pytest.mark.parametrize("world", [2, 3, 5, 30])
def test_ranks_share_the_images_out(with_bad: Path, task: Task, world: int):
    source = open_source(DATA, "test", with_bad)
    whole = evaluate(predict_by(task), source, DATA, 4, alone())
    shares = [
        evaluate(predict_by(task), source, DATA, 4, Ranks(r, world, torch.device("cpu"), None))
        for r in range(world)
    ]
    for name in ("images", "top1", "top5"):
        assert sum(getattr(share, name) for share in shares) == getattr(whole, name), name
    loss = sum(share.loss * share.images for share in shares) / whole.images
    assert loss == pytest.approx(whole.loss, rel=1e-9)
    streams = [list(batches_of(source, DATA, 4, rank, world, 0)) for rank in range(world)]
    assert len({len(stream) for stream in streams}) == 1
    seen = [batch.ids[batch.valid] for stream in streams for batch in stream]
    bad = [batch.bad for stream in streams for batch in stream]
    assert sorted(torch.cat(seen).tolist() + torch.cat(bad).unique().tolist()) == list(range(25))


def some_labels() -> dict[str, list[int]]:
    """By file name: none, one or several classes, those of the head too that no folder has."""
    choices = [
        [0],
        [],
        [1, 3],
        [2, 5, 7],
        [6],
        list(range(12)),
        [4],
        [],
        [7, 0],
        [1],
    ]
    return {f"{60 + i:03}.jpg": choices[i % 10] for i in range(TEST)}


def counts_by(labels: dict[str, list[int]], source: Source, logits: Tensor) -> dict[str, Any]:
    """Literally, from the file names."""
    best = ranking(logits)
    right = [labels[Path(source.name(i)).name] for i in range(TEST)]
    counted = [i for i in range(TEST) if right[i]]
    targets = source.targets[counted].tolist()
    return {
        "images": len(counted),
        "top1_correct": sum(best[i][0] in right[i] for i in counted),
        "top5_correct": sum(bool(set(best[i][:5]) & set(right[i])) for i in counted),
        "test_loss": pytest.approx(loss_of(logits[counted], targets), rel=1e-5),
    }


def part(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in expected}


def test_other_labels_are_sets_of_right_classes(root: Path, task: Task):
    source = open_source(DATA, "test", root)
    expected = counts_by(some_labels(), source, logits_of(source, DATA, task))
    by_number = torch.zeros(TEST, HEAD.model.num_classes, dtype=torch.bool)
    for i in range(TEST):
        by_number[i, some_labels()[Path(source.name(i)).name]] = True
    for size in (1, 7, 64):
        found = evaluate(predict_by(task), source, DATA, size, alone(), labels=by_number).as_json()
        assert part(found, expected) == expected
    assert expected["images"] < TEST
    assert 0 < expected["top1_correct"] < expected["top5_correct"]


def test_a_labels_file_is_in_the_order_of_file_names(
    root: Path, task: Task, checkpoint: Path, tmp_path: Path
):
    source = open_source(DATA, "test", root)
    names = [Path(source.name(i)).name for i in range(TEST)]
    assert names != sorted(names)
    labels = some_labels()
    file = tmp_path / "real.json"
    file.write_text(json.dumps([labels[name] for name in sorted(labels)]))
    expected = counts_by(labels, source, logits_of(source, DATA, task))
    found = evaluate_checkpoint(checkpoint, 8, root, 0, labels=file)
    assert part(found, expected) == expected


@pytest.mark.parametrize("image_size, ratio", [(None, None), (24, None), (None, 0.5), (40, 0.875)])
def test_a_checkpoint_is_evaluated_at_other_sizes(
    root: Path, task: Task, checkpoint: Path, image_size: int | None, ratio: float | None
):
    found = evaluate_checkpoint(checkpoint, 8, root, 0, image_size, ratio)
    data = replace(DATA, image_size=image_size or 16, test_crop_ratio=ratio or 1.0)
    source = open_source(data, "test", root)
    own = {f"{60 + i:03}.jpg": [i % 2] for i in range(TEST)}
    expected = counts_by(own, source, logits_of(source, data, task))
    assert part(found, expected) == expected
    assert (found["update"], found["image_size"]) == (5, image_size or 16)
    assert found["checkpoint"] == str(checkpoint)
    assert CLASSES == source.classes


def test_sizes_change_what_is_seen(root: Path, checkpoint: Path):
    losses = {
        evaluate_checkpoint(checkpoint, 8, root, 0, size, ratio)["test_loss"]
        for size in (16, 24)
        for ratio in (1.0, 0.5)
    }
    assert len(losses) == 4


@pytest.mark.parametrize(
    "content",
    [
        [[0]] * (TEST - 1),
        [[0]] * (TEST + 1),
        [],
        {"000.jpg": [0]},
        [0] * TEST,
        [["china"]] * TEST,
        [[0]] * (TEST - 1) + [[12]],
        [[0]] * (TEST - 1) + [[-1]],
        [[0]] * (TEST - 1) + [None],
    ],
    ids=["short", "long", "empty", "no list", "numbers", "names", "above", "below", "null"],
)
def test_labels_that_do_not_fit_are_refused(
    root: Path, checkpoint: Path, tmp_path: Path, content: object
):
    file = tmp_path / "real.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="--labels"):
        evaluate_checkpoint(checkpoint, 8, root, 0, labels=file)


def test_labels_that_cannot_be_read_are_refused(root: Path, checkpoint: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="--labels"):
        evaluate_checkpoint(checkpoint, 8, root, 0, labels=tmp_path / "absent.json")
    (tmp_path / "real.json").write_text("not json")
    with pytest.raises(ValueError, match="--labels"):
        evaluate_checkpoint(checkpoint, 8, root, 0, labels=tmp_path / "real.json")


def test_a_root_may_be_class_folders_alone_as_imagenet_v2s(
    root: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    alone = tmp_path / "matched-frequency"
    for number, name in enumerate(CLASSES):
        (alone / str(number)).mkdir(parents=True)
        for file in (root / "val" / name).iterdir():
            (alone / str(number) / file.name).symlink_to(file)
    (alone / "0/000.jpg").write_bytes(bad_contents()["cut.jpg"] or b"")
    args = ["evaluate", str(checkpoint), "--workers", "0", "--data-root"]
    assert main([*args, str(alone)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main([*args, str(root)]) == 0
    expected = json.loads(capsys.readouterr().out)
    for each in (found, expected):
        del each["images_per_second"]
    assert found["test_loss"] == pytest.approx(expected.pop("test_loss"), rel=1e-9)
    assert found == expected | {"bad_images": 1, "test_loss": found["test_loss"]}
    source = open_source(DATA, "test", alone)
    assert (source.classes, source.name(1), source.name(TEST)) == (
        ["0", "1"],
        "0/060.jpg",
        "1/081.jpg",
    )
    with pytest.raises(ValueError, match="no data set is recognised there"):
        open_source(DATA, "train", alone)
    with pytest.raises(ValueError, match="no data set is recognised there"):
        open_source(DATA, "test", tmp_path)  # the folder above
    other = alone.rename(tmp_path / "other")  # what was listed once is not listed again
    (other / "2").mkdir()
    assert main([*args, str(other)]) == 2
    assert "1 of 3 class folders in ./ have no images (2, ...)" in capsys.readouterr().err


@pytest.mark.parametrize("option, value", [("--image-size", "20"), ("--crop-ratio", "1.5")])
def test_sizes_that_do_not_fit_are_refused(
    root: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
):
    args = ["evaluate", str(checkpoint), "--data-root", str(root), "--workers", "0"]
    assert main([*args, option, value]) == 2
    assert value in capsys.readouterr().err
    assert main(args) == 0
    assert json.loads(capsys.readouterr().out)["images"] == TEST


@pytest.mark.parametrize("what", ["a pipe", "endless", "deep"])
def test_labels_that_are_no_list_in_a_file_are_refused(tmp_path, what):
    path = tmp_path / "real.json"
    match what:
        case "a pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case _:
            path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match=f"^--labels {path}: cannot be read"):
        _read_labels(path, DigitsSource("test"), 10)
