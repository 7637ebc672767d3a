"""Pre-training at a low resolution, then fine-tuning at a higher one, by two recipes and --init."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pictures
import pytest

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.resampling import resample_positions
from bigvit.recipe.store import to_json
from bigvit.train import main

ROOT = Path(__file__).parent.parent.parent
FILE = """
import json
from bigvit.recipe.store import recipe_from_json
low = recipe_from_json(json.loads({low!r}))
high = recipe_from_json(json.loads({high!r}))
"""


@pytest.fixture
def stages(tmp_path: Path) -> list[str]:
    """Arguments of the two stages, without where their runs lie; the first has been trained."""
    pictures.write_folders(tmp_path / "data", "train", pictures.jpegs(60))
    pictures.write_folders(tmp_path / "data", "val", pictures.jpegs(24))
    size = pictures.RECIPE.data.image_size
    high = replace(
        pictures.RECIPE,
        data=replace(pictures.RECIPE.data, image_size=2 * size),
        starts_from="low",
    )
    text = FILE.format(low=json.dumps(to_json(pictures.RECIPE)), high=json.dumps(to_json(high)))
    (tmp_path / "stages.py").write_text(text)
    options = ["--engine", "single", "--data-root", str(tmp_path / "data"), "--workers", "0"]
    run = ["--run-dir", str(tmp_path / "low"), "--stop-after", "2"]
    assert main([f"{tmp_path / 'stages.py'}:low", *options, *run]) == 85
    return [f"{tmp_path / 'stages.py'}:high", *options, "--stop-after", "1"]


def test_the_second_stage_starts_from_the_firsts_weights(stages: list[str], tmp_path: Path) -> None:
    run = ["--run-dir", str(tmp_path / "high"), "--init", str(tmp_path / "low")]
    assert main([*stages, *run, "--optim.lr", "1e-12", "--schedule.warmup-lr", "0"]) == 85
    classes = json.loads((tmp_path / "high" / "classes.json").read_text())
    assert classes == list(pictures.CLASSES)
    _, low = read_weights(tmp_path / "low" / "checkpoints" / "step_00000002")
    _, high = read_weights(tmp_path / "high" / "checkpoints" / "step_00000001")
    side = round(high["model.pos_embed"].shape[1] ** 0.5)
    low["model.pos_embed"] = resample_positions(
        low["model.pos_embed"], (side // 2, side // 2), (side, side)
    )
    for name, weight in low.items():
        assert (weight - high[name]).abs().max() <= 1e-6, name


def test_a_missing_or_unfit_init_is_refused(
    stages: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["--run-dir", str(tmp_path / "high")]
    (tmp_path / "no.safetensors").write_text("nothing")
    for options, said in (
        ([], "starts from the weights of low"),
        (["--init", str(tmp_path / "absent")], "there is no such file or folder"),
        (["--init", str(tmp_path / "no.safetensors")], "cannot be read"),
    ):
        assert main([*stages, *run, *options]) == 2
        assert said in capfd.readouterr().err
    other = ["--run-dir", str(tmp_path / "deep"), "--model.depth", "9"]
    assert main([*stages, *other, "--init", str(tmp_path / "low")]) == 2
    assert "weights are missing" in capfd.readouterr().err
    assert not (tmp_path / "high" / "metrics.jsonl").exists()
    # a run that never began does not stand in the way of the next try
    assert main([*stages, *run, "--init", str(tmp_path / "low")]) == 85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fine_tuning_lowers_the_test_loss_at_both_resolutions(seed: int, tmp_path: Path) -> None:
    """`scripts/lowres_demo.sh` compares them, and keeps the first stage below 95 %."""
    found = {"DEMO_SEED": str(seed), "DEMO_DIR": str(tmp_path / "runs"), "BIGVIT_VENV": sys.prefix}
    done = subprocess.run(
        ["bash", "scripts/lowres_demo.sh"],
        cwd=ROOT,
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        timeout=500,
    )
    print(done.stdout[-600:])
    assert done.returncode == 0, done.stdout + done.stderr
