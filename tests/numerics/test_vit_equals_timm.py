"""Our ViT and timm's `deit3_*` are the same function of the same weights.

Shapes: B images, N patches, D width; T = N + 1 tokens, the class token first.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit import models
from bigvit.models import ClassTokenTransformer
from bigvit.models.vit import Block
from bigvit.recipe import ClassToken, StochasticDepth, ViT

TOLERANCE = 1e-5
Pair = tuple[ClassTokenTransformer, nn.Module, Tensor]
NO_DROP = StochasticDepth(rate=0.0, group=8)
SMALL = ViT(16, 384, 12, 6, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 1000)
NARROW = ViT(16, 96, 12, 6, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 1000)
HUGE_OF_TWO_BLOCKS = ViT(14, 1280, 2, 16, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 1000)
CASES = {
    "deit3_small_patch16_224": (SMALL, 224),
    "deit3_huge_patch14_224": (HUGE_OF_TWO_BLOCKS, 126),
}


def with_random_weights(model: ViT, image_size: int) -> ClassTokenTransformer:
    """Ours, with every parameter random and large enough to show in the logits."""
    ours = models.build(model, image_size)
    ours.init_weights(seed=0)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in ours.named_parameters():
        if "norm" in name and name.endswith("weight") or name.endswith("gamma"):
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
        elif parameter.ndim < 2 or name in ("cls_token", "pos_embed"):
            nn.init.normal_(parameter, std=0.5, generator=generator)
        else:
            fan_in = parameter[0].numel()
            nn.init.normal_(parameter, std=fan_in**-0.5, generator=generator)
    return ours.eval()


def timm_like(ours: ClassTokenTransformer, architecture: str, image_size: int) -> nn.Module:
    """timm's model of that name, with our weights."""
    m = ours.config
    sizes: dict[str, Any] = {"depth": m.depth, "embed_dim": m.embed_dim, "num_heads": m.num_heads}
    theirs = timm.create_model(architecture, img_size=image_size, **sizes)
    theirs.load_state_dict(ours.state_dict())
    return theirs.eval()


def images(ours: ClassTokenTransformer, size: int, count: int = 2) -> Tensor:
    shape = (count, ours.config.in_chans, size, size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def largest_difference(ours: ClassTokenTransformer, theirs: nn.Module, x: Tensor) -> float:
    """Of a logit."""
    return (ours(x).logits - theirs(x)).abs().max().item()


@pytest.mark.parametrize("architecture", CASES)
def test_logits_equal_those_of_timm(architecture: str):
    model, size = CASES[architecture]
    ours = with_random_weights(model, size)
    x = images(ours, size)
    assert ours(x).logits.std() > 0.5
    assert largest_difference(ours, timm_like(ours, architecture, size), x) <= TOLERANCE


@pytest.mark.parametrize("architecture", CASES)
def test_state_has_the_names_and_shapes_of_timm(architecture: str):
    model, size = CASES[architecture]
    with torch.device("meta"):
        ours = models.build(model, size).state_dict()
        theirs = timm.create_model(architecture, img_size=size, depth=model.depth).state_dict()
    assert {name: w.shape for name, w in ours.items()} == {
        name: w.shape for name, w in theirs.items()
    }


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A narrow ViT-S on nine patches, ours and timm's, and images."""
    ours = with_random_weights(NARROW, 48)
    return ours, timm_like(ours, "deit3_small_patch16_224", 48), images(ours, 48)


def zero_ls1(block: Block) -> None:
    block.ls1.gamma.zero_()


def zero_ls2(block: Block) -> None:
    block.ls2.gamma.zero_()


def swap_norms(block: Block) -> None:
    block.norm1, block.norm2 = block.norm2, block.norm1


def swap_keys_and_values(block: Block) -> None:
    for parameter in (block.attn.qkv.weight, block.attn.qkv.bias):
        q, k, v = parameter.chunk(3)
        parameter.copy_(torch.cat([q, v, k]))


def swap_heads(block: Block) -> None:
    """Two heads trade their queries, no more."""
    for parameter in (block.attn.qkv.weight, block.attn.qkv.bias):
        first, second = parameter[:16].clone(), parameter[16:32].clone()
        parameter[:16], parameter[16:32] = second, first


def halve_fc1_bias(block: Block) -> None:
    block.mlp.fc1.bias.mul_(0.5)


def drop_projection_bias(block: Block) -> None:
    block.attn.proj.bias.zero_()


@pytest.mark.parametrize(
    "damage",
    [
        zero_ls1,
        zero_ls2,
        swap_norms,
        swap_keys_and_values,
        swap_heads,
        halve_fc1_bias,
        drop_projection_bias,
    ],
)
@torch.no_grad()
def test_one_broken_block_shows_in_the_logits(pair: Pair, damage: Callable[[Block], None]):
    ours, theirs, x = pair
    for i, block in enumerate(ours.blocks):
        broken = copy.deepcopy(block)
        assert isinstance(broken, Block)
        damage(broken)
        ours.blocks[i] = broken
        difference = largest_difference(ours, theirs, x)
        ours.blocks[i] = block
        assert difference > 100 * TOLERANCE, f"block {i}"
    assert largest_difference(ours, theirs, x) <= TOLERANCE


@pytest.mark.parametrize("name", ["cls_token", "pos_embed", "norm.bias", "head.bias"])
@torch.no_grad()
def test_a_lost_parameter_outside_the_blocks_shows_in_the_logits(pair: Pair, name: str):
    ours, theirs, x = pair
    parameter = ours.get_parameter(name)
    saved = parameter.clone()
    parameter.zero_()
    difference = largest_difference(ours, theirs, x)
    parameter.copy_(saved)
    assert difference > 100 * TOLERANCE


def literal(ours: ClassTokenTransformer, image: Tensor, drop: Tensor, rate: float) -> Tensor:
    """Logits (K,) of one image that skips the branches dropped, kept ones counting more."""
    w, model = ours.state_dict(), ours.config
    d, heads, size = model.embed_dim, model.num_heads, model.patch_size

    def norm(x_TD: Tensor, at: str) -> Tensor:
        centred = x_TD - x_TD.mean(1, keepdim=True)
        deviation = (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
        return centred / deviation * w[f"{at}.weight"] + w[f"{at}.bias"]

    def linear(x_TD: Tensor, at: str) -> Tensor:
        return x_TD @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    def attention(x_TD: Tensor, at: str) -> Tensor:
        q, k, v = (part.split(d // heads, dim=1) for part in linear(x_TD, f"{at}.qkv").split(d, 1))
        scores = [qh @ kh.T / (d // heads) ** 0.5 for qh, kh in zip(q, k, strict=True)]
        mixed = [s.softmax(dim=1) @ vh for s, vh in zip(scores, v, strict=True)]
        return linear(torch.cat(mixed, dim=1), f"{at}.proj")

    rows = image.split(size, dim=1)
    patches = torch.stack([patch.flatten() for row in rows for patch in row.split(size, dim=2)])
    kernel, bias = w["patch_embed.proj.weight"].flatten(1), w["patch_embed.proj.bias"]
    x = torch.cat([w["cls_token"][0], patches @ kernel.T + bias + w["pos_embed"][0]])
    for i in range(model.depth):
        at = f"blocks.{i}"
        if not drop[2 * i]:
            branch = attention(norm(x, f"{at}.norm1"), f"{at}.attn")
            x = x + w[f"{at}.ls1.gamma"] * branch / (1 - rate)
        if not drop[2 * i + 1]:
            hidden = F.gelu(linear(norm(x, f"{at}.norm2"), f"{at}.mlp.fc1"))
            x = x + w[f"{at}.ls2.gamma"] * linear(hidden, f"{at}.mlp.fc2") / (1 - rate)
    return linear(norm(x, "norm")[:1], "head")[0]


@torch.no_grad()
def test_dropped_branches_are_skipped_and_kept_ones_scaled(masked):
    model = ViT(
        14, 64, 2, 4, 4.0, 1e-4, ClassToken(0), False, StochasticDepth(rate=0.5, group=4), 3, 10
    )
    ours = with_random_weights(model, 42).double()
    draws = ours.draws(seed=0, number=5, span=(0, 8))
    drop_LB = masked(model.drop_path, model.branches, draws).factors == 0
    assert len({tuple(column) for column in drop_LB.T.tolist()}) >= 4, "several ways of dropping"
    x = images(ours, 42, count=8).double()
    expected = torch.stack([literal(ours, x[b], drop_LB[:, b], 0.5) for b in range(8)])
    torch.testing.assert_close(ours(x, draws).logits, expected, rtol=0, atol=1e-12)
    undropped = torch.zeros_like(drop_LB)
    expected = torch.stack([literal(ours, x[b], undropped[:, b], 0.0) for b in range(8)])
    torch.testing.assert_close(ours(x).logits, expected, rtol=0, atol=1e-12)
