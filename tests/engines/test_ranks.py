"""What several ranks agree on: counts of an evaluation, an error, that a gradient is not finite."""

import json
from dataclasses import replace

import pytest
import tiny
from reference import evaluated_alone

from bigvit.plan.weights import weights_of


def test_evaluation_counts_every_image_once_on_1_2_and_3_ranks(two_ranks, three_ranks):
    alone_ = evaluated_alone()
    assert alone_["images"] == 103 and 0 < alone_["top1_correct"] < 103
    loss = alone_.pop("test_loss")
    for world in (2, 3):
        found = json.loads((two_ranks / f"counts_{world}.json").read_text())
        for counts in found.values():
            assert counts.pop("test_loss") == pytest.approx(loss, rel=1e-6, abs=0)
            assert counts == alone_


def test_what_one_rank_meets_is_raised_on_all(two_ranks):
    one, all_, none = json.loads((two_ranks / "agree_on_error.json").read_text())
    assert one == ["met by 1", "met by 1"]
    assert all_ == ["met by 0", "met by 1"]
    assert none == ["went on", "went on"]


def test_an_infinite_gradient_on_one_rank_stops_all_before_it_is_applied(two_ranks):
    found = json.loads((two_ranks / "not_finite.json").read_text())
    assert len(found) == 8  # fp32 and bf16, four stages
    for where, (message, unchanged) in found.items():
        assert "gradient norm is not finite" in message, where
        assert unchanged, where


def test_the_recipe_of_these_tests_clips_and_drops():
    assert tiny.adamw.model.drop_path.grouped and tiny.adamw.clip_norm is not None
    assert tiny.cut(tiny.adamw, 2).accumulation == 3
    assert replace(tiny.adamw, precision="bf16", schedule=tiny.bf16.schedule) == tiny.bf16


def test_engines_hold_what_is_planned(two_ranks):
    found = json.loads((two_ranks / "planned.json").read_text())
    state = 16 * sum(w.size for w in weights_of(tiny.lamb).all)
    assert len(found) == 2
    for way, (held, said) in found.items():
        # a few numbers besides, where buckets are thousands of times as large as the model
        assert held == pytest.approx(said, abs=0.01 * state), way
