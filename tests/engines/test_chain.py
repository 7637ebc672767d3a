"""A run of 2 ranks at ZeRO-3, then 1 at ZeRO-1, 3 at ZeRO-2, 2 at ZeRO-1 and `single` sees the same
images in the same batches as one that was never stopped, and ends with the same weights."""

import json
from pathlib import Path

import chain
import pytest
import test_equality
import test_lamb
import tiny
from reference import distance, train_single, trained

from bigvit.ranks.joining import alone
from bigvit.recipe import Command, Run
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start

ALLOWED = {"adamw": 10 * test_equality.YARDSTICK, "lamb": 10 * test_lamb.YARDSTICK}


@pytest.fixture(scope="module", params=chain.RECIPES)
def ended(request, resumed) -> tuple[str, Path, dict[str, str]]:
    """A recipe's name, its run after the last leg, and the images that this one saw."""
    name, folder = request.param, resumed / f"chain_{request.param}"
    recipe, seen = chain.RECIPES[name], dict[str, str]()
    command = Command(
        name,
        recipe,
        Run(run_dir=folder, engine="single", resume="auto", workers=0, stop_after=tiny.UPDATES),
        (),
    )
    start, opened = plan_start(command), RunFolder(folder, command, 1)
    with chain.watched(seen):
        outcome = run(command, tiny.cut(recipe, 1), start, alone(), opened, lambda: False)
    opened.close()
    assert outcome == "requeue"
    return name, folder, seen


def test_every_batch_holds_the_same_images_and_augmentations(ended) -> None:
    name, folder, seen = ended
    found, files = dict(seen), sorted(folder.glob("images_*.json"))
    assert len(files) == 2 + 1 + 3 + 2
    for file in files:
        part = json.loads(file.read_text())
        assert not found.keys() & part.keys()  # every image once
        found |= part
    straight: dict[str, str] = {}
    with chain.watched(straight):
        train_single(chain.RECIPES[name])
    assert found == straight
    assert len(found) == tiny.UPDATES * tiny.adamw.batch_size


def test_the_weights_are_those_of_a_run_that_was_never_stopped(ended) -> None:
    name, folder, _ = ended
    weights, _ = train_single(chain.RECIPES[name])
    for kind, prefix in (("weight", ""), ("ema", "ema ")) if name == "lamb" else (("weight", ""),):
        of_kind = {
            key.removeprefix("ema "): value
            for key, value in weights.items()
            if key.startswith("ema ") == bool(prefix)
        }
        found = distance(trained(folder, tiny.UPDATES, kind), of_kind)
        print(f"{name}, {kind}: {found:.2e}")
        assert found <= ALLOWED[name]
