"""The cosine schedule is timm's, stepped every update, and a pure function of the update; so is
warm-up-stable-decay, whose rates are those of its papers, written out."""

import math
import random
from dataclasses import replace
from typing import Literal

import pytest
import torch
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch.optim.lr_scheduler import PolynomialLR

from bigvit.recipe import Cosine, Polynomial, Recipe, WarmupStableDecay
from bigvit.recipe.check import check_recipe

PEAK = 3e-3
PER_EPOCH = 7
SCHEDULES = [
    Cosine(epochs=6, warmup_epochs=2, warmup_lr=1e-6, min_lr=1e-5),
    Cosine(epochs=6, warmup_epochs=0, warmup_lr=1e-6, min_lr=0.0),
    Cosine(epochs=3, warmup_epochs=3, warmup_lr=1e-6, min_lr=1e-5),
    Cosine(epochs=6, warmup_epochs=5, warmup_lr=1e-6, min_lr=PEAK),  # constant after warm-up
]


def updates(schedule: Cosine) -> range:
    return range(schedule.epochs * PER_EPOCH)


def timm_lrs(schedule: Cosine, prefix: bool) -> list[float]:
    """timm's learning rate at every update."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = CosineLRScheduler(
        optimizer,
        t_initial=schedule.epochs * PER_EPOCH,
        lr_min=schedule.min_lr,
        warmup_t=schedule.warmup_epochs * PER_EPOCH,
        warmup_lr_init=schedule.warmup_lr,
        warmup_prefix=prefix,
        t_in_epochs=False,
    )
    found: list[float] = []
    for update in updates(schedule):
        found.append(optimizer.param_groups[0]["lr"])  # what this update is made with
        scheduler.step_update(update + 1)
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_update_has_timms_rate(schedule: Cosine):
    ours = [schedule.lr(PEAK, update, PER_EPOCH) for update in updates(schedule)]
    assert ours == pytest.approx(timm_lrs(schedule, prefix=False), rel=1e-12, abs=0)


def test_warm_up_is_part_of_the_cosine_not_before_it():
    schedule = SCHEDULES[0]
    ours = [schedule.lr(PEAK, update, PER_EPOCH) for update in updates(schedule)]
    assert ours != pytest.approx(timm_lrs(schedule, prefix=True), rel=0.01)


def test_rates_follow_the_formula():
    schedule = SCHEDULES[0]
    warmup, last = 14, 42
    for update in updates(schedule):
        rising = 1e-6 + (3e-3 - 1e-6) * update / warmup
        falling = 1e-5 + (3e-3 - 1e-5) * math.cos(math.pi * update / last / 2) ** 2
        expected = rising if update < warmup else falling
        assert schedule.lr(PEAK, update, PER_EPOCH) == pytest.approx(expected, rel=1e-12)


def test_first_update_has_the_warm_up_rate_and_the_end_the_least():
    schedule = SCHEDULES[0]
    assert schedule.lr(PEAK, 0, PER_EPOCH) == 1e-6
    assert schedule.lr(PEAK, 42, PER_EPOCH) == 1e-5
    assert schedule.lr(PEAK, 41, PER_EPOCH) > 1e-5
    assert SCHEDULES[1].lr(PEAK, 0, PER_EPOCH) == PEAK


def test_order_of_calls_does_not_matter():
    schedule = SCHEDULES[0]
    forward = {update: schedule.lr(PEAK, update, PER_EPOCH) for update in updates(schedule)}
    shuffled = list(updates(schedule)) * 2
    random.Random(0).shuffle(shuffled)
    assert all(schedule.lr(PEAK, update, PER_EPOCH) == forward[update] for update in shuffled)


def test_a_recipe_counts_its_own_epochs(tiny: Recipe):
    recipe = replace(tiny, batch_size=1497 // 7, schedule=SCHEDULES[0])
    assert recipe.updates_per_epoch == PER_EPOCH and recipe.updates == 42
    for update in range(42):
        assert recipe.lr(update) == SCHEDULES[0].lr(recipe.optim.lr, update, PER_EPOCH)


STABLE = WarmupStableDecay(
    epochs=5, warmup_epochs=1, warmup_lr=0.0, decay_epochs=2, decay="linear", min_lr=0.0
)
LINEAR = [0, 0.25, 0.5, 0.75, *[1] * 9, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]
"""Shares of the peak with 4 updates an epoch: a rise, a plateau, a fall, and what comes after."""
ROOTS = [1 - (step / 8) ** 0.5 for step in range(9)]  # arXiv:2405.18392, equation (1-sqrt)


@pytest.mark.parametrize(("decay", "last"), [("linear", LINEAR[12:]), ("1-sqrt", ROOTS)])
@pytest.mark.parametrize("least", [0.0, 2e-4])
def test_rates_of_warm_up_stable_decay_are_those_written_out(
    decay: Literal["linear", "1-sqrt"], last: list[float], least: float
):
    schedule = replace(STABLE, decay=decay, min_lr=least)
    found = [schedule.lr(PEAK, update, 4) for update in range(21)]
    assert found[:13] == pytest.approx([PEAK * share for share in LINEAR[:13]], rel=1e-12)
    expected = [least + (PEAK - least) * share for share in last]
    assert found[12:] == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_without_decay_it_is_torchs_constant_rate_behind_a_linear_rise():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, 1.0, total_iters=PER_EPOCH)
    schedule = replace(STABLE, warmup_lr=1e-3 * PEAK, decay_epochs=0)
    for update in range(5 * PER_EPOCH):
        assert schedule.lr(PEAK, update, PER_EPOCH) == pytest.approx(rise.get_last_lr()[0])
        optimizer.step()
        rise.step()


def test_until_the_decay_no_rate_depends_on_the_epochs():
    longer = replace(STABLE, epochs=50)
    for update in range(3 * PER_EPOCH):
        assert STABLE.lr(PEAK, update, PER_EPOCH) == longer.lr(PEAK, update, PER_EPOCH)
    assert STABLE.lr(PEAK, 3 * PER_EPOCH + 1, PER_EPOCH) < PEAK


def test_warm_up_and_decay_fit_into_the_training(tiny: Recipe):
    check_recipe(replace(tiny, schedule=replace(STABLE, decay_epochs=4)))
    with pytest.raises(ValueError, match=r"^schedule.decay_epochs: 5 .* 0 to 4, what the warm-up"):
        check_recipe(replace(tiny, schedule=replace(STABLE, decay_epochs=5)))


@pytest.mark.parametrize("power", [1.0, 0.9, 2.0])
def test_a_polynomial_has_torchs_rates(power: float):
    schedule = Polynomial(updates=40, warmup_updates=0, warmup_ratio=1.0, power=power, min_lr=0.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = PolynomialLR(optimizer, total_iters=40, power=power)
    found: list[float] = []
    for _ in range(40):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = [schedule.lr(PEAK, update, PER_EPOCH) for update in range(40)]
    assert ours == pytest.approx(found, rel=1e-12, abs=0)


def test_a_polynomial_has_mmcvs_rates():
    """PolyLrUpdaterHook's, and its linear warm-up's, by hand: Swin's on ADE20K, with a floor."""
    schedule = Polynomial(
        updates=160_000, warmup_updates=1_500, warmup_ratio=1e-6, power=0.9, min_lr=1e-6
    )
    for update in (0, 1, 2, 749, 1_499, 1_500, 1_501, 80_000, 159_999):
        regular = (6e-5 - 1e-6) * (1 - update / 160_000) ** 0.9 + 1e-6
        k = (1 - update / 1_500) * (1 - 1e-6)
        wanted = regular * (1 - k) if update < 1_500 else regular
        assert schedule.lr(6e-5, update, PER_EPOCH) == pytest.approx(wanted, rel=1e-12)
    assert schedule.lr(6e-5, 0, PER_EPOCH) == pytest.approx(6e-11)
