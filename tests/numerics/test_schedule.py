"""The cosine schedule is timm's, stepped every update, and a pure function of the update."""

import math
import random
from dataclasses import replace

import pytest
import torch
from timm.scheduler.cosine_lr import CosineLRScheduler

from bigvit.recipe import Cosine, Recipe

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
