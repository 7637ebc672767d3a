"""A run that learns classes of pixels, or boxes and masks, killed at any instant or asked to stop,
and resumed, ends as the one that was never interrupted: to the bit, with the same measurements."""

import json
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from small import differing, living, ranks_of, start, wait_for

from bigvit.checkpoint.run import checkpoints_of

sys.path.append(str(Path(__file__).parent.parent / "data"))
import cocos  # noqa: E402
from scenes import ade20k  # noqa: E402

pytestmark = pytest.mark.slow
OPTIONS = (
    *("--data.train-images", 24, "--batch-size", 4, "--workers", 1, "--log-every", 10),
    *("--evaluate-every", 1, "--checkpoint-every", 3, "--resume", "auto", "--sharding", "zero3"),
)
RECIPES = {
    "pixels": (
        *("scenes_vit_64", "--data.classes", 4, "--model.num-classes", 4),
        *("--data.zero", "not told", "--schedule.updates", 20, "--schedule.warmup-updates", 4),
        *("--data.image-size", 32, "--data.stride", 24, "--keep-best", "miou"),
    ),
    "boxes": (  # on two canvases
        *("scenes_mask_rcnn", "--data.classes", 3, "--model.num-classes", 3),
        *("--data.test-images", 5, "--schedule.epochs", 4, "--schedule.steps", 3),
        *("--schedule.warmup-updates", 4, "--data.image-size", 64, 96, "--data.shortest", 48, 64),
        *("--data.test-shortest", 64, "--keep-best", "box_ap"),
    ),
}
"""Six updates an epoch, and four epochs, the last one cut short where updates are counted."""


@pytest.fixture(scope="module", params=RECIPES)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of images; it is called as what is learned of them."""
    root = tmp_path_factory.mktemp("data") / request.param
    if request.param == "pixels":
        return ade20k(root, train=24, test=5)
    cocos.write(root, "train", range(26))
    cocos.write(root, "val", range(100, 105))
    return root


def words(root: Path, folder: Path) -> tuple[object, ...]:
    where = ("--data-root", root, "--run-dir", folder)
    return ("scripts/train.py", *RECIPES[root.name], *OPTIONS, *where)


def ended(root: Path, folder: Path) -> float:
    """Go on with a run to its end; returns the seconds that it took."""
    began = time.monotonic()
    process = start(*words(root, folder))
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return time.monotonic() - began


def measured(folder: Path) -> list[dict[str, object]]:
    """Each evaluation, but for when it was."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line | {"time": 0} for line in lines if line["kind"] == "evaluation"]


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    seconds = ended(root, folder)
    assert len(measured(folder)) == 4
    assert measured(folder)[-1]["images"] == 5
    return folder, seconds


def test_killed_and_resumed(root: Path, whole: tuple[Path, float], tmp_path: Path) -> None:
    cut, (reference, seconds) = tmp_path / "cut", whole
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    for _ in range(2):
        instant, everybody = draw.uniform(0.4, 0.95) * seconds, draw.random() < 0.5
        process = start(*words(root, cut))
        time.sleep(instant)
        for victim in living(cut) if everybody else list(ranks_of(cut).values())[-1:]:
            victim.kill()
        process.communicate(timeout=240)
        _, alive = psutil.wait_procs(living(cut), timeout=20)
        saved = [path.name for path in checkpoints_of(cut)] if cut.exists() else []
        print(f"seed {seed}: killed after {instant:.1f} of {seconds:.1f} s: {saved[-1:]}")
        assert alive == []
    ended(root, cut)
    assert differing(checkpoints_of(cut)[-1], checkpoints_of(reference)[-1]) == []
    assert measured(cut) == measured(reference)


def test_asked_to_stop_and_resumed(root: Path, whole: tuple[Path, float], tmp_path: Path) -> None:
    cut, (reference, _) = tmp_path / "cut", whole
    process = start(*words(root, cut))
    wait_for(cut / "checkpoints" / "step_00000006")
    next(iter(ranks_of(cut).values())).send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    status = json.loads((cut / "status.json").read_text())
    assert status["state"] == "requeue" and status["exit_code"] == 85, output
    ended(root, cut)
    assert differing(checkpoints_of(cut)[-1], checkpoints_of(reference)[-1]) == []
    assert measured(cut) == measured(reference)
