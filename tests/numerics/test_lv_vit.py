"""LV-ViT is its authors' model: logits, names, sizes, and what they published.

Shapes: B images, N patches, D width, K classes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import literal_lv_vit
import pytest
import torch
from each import each_of
from randomised import randomised
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bigvit import models
from bigvit.checkpoint.weights import Fitted, fit, read_init
from bigvit.recipe import LinearStochasticDepth, LVViT, Recipe, lv_vit
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

TOLERANCE = 1e-5
NO_DROP = LinearStochasticDepth(rate=0.0, group=8)
TINY = LVViT((3, 3, 4), (1, 1, 2), 6, 24, 2, 2, 3.0, 2.0, True, NO_DROP, 1, 10)
PUBLISHED = {  # parameters, M (the authors' README)
    ("t", 224): 8.53,
    ("s", 224): 26.15,
    ("s", 384): 26.30,
    ("m", 224): 55.83,
    ("m", 384): 56.03,
    ("m", 448): 56.13,
    ("l", 448): 150.47,
    ("l", 512): 150.66,
}


def of_size(size: str) -> LVViT:
    return lv_vit(size, dense_head=True, drop_path=NO_DROP, num_classes=1000, in_chans=3)


def built(model: LVViT, size: int) -> Any:
    """Ours, random, BatchNorm's statistics too."""
    ours = randomised(models.build(model, size))
    generator = torch.Generator().manual_seed(2)
    for name, buffer in ours.named_buffers():
        low, high = (-0.5, 0.5) if name.endswith("mean") else (0.5, 1.5)
        buffer.uniform_(low, high, generator=generator)
    return ours


def images(size: int, channels: int = 3, count: int = 1) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


@each_of(("size", "pixels", "depth"), [("s", 224, 16), ("s", 384, 16), ("l", 224, 3)])
@torch.no_grad()
def test_logits_equal_what_the_authors_code_computes(size: str, pixels: int, depth: int):
    model = replace(of_size(size), depth=depth)
    ours, x = built(model, pixels), images(pixels)
    expected = literal_lv_vit.logits(ours.state_dict(), x, model.num_heads, model.divisor)
    output = ours(x)
    found = output.prediction(None)
    difference = (found - expected).abs().max().item()
    print(size, pixels, f"{difference:.1e}")
    assert expected.std() > 0.5 and difference <= TOLERANCE
    assert output.dense.shape == (1, (pixels // 16) ** 2, 1000)
    assert (found - output.logits).abs().mean() > 0.1, "patches count"


@each_of(("size", "pixels"), PUBLISHED)
def test_sizes_are_the_published_ones_and_counted(size: str, pixels: int):
    model = of_size(size)
    parameters = model.parameters(pixels)
    assert round(parameters / 1e6, 2) == pytest.approx(PUBLISHED[size, pixels], abs=0.0051)
    with torch.device("meta"):
        ours = models.build(model, pixels)
        assert parameters == sum(p.numel() for p in ours.parameters())
        with FlopCounterMode(display=False) as counter:
            ours(torch.empty(1, 3, pixels, pixels))
    assert 2 * model.macs(pixels) == counter.get_total_flops()


# Kernels, strides, parameters in millions (table 3)
PATCHES = [
    ((16,), (16,), 25),
    ((7, 8), (2, 8), 25),
    ((7, 3, 8), (2, 2, 4), 25),
    ((7, 3, 8), (2, 1, 8), 26),
    ((7, 3, 3, 8), (2, 1, 1, 8), 26),
    ((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8), 26),
]


@each_of(("kernels", "strides", "millions"), PATCHES)
def test_each_patch_embedding_of_table_3_makes_the_same_grid(kernels, strides, millions):
    model = replace(of_size("s"), kernels=kernels, strides=strides)
    model.check((224, 160), None)
    assert model.parameters(224) / 1e6 == pytest.approx(millions, abs=1.2)  # as it is printed
    small = replace(model, embed_dim=24, depth=1, filters=4, num_classes=10)
    ours = built(small, 64)
    x = torch.randn(2, 3, 64, 64)
    assert ours(x).grid == small.grid(64) == (4, 4)
    assert small.parameters(64) == sum(p.numel() for p in ours.parameters())


@torch.no_grad()
def test_each_parameter_and_statistic_shows_in_the_prediction():
    ours, x = built(TINY, 8), images(8, 1)
    before = ours(x).prediction(None)
    for name, value in [*ours.named_parameters(), *ours.named_buffers()]:
        saved = value.clone()
        value.mul_(0.5)
        difference = (ours(x).prediction(None) - before).abs().max()
        value.copy_(saved)
        assert difference > 10 * TOLERANCE, name


@each_of("wrapped", ["bare", "state_dict", "average"])
@torch.no_grad()
def test_the_published_containers_load(wrapped: str, tmp_path: Path):
    """The weights themselves, or a training's with `module.` before them, at another resolution."""
    model = replace(of_size("s"), embed_dim=24, depth=2, num_heads=2, filters=4, num_classes=10)
    theirs = built(model, 64)
    weights = {**theirs.state_dict()}
    for i in (1, 2, 3):
        weights[f"patch_embed.bn{i}.num_batches_tracked"] = torch.tensor(1000)
    named = {f"module.{name}": weight for name, weight in weights.items()}
    content: Any = {
        "bare": weights,
        "state_dict": {"epoch": 9, "arch": "lvvit_s", "state_dict": named, "version": 2},
        "average": {"state_dict": {n: 0 * w for n, w in named.items()}, "state_dict_ema": named},
    }[wrapped]
    file = tmp_path / "lvvit_s.pth.tar"
    torch.save(content, file)
    given = read_init(str(file), average=wrapped == "average")
    ours = models.build(model, 64).eval()
    assert fit(given, ours, (4, 4)) == Fitted(False, False)
    assert torch.equal(ours(images(64)).prediction(None), theirs(images(64)).prediction(None))
    assert fit(given, models.build(model, 96), (6, 6)) == Fitted(True, False)
    # other classes: both heads are made anew
    fewer = models.build(replace(model, num_classes=7), 64)
    assert fit(given, fewer, (4, 4)) == Fitted(False, True)
    # the head on patches is left out where there is none
    bare = models.build(replace(model, dense_head=False), 64).eval()
    done = fit(given, bare, (4, 4))
    assert done == Fitted(False, False, True) and str(done).endswith("head on patches left out")
    assert torch.equal(bare(images(64)).logits, theirs(images(64)).logits)


def recipe_of(model: LVViT) -> Recipe:
    return replace(digits_vit, model=model)


@torch.no_grad()
def test_an_evaluation_counts_both_heads_and_their_sum():
    task = Task(recipe_of(TINY))
    task.init_weights()
    randomised(task.model)
    x = images(8, 1, count=64)
    found, output = task.predictions(x), task.model.eval()(x)
    assert torch.equal(found["class_head"], output.logits)
    assert torch.equal(found["dense_head"], output.dense.max(dim=1).values)
    assert torch.equal(found["logits"], output.logits + output.dense.max(dim=1).values / 2)
    right = {name: each.argmax(dim=1) for name, each in found.items()}
    assert not torch.equal(right["logits"], right["class_head"])


def test_what_is_decayed_and_how_deep_it_lies():
    task = Task(recipe_of(TINY))
    assert task.no_weight_decay() == {"model.cls_token", "model.pos_embed"}
    for name in ("patch_embed.conv1.weight", "patch_embed.bn1.weight", "pos_embed"):
        assert task.layer_id(f"model.{name}") == 0
    assert task.layer_id("model.blocks.1.mlp.fc1.weight") == 2
    assert task.layer_id("model.aux_head.weight") == task.layers == 3


@torch.no_grad()
def test_initial_weights_are_the_authors():
    """Matrices and tokens of deviation 0.02, biases 0, convolutions as torch's."""
    ours = models.build(replace(of_size("t"), depth=1), 224)
    ours.init_weights(0)
    for weight in (ours.aux_head.weight, ours.head.weight, ours.pos_embed):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not ours.aux_head.bias.any()
    theirs = nn.Conv2d(3, 64, 7).weight
    assert ours.patch_embed.conv1.weight.std() == pytest.approx(theirs.std().item(), rel=0.05)


@each_of(
    ("changed", "said"),
    [
        ({"strides": (1, 1)}, "model.strides.*3 numbers"),
        ({"strides": (1, 1, 5)}, "model.kernels.*no smaller"),
        ({"kernels": (2, 3, 4)}, "model.kernels.*odd"),
        ({"kernels": (), "strides": ()}, "model.kernels.*1 to 16"),
        ({"strides": (1, 3, 2)}, "data.image_size.*product of model.strides"),
        ({"num_heads": 5}, "model.embed_dim"),
    ],
)
def test_what_makes_no_model_is_refused(changed: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        replace(TINY, **changed).check(8, None)
    TINY.check(8, None)
