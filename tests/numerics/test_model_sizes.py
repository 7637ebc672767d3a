"""Sizes of the models as published, as counted, and as plain arithmetic says; what a model returns.

Published: recipe-facts.md, "Models" (parameters in millions with 1000 classes, GMAC, at 224).
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bigvit import models
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import VIT_SIZES, ClassToken, StochasticDepth, ViT, vit

PUBLISHED = {
    "t16": (5.72, 1.25),
    "s16": (22.06, 4.60),
    "m16": (38.85, 8.0),
    "b16": (86.59, 17.56),
    "l16": (304.37, 61.55),
    "h14": (632.13, 167.30),
    "h52_14": (1025.73, 271.73),
    "g14": (955.03, 252.21),
}
NO_DROP = StochasticDepth(rate=0.0, group=8)
TINY = ViT(2, 32, 3, 4, 3.0, 0.1, ClassToken(0), False, StochasticDepth(rate=0.05, group=8), 1, 10)


def on_meta(model: ViT, image_size: int) -> ClassTokenTransformer:
    with torch.device("meta"):
        return models.build(model, image_size)


def of_size(size: str) -> ViT:
    return vit(size, layer_scale=1e-4, drop_path=NO_DROP, num_classes=1000, in_chans=3)


@pytest.mark.parametrize("size", VIT_SIZES)
def test_arithmetic_gives_the_published_sizes(size: str):
    parameters, macs = PUBLISHED[size]
    assert of_size(size).parameters(224) / 1e6 == pytest.approx(parameters, rel=1e-3, abs=0)
    assert of_size(size).macs(224) / 1e9 == pytest.approx(macs, rel=4e-3, abs=0)


@pytest.mark.parametrize("size", VIT_SIZES)
def test_arithmetic_counts_every_parameter_and_product(size: str):
    model = of_size(size)
    built = on_meta(model, 224)
    assert model.parameters(224) == sum(p.numel() for p in built.parameters())
    with FlopCounterMode(display=False) as counter:
        built(torch.empty(1, 3, 224, 224, device="meta"))
    # the counter knows the products of matrices, convolutions and attention, two FLOPs each
    assert 2 * model.macs(224) == counter.get_total_flops()


@pytest.mark.parametrize("image_size", [126, 154, 182, 384])
def test_arithmetic_follows_the_image_size(image_size: int):
    model = ViT(14, 64, 2, 4, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 1000)
    built = on_meta(model, image_size)
    assert model.parameters(image_size) == sum(p.numel() for p in built.parameters())
    side = image_size - image_size % 14
    with FlopCounterMode(display=False) as counter:
        built(torch.empty(1, 3, side, side, device="meta"))
    assert 2 * model.macs(image_size) == counter.get_total_flops()


def test_other_ratio_channels_and_classes_are_counted():
    built = on_meta(TINY, 8)
    assert TINY.parameters(8) == sum(p.numel() for p in built.parameters())
    with FlopCounterMode(display=False) as counter:
        built(torch.empty(1, 1, 8, 8, device="meta"))
    assert 2 * TINY.macs(8) == counter.get_total_flops()


def test_output_has_tokens_grid_class_token_and_logits():
    model = models.build(TINY, 8)
    model.init_weights(seed=0)
    output = model(torch.randn(5, 1, 8, 8))
    assert output.grid == (4, 4) == TINY.grid(8)
    assert output.tokens.shape == (5, 16, 32)
    assert output.cls.shape == (5, 32)
    assert output.logits.shape == (5, 10)
    torch.testing.assert_close(output.logits, model.head(output.cls), rtol=0, atol=0)


def test_tokens_are_normalised_and_run_row_by_row():
    """Without blocks a token depends on its patch alone."""
    model = models.build(TINY, 8)
    model.init_weights(seed=0)
    model.blocks = torch.nn.ModuleList()
    image = torch.randn(1, 1, 8, 8)
    changed = image.clone()
    changed[:, :, 2:4, 6:8] += 1  # row 1, column 3 of four
    before, after = model(image), model(changed)
    differs = (before.tokens != after.tokens).any(dim=2)[0]
    assert differs.nonzero().flatten().tolist() == [7]
    assert torch.equal(before.cls, after.cls)
    mean, std = before.tokens.mean(dim=2), before.tokens.std(dim=2, correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-6)
    torch.testing.assert_close(std, torch.ones_like(std), rtol=1e-2, atol=0)


def test_layer_id_counts_from_embedding_to_head():
    model = on_meta(TINY, 8)
    ids = {name: model.layer_id(name) for name, _ in model.named_parameters()}
    embedding = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert {name for name, i in ids.items() if i == 0} == embedding
    for i in range(3):
        inside = {name for name in ids if name.startswith(f"blocks.{i}.")}
        assert inside == {name for name, layer in ids.items() if layer == i + 1}
    last = {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert {name for name, i in ids.items() if i == 4} == last


def test_parameters_without_decay_exist_and_are_matrices():
    model = on_meta(TINY, 8)
    named = dict(model.named_parameters())
    assert model.no_weight_decay() == {"cls_token", "pos_embed"}
    assert all(named[name].ndim >= 2 for name in model.no_weight_decay())
