"""LAMB is exact however its tensors are cut, and its average of the weights with it."""

import json
from pathlib import Path

import lamb
import pytest
import tiny
import torch
from reference import distance, train_single, trained
from test_resume import assert_equal
from timm.optim.lamb import Lamb as TimmLamb

from bigvit.engines.single import SingleEngine
from bigvit.recipe import Lamb

YARDSTICK = 9.1e-7  # largest of five orders of summation, as in test_equality.py
YARDSTICK_SHORT = 9.2e-7  # of the shorter recipe
ALLOWED = 10
PER_UPDATE = 1e-6  # relative, of each parameter, given the same gradients
MORE_TRAFFIC = 0.03

on_two = [*lamb.SHARDINGS, lamb.SECONDARY]
everywhere = [
    pytest.param(world, name, where, marks=[pytest.mark.slow] * (where == "more_lamb_ranks"))
    for world, name, where in (
        *((2, each, "more_lamb_ranks" if each in lamb.SLOW else "lamb_ranks") for each in on_two),
        *((3, name, "lamb_ranks") for name in lamb.MORE_RANKS),
    )
]


@pytest.fixture(scope="session")
def single():
    return train_single(tiny.lamb)[0]


@pytest.fixture(scope="session")
def single_short():
    return train_single(tiny.lamb_short)[0]


def test_the_yardsticks_are_what_other_orders_of_summation_show(single, single_short):
    for recipe, reference, yardstick in (
        (tiny.lamb, single, YARDSTICK),
        (tiny.lamb_short, single_short, YARDSTICK_SHORT),
    ):
        seen = [distance(train_single(recipe, order)[0], reference) for order in (0, 1)]
        print(seen)
        assert 0 < max(seen) <= 2 * yardstick


def test_single_equals_timms_lamb_clipped_outside(single):
    def change(engine: SingleEngine) -> None:
        assert isinstance(tiny.lamb.optim, Lamb)
        values = {"eps": tiny.lamb.optim.eps, "max_grad_norm": None}
        groups = engine.masters.optimizer.param_groups
        theirs = TimmLamb([{**group} for group in groups], lr=0.0, **values)
        engine.masters.optimizer = theirs

    found = train_single(tiny.lamb, change=change)[0]
    weights = {name: w for name, w in single.items() if not name.startswith("ema ")}
    print(f"{distance(found, weights):.2e}")
    assert distance(found, weights) <= ALLOWED * YARDSTICK


@pytest.mark.parametrize(("world", "name", "where"), everywhere)
def test_a_run_equals_single(world, name, where, request, single, single_short):
    run = request.getfixturevalue(where) / f"lamb {world} {name}"
    recipe = lamb.recipe_of(world, name)
    if recipe == tiny.lamb:
        assert_single(run, single, YARDSTICK)
    else:
        assert_single(run, single_short, YARDSTICK_SHORT, tiny.SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", lamb.MORE_RANKS)
def test_a_run_on_four_ranks_equals_single(name, four_ranks, single_short):
    run = four_ranks / f"lamb 4 {name}"
    assert_single(run, single_short, YARDSTICK_SHORT, tiny.SHORT)


def assert_single(run: Path, single, yardstick: float, updates: int = tiny.UPDATES) -> None:
    for kind, prefix in (("weight", ""), ("ema", "ema ")):
        wanted = {key: single[prefix + key] for key in single if not key.startswith("ema ")}
        found = distance(trained(run, updates, kind), wanted)
        print(f"{kind}: {found:.2e}, {found / yardstick:.2f} yardsticks")
        assert found <= ALLOWED * yardstick


def test_the_average_is_another_one_than_the_weights(lamb_ranks):
    run = lamb_ranks / "lamb 2 stage 0"
    assert distance(trained(run, kind="ema"), trained(run)) > 1000 * YARDSTICK


@pytest.mark.parametrize("world", [2, 3])
def test_an_update_equals_timms_given_the_same_gradients(world, lamb_ranks):
    assert_timms(lamb_ranks, world)


@pytest.mark.slow
def test_an_update_on_four_ranks_equals_timms(four_ranks):
    assert_timms(four_ranks, 4)


def assert_timms(folder: Path, world: int) -> None:
    found = json.loads((folder / f"lamb_updates_{world}.json").read_text())
    for name in lamb.SHARDINGS if world == 2 else lamb.MORE_RANKS:
        print(f"{name}: {found[name]}")
        assert found[name]["difference"] <= PER_UPDATE
        assert found[name]["norms"] <= MORE_TRAFFIC * found[name]["DeepSpeed"]
        assert (found[name]["norms"] > 0) == (name != "stage 0")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_same_check_fails_on_stock_lamb_under_zero(stage, lamb_ranks):
    found = json.loads((lamb_ranks / "lamb_updates_2.json").read_text())[f"stock, stage {stage}"]
    print(found)
    assert found["difference"] > 1000 * PER_UPDATE


@pytest.mark.parametrize("name", ["stage 2, offloaded", "stage 3, small sub-groups"])
def test_stopped_in_mid_epoch_and_resumed(name, lamb_ranks):
    halves, whole = lamb_ranks / f"lamb halves {name}", lamb_ranks / f"lamb 2 {name}"
    assert_equal(halves, whole, tiny.updates(lamb.recipe_of(2, name)))


def test_the_average_is_evaluated_beside_the_weights(lamb_ranks):
    lines = {}
    for name in lamb.EVALUATED:
        text = (lamb_ranks / f"lamb 2 {name}" / "metrics.jsonl").read_text()
        evaluated = [json.loads(line) for line in text.splitlines() if "top1" in line]
        lines[name] = [(e["update"], e["ema_test_loss"], e["test_loss"]) for e in evaluated]
        assert all(e["ema_images"] == e["images"] == 300 for e in evaluated)
    for name, found in lines.items():
        assert len(found) == 1 and all(ema != last for _, ema, last in found)
        for one, other in zip(found, lines["stage 0"], strict=True):
            assert one == pytest.approx(other, rel=1e-5), name


def test_bf16_is_identical_at_stages_1_and_2_and_close_at_the_others(lamb_ranks):
    weights = {stage: trained(lamb_ranks / f"lamb bf16 {stage}", tiny.SHORT) for stage in range(4)}
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[1])
    for stage in (0, 3):
        print(f"stage {stage}: {distance(weights[stage], weights[1]):.1e}")
        assert distance(weights[stage], weights[1]) < 3e-2
