"""Grafit and DINO together, with small crops of another size, are the same under every engine: with
their memory, their centre and the average that follows; stopped, resumed here or elsewhere."""

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grafit_dino
import precision
import pytest
import test_rollback
import torch
from launched import Way
from reference import Weights, distance, train_single
from test_followed import RANKS, held, made
from test_resume import assert_equal

from bigvit.checkpoint.manifest import batch_of, step_name
from bigvit.checkpoint.run import checkpoints_of
from bigvit.data.sources import open_source
from bigvit.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parent.parent / "faults"))
import small  # noqa: E402

KINDS = ("weight", "ema", "kept")
YARDSTICKS = {  # largest of five orders of summation, as in test_equality.py
    "weights": 2.5e-7,
    "ema": 1.3e-7,
    "kept heads.grafit": 1.4e-6,
    "kept heads.dino": 1.5e-7,
}
ALLOWED = 10


def parts(found: Weights) -> dict[str, Weights]:
    """By what has a yardstick of its own."""
    return {
        of: {
            name: weight
            for name, weight in found.items()
            if (" " not in name if of == "weights" else name.startswith(of))
        }
        for of in YARDSTICKS
    }


@pytest.fixture(scope="module")
def runs(warm, tmp_path_factory) -> Path:
    """Runs on two ranks; stopped ones, resumed on one."""
    folder = tmp_path_factory.mktemp("grafit_dino")
    return made(warm, folder, "grafit_dino", "grafit_dino_resumed")


@pytest.fixture(scope="module")
def more_runs(warm, runs) -> Path:
    """The same folder, after the others were stopped and resumed."""
    return made(warm, runs, "grafit_dino_more", "grafit_dino_resumed_more")


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Callable[[Recipe], Weights]:
    """What `single` leaves of a recipe."""
    root = grafit_dino.write_digits(tmp_path_factory.mktemp("digits"))
    source, updates = open_source(grafit_dino.data, "train", root), grafit_dino.UPDATES

    def of(recipe: Recipe) -> Weights:
        return train_single(recipe, source=source, kinds=KINDS, updates=updates)[0]

    return of


@pytest.fixture(scope="module")
def reference(single) -> Weights:
    return single(grafit_dino.recipe)


def yardsticks(found: Weights, wanted: Weights) -> dict[str, float]:
    """How far all that two runs left lies apart."""
    pairs = zip(parts(found).items(), parts(wanted).values(), strict=True)
    return {of: round(distance(one, other) / YARDSTICKS[of], 2) for (of, one), other in pairs}


def assert_near(run: Path, reference: Weights) -> None:
    """All that a run left, beside what `single` did."""
    apart = yardsticks(held(run, grafit_dino.UPDATES), reference)
    print(f"{run.name}, yardsticks: {apart}")
    assert max(apart.values()) <= ALLOWED


def ways(ordinary: Sequence[Way], slow: Sequence[Way]) -> Any:
    """Each with the fixture that runs it."""
    return pytest.mark.parametrize(
        ("way", "where"),
        [
            *((way, "runs") for way in ordinary),
            *(pytest.param(way, "more_runs", marks=pytest.mark.slow) for way in slow),
        ],
    )


@ways(grafit_dino.WAYS, grafit_dino.MORE_WAYS)
def test_two_ranks_equal_single(way, where, request, reference):
    assert_near(request.getfixturevalue(where) / f"whole {way}", reference)


@ways(grafit_dino.HALVED, grafit_dino.MORE_HALVED)
def test_stopped_in_mid_epoch_and_resumed_on_one_rank(way, where, request, reference):
    assert_near(request.getfixturevalue(where) / f"halves {way}", reference)


@ways(grafit_dino.HALVED, grafit_dino.MORE_HALVED)
def test_resumed_on_as_many_ranks_bit_for_bit(way, where, request):
    folder = request.getfixturevalue(where)
    assert_equal(folder / f"again {way}", folder / f"whole {way}", grafit_dino.UPDATES)


def test_a_checkpoint_is_of_all_that_is_kept(runs):
    found = held(runs / "whole 2", grafit_dino.UPDATES)
    shapes = {n: tuple(w.shape) for n, w in found.items() if n.startswith("kept ")}
    assert shapes == {"kept heads.grafit.memory": (900, 8), "kept heads.dino.centre": (32,)}
    assert not any("follower" in name for name in found)


def test_others_lie_far_away(single, reference):
    """One value of each loss and of what follows, changed by a hundredth."""
    recipe = grafit_dino.recipe
    grafit, dino = recipe.objectives
    for name, other in (
        ("sigma", replace(recipe, objectives=(replace(grafit, sigma=0.101), dino))),
        ("centre", replace(recipe, objectives=(grafit, replace(dino, centre_momentum=0.891)))),
        ("average", replace(recipe, ema=0.808)),
    ):
        apart = yardsticks(single(other), reference)
        print(f"{name}, yardsticks: {apart}")
        assert min(apart.values()) > 3 * ALLOWED


@pytest.mark.slow
def test_four_ranks_equal_single(warm, tmp_path, reference):
    """Also as on two hosts; and where two ranks began."""
    done = warm(2, RANKS, tmp_path, "grafit_dino_more", timeout=600)
    assert done.code == 0, done.output
    done = warm(4, RANKS, tmp_path, "grafit_dino_four", timeout=600)
    assert done.code == 0, done.output
    found = sorted(path for pattern in ("four *", "halves *") for path in tmp_path.glob(pattern))
    assert len(found) == 4 + len(grafit_dino.MORE_HALVED)
    for run in found:
        assert_near(run, reference)


@pytest.mark.slow
def test_offloaded_recomputed_and_compiled_equal_single(warm, tmp_path, reference):
    done = warm(2, RANKS, tmp_path, "grafit_dino_otherwise", timeout=600)
    assert done.code == 0, done.output
    for name in grafit_dino.OTHERWISE:
        assert_near(tmp_path / name, reference)


@pytest.mark.slow
def test_an_overflow_leaves_memory_centre_and_follower_as_they_were(warm, tmp_path):
    done = warm(2, RANKS, tmp_path, "grafit_dino_fp16", timeout=600)
    assert done.code == 0, done.output
    for way in grafit_dino.SCALED:
        run = tmp_path / f"fp16 {way}"
        assert_equal(tmp_path / f"fp16 halves {way}", run, grafit_dino.UPDATES)
        before, skipped, after = (held(run, precision.OVERFLOWS + n) for n in range(3))
        assert all(torch.equal(skipped[name], before[name]) for name in before)
        for kept in ("kept heads.grafit.memory", "kept heads.dino.centre", "ema model.pos_embed"):
            assert not torch.equal(after[kept], skipped[kept]), kept


@pytest.mark.slow
def test_a_rollback_leaves_memory_centre_and_follower_of_the_checkpoint(warm, tmp_path):
    done = warm(2, RANKS, tmp_path, "grafit_dino_rolled", timeout=600)
    assert done.code == 0, done.output
    found = test_rollback.pairs(tmp_path)
    assert len(found) == len(grafit_dino.HALVED)
    for run in found:
        test_rollback.assert_pair(run, evaluated=False)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["one rank", "all"])
def test_killed_and_resumed_it_ends_as_one_that_was_not(whom, warm, tmp_path):
    grafit_dino.write_digits(tmp_path / "digits")
    file = tmp_path / "recipe.py"
    file.write_text(KILLED.format(folder=str(RANKS.parent)))
    words = ("scripts/train.py", file, "--data-root", tmp_path / "digits", "--resume", "auto")
    words += ("--sharding", "zero3", "--checkpoint-every", 5, "--workers", 1)
    assert warm(2, *words, "--run-dir", tmp_path / "whole").code == 0
    started = warm.start(2, *words, "--run-dir", tmp_path / "cut")
    small.wait_for(tmp_path / "cut" / "checkpoints" / step_name(5))
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    started.ended(random.Random(seed).uniform(0, 2))
    if whom == "all":
        started.kill()
    else:
        os.kill(started.ranks[-1], signal.SIGKILL)
    assert started.wait().code != 0
    print([path.name for path in checkpoints_of(tmp_path / "cut")])
    assert batch_of(checkpoints_of(tmp_path / "cut")[-1]) < 24
    done = warm(2, *words, "--run-dir", tmp_path / "cut")
    assert done.code == 0, done.output
    last = (checkpoints_of(tmp_path / name)[-1] for name in ("cut", "whole"))
    assert small.differing(*last) == []


KILLED = """
import sys
sys.path.insert(0, {folder!r})
from grafit_dino import longer as recipe
"""
