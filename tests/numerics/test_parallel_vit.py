"""The ViT with parallel branches is timm's with `ParallelThingsBlock`.

Shapes: L branches, B images, D width, T tokens.
"""

import copy

import pytest
import torch
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import Tensor, nn

from bigvit import models
from bigvit.layers.stochastic_depth import Factors
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import ParallelViT, StochasticDepth

TOLERANCE = 1e-5
NO_DROP = StochasticDepth(rate=0.0, group=8)
NARROW = ParallelViT(14, 64, 3, 2, 4, 4.0, 1e-4, NO_DROP, 3, 10)
HUGE_OF_TWO_BLOCKS = ParallelViT(14, 1280, 2, 2, 16, 4.0, 1e-4, NO_DROP, 3, 1000)


@torch.no_grad()
def with_random_weights(model: ParallelViT, image_size: int) -> ClassTokenTransformer:
    """Ours, with every parameter random and large enough to show in the logits."""
    ours = models.build(model, image_size)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in ours.named_parameters():
        if name.endswith("gamma") or "norm" in name and name.endswith("weight"):
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
        elif parameter.ndim < 2 or name in ("cls_token", "pos_embed"):
            nn.init.normal_(parameter, std=0.5, generator=generator)
        else:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=generator)
    return ours.eval()


def timm_like(ours: ClassTokenTransformer, image_size: int) -> VisionTransformer:
    """timm's model with our weights; it can have two branches only."""
    m = ours.config
    assert isinstance(m, ParallelViT)
    theirs = VisionTransformer(
        img_size=image_size,
        patch_size=m.patch_size,
        num_classes=m.num_classes,
        embed_dim=m.embed_dim,
        depth=m.depth,
        num_heads=m.num_heads,
        mlp_ratio=m.mlp_ratio,
        init_values=m.layer_scale,
        no_embed_class=True,
        block_fn=ParallelThingsBlock,  # pyright: ignore[reportArgumentType]
    )
    theirs.load_state_dict(ours.state_dict())
    return theirs.eval()


def images(size: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "model, size", [(NARROW, 42), (HUGE_OF_TWO_BLOCKS, 126)], ids=["narrow", "huge"]
)
@torch.no_grad()
def test_logits_equal_those_of_timm(model: ParallelViT, size: int):
    ours, x = with_random_weights(model, size), images(size)
    expected = timm_like(ours, size)(x)
    assert expected.std() > 0.5
    torch.testing.assert_close(ours(x).logits, expected, rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_each_parameter_shows_in_the_logits():
    """None is left out, and branches are not mistaken for each other."""
    ours, x = with_random_weights(NARROW, 42), images(42)
    before = ours(x).logits
    for name, parameter in ours.named_parameters():
        saved = parameter.clone()
        parameter.mul_(0.5)
        difference = (ours(x).logits - before).abs().max()
        parameter.copy_(saved)
        if name.endswith("qkv.bias"):
            parameter[: 2 * 64].mul_(0.5)  # of queries and keys: values' alone would do
            assert (ours(x).logits - before).abs().max() > 10 * TOLERANCE, name
            parameter.copy_(saved)
        assert difference > 10 * TOLERANCE, name
    torch.testing.assert_close(ours(x).logits, before, rtol=0, atol=0)


@torch.no_grad()
def literal(ours: ClassTokenTransformer, image: Tensor, factors: list[float]) -> Tensor:
    """Logits (K,) of one image, its branches times their factors, by the blocks' parts alone."""
    x = torch.cat([ours.cls_token[0], ours.patch_embed(image[None])[0][0] + ours.pos_embed[0]])[
        None
    ]
    left = list(factors)
    for block in ours.blocks:
        for kind, part in (("attns", "attn"), ("ffns", "mlp")):
            added = torch.zeros_like(x)
            for branch in block.get_submodule(kind).children():
                y = branch.get_submodule(part)(branch.get_submodule("norm")(x))
                added = added + branch.get_parameter("ls.gamma") * y * left.pop(0)
            x = x + added
    assert not left
    return ours.head(ours.norm(x)[0, 0])


@pytest.mark.parametrize("branches", [2, 3])
@torch.no_grad()
def test_stochastic_depth_reaches_each_branch(branches: int, masked):
    drop = StochasticDepth(rate=0.5, group=4)
    model = ParallelViT(14, 64, 2, branches, 4, 4.0, 1e-4, drop, 3, 10)
    ours = with_random_weights(model, 42).double()
    draws = ours.draws(seed=0, number=5, span=(0, 8))
    factors_LB = masked(drop, model.branches, draws).factors
    assert factors_LB.shape == (2 * branches * 2, 8)
    assert set(factors_LB.flatten().tolist()) == {0.0, 2.0}
    assert len({tuple(row) for row in factors_LB.tolist()}) >= 4, "branches differ"
    x = images(42, count=8).double()
    expected = torch.stack([literal(ours, x[b], factors_LB[:, b].tolist()) for b in range(8)])
    torch.testing.assert_close(ours(x, draws).logits, expected, rtol=0, atol=1e-12)
    ones = [1.0] * len(factors_LB)
    expected = torch.stack([literal(ours, x[b], ones) for b in range(8)])
    torch.testing.assert_close(ours(x).logits, expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_factor_belongs_to_one_branch():
    """Without branch i is as with its LayerScale at zero."""
    ours, x = with_random_weights(NARROW, 42).double(), images(42).double()
    gammas = [name for name, _ in ours.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == NARROW.branches == 12
    for i, name in enumerate(gammas):  # in the order of blocks, attentions before MLPs
        factors = torch.ones(12, 2)
        factors[i] = 0
        without = copy.deepcopy(ours)
        without.get_parameter(name).zero_()
        expected = without(x).logits
        torch.testing.assert_close(ours(x, Factors(factors)).logits, expected, rtol=0, atol=1e-12)
