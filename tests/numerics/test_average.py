"""A run's average of the weights: evaluated and exported by choice, refused where there is none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.run import find_checkpoint
from bigvit.cli import main
from bigvit.data.loader import test_batches as all_test_images
from bigvit.data.sources import open_source
from bigvit.recipes.digits import digits_vit
from bigvit.train import main as train

COUNTS = ("images", "top1_correct", "top5_correct", "test_loss")
Said = Callable[[], Any]


def run_of(folder: Path, *args: str) -> Path:
    """A few epochs of a tiny model."""
    model = ("--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2")
    short = ("--schedule.epochs", "4", "--schedule.warmup-epochs", "1", "--optim.lr", "0.01")
    options = ("--engine", "single", "--workers", "0", "--evaluate-every", "9", "--run-dir")
    assert train(["digits_vit", *model, *short, *options, str(folder), *args]) == 0
    return folder


@pytest.fixture(scope="module")
def averaging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "averaging"
    return run_of(folder, "--ema", "0.98", "--evaluate-ema")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "plain")


def test_evaluate_counts_what_the_run_counted(
    averaging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in (averaging / "metrics.jsonl").read_text().splitlines()]
    (logged,) = [line for line in lines if "top1" in line]
    found = {}
    for prefix, option in (("", []), ("ema_", ["--ema"])):
        assert main(["evaluate", str(averaging), "--workers", "0", *option]) == 0
        found[prefix] = json.loads(capsys.readouterr().out)
        for name in COUNTS:
            assert found[prefix][name] == pytest.approx(logged[prefix + name], rel=1e-6), name
    assert (found[""]["weights"], found["ema_"]["weights"]) == ("last", "ema")
    assert abs(found[""]["test_loss"] - found["ema_"]["test_loss"]) > 1e-3


def test_keeping_an_average_changes_no_weight(averaging: Path, plain: Path) -> None:
    kept, other = (read_checkpoint(run).model for run in (averaging, plain))
    assert all(torch.equal(kept[name], other[name]) for name in other)


def test_timm_loads_the_exported_average(
    averaging: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = digits_vit.data
    batches = all_test_images(open_source(data, "test"), data, 300, 0, 1, 0)
    (batch,) = batches
    losses = {}
    for kind, option in (("weight", []), ("ema", ["--ema"])):
        out = tmp_path / kind
        assert main(["export", str(averaging), "--out", str(out), *option]) == 0
        model = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
        expected = read_checkpoint(averaging, kind == "ema").model
        state = model.state_dict()
        assert all(torch.equal(state[name], weight) for name, weight in expected.items())
        images = (batch.images.float() / 255 - data.mean[0]) / data.std[0]
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(images), batch.targets)
        capsys.readouterr()
        assert main(["evaluate", str(averaging), "--workers", "0", *option]) == 0
        losses[kind] = json.loads(capsys.readouterr().out)["test_loss"]
        assert loss.item() == pytest.approx(losses[kind], rel=1e-5)
    assert losses["weight"] != pytest.approx(losses["ema"], rel=1e-3)


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_checkpoint_without_an_average_is_refused(
    command: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")] if command == "export" else []
    assert main([command, str(plain), "--ema", *out]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"error: --ema: {find_checkpoint(plain)} holds no average of the weights, as its recipe's "
        "ema is None; leave --ema out\n"
    )
    assert list(tmp_path.iterdir()) == []
