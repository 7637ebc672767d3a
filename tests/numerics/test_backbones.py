"""The backbones of dense relative localization's paper: sizes, equality with timm, and what engines
and objectives ask of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from each import each_of
from literal_drloc import VARIANTS, literal
from randomised import randomised
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from timm import create_model
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bigvit import models
from bigvit.checkpoint.weights import fitted, read_init
from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.performer import Performer
from bigvit.layers.sinusoid import sinusoid
from bigvit.layers.stochastic_depth import Order
from bigvit.models import TokenMap
from bigvit.objectives import DenseRelativeLocalization
from bigvit.objectives.drloc import draw
from bigvit.recipe import (
    AveragePooling,
    ClassToken,
    CvT,
    DRLoc,
    Model,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    ViT,
    sides,
    vit,
)

NONE, GROUPS = StochasticDepth(rate=0.0, group=4), StochasticDepth(rate=0.3, group=4)
SIZES: dict[str, tuple[Model, float, float, float]] = {
    # parameters in millions as issue and papers say, and GMAC as the papers say
    "swin_t": (
        Swin(4, 96, (2, 2, 6, 2), (3, 6, 12, 24), 7, 4.0, AveragePooling(), NONE, 3, 1000),
        28,
        29,
        4.5,
    ),
    "t2t_vit_14": (T2TViT(64, 384, 14, 6, 3.0, NONE, 3, 1000), 21, 22, 4.8),
    "cvt_13": (CvT((64, 192, 384), (1, 2, 10), (1, 3, 6), 4.0, NONE, 3, 1000), 19.5, 20.5, 4.5),
    "resnet_50": (ResNet((3, 4, 6, 3), AveragePooling(), None, False, 3, 1000), 25, 26, 4.1),
    # 2048 hidden numbers: 4.2 million of weights more than timm's 25.6
    "resnet_50, mlp": (
        *(ResNet((3, 4, 6, 3), AveragePooling(), 2048, False, 3, 1000), 29.7, 29.8, 4.1),
    ),
    "vit_b16": (
        vit("b16", layer_scale=1e-4, drop_path=NONE, num_classes=1000, in_chans=3),
        86,
        87,
        17.6,
    ),
}
TINY: dict[str, Model] = {
    "vit": ViT(4, 12, 2, 2, 2.0, 0.5, ClassToken(0), False, GROUPS, 1, 10),
    "swin": Swin(4, 16, (2, 2), (1, 2), 4, 2.0, AveragePooling(), GROUPS, 1, 10),
    "t2t": T2TViT(8, 12, 2, 2, 2.0, GROUPS, 1, 10),
    "cvt": CvT((8, 12), (1, 2), (1, 2), 2.0, NONE, 1, 10),
    "resnet": ResNet((1, 1), AveragePooling(), None, False, 1, 10),
    "resnet, mlp": ResNet((1, 1), AveragePooling(), 24, False, 1, 10),
}
SIZE = 32
SCANS: Any = load_digits()
DRLOC = DRLoc(0.5, None, "absolute", "grid", 0.001, "last", True, 8, None, "mean", 16, 2)


def on_meta(model: Model, size: int | tuple[int, int]) -> models.Backbone:
    with torch.device("meta"):
        return models.build(model, size)


def built(name: str) -> models.Backbone:
    model = models.build(TINY[name], SIZE)
    model.init_weights(0)
    return model


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Eight scanned digits, each pixel made 4 x 4: (8, 1, 32, 32)."""
    images = SCANS["images"][:8] / 16
    return torch.from_numpy(np.kron(images, np.ones((4, 4)))).float()[:, None]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_published_ones(name: str):
    model, least, most, macs = SIZES[name]
    assert least <= model.parameters(224) / 1e6 <= most
    assert model.macs(224) / 1e9 == pytest.approx(macs, rel=0.02)


@pytest.mark.parametrize("size", [224, (160, 224), 64])
@pytest.mark.parametrize("name", SIZES)
def test_arithmetic_counts_every_parameter_product_and_token(name: str, size):
    model = SIZES[name][0]
    there = on_meta(model, size)
    trained = sum(p.numel() for p in there.parameters() if p.requires_grad)
    assert model.parameters(size) == trained
    with FlopCounterMode(display=False) as counter:
        images = torch.empty(2, 3, *sides(size), device="meta")  # BatchNorm takes no single row
        output = there(images, None, range(model.depth))
    assert 2 * 2 * model.macs(size) == counter.get_total_flops()
    assert output.grid == model.grid(size)
    found = [(tokens.shape[2], grid) for tokens, grid in output.blocks.values()]
    assert found == model.maps(size) and len(found) == model.depth
    assert all(tokens.shape[1] == grid[0] * grid[1] for tokens, grid in output.blocks.values())


@pytest.mark.parametrize("name", SIZES)
def test_layer_ids_and_parameters_without_decay(name: str):
    model = SIZES[name][0]
    there = on_meta(model, 64)
    named = dict(there.named_parameters())
    assert {there.layer_id(each) for each in named} == set(range(model.depth + 2))
    assert all(named[each].ndim >= 2 for each in there.no_weight_decay())
    for i, block in enumerate(there.all_blocks()):
        ids = {id(p) for p in block.parameters()}
        assert {there.layer_id(each) for each, p in named.items() if id(p) in ids} == {i + 1}


@pytest.mark.parametrize("name", TINY)
def test_initial_weights_are_a_function_of_seed_and_name(name: str):
    one, meta = built(name), on_meta(TINY[name], SIZE)
    for each, p in one.named_parameters():
        assert torch.equal(p, models.initial_weight(meta, each, 0)), each
        if p.ndim > 1:
            assert not torch.equal(p, models.initial_weight(meta, each, 1)), each


def test_swin_is_timms_with_the_same_weights():
    model = SIZES["swin_t"][0]
    assert isinstance(model, Swin)
    ours = models.build(replace(model, depths=(2, 2), num_heads=(3, 6)), 112)
    theirs = create_model(
        "swin_tiny_patch4_window7_224", img_size=112, depths=(2, 2), num_heads=(3, 6)
    ).eval()
    randomised(ours)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    output = ours(images)
    torch.testing.assert_close(output.logits, theirs(images), rtol=1e-4, atol=1e-4)
    features: Any = theirs.forward_features
    tokens = features(images).flatten(1, 2)
    torch.testing.assert_close(output.tokens, tokens, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_resnet_is_timms_with_the_same_weights(training: bool):
    ours = models.build(ResNet((1, 1, 1, 1), AveragePooling(), None, False, 3, 10), 64)
    theirs = create_model("resnet50", layers=(1, 1, 1, 1), num_classes=10).train(training)
    randomised(ours)
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected and all(each.endswith("num_batches_tracked") for each in missing)
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    output = ours.train(training)(images)
    torch.testing.assert_close(output.logits, theirs(images), rtol=1e-4, atol=1e-4)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["swin_t", "resnet_50"])
def test_timms_weights_are_read_with_a_new_head(name: str, tmp_path: Path):
    full = SIZES[name][0]
    model = replace(full, num_classes=7)
    options = {"swin_t": "swin_tiny_patch4_window7_224", "resnet_50": "resnet50"}
    theirs: Any = create_model(options[name])
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    given = read_init(str(tmp_path / "weights.safetensors"))
    weights, done = fitted(given, on_meta(model, 224), model.grid(224))
    assert str(done) == "head made anew"
    assert weights.keys() < on_meta(model, 224).state_dict().keys()
    assert str(fitted(given, on_meta(full, 224), full.grid(224))[1]) == "as they are"


def test_t2ts_weights_are_read_without_their_fixed_positions(tmp_path: Path):
    ours = built("t2t")
    theirs = {**ours.state_dict(), "pos_embed": torch.zeros(1, 5, 12)}
    torch.save({"state_dict_ema": {}, "state_dict": theirs}, tmp_path / "weights.pth")
    weights, done = fitted(read_init(str(tmp_path / "weights.pth")), ours, (2, 2))
    assert weights.keys() == ours.state_dict().keys() and str(done) == "as they are"


def test_a_performer_is_attention_by_random_features():
    layer = Performer(5, 4, eps=1e-5).double()
    for name, p in layer.named_parameters():
        generator = torch.Generator().manual_seed(len(name))
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2
    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k, q, v = layer.kqv(layer.norm1(x)).chunk(3, dim=2)
    rows = []
    for b in range(2):
        for i in range(7):
            features = lambda y: (layer.w @ y - y @ y / 2).exp() / 2**0.5  # noqa: E731
            weights = torch.stack([features(q[b, i]) @ features(k[b, j]) for j in range(7)])
            rows.append((weights[:, None] * v[b]).sum(0) / (weights.sum() + 1e-8))
    y = v + layer.proj(torch.stack(rows).view(2, 7, 4))
    torch.testing.assert_close(layer(x), y + layer.mlp(layer.norm2(y)))
    # its inner products approximate exp(q k), better with more directions
    a, b = torch.tensor([0.3, -0.4, 0.2, 0.1]), torch.tensor([0.5, 0.2, -0.1, 0.3])
    w = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0))
    estimate = ((w @ a - a @ a / 2).exp() * (w @ b - b @ b / 2).exp()).mean()
    assert float(estimate) == pytest.approx(float((a @ b).exp()), rel=0.02)


def test_a_performers_directions_are_orthogonal_and_frozen():
    model = built("t2t")
    w = model.get_parameter("tokens_to_token.attention1.w")
    assert not w.requires_grad
    torch.testing.assert_close(w @ w.T, len(w) * torch.eye(len(w)), rtol=1e-5, atol=1e-5)


def test_sinusoid_is_its_formula():
    found = sinusoid(5, 6, torch.device("cpu"))
    for position in range(5):
        for i in range(6):
            angle = position / 10000 ** (2 * (i // 2) / 6)
            value = np.sin(angle) if i % 2 == 0 else np.cos(angle)
            assert float(found[position, i]) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", ["swin", "t2t"])
def test_skipped_samples_are_the_same_numbers_as_masked_ones(name: str, digits: Tensor, masked):
    model = built(name)
    draws = model.draws(0, 0, (0, 8))
    assert isinstance(draws, Order)
    skipped = model(digits, draws).logits
    config = TINY[name]
    factors = masked(config.drop_path, config.branches, draws)
    torch.testing.assert_close(skipped, model(digits, factors).logits, rtol=1e-5, atol=1e-5)
    assert (skipped - model(digits).logits).abs().max() > 1e-4


@pytest.mark.parametrize("name", TINY)
def test_recomputing_changes_no_gradient_and_no_statistic(name: str, digits: Tensor):
    found = []
    for share in (0.0, 1.0):
        model = built(name)
        randomised(model).train()
        model.recompute(share)
        assert {block.recompute for block in model.all_blocks()} == {share == 1}
        output = model(digits, model.draws(0, 0, (0, 8)), range(TINY[name].depth))
        (output.logits.square().sum() + output.blocks[0].tokens.square().sum()).backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        found.append(gradients | dict(model.named_buffers()))
    plain, recomputed = found
    for each, value in plain.items():
        torch.testing.assert_close(recomputed[each], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TINY)
def test_each_blocks_tokens_stay_as_they_were(name: str, digits: Tensor):
    model = built(name)
    taken: list[Tensor] = []
    for block in model.all_blocks():
        block.register_forward_hook(lambda _m, _i, x: taken.append(x.detach().clone()))
    output = model(digits, model.draws(0, 0, (0, 8)), range(TINY[name].depth))
    assert len(taken) == len(output.blocks)
    for x, (tokens, grid) in zip(taken, output.blocks.values(), strict=True):
        x = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x[:, x.shape[1] - grid[0] * grid[1] :]
        assert torch.equal(tokens, x)


@pytest.mark.parametrize("name", TINY)
def test_blocks_are_given_as_they_are_asked_for(name: str, digits: Tensor):
    model = built(name)
    draws, depth = model.draws(0, 0, (0, 8)), TINY[name].depth
    every = model(digits, draws, range(depth)).blocks
    assert model(digits, draws).blocks == {}
    for wanted in ({0}, (depth - 1,), frozenset({depth - 1, 0})):
        found = model(digits, draws, wanted).blocks
        assert list(found) == sorted(wanted)
        for i, (tokens, grid) in found.items():
            assert torch.equal(tokens, every[i].tokens) and grid == every[i].grid


SHAPES = [(0, None), (0, 2), (16, None), (16, 2)]
# a shape for each backbone with each variant, so that every two of them meet; test_drloc.py has
# every variant on every shape
SQUARE = [
    (name, *SHAPES[(i + j) % len(SHAPES)], variant)
    for i, name in enumerate(TINY)
    for j, variant in enumerate(VARIANTS)
]


@each_of(("name", "wider", "pooled", "variant"), SQUARE)
def test_localization_is_its_equation_on_every_backbone(
    name: str, wider: int, pooled: int | None, variant: str, digits: Tensor
):
    """Each variant on the last tokens and on every block's, down to the backbone's weights."""
    config, height = TINY[name], 48 if name == "t2t" else 32
    size = (height, height + wider)
    h, w = config.grid(size)
    assert h > 2 and (w > h) == (wider > 0)
    model = models.build(config, size)
    randomised(model).double().train()
    images = F.interpolate(digits[:4].double(), size)
    draws = model.draws(0, 0, (0, 4))
    weights = [p for p in model.parameters() if p.requires_grad]
    for blocks in ("last", "all"):
        drloc = replace(VARIANTS[variant], grid=pooled, blocks=blocks)
        drloc = replace(drloc, pairs=drloc.pairs and 4)
        maps = config.maps(size) if blocks == "all" else config.maps(size)[-1:]
        head = DenseRelativeLocalization(drloc, maps)
        randomised(head).double()
        pairs = draw(drloc, [grid for _, grid in maps], "drloc", 0, 0, (0, 4))
        output = model(images, draws, range(config.depth) if blocks == "all" else ())
        seen = (
            list(output.blocks.values())
            if blocks == "all"
            else [TokenMap(output.tokens, output.grid)]
        )
        values = head.of_maps(seen, pairs), literal(drloc, head, list(seen), pairs)
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
        gradients, expected = (
            torch.autograd.grad(
                value, [*weights, *head.parameters()], retain_graph=True, materialize_grads=True
            )
            for value in values
        )
        assert sum(float(gradient.abs().sum()) for gradient in expected[: len(weights)]) > 1e-3
        for one, other in zip(gradients, expected, strict=True):
            least = 1e-9 + 1e-6 * float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=0, atol=least)


def test_batch_norm_keeps_float32_statistics_in_any_type():
    layer = BatchNorm(3).bfloat16()
    plain: Any = nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    found, wanted = layer(x), plain(x.float())
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted.bfloat16())
    assert layer.running_mean.dtype == layer.running_var.dtype == torch.float32
    assert torch.equal(layer.running_mean, plain.running_mean)
    assert torch.equal(layer.running_var, plain.running_var)
    before = layer.running_mean.clone()
    layer.eval()(x)
    assert torch.equal(layer.running_mean, before)


@pytest.mark.parametrize("name", [name for name in TINY if name != "vit"])
def test_it_trains_with_localization_on_real_digits(name: str):
    changed: dict[str, Any] = {} if isinstance(TINY[name], ResNet) else {"drop_path": NONE}
    if name == "swin":  # narrower ones begin to learn later
        changed |= {"embed_dim": 32, "depths": (1, 1), "num_heads": (2, 4)}
    config = replace(TINY[name], **changed)
    model, drloc = models.build(config, SIZE), replace(DRLOC, grid=2)
    model.init_weights(0)
    head = DenseRelativeLocalization(drloc, config.maps(SIZE)[-1:])
    for each, p in head.named_parameters():
        p.data = models.initial_weight(head, each, 0)
    trained = [p for p in (*model.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    losses = []
    for number in range(80 if name == "swin" else 50):
        chosen = np.random.default_rng(number).permutation(len(SCANS["images"]))[:32]
        pixels = np.kron(SCANS["images"][chosen] / 8 - 0.6, np.ones((4, 4)))
        output = model(torch.from_numpy(pixels).float()[:, None])
        pairs = draw(drloc, [output.grid], "drloc", 0, number, (0, 32))
        where = head.of_maps([TokenMap(output.tokens, output.grid)], pairs)
        loss = F.cross_entropy(output.logits, torch.from_numpy(SCANS["target"][chosen]))
        optimizer.zero_grad()
        (loss + where).backward()
        optimizer.step()
        losses.append((float(loss.detach()), float(where.detach())))
    (first, far), (last, near) = np.mean(losses[:5], axis=0), np.mean(losses[-5:], axis=0)
    print(f"{name}: cross-entropy {first:.2f} -> {last:.2f}, offsets {far:.3f} -> {near:.3f}")
    assert last + near < 0.9 * (first + far)
