"""SGD with momentum is the same however its tensors are cut, and resumes bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import sgd
import tiny
import torch
from reference import distance, train_single, trained
from test_resume import logged, state

from bigvit.checkpoint.manifest import read_manifest, step_name

YARDSTICK = 3.9e-8  # largest of five orders of summation, as in test_equality.py
ALLOWED = 10
LAST = tiny.SHORT
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def single():
    return train_single(tiny.sgd_short)[0]


@pytest.fixture(scope="module")
def two(warm, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sgd")
    done = warm(
        2, Path(__file__).with_name("ranks.py"), folder, "sgd_runs", "sgd_halves", timeout=600
    )
    assert done.code == 0, done.output
    return folder


def test_the_yardstick_is_what_other_orders_of_summation_show(single):
    seen = [distance(train_single(tiny.sgd_short, order)[0], single) for order in range(5)]
    print(seen)
    assert 0 < max(seen) <= 2 * YARDSTICK


@pytest.mark.parametrize("way", [*sgd.WAYS, sgd.OFFLOADED])
def test_two_ranks_equal_single(way, two, single):
    for kind, prefix in (("weight", ""), ("ema", "ema ")):
        found = trained(two / f"sgd {way}", LAST, kind)
        apart = distance(found, {name: single[prefix + name] for name in found})
        print(f"{way}, {kind}: {apart:.1e}, {apart / YARDSTICK:.2f} yardsticks")
        assert apart <= ALLOWED * YARDSTICK


def test_momentum_that_looks_nowhere_lies_far_above(single):
    plain = replace(tiny.sgd_short, optim=replace(tiny.sgd_short.optim, nesterov=False))
    apart = distance(train_single(plain)[0], single)
    print(f"{apart / YARDSTICK:,.0f} yardsticks")
    assert apart > 100 * ALLOWED * YARDSTICK


def test_a_checkpoint_has_one_moment(two):
    last = two / "sgd 1" / "checkpoints" / step_name(LAST)
    assert {tuple(row.kinds) for row in read_manifest(last).tensors} == {
        ("weight", "exp_avg", "ema")
    }


@pytest.mark.parametrize("way", sgd.RESUMED)
def test_stopped_in_mid_epoch_and_resumed(way, two):
    halves, whole = (two / f"sgd{half} {way}" for half in (" halves", ""))
    one, other = state(halves, LAST), state(whole, LAST)
    assert one.keys() == other.keys() and len(one) > 50
    assert not [key for key in one if not torch.equal(one[key], other[key])]
    assert logged(halves) == logged(whole)
