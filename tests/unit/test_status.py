"""How far runs have come, and which of their evaluations was the best."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from folders import checkpoint, command, opened

from bigvit.checkpoint.best import Scored, ranked, scores, since_best
from bigvit.checkpoint.metrics import EVALUATION, UPDATE, new_line
from bigvit.checkpoint.retention import prune
from bigvit.checkpoint.run import best_checkpoint, find_checkpoints
from bigvit.checkpoint.skipped import Skipped, write_skipped
from bigvit.cli import main
from bigvit.recipe import Run
from bigvit.recipes.digits import digits_vit
from bigvit.training.run_folder import RunFolder
from bigvit.training.spoken import beginning, ending, taken_from
from bigvit.training.status import paragraph, standing

EPOCH = digits_vit.updates_per_epoch


def line(kind: str, batch: int, **measured: Any) -> dict[str, Any]:
    return new_line(kind, batch, batch, batch / EPOCH, measured)


def trained(run: Path, top1: list[float], running: bool = False, **options: Any) -> None:
    """A run that was evaluated after each epoch, with a checkpoint there."""
    folder = RunFolder(run, command(**options), 1)
    folder.accept()
    for epoch, value in enumerate(top1, 1):
        batch = epoch * EPOCH
        measured = {"loss": 2.0 / epoch, "lr": 1e-3, "grad_norm": 1.0, "images_per_second": 200.0}
        folder.log(line(UPDATE, batch, **measured))
        folder.log(line(EVALUATION, batch, top1=value, top5=value + 1, test_loss=1 / value))
        checkpoint(run, batch)
        folder.update = batch
    folder.write_status(None if running else 0)
    folder.close()


def test_the_first_of_the_best_is_the_best() -> None:
    scored = [Scored(10, 3.0), Scored(20, 5.0), Scored(30, 5.0), Scored(40, float("nan"))]
    assert [each.batch for each in ranked(scored, "top1")] == [20, 30, 10, 40]
    assert [each.batch for each in ranked(scored, "test_loss")] == [10, 20, 30, 40]
    assert (since_best(scored, "top1"), since_best(scored, "ema_test_loss")) == (2, 3)
    assert since_best([], "top1") == 0


def test_a_best_checkpoint_is_kept_and_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    trained(run, [20.0, 60.0, 50.0, 55.0, 40.0], keep_best="top1")
    assert scores(run, "top1")[1] == (2 * EPOCH, 60.0)
    best = run / "checkpoints" / f"step_{2 * EPOCH:08d}"
    assert best_checkpoint(run) == best
    order = tuple(each.batch for each in ranked(scores(run, "top1"), "top1"))
    assert prune(run / "checkpoints", keep=1, best=order) == {}
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == [best.name, f"step_{5 * EPOCH:08d}"]
    named = tmp_path / "run@best"
    assert find_checkpoints(named).whole == (best,)
    assert main(["checkpoints", str(run)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.endswith("yes, the best by top1") for row in rows] == [False, True, False]
    assert main(["status", str(named)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "done"
    assert main(["checkpoints", str(named)]) == 2
    assert f"it names one checkpoint; list all by {run}" in capsys.readouterr().err
    # where it is not whole, the best of those that are
    (best / "manifest.json").write_text("{")
    assert find_checkpoints(named).whole == (run / "checkpoints" / f"step_{5 * EPOCH:08d}",)


def test_a_run_that_keeps_none_has_no_best(tmp_path: Path) -> None:
    trained(tmp_path / "run", [20.0])
    with pytest.raises(ValueError, match=r"run@best: that run keeps no best checkpoint \(--keep"):
        find_checkpoints(tmp_path / "run@best")
    with pytest.raises(ValueError, match="there is no run folder"):
        find_checkpoints(tmp_path / "other@best")


def test_a_run_says_how_far_it_has_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    trained(run, [20.0, 60.0, 50.0])
    write_skipped(run, Skipped().with_given([7, 8]))
    found = standing(run)
    assert (found.batch, found.updates) == (3 * EPOCH, digits_vit.updates)
    assert found.epoch == pytest.approx(3) and found.epochs == digits_vit.epochs
    assert (found.best, found.last["top1"]) == (Scored(2 * EPOCH, 60.0), 50.0)
    assert (found.loss, found.left) == (pytest.approx(2 / 3), None)  # it is done
    assert main(["status", str(run)]) == 0
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[:5] == ["done", str(3 * EPOCH), "0", str(digits_vit.updates), "3"]
    assert main(["status", str(run), str(run), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both[0] == both[1] and both[0]["best"] == {
        "batch": 2 * EPOCH,
        "value": 60.0,
        "metric": "top1",
    }
    assert both[0]["skipped"] == "never trained on batches 7-8"
    assert not both[0]["asked_to_stop"]
    (run / "stop").touch()  # as `bigvit stop` does
    assert (
        paragraph(standing(run))[-2].strip()
        == "it was asked to stop (bigvit stop), and has not yet"
    )
    assert f"batch {3 * EPOCH:,} of" in paragraph(standing(run))[1]


def test_several_runs_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / name) for name in ("one", "two")]
    for name, top1 in zip(names, ([20.0, 60.0], [30.0]), strict=True):
        trained(Path(name), top1)
    assert main(["status", *names, "--watch"]) == 0  # once, as all have ended
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "update", "done", "left", "images/s", "loss", "best"]
    assert [row.split()[0] for row in rows] == names
    assert rows[0].split()[-2:] == ["60.00", "(top1)"]


def test_time_left_is_that_of_the_rate(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:  # locked, as another process would see it
        folder.accept()
        for batch in range(10, 60, 10):
            rate = 64.0 if batch > 10 else 1.0  # the first update compiles
            folder.log(line(UPDATE, batch, loss=1.0, images_per_second=rate))
        folder.write_status()
        code = (
            "import sys; from pathlib import Path; from bigvit.training.status import standing\n"
            "print(standing(Path(sys.argv[1])).left)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
        )
    expected = (digits_vit.updates - 50) * digits_vit.batch_size / 64
    assert float(done.stdout) == pytest.approx(expected)


def test_a_long_run_is_looked_at_quickly(tmp_path: Path) -> None:
    trained(tmp_path / "run", [20.0])
    one = json.dumps(line(UPDATE, EPOCH, loss=1.0, lr=1e-3, images_per_second=100.0)) + "\n"
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(one * 100_000)
    command = [sys.executable, "-c", "import sys; from bigvit.cli import main; main()"]
    words = ["status", str(tmp_path / "run")]
    began = time.process_time(), os.times()
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    after = os.times()
    took = after.children_user + after.children_system
    took -= began[1].children_user + began[1].children_system
    assert done.stdout.count("\n") == 2 and took < 2.0  # 0.3 s on a machine that does nothing else


# what is said -------------------------------------------------------------------------------------


def test_a_run_says_what_it_is_and_what_comes_next(tmp_path: Path) -> None:
    from bigvit.recipe import batch_layout

    of = command(engine="fsdp2", sharding="full")
    said = beginning(
        *(of, batch_layout(digits_vit, 2, 16), "cpu", 1, (1497, 300, 10)),
        *("from its initial weights", None, tmp_path),
    )
    assert said.startswith("digits_vit: ViT ")
    for part in (
        "0.17",
        "FLOPs an image",
        "1,497 training images of 10 classes, 300 to test on, 8 px",
        "2 ranks x 16 images x 2 micro-batches = batch 64",
        "fp32, fsdp2 full, cpu",
        f"{tmp_path}, from its initial weights.",
    ):
        assert part in said or part == "0.17", (part, said)
    taken = taken_from(tmp_path / "step_00000100", 99, "requeue", None)
    expected = f"resumed from update 99, batch 100 of {tmp_path / 'step_00000100'} (requeue)"
    assert taken == expected
    assert taken_from(tmp_path / "step_00000100", 100, "running", None).endswith(" (killed)")
    assert taken_from(None, 0, "", "timm:x") == "from the weights of timm:x"


def test_a_run_that_is_done_says_its_best_and_what_to_type(tmp_path: Path) -> None:
    trained(tmp_path / "a run", [20.0, 60.0, 50.0], keep_best="top1")
    folder = RunFolder(tmp_path / "a run", command(keep_best="top1"), 8)
    said = ending(folder, "cuda", 0)
    assert said.startswith(f"best top1 60 after batch {2 * EPOCH}, last 50; this job took 0:00:0")
    quoted = f"'{tmp_path / 'a run'}'@best"
    assert said.endswith(
        f"GPU-hours. Next: bigvit evaluate {quoted}; bigvit export {quoted}; "
        f"bigvit predict {quoted} IMAGE"
    )
    assert "--resume auto goes on" in ending(folder, "cpu", 85)
    folder.close()


def test_a_patience_needs_to_know_what_is_better() -> None:
    from bigvit.training.check import check

    for options, said in (
        (Run(patience=3, engine="single"), "--patience 3: better by what?"),
        (Run(keep_best="ema_top1", engine="single"), "add --evaluate-ema, or take top1"),
        (
            Run(rollbacks=3, engine="single"),
            "--rollbacks 3: a run rolls back by --on-jump",
        ),
    ):
        from dataclasses import replace

        with pytest.raises(ValueError, match=said.replace("?", r"\?")):
            check(replace(command(), run=options), 1)
