"""What a rank holds and sends, worked out by hand: ViT-H/14 at 126 px is 32 blocks, 1280 wide."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bigvit.plan.matrices import spread
from bigvit.plan.states import States, states
from bigvit.plan.traffic import traffic
from bigvit.plan.weights import weights_of
from bigvit.recipe import SGD, AdamW, Layout, Recipe, Run
from bigvit.recipe.find import find_recipe

H = replace(find_recipe("deit3_h14_in1k_126")[1], gradient_precision="bf16")  # LAMB, bf16
MATRICES = 32 * (1280 * 3840 + 1280 * 1280 + 2 * 1280 * 5120) + 3 * 14 * 14 * 1280 + 1280 * 1000
VECTORS = 32 * (3840 + 1280 + 5120 + 1280 + 6 * 1280) + 1280 + 82 * 1280 + 2 * 1280 + 1000
ALL = MATRICES + VECTORS


def held(sharding: str, ranks: int, recipe: Recipe = H, engine: Any = "deepspeed") -> States:
    layout = Layout(ranks, 8, 2)
    return states(recipe, layout, Run(engine=engine, sharding=sharding), 8)


def sent(sharding: str, ranks: int, engine: Any = "deepspeed") -> dict[tuple[str, str, int], int]:
    layout = Layout(ranks, 8, 2)
    found = traffic(H, layout, Run(engine=engine, sharding=sharding), 8)
    return {(each.kind, each.what, each.ranks): each.total for each in found}


def test_the_parameters_are_those_of_the_paper() -> None:
    assert ALL == 631_902_440 == sum(w.size for w in weights_of(H).all)
    assert [sum(w.size for w in group) for group in weights_of(H).groups(False)] == [
        MATRICES,
        VECTORS,
    ]


def test_stage_0_has_20_bytes_of_a_parameter_with_an_average_and_bf16_gradients() -> None:
    found = held("zero0", 8, replace(H, ema=0.9999))
    assert (found.weights, found.masters, found.average) == (2 * ALL, 4 * ALL, 4 * ALL)
    assert found.moments == 8 * ALL + 4 * len(weights_of(H).all)
    assert found.gradients == 2 * ALL
    assert found.stepping == (2 + 4) * ALL  # and their float32 copies
    assert round(found.backward / ALL) == 2 + 2 + 16 + 2  # laid end to end, the gradients again


@pytest.mark.parametrize(
    ("ranks", "updated"),
    [(8, 78_897_280 + 90_526), (32, 19_724_320 + 22_632)],
    # matrices, then vectors; each share of a group is even
)
def test_stages_1_and_2_have_an_even_share_of_each_group(ranks: int, updated: int) -> None:
    for sharding in ("zero1", "zero2"):
        found = held(sharding, ranks, replace(H, ema=0.9999))
        assert found.updated == updated
        assert found.weights == 2 * ranks * updated
        assert found.masters == found.average == 4 * updated
        assert found.moments == 8 * updated + 2 * 4
        assert found.host == 0
    # whole gradients; or those of parameters that the share has a part of, of two micro-batches
    assert held("zero1", ranks).gradients == 2 * ALL
    most = held("zero2", ranks).gradients
    assert 4 * updated < most < 4 * (updated + 4 * 1280 * 5120)
    # added up in float32 they are the share and no more
    assert held("zero2", ranks, replace(H, gradient_precision="fp32")).gradients == 4 * updated


def test_stage_3_has_a_share_of_each_parameter() -> None:
    shares = {8: ALL // 8, 32: (ALL - 1000) // 32 + 32}  # 32 divides all but the head's bias
    for ranks, updated in shares.items():
        found = held("zero3", ranks)
        assert (found.updated, found.weights) == (updated, 2 * updated)
        assert (found.masters, found.gradients) == (4 * updated, 2 * updated)
        assert found.buckets == 2 * 2 * 50_000_000
        assert found.gathered < 2 * ALL


def test_stage_3_within_nodes_has_a_node_s_share_besides() -> None:
    near, far = held("zero3_node", 32), held("zero3", 32)
    assert near.weights == far.weights
    assert near.stepping - 2 * 200_000_000 - (far.stepping - 2 * 50_000_000) == 2 * ALL // 8


def test_what_is_offloaded_lies_on_the_host() -> None:
    found = held("zero3_offload", 8, replace(H, ema=0.9999))
    assert found.weights == found.masters == found.moments == found.average == 0
    share = ALL // 8
    assert found.host == (2 + 4 + 8 + 4 + 2 + 4) * share + 4 * 2  # two sub-groups


def test_fsdp2_leaves_what_has_one_row_to_the_first_rank() -> None:
    rows = (ALL - 82 * 1280) // 8 + 82 * 1280  # positions and the class token
    found = held("full", 8, engine="fsdp2")
    assert found.weights == found.gradients == found.stepping == 4 * rows
    assert held("node", 32, engine="fsdp2").weights == 4 * rows
    assert held("grads", 8, engine="fsdp2").gathered > 2 * ALL > found.gathered


def test_fairscale_gives_each_rank_whole_parameters() -> None:
    found = held("oss", 8, engine="fairscale")
    assert found.weights == found.gradients == found.buckets == 2 * ALL
    assert ALL / 8 <= found.updated < ALL / 8 + 1280 * 5120


def test_what_is_frozen_has_no_state() -> None:
    only = replace(H, trainable="attention")
    trained = 32 * (1280 * 3840 + 3840 + 1280 * 1280 + 1280) + 81 * 1280 + 1280 * 1000 + 1000
    found = held("zero0", 8, only)
    assert found.updated == trained
    assert (found.weights, found.gradients, found.masters) == (2 * ALL, 2 * trained, 4 * trained)


@pytest.mark.parametrize(
    ("engine", "sharding"),
    [
        *(("deepspeed", f"zero{stage}") for stage in range(4)),
        *(("fsdp2", name) for name in ("full", "grads")),
        *(("fairscale", name) for name in ("oss", "sdp")),
    ],
)
def test_more_ranks_ask_for_no_more_and_float32_for_no_less(engine: str, sharding: str) -> None:
    found = [held(sharding, ranks, engine=engine) for ranks in (2, 8, 32, 512)]
    assert [each.updated for each in found] == sorted((f.updated for f in found), reverse=True)
    assert all(later.kept <= 1.001 * one.kept for one, later in zip(found, found[1:], strict=False))
    wide = held(sharding, 8, replace(H, precision="fp32", gradient_precision="fp32"), engine)
    assert wide.backward >= found[1].backward
    plain = held(sharding, 8, replace(H, optim=AdamW(1e-3, (0.9, 0.999), 1e-8, 0.05, None)), engine)
    assert plain.kept == found[1].kept


def test_a_file_of_one_s_own_says_how_large_buckets_are(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    zero = {"stage": 1, "reduce_bucket_size": 1e6, "reduce_scatter": False, "overlap_comm": True}
    path.write_text(json.dumps({"zero_optimization": zero}))
    assert held(str(path), 8).buckets == 2 * 2 * 1_000_000


def test_what_each_stage_sends() -> None:
    padded = 8 * (78_897_280 + 90_526)
    reduced = ("all-reduce", "gradients", 8)
    weights = ("all-gather", "weights", 8)
    assert sent("zero0", 8)[reduced] == 2 * ALL
    assert sent("zero1", 8)[reduced] == 2 * ALL
    assert sent("zero2", 8)[reduced] == 2 * 2 * ALL  # of two micro-batches
    assert sent("zero2", 8)[weights] == 2 * padded
    assert sent("zero3", 8)["reduce-scatter", "gradients", 8] == 2 * 2 * ALL
    assert sent("zero0", 1) == {}


def test_fsdp2_gathers_twice_a_micro_batch_unless_it_keeps_what_it_gathered() -> None:
    whole = 2 * (ALL + 7 * 82 * 1280)  # what has one row is padded to eight
    weights = ("all-gather", "weights", 8)
    assert sent("full", 8, engine="fsdp2")[weights] == 2 * 2 * whole
    assert sent("grads", 8, engine="fsdp2")[weights] == whole
    assert sent("full", 8, engine="fsdp2")["reduce-scatter", "gradients", 8] == 2 * whole
    node = sent("node", 32, engine="fsdp2")
    assert node[weights] == 2 * 2 * whole and node["all-reduce", "gradients", 4] == whole / 8


def test_lamb_sums_squares_of_matrices_over_ranks() -> None:
    matrices = 32 * 4 + 2
    found = traffic(H, Layout(8, 8, 2), Run(sharding="zero1"), 8)
    assert 2 * 8 * matrices in [each.total for each in found if each.what == "norms"]


HIDDEN = MATRICES - 3 * 14 * 14 * 1280 - 1280 * 1000
MUON = replace(H, optim=find_recipe("muon_vit_b16_in1k_224")[1].optim)


def test_muon_keeps_one_moment_of_a_hidden_matrix() -> None:
    assert sum(w.size for w in weights_of(MUON).all if w.hidden) == HIDDEN
    found = held("zero0", 8, MUON)
    assert found.moments == 4 * (2 * ALL - HIDDEN) + 4 * len(weights_of(H).all)
    found = held("zero1", 8, MUON)
    assert found.moments == 4 * (2 * found.updated - HIDDEN // 8) + 4 * 3


@pytest.mark.parametrize("way", ["zero0", "zero1", "zero3"])
def test_sgd_keeps_one_moment(way: str) -> None:
    sgd = replace(H, optim=SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4))
    found, both = held(way, 8, sgd), held(way, 8, H)
    assert both.moments - found.moments == 4 * found.updated
    assert replace(both, moments=found.moments) == found


@pytest.mark.parametrize(("way", "engine"), [("zero3", "deepspeed"), ("full", "fsdp2")])
def test_muon_sends_each_piece_of_a_matrix_to_its_owner_and_back(way: str, engine: Any) -> None:
    run = Run(engine=engine, sharding=way)
    found = traffic(MUON, Layout(8, 8, 2), run, 8)
    (each,) = (each for each in found if each.what == "matrices")
    # each rank owns 16 of the 128 square matrices and 8 of the others, and has an eighth of all
    assert (each.kind, each.times, each.ranks) == ("all-to-all", 2, 8)
    assert each.total == 2 * 2 * HIDDEN // 8 * 7 // 8


def test_muon_sends_where_matrices_lie_across_two_ranks_alone() -> None:
    run = Run(sharding="zero1")
    found = {
        world: [e for e in traffic(MUON, Layout(world, 8, 2), run, 8) if e.what == "matrices"]
        for world in (8, 10)
    }
    assert found[8] == []  # a rank has four blocks
    (each,) = found[10]
    # three blocks and a fifth: a matrix is cut at either end, and half of it is sent at most
    assert (each.times, each.ranks) == (2, 10) and 0 < each.total <= 2 * 2 * 2 * 1280 * 5120 // 2


def test_muons_iterations_are_spread_over_the_ranks() -> None:
    for way, engine in (("zero1", "deepspeed"), ("zero3", "deepspeed"), ("sdp", "fairscale")):
        run: Any = Run(engine=engine, sharding=way)  # pyright: ignore
        found = spread(MUON, Layout(8, 8, 2), run, 8)
        assert found is not None
        # five of 2 (2 N + M) M^2 a matrix of M x N
        assert sum(found.flops) == 5 * 32 * (4 * 6 + 2 * 18) * 1280**3
        assert max(found.flops) * 8 <= 1.2 * sum(found.flops)
    assert spread(H, Layout(8, 8, 2), run, 8) is None
