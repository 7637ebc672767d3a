"""PatchConvNet is its authors' model: logits, gradients, names, sizes, and what they published.

Shapes: B images, N patches, D width, K classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import literal_patchconvnet
import pytest
import torch
from each import each_of
from randomised import randomised
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bigvit import models
from bigvit.checkpoint.containers import renamed
from bigvit.checkpoint.weights import Fitted, Unfit, fit, read_init
from bigvit.layers.batch_norm import BatchNorm
from bigvit.recipe import (
    PATCHCONVNET_SIZES,
    AttentionPooling,
    AveragePooling,
    ImageSize,
    PatchConvNet,
    StochasticDepth,
    patchconvnet,
    sides,
)
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

TOLERANCE = 1e-5
NO_DROP = StochasticDepth(rate=0.0, group=8)
ONE, EACH = AttentionPooling(1, "one", 3.0, 0.1), AttentionPooling(1, "classes", 3.0, 0.1)
TINY = PatchConvNet(16, "convolutions", 24, 2, "layer", 0.1, ONE, NO_DROP, 3, 10)
WITH_EACH = replace(TINY, pooling=EACH)

PARAMETERS = {  # millions: thesis tables 5.1, 6.12; README_patchconvnet.md
    "s60": 25.2,
    "s120": 47.7,
    "b60": 99.4,
    "b120": 188.6,
}
GFLOPS = {  # thesis tables 5.1, 5.2; of B120 at 224 table 5.2 says 29.8
    ("s60", 224): 4.0,
    ("s60", 288): 6.6,
    ("s60", 384): 11.8,
    ("s60", 512): 20.9,
    ("s120", 224): 7.5,
    ("b60", 224): 15.8,
    ("b60", 288): 26.1,
    ("b60", 384): 46.5,
    ("l60", 224): 28.1,
    ("l60", 288): 46.4,
    ("l60", 384): 82.5,
    ("b120", 224): 29.9,
    ("b120", 288): 49.3,
    ("b120", 384): 87.7,
    ("l120", 224): 53.0,
    ("l120", 288): 87.5,
    ("l120", 384): 155.5,
}


def of_size(size: str, queries: Any = "one") -> PatchConvNet:
    model = patchconvnet(size, group=8, num_classes=1000, in_chans=3)
    pooling: Any = model.pooling
    return replace(model, drop_path=NO_DROP, pooling=replace(pooling, queries=queries))


def built(model: PatchConvNet, size: ImageSize = 64) -> Any:
    return randomised(models.build(model, size))


def images(size: ImageSize = 64, count: int = 1) -> Tensor:
    return torch.randn(count, 3, *sides(size), generator=torch.Generator().manual_seed(1))


def theirs(ours: nn.Module, classes: int) -> dict[str, Tensor]:
    """The weights as the authors' code names them: of a query a class, a head a class."""
    weights = {name: weight.detach().clone() for name, weight in ours.state_dict().items()}
    if weights["cls_token"].shape[1] > 1:
        matrix, bias = weights.pop("head.weight"), weights.pop("head.bias")
        for k in range(classes):
            weights |= {f"head.{k}.weight": matrix[k : k + 1], f"head.{k}.bias": bias[k : k + 1]}
    return weights


def gradients(loss: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


@each_of(
    ("size", "queries", "depth"), [("s60", "one", 60), ("s60", "classes", 60), ("l60", "one", 2)]
)
def test_logits_and_gradients_equal_what_the_authors_code_computes(
    size: str, queries: str, depth: int
):
    model = replace(of_size(size, queries), depth=depth)
    ours, x = built(model, 96), images(96)
    literal = {n: w.double().requires_grad_() for n, w in theirs(ours, 1000).items()}
    expected = literal_patchconvnet.logits(literal, x.double(), 1)
    found = ours(x).logits
    difference = (found - expected).abs().max().item()
    towards = torch.randn(1, 1000, generator=torch.Generator().manual_seed(2))
    wanted = renamed(gradients((expected * towards).sum(), literal))
    own = gradients((found * towards).sum(), dict(ours.named_parameters()))
    assert own.keys() == wanted.keys()
    together = sum((own[n] - wanted[n]).square().sum() for n in own)
    apart = float(together / sum(w.square().sum() for w in wanted.values())) ** 0.5
    print(size, queries, f"logits {difference:.1e}, gradients {apart:.1e}")
    assert expected.std() > 0.5 and difference <= TOLERANCE and apart <= TOLERANCE


@each_of("size", PARAMETERS)
def test_parameters_are_the_published_ones(size: str):
    assert round(of_size(size).parameters(224) / 1e6, 1) == PARAMETERS[size]


@each_of(("size", "pixels"), GFLOPS)
def test_products_are_the_published_ones(size: str, pixels: int):
    """The tables count five operations for each number that LayerNorm makes, too."""
    model, wanted = of_size(size), GFLOPS[size, pixels]
    h, w = model.grid(pixels)
    norms = 5 * h * w * model.embed_dim * (model.depth + 1)
    printed = 0.051  # one digit
    assert (model.macs(pixels) + norms) / 1e9 == pytest.approx(wanted, rel=0.005, abs=printed)
    assert model.macs(pixels) / 1e9 == pytest.approx(wanted, rel=0.011)


def test_a_query_a_class_costs_what_was_published():
    """25.6 M parameters, 5.3 GFLOPs (README_patchconvnet.md)."""
    model = of_size("s60", "classes")
    assert round(model.parameters(224) / 1e6, 1) == 25.6
    assert round(model.macs(224) / 1e9, 1) == 5.3


@each_of(
    ("changed", "size"),
    [
        ({}, (64, 96)),
        ({"pooling": EACH}, (64, 96)),
        ({"pooling": replace(ONE, heads=8)}, 64),
        ({"pooling": AveragePooling()}, 64),
        ({"norm": "batch"}, (32, 64)),
        ({"stem": "linear"}, (32, 64)),
        ({"stem": "linear", "patch_size": 12}, (24, 60)),
        ({"patch_size": 2}, (8, 12)),
    ],
)
def test_each_variant_of_table_5_7_is_counted(changed: dict[str, Any], size: ImageSize):
    model = replace(TINY, **changed)
    model.check(size, None)
    ours = built(model, size)
    assert model.parameters(size) == sum(p.numel() for p in ours.parameters())
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        output = models.build(model, size)(torch.empty(1, 3, *sides(size)), None, range(2))
    assert 2 * model.macs(size) == counter.get_total_flops()
    assert output.grid == model.grid(size)
    maps = [(each.tokens.shape[2], each.grid) for each in output.blocks.values()]
    assert maps == model.maps(size) and len(maps) == model.depth
    assert ours(images(size, 2)).logits.shape == (2, 10)


@torch.no_grad()
def test_each_parameter_shows_in_the_logits():
    """But the keys' bias, which moves all scores of a query alike."""
    for model in (TINY, WITH_EACH, replace(TINY, norm="batch", pooling=AveragePooling())):
        ours, x = built(model), images()
        before = ours(x).logits
        for name, parameter in ours.named_parameters():
            saved = parameter.clone()
            parameter.mul_(0.5)
            difference = (ours(x).logits - before).abs().max()
            parameter.copy_(saved)
            blind = name.endswith("attn.k.bias")
            assert (difference < TOLERANCE) if blind else (difference > TOLERANCE), name


@torch.no_grad()
def test_a_logit_is_read_off_its_own_query():
    ours, x = built(WITH_EACH), images()
    before = ours(x).logits
    ours.cls_token[:, 3] += torch.randn(24)
    changed = (ours(x).logits - before).abs()[0] > TOLERANCE
    assert changed.tolist() == [k == 3 for k in range(10)]


@each_of("wrapped", ["bare", "model", "module"])
@each_of("queries", ["one", "classes"])
@torch.no_grad()
def test_the_published_containers_load(wrapped: str, queries: Any, tmp_path: Path):
    """As deit packs its files, or a training with DistributedDataParallel; at another size, too."""
    model = replace(TINY, pooling=replace(ONE, queries=queries))
    ours = built(model)
    weights = theirs(ours, 10)
    named = {f"module.{n}": w for n, w in weights.items()} if wrapped == "module" else weights
    file = tmp_path / "s60_224_1k.pth"
    torch.save(named if wrapped == "bare" else {"model": named}, file)
    given = read_init(str(file))
    for size in (64, 96, (32, 96)):
        found = models.build(model, size).eval()
        assert fit(given, found, model.grid(size)) == Fitted(False, False)
        assert torch.equal(found(images(size)).logits, ours(images(size)).logits)
    fewer = models.build(replace(model, num_classes=7), 64)
    fewer.init_weights(0)
    first = fewer.cls_token.clone()
    assert fit(given, fewer, (4, 4)) == Fitted(False, True)
    assert torch.equal(fewer.cls_token, first if queries == "classes" else ours.cls_token)
    with pytest.raises(Unfit, match="unexpected"):
        fit(given, models.build(replace(model, pooling=AveragePooling()), 64), (4, 4))


@torch.no_grad()
def test_a_head_of_a_class_that_is_missing_is_named(tmp_path: Path):
    weights = theirs(built(WITH_EACH), 10)
    del weights["head.4.bias"]
    torch.save({"model": weights}, tmp_path / "part.pth")
    with pytest.raises(Unfit, match=r"head\.4\.bias is missing"):
        read_init(str(tmp_path / "part.pth"))


@torch.no_grad()
def test_one_query_becomes_that_of_every_class(tmp_path: Path):
    """As the multi-class model is fine-tuned from the other: it begins with nearly its logits,
    which its queries, no longer seeing themselves, have by the patches alone."""
    one = built(TINY)
    torch.save({"model": one.state_dict()}, tmp_path / "one.pth")
    given, each = read_init(str(tmp_path / "one.pth")), models.build(WITH_EACH, 64).eval()
    done = fit(given, each, (4, 4))
    assert done == Fitted(False, False, shared=True) and "one query" in str(done)
    assert torch.equal(each.cls_token, one.cls_token.expand(1, 10, -1))
    block = one.blocks_token_only[0].attn
    block.class_in_keys = False
    torch.testing.assert_close(each(images()).logits, one(images()).logits, rtol=0, atol=TOLERANCE)


def test_what_is_decayed_and_how_deep_it_lies():
    task = Task(replace(digits_vit, model=replace(TINY, patch_size=2, in_chans=1)))
    assert task.no_weight_decay() == {"model.cls_token"}
    depths = {
        "patch_embed.proj.0.0.weight": 0,
        "blocks.1.attn.qkv_pos.2.weight": 2,
        "cls_token": 3,
        "blocks_token_only.0.attn.q.weight": 3,
        "norm.weight": 4,
        "head.weight": 4,
    }
    assert {name: task.layer_id(f"model.{name}") for name in depths} == depths
    assert task.layers == 4


@torch.no_grad()
def test_initial_weights_are_the_authors():
    """Linear layers and the query of deviation 0.02, convolutions as torch's, factors as said."""
    ours = models.build(replace(of_size("b60", "classes"), depth=1), 224)
    ours.init_weights(0)
    for weight in (ours.cls_token, ours.head.weight, ours.blocks_token_only[0].mlp.fc1.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    part = ours.blocks[0].attn.qkv_pos
    for conv, like in ((part[0], nn.Conv2d(768, 768, 1)), (part[2], nn.Conv2d(1, 768, 3))):
        assert conv.weight.std().item() == pytest.approx(like.weight.std().item(), rel=0.05)
        assert like.bias is not None
        assert conv.bias.std().item() == pytest.approx(like.bias.std().item(), rel=0.1)
    block = ours.blocks_token_only[0]
    for factors in (ours.blocks[0].gamma_1, block.gamma_1, block.gamma_2):
        assert (factors == 1e-6).all()


def test_batch_norm_is_of_the_column_alone_and_gathers_statistics():
    ours = built(replace(TINY, norm="batch")).train()
    kinds = {name: type(m) for name, m in ours.named_modules() if "norm" in name}
    batch = {name for name, kind in kinds.items() if kind is BatchNorm}
    assert batch == {"blocks.0.norm1", "blocks.1.norm1"} and len(kinds) == 5
    x = images(64, 4)
    ours(x)
    tokens = ours.patch_embed(x)[0]
    mean = 0.1 * tokens.mean(dim=(0, 1))
    torch.testing.assert_close(ours.blocks[0].norm1.running_mean, mean)


def test_sizes_are_those_of_the_thesis():
    assert {s: v[:2] for s, v in PATCHCONVNET_SIZES.items()} == {
        f"{letter}{depth}": (dim, depth)
        for letter, dim, depths in (
            ("s", 384, (20, 36, 60, 120)),
            ("b", 768, (36, 60, 120)),
            ("l", 1024, (60, 120)),
        )
        for depth in depths
    }


@each_of(
    ("changed", "size", "said"),
    [
        ({}, 72, "data.image_size.*multiple of model.patch_size"),
        ({"patch_size": 12}, 48, "model.patch_size.*power of two"),
        ({"patch_size": 1}, 48, "model.patch_size.*power of two"),
        ({"embed_dim": 7}, 64, "model.embed_dim.*8 or more"),
        ({"pooling": replace(ONE, heads=5)}, 64, "model.pooling.heads.*24"),
        ({"pooling": replace(ONE, mlp_ratio=0.01)}, 64, "model.pooling.mlp_ratio"),
    ],
)
def test_what_makes_no_model_is_refused(changed: dict[str, Any], size: ImageSize, said: str):
    with pytest.raises(ValueError, match=said):
        replace(TINY, **changed).check(size, None)
    TINY.check(64, None)
