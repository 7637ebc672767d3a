"""What a follower, a memory and a centre add to a rank, worked out by hand: DINO's ViT-S/16 with
its head of 65,536 outputs, and Grafit's ResNet-50 on ImageNet."""

from dataclasses import replace
from typing import Any

import pytest

from bigvit.plan.activations import executed_macs
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.devices import find_device
from bigvit.plan.follower import trained_macs
from bigvit.plan.states import States, states
from bigvit.plan.traffic import traffic
from bigvit.recipe import Layout, Recipe, Run
from bigvit.recipe.find import find_recipe

DINO = find_recipe("dino_vit_s16_in1k_224_100")[1]
# timm's deit_small_patch16_224: 22,050,664, of which 385,000 are the classifier
HEAD, TRUNK = 385_000, 22_050_664 - 385_000
# DINO's: 384, 2048, 2048, 256 with biases; 65,536 rows of 256
BEHIND = 384 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 256 + 256
PROTOTYPES = 65_536 * 256
TRAINED, FOLLOWED = TRUNK + BEHIND + PROTOTYPES, TRUNK + BEHIND + PROTOTYPES + HEAD
CENTRE = 4 * 65_536

GRAFIT = find_recipe("grafit_r50_in1k_224")[1]


def held(recipe: Recipe, engine: Any, way: str, ranks: int = 8) -> States:
    return states(recipe, Layout(ranks, 8, 2), Run(engine=engine, sharding=way), 8)


def sent(recipe: Recipe, engine: Any, way: str, ranks: int = 8) -> dict[tuple[str, str], int]:
    layout = Layout(ranks, 8, 2)
    found = traffic(recipe, layout, Run(engine=engine, sharding=way), 8)
    return {(each.what, each.kind): each.total for each in found}


def test_a_follower_is_whole_where_the_model_is_and_cut_where_it_is_cut() -> None:
    assert held(DINO, "deepspeed", "zero0").follower == 2 * FOLLOWED
    for way in ("zero1", "zero2"):  # each group to a multiple of two a rank
        padded = held(DINO, "deepspeed", way).follower - 2 * FOLLOWED
        assert 0 <= padded < 2 * 2 * 8 * 3
    cut = held(DINO, "deepspeed", "zero3").follower
    assert cut == pytest.approx(2 * FOLLOWED / 8, rel=1e-4)
    # the average itself, but for the head that is never trained
    assert held(DINO, "fsdp2", "full").follower == 4 * HEAD // 8
    assert held(DINO, "fairscale", "oss").follower == 2 * FOLLOWED
    wide = replace(DINO, precision="fp32", gradient_precision="fp32")
    assert held(wide, "single", "", 1).follower == 0


def test_what_is_sent_for_a_follower() -> None:
    assert ("follower", "all-reduce") not in sent(DINO, "deepspeed", "zero0")
    for way in ("zero1", "zero2"):
        found = sent(DINO, "deepspeed", way)
        assert found["follower", "all-gather"] == found["weights", "all-gather"]
    assert sent(DINO, "fairscale", "sdp")["follower", "broadcast"] == 2 * TRAINED
    found = sent(DINO, "fsdp2", "full")
    blocks = 12 * (4 * 384 * 384 + 8 * 384 * 384 + 4 * 384 + 5 * 384 + 4 * 384)
    rest = FOLLOWED - blocks + 7 * (197 + 1) * 384  # positions and class token padded to eight
    # two micro-batches: two groups are asked, three passes have a way back
    assert found["follower", "all-gather"] == 2 * 2 * (rest + 2 * blocks)
    assert found["weights", "all-gather"] == 2 * 2 * 2 * (rest + 3 * blocks)
    kept = sent(DINO, "fsdp2", "grads")["weights", "all-gather"]
    assert kept == 2 * (rest + 3 * blocks)


def test_a_memory_is_spread_over_ranks_and_a_centre_is_everywhere() -> None:
    images, dim = GRAFIT.data.train_images, 256
    for ranks in (1, 8):
        rows = -(-images // ranks) + 1  # one that takes what is of no row here
        way = "deepspeed", "zero2", ranks
        assert held(GRAFIT, *way).remembered == 4 * rows * dim + 8 * images
        assert held(DINO, *way).remembered == held(DINO, *way).noted == CENTRE
    found = sent(GRAFIT, "deepspeed", "zero2")
    batch = 8 * 8 * 2
    # embeddings and numbers of all, and two sums of each of eight ranks; gradients of embeddings
    assert found["kept", "all-gather"] == batch * (4 * dim + 8 + 8 * 8)
    assert found["kept", "all-reduce"] == batch * 4 * dim
    assert sent(DINO, "deepspeed", "zero2")["kept", "all-reduce"] == CENTRE
    assert sent(GRAFIT, "deepspeed", "zero2", 1) == {}


def test_a_memory_counts_in_what_a_device_must_have() -> None:
    def peak(images: int) -> int:
        recipe = replace(GRAFIT, data=replace(GRAFIT.data, train_images=images))
        machines = Machines(find_device("h100-80gb"), 8, 8, 0.0)
        return Choice(recipe, Run(sharding="zero2"), Layout(8, 64, 1), machines).peak

    more = peak(9_000_000) - peak(1_000_000)
    assert more == pytest.approx(1.03 * (8_000_000 // 8 * 4 * 256 + 8 * 8_000_000), rel=0.01)


def test_flops_are_those_of_all_views() -> None:
    # the published 4.6 GFLOPs of DeiT-S at 224 px; at 96 px 37 tokens of 197, and less attention
    large = 4.6e9
    behind = 10 * (BEHIND + PROTOTYPES)
    found = trained_macs(DINO).dense
    assert 2 * large + 8 * 0.17 * large < found - behind < 2 * large + 8 * 0.19 * large
    alone = find_recipe("deit3_s16_in1k_224")[1]
    assert trained_macs(alone) == executed_macs(alone)
