"""What a run never trains on: how it is named, kept, and what it means for checkpoints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from folders import checkpoint, command, opened

from bigvit.checkpoint.manifest import Manifest, read_manifest, step_name, write_manifest
from bigvit.checkpoint.retention import prune
from bigvit.checkpoint.run import checkpoints_of, find_checkpoints
from bigvit.checkpoint.skipped import (
    NAME,
    Rollback,
    Skipped,
    named,
    parse_batches,
    read_skipped,
    said,
    write_skipped,
)
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.training.loss_guard import LossGuard
from bigvit.training.start import plan_start

ROLLBACK = Rollback(
    skipped=((41, 42),),
    batch=42,
    update=41,
    reason="update 42: the loss is 9",
    loss=9.0,
    loss_before=1.5,
    losses=(1.5, 4.0),
    checkpoint="step_00000040",
    went_back_to=40,
    time="2026-01-01T00:00:00+00:00",
    images="rollbacks/batches_41-42.txt",
    ids=((3, 1), (2, 0)),
    ranks=2,
)


def told(run: Path, batch: int, skipped: tuple[int, ...]) -> Path:
    """A checkpoint that knew what is skipped."""
    folder = run / "checkpoints" / step_name(batch)
    folder.mkdir(parents=True)
    recipe, steps = to_json(digits_vit), {"optimizer_steps": batch}
    of = Manifest(batch, batch, recipe, steps, files=(), tensors=(), skipped_batches=skipped)
    write_manifest(folder, of)
    return folder


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("7", (7,)),
        ("40-42,57", (40, 41, 42, 57)),
        ("57, 40-42", (40, 41, 42, 57)),
        ("3-3,2-4", (2, 3, 4)),
    ],
)
def test_batches_are_named_as_rows(text: str, batches: tuple[int, ...]) -> None:
    assert parse_batches(text) == batches
    assert parse_batches(named(batches)) == batches


@pytest.mark.parametrize("text", ["", "0", "0-3", "5-4", "-3", "a", "1,,2", "1-", "1-9999999", "٣"])
def test_other_texts_name_none(text: str) -> None:
    with pytest.raises(ValueError, match="--skip-batches .*as 40-42,57"):
        parse_batches(text)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read_skipped(tmp_path) == Skipped() and said(Skipped()) == ""
    now = Skipped().with_given([57, 40, 41]).with_rollback(ROLLBACK)
    write_skipped(tmp_path, now)
    assert read_skipped(tmp_path) == now
    assert now.batches == (40, 41, 42, 57)
    assert said(now) == "rolled back 1 time, never trained on batches 40-42,57"
    # what a rollback has said already is not given once more
    assert now.with_given([41, 42, 57]) is now
    assert now.with_given([42, 58]).given == ((40, 41), (57, 58))
    assert json.loads((tmp_path / NAME).read_text())["rollbacks"][0]["ids"] == [[3, 1], [2, 0]]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"given": 3}', '{"given": [[0, 2]]}', '{"given": [[3, 2]]}', '{"x": []}']
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ValueError, match=f"{NAME} is damaged"):
        read_skipped(tmp_path)


def test_a_run_goes_back_past_checkpoints_that_were_trained_on_what_it_skips(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as folder:
        folder.accept()
    old, knew = told(tmp_path, 40, ()), told(tmp_path, 60, (41, 42))
    for batch in (41, 50, 70):
        told(tmp_path, batch, ())
    assert len(checkpoints_of(tmp_path)) == 5
    write_skipped(tmp_path, Skipped().with_rollback(ROLLBACK))
    assert checkpoints_of(tmp_path) == [old, knew]
    assert find_checkpoints(tmp_path).whole == (knew, old)
    start = plan_start(command(run_dir=tmp_path, resume="auto"))
    assert (start.checkpoint, start.older) == (knew, (old,))
    # they go first: else the newest three, of which two are not there any more, would be kept
    assert prune(tmp_path / "checkpoints", keep=2) == {}
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        old.name,
        knew.name,
    ]


def test_a_run_that_went_back_past_all_its_checkpoints_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.accept()
        folder.log({"batch": 50, "update": 50, "loss": 1.0})
    told(tmp_path, 50, ())
    write_skipped(tmp_path, Skipped().with_rollback(replace(ROLLBACK, checkpoint=None)))
    assert plan_start(command(run_dir=tmp_path, resume="auto")).checkpoint is None


def test_what_was_trained_on_cannot_be_skipped_any_more(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.accept()
    told(tmp_path, 50, (12,))
    fine = command(run_dir=tmp_path, resume="auto", skip_batches="12,51-60")
    assert plan_start(fine).checkpoint is not None
    late = command(run_dir=tmp_path, resume="auto", skip_batches="12,49-60")
    with pytest.raises(ValueError, match=r"was trained on batches 49-50 already; go on from an"):
        plan_start(late)
    with pytest.raises(ValueError, match=r"--skip-batches: 100000 is none of the recipe's"):
        plan_start(command(run_dir=tmp_path / "new", skip_batches="100000"))


def test_a_checkpoint_that_skips_nothing_is_written_as_before(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10)
    assert "skipped_batches" not in json.loads((path / "manifest.json").read_text())["body"]
    assert read_manifest(path).skipped_batches == ()


def guard(jump: float, losses: list[float]) -> LossGuard:
    return LossGuard(jump, losses)


@pytest.mark.parametrize(
    ("losses", "row"),
    [
        ([1.0] * 20, 0),
        ([1.0] * 20 + [2.1], 1),  # above the square root of 4
        ([1.0] * 20 + [1.9], 0),
        ([1.0] * 20 + [2.5, 3.0, 3.9], 3),
        ([1.0] * 20 + [3.0, 1.0, 3.0], 1),  # the one before it was none of this jump
        ([1.0] * 10 + [3.0], 1),
        ([1.0] * 9 + [3.0], 0),  # ten are known, and none of them is part of it
        ([], 0),
    ],
)
def test_a_jump_begins_where_the_loss_rose(losses: list[float], row: int) -> None:
    assert guard(4.0, losses).rising() == row
