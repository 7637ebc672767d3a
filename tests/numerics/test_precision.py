"""The residual stream is float32 whatever the weights are, and half precision stays close."""

import pytest
import torch
from torch import Tensor

from bigvit import models
from bigvit.layers.stochastic_depth import Kept
from bigvit.models import ClassTokenTransformer
from bigvit.models.parallel_vit import ParallelBlock
from bigvit.models.vit import Block
from bigvit.recipe import ClassToken, ParallelViT, StochasticDepth, ViT

DROP = StochasticDepth(rate=0.5, group=4)
VIT = ViT(4, 32, 2, 4, 4.0, 1e-4, ClassToken(0), False, DROP, 3, 10)
PARALLEL = ParallelViT(4, 32, 2, 2, 4, 4.0, 1e-4, DROP, 3, 10)
HALF = [torch.bfloat16, torch.float16]


def built(model: ViT | ParallelViT) -> ClassTokenTransformer:
    made = models.build(model, 12)
    made.init_weights(0)
    return made


def stream() -> Tensor:
    return torch.randn(4, 10, 32, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def visible(model: ClassTokenTransformer) -> None:
    """Weights whose branches are of order 1, as after some training."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(
                std=parameter.shape[1] ** -0.5, generator=torch.Generator().manual_seed(len(name))
            )


@pytest.mark.parametrize("config", [VIT, PARALLEL], ids=["vit", "parallel"])
@pytest.mark.parametrize("drops", [False, True])
@torch.no_grad()
def test_bf16_weights_keep_what_layer_scale_leaves_of_a_branch(
    config: ViT | ParallelViT, drops: bool
):
    model = built(config)
    visible(model)
    block, x = model.blocks[0], stream()
    assert isinstance(block, Block | ParallelBlock)
    each = config.branches // config.depth
    drop = [Kept(torch.tensor([1, 2]), 2.0) if drops else None] * each
    expected = block(x.clone(), drop) - x
    assert 1e-5 < expected.abs().max() < 2e-3, "below half of bf16's steps at 1"
    found = block.to(torch.bfloat16)(x.clone(), drop) - x
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("config", [VIT, PARALLEL], ids=["vit", "parallel"])
def test_the_stream_is_float32_and_what_a_model_returns_is_of_the_weights_type(
    config: ViT | ParallelViT, dtype: torch.dtype
):
    model = built(config).to(dtype)
    seen: set[torch.dtype] = set()
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    for draws in (None, model.draws(0, 0, (0, 4))):
        output = model(torch.randn(4, 3, 12, 12, dtype=dtype), draws)
        assert {output.logits.dtype, output.tokens.dtype, output.cls.dtype} == {dtype}
    assert seen == {torch.float32}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("config", [VIT, PARALLEL], ids=["vit", "parallel"])
def test_half_precision_is_close_to_float32(config: ViT | ParallelViT, dtype: torch.dtype):
    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    targets, found = torch.arange(8), []
    for precision in (torch.float32, dtype):
        model = built(config)
        visible(model)
        model.to(precision)
        logits = model(images.to(precision), model.draws(0, 3, (0, 8))).logits
        loss = torch.nn.functional.cross_entropy(logits.float(), targets)
        (loss * 1024).backward()  # fp16's smallest numbers are not reached
        gradients = [p.grad.float() / 1024 for p in model.parameters() if p.grad is not None]
        found.append([logits.detach().float(), *gradients])
    steps = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    for name, wide, half in zip(
        ["logits", *dict(built(config).named_parameters())], *found, strict=True
    ):
        if not name.endswith("qkv.bias"):  # of which the key's third is rounding alone
            assert (half - wide).norm() <= 10 * steps * wide.norm(), name


def test_layer_scale_keeps_its_input_once_and_as_it_came():
    model = built(VIT).to(torch.bfloat16)
    kept: list[Tensor] = []
    x = torch.randn(4, 10, 32, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        scaled = model.blocks[0].get_submodule("ls1")(x)
    assert scaled.dtype == torch.float32
    assert [each.dtype for each in kept if each.shape == x.shape] == [torch.bfloat16]
