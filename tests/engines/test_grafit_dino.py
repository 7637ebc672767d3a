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
from test_followed import RANKS, engine_of, held, made
from test_resume import assert_equal

from bigvit.checkpoint.load import fill
from bigvit.checkpoint.manifest import Damaged, batch_of, read_manifest, step_name
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


def test_a_checkpoint_without_what_is_kept_is_refused(runs):
    """As of a run before its objective kept anything."""
    engine = engine_of(grafit_dino.recipe)
    folder = runs / "whole 2" / "checkpoints" / step_name(grafit_dino.UPDATES)
    manifest = read_manifest(folder)
    rows = tuple(row for row in manifest.tensors if "kept" not in row.kinds)
    with pytest.raises(Damaged, match="holds no kept of heads.grafit.memory"):
        fill(engine, folder, replace(manifest, tensors=rows))


GRAFIT, DINO = grafit_dino.recipe.objectives
WRONG = {
    "sigma": {"objectives": (replace(GRAFIT, sigma=0.101), DINO)},
    "centre": {"objectives": (GRAFIT, replace(DINO, centre_momentum=0.891))},
    "an average that stays": {"ema_end": None},
    "average": {"ema": 0.808},
    "a decay that stays": {"optim": replace(grafit_dino.recipe.optim, weight_decay_end=None)},
}
"""Values changed by a hundredth, or that do not change in the course of training."""


@pytest.mark.parametrize(
    "what",
    [*list(WRONG)[:3], *(pytest.param(what, marks=pytest.mark.slow) for what in list(WRONG)[3:])],
)
def test_a_wrong_variant_lies_far_away(what, single, reference):
    apart = yardsticks(single(replace(grafit_dino.recipe, **WRONG[what])), reference)
    print(f"{what}, yardsticks: {apart}")
    assert min(apart.values()) > 3 * ALLOWED


@pytest.mark.slow
def test_four_ranks_equal_single(warm, runs, reference):
    """Also as on two hosts; and where two ranks began."""
    done = warm(4, RANKS, runs, "grafit_dino_four", timeout=600)
    assert done.code == 0, done.output
    found = sorted(runs.glob("four *"))
    assert len(found) == 4
    for run in (*found, *(runs / f"elsewhere {way}" for way in grafit_dino.HALVED)):
        assert_near(run, reference)


@pytest.mark.slow
def test_offloaded_and_recomputed_equal_single(warm, tmp_path, reference):
    done = warm(2, RANKS, tmp_path, "grafit_dino_otherwise", timeout=600)
    assert done.code == 0, done.output
    for name in grafit_dino.OTHERWISE:
        assert_near(tmp_path / name, reference)


@pytest.mark.slow
def test_compiled_blocks_are_close(warm, tmp_path, reference):
    """Operations that are made one round otherwise, not only sums."""
    done = warm(2, RANKS, tmp_path, "grafit_dino_compiled", timeout=600)
    assert done.code == 0, done.output
    for way in grafit_dino.COMPILED:
        found = parts(held(tmp_path / f"compiled {way}", grafit_dino.UPDATES))
        apart = {of: distance(found[of], wanted) for of, wanted in parts(reference).items()}
        print(f"{way}: {apart}")
        assert 0 < max(apart.values()) < 1e-5


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
