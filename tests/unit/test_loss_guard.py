"""The guard against a loss that jumps: when it speaks, and when it does not."""

import math

import pytest

from bigvit.recipe.parse import parse
from bigvit.training.loss_guard import LossGuard, LossJumped


def fed(jump: float, losses: list[float]) -> LossGuard:
    guard = LossGuard(jump)
    for loss in losses:
        guard(loss)
    return guard


def test_it_needs_ten_losses() -> None:
    fed(2.0, [1.0] * 9)(1e6)
    with pytest.raises(LossJumped, match="the loss is 1e\\+06, more than 2 times the mean of"):
        fed(2.0, [1.0] * 10)(1e6)


def test_it_stops_above_the_multiple_of_the_mean_and_not_at_it() -> None:
    losses = [float(i) for i in range(1, 11)]  # of mean 5.5
    fed(2.0, losses)(11.0)
    with pytest.raises(LossJumped, match=r"the last 10, 5\.5 \(--loss-jump\)"):
        fed(2.0, losses)(11.001)


def test_a_loss_that_it_refused_is_not_remembered() -> None:
    guard = fed(2.0, [1.0] * 10)
    for _ in range(3):
        with pytest.raises(LossJumped):
            guard(100.0)
    guard(1.9)


def test_it_forgets_losses_of_more_than_fifty_updates_ago() -> None:
    guard = fed(3.0, [10.0] * 50 + [1.0] * 49)
    guard(3.4)  # the mean is (10 + 49) / 50
    guard = fed(3.0, [10.0] * 50 + [1.0] * 50)
    with pytest.raises(LossJumped, match="the last 50, 1 "):
        guard(3.4)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite_is_not_its_business(loss: float) -> None:
    guard = fed(2.0, [1.0] * 10)
    guard(loss)
    guard(1.9)
    with pytest.raises(LossJumped, match="the last 11, 1.08"):  # it goes on watching
        guard(2.2)


def test_a_jump_above_one_is_taken() -> None:
    assert parse(["digits_vit", "--loss-jump", "1.5"]).run.loss_jump == 1.5
    assert parse(["digits_vit"]).run.loss_jump is None
