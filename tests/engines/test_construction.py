"""One seed gives the same initial weights whatever builds them; stage 3 builds them in parts."""

import json
from dataclasses import replace

import guards
import pytest
import tiny
import torch
from guards import digests
from launched import whole

from bigvit.engines.build import build_engine, outline
from bigvit.ranks.joining import alone
from bigvit.recipe import Run
from bigvit.task import Task

EVERYWHERE = [f"{precision} {stage}" for precision in guards.PRECISIONS for stage in guards.STAGES]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    task = Task(tiny.lamb)
    task.init_weights()
    return digests(dict(task.named_parameters()))


def test_every_digest_is_of_another_weight_and_another_seed_gives_others(expected):
    other = digests(whole(_single(replace(tiny.lamb, seed=2)), alone()))
    drawn = {name for name, p in outline(tiny.lamb).named_parameters() if p.ndim > 1}
    assert len({expected[name] for name in drawn}) == len(drawn) > 10
    assert all(expected[name] != other[name] for name in drawn)


def test_built_on_meta_and_by_single_they_are_the_same(expected):
    task = outline(tiny.lamb)
    assert {p.device.type for p in task.parameters()} == {"meta"}
    names = [name for name, _ in task.named_parameters()]
    assert digests({name: task.initial_weight(name) for name in names}) == expected
    for precision in guards.PRECISIONS:
        engine = _single(replace(tiny.lamb, precision=precision))
        assert digests(whole(engine, alone())) == expected


def test_one_rank_at_every_stage(one_rank, expected):
    _assert_equal(one_rank, 1, expected)


def test_two_ranks_at_every_stage(guard_ranks, expected):
    _assert_equal(guard_ranks, 2, expected)


def test_three_ranks_at_every_stage(lamb_ranks, expected):
    _assert_equal(lamb_ranks, 3, expected)


@pytest.mark.slow
def test_four_ranks_at_every_stage(four_ranks, expected):
    _assert_equal(four_ranks, 4, expected)


def _single(recipe):
    return build_engine(recipe, Run(engine="single"), tiny.cut(recipe, 1), alone())


def _assert_equal(folder, world, expected):
    found = json.loads((folder / f"initial_weights_{world}.json").read_text())
    task = Task(tiny.lamb)
    task.init_weights()
    rounded = digests({name: p.bfloat16().float() for name, p in task.named_parameters()})
    assert len(found) == 2 * len(EVERYWHERE)
    for where in EVERYWHERE:
        assert found[where] == expected, where
        working = rounded if where.startswith("bf16") else expected
        assert found[f"working {where}"] == working, where


def test_weights_given_by_init_are_not_rounded_in_bf16(guard_ranks, expected):
    found = json.loads((guard_ranks / "given_weights.json").read_text())
    given = found.pop("given")
    assert given != expected
    assert found == {str(stage): given for stage in guards.STAGES}


def test_stage_3_never_holds_more_than_a_layer_whole_while_it_builds(guard_ranks):
    found = json.loads((guard_ranks / "held.json").read_text())
    task = outline(guards.wide)
    total = sum(p.numel() for p in task.parameters())
    layers = [sum(p.numel() for p in module.parameters(recurse=False)) for module in task.modules()]
    own = sum(p.numel() for p in task.model.parameters(recurse=False))  # class token, positions
    print(total, max(layers), own, found)
    for rank in found["2"]:  # a stage that has the model whole is seen to
        assert rank["most"] == rank["end"] == rank["all"] == total
    for rank in found["3"]:
        assert rank["all"] == total and rank["end"] == 0
        assert rank["most"] <= max(layers) + own < total / 10
        assert rank["pieces"] < 0.51 * total


def test_qkv_has_deviation_two_hundredths():
    task = outline(replace(tiny.lamb, model=replace(tiny.lamb.model, embed_dim=384)))
    for block in range(tiny.lamb.model.depth):
        weight = task.initial_weight(f"model.blocks.{block}.attn.qkv.weight")
        # four standard errors of a deviation over 442,368 elements
        assert weight.std().item() == pytest.approx(0.02, rel=4 / (2 * weight.numel()) ** 0.5)
        assert weight.dtype == torch.float32
