"""Boxes and masks are learned alike under every engine, and after a resume."""

from dataclasses import replace
from pathlib import Path

import detected
import pytest
import tiny
from reference import distance, train_single, trained
from test_equality import ALLOWED, YARDSTICK
from test_resume import assert_equal

from bigvit.data.sampler import Sampler
from bigvit.data.sources.coco import CocoSource


@pytest.fixture(scope="module")
def reference(two_ranks):
    return train_single(detected.recipe, source=detected.source(two_ranks))[0]


@pytest.mark.parametrize("way", detected.WAYS)
def test_an_engine_equals_single(way, two_ranks, reference):
    assert_single(way, two_ranks, reference)


@pytest.mark.slow
def test_the_other_ways_equal_single(two_ranks, reference, warm):
    done = warm(2, Path(__file__).with_name("ranks.py"), two_ranks, "detected_others")
    assert done.code == 0, done.output
    for way in detected.OTHERS:
        assert_single(way, two_ranks, reference)


def assert_single(way, two_ranks, reference):
    found = distance(trained(two_ranks / f"detected {way}", tiny.SHORT), reference)
    print(f"{way}: {found:.2e}, {found / YARDSTICK:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICK


@pytest.mark.slow
def test_orders_of_summation_and_another_key_lie_apart(two_ranks, reference):
    source = detected.source(two_ranks)
    for order in range(3):
        apart = distance(train_single(detected.recipe, order, source=source)[0], reference)
        print(f"order {order}: {apart / YARDSTICK:.2f} yardsticks")
        assert apart <= ALLOWED * YARDSTICK
    (head,) = detected.recipe.objectives
    other = replace(detected.recipe, objectives=(replace(head, samples=15),))
    apart = distance(train_single(other, source=source)[0], reference)
    print(f"one box less: {apart / YARDSTICK:.0f} yardsticks")
    assert apart > 100 * YARDSTICK


@pytest.mark.parametrize("way", detected.HALVES)
def test_resumed(way, resumed):
    """Batches of both kinds are trained before the stop and after it."""
    source = detected.source(resumed)
    assert isinstance(source, CocoSource)
    sampler = Sampler.of(detected.recipe, source)
    kinds = [bool(source.standing[sampler.batch(n)[2][0]]) for n in range(tiny.SHORT)]
    assert set(kinds[: tiny.STOP]) == set(kinds[tiny.STOP :]) == {True, False}
    assert_equal(resumed / f"detected halves {way}", resumed / f"detected {way}", tiny.SHORT)
