"""Blocks recomputed in backward, or compiled, give the gradients that plain ones give."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bigvit import models
from bigvit.layers.stochastic_depth import drops
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import (
    AttentionPooling,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    LayerScale,
    Model,
    ParallelViT,
    PatchConvNet,
    ResMLP,
    StochasticDepth,
    ViT,
)

GROUPED = StochasticDepth(rate=0.4, group=8)  # keeps four or five of eight
TWO_MORE = ClassAttention(depth=2, keys="class and patches")
POOLED = AttentionPooling(1, "one", 2.5, 0.5)
MODELS = {
    "vit": ViT(4, 32, 4, 4, 2.5, 0.5, ClassToken(0), False, GROUPED, 3, 10),
    "two by two": ParallelViT(4, 32, 4, 2, 4, 2.5, 0.5, GROUPED, 3, 10),
    "cait": CaiT(4, 32, 2, 4, 2.5, True, LayerScale(0.5), TWO_MORE, None, False, GROUPED, 3, 10),
    "resmlp": ResMLP(4, 32, 2, 2.5, "affine", "linear", 0.5, True, ClassMlp(2), GROUPED, 3, 10),
    "patchconvnet": PatchConvNet(4, "convolutions", 32, 3, "layer", 0.5, POOLED, GROUPED, 3, 10),
}
DROPS = {
    "grouped": GROUPED,
    "by sample": StochasticDepth(rate=0.1, group=8),
    "none": StochasticDepth(rate=0.0, group=8),
}
COMPILED = 1e-6  # relative: compiled kernels sum in another order

every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
every_drop = pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)


def built(config: Model) -> ClassTokenTransformer:
    model = models.build(config, 12)
    model.init_weights(0)
    return model


def gradients(model: ClassTokenTransformer, number: int = 5) -> dict[str, Tensor]:
    """Of every parameter, and of the images, by name; with the logits."""
    model.zero_grad()
    images = torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    logits = model(images.requires_grad_(), model.draws(0, number, (0, 16))).logits
    logits.square().mean().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert images.grad is not None
    return found | {"images": images.grad, "logits": logits.detach()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Relative L2 difference of everything together."""
    assert a.keys() == b.keys()
    difference = sum(float((a[n].double() - b[n].double()).square().sum()) for n in b)
    return (difference / sum(float(t.double().square().sum()) for t in b.values())) ** 0.5


def calls(model: ClassTokenTransformer) -> list[int]:
    """How often each block's LayerNorms are called in a step, forward and backward."""
    counts = [0] * len(model.all_blocks())
    for i, block in enumerate(model.all_blocks()):
        for name, module in block.named_modules():
            if name.split(".")[-1].startswith("norm"):

                def count(_module: object, _inputs: object, i: int = i) -> None:
                    counts[i] += 1

                module.register_forward_pre_hook(count)
    gradients(model)
    return counts


@every_drop
@every_model
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_recomputing_changes_no_bit(config: Model, drop: StochasticDepth, share: float):
    model = built(replace(config, drop_path=drop))
    plain = gradients(model)
    model.recompute(share)
    found = gradients(model)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@every_model
@pytest.mark.parametrize(
    ("share", "twice"),
    [
        (0.0, [False] * 4),
        (0.25, [False, False, False, True]),
        (0.5, [False, True, False, True]),
        (0.75, [False, True, True, True]),
        (1.0, [True] * 4),
    ],
)
def test_a_share_of_the_blocks_is_recomputed_spread_over_the_depth(
    config: Model, share: float, twice: list[bool]
):
    model = built(config)
    model.recompute(share)
    norms = [
        sum(name.startswith("norm") for name, _ in block.named_children())
        for block in model.all_blocks()
    ]
    if isinstance(config, ParallelViT):  # in each branch
        norms = [config.branches_per_block * 2] * config.depth
    assert calls(model) == [n * (1 + again) for n, again in zip(norms, twice, strict=True)]


@every_model
def test_a_recomputed_block_keeps_its_branches_inputs_alone(config: Model):
    model = built(config)
    kept: dict[int, int] = {}
    tokens = 9 if isinstance(config, ResMLP | PatchConvNet) else 10
    grid = [(3, 3)] if isinstance(config, PatchConvNet) else []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[1:] == (tokens, 32):
            kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    model.recompute(1)
    draws = model.draws(0, 5, (0, 16))
    x = torch.randn(16, tokens, 32).requires_grad_() * 1
    each = config.branches // config.depth
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block = model.blocks[0]
        _x = block(x, *grid, drops(config.drop_path, config.branches, draws)[:each])
    counts = config.drop_path.kept(config.branches)[:each]
    assert sum(kept.values()) == sum(2 * k * tokens * 32 for k in counts)


# torch.compile looks at the stream's gradient, and warns of what it did itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("vit", 1.0),
        pytest.param("vit", 0.5, marks=pytest.mark.slow),
        pytest.param("cait", 0.5, marks=pytest.mark.slow),
        pytest.param("vit", 0.0, marks=pytest.mark.slow),
        pytest.param("cait", 0.0, marks=pytest.mark.slow),
        pytest.param("patchconvnet", 0.5, marks=pytest.mark.slow),
        pytest.param("patchconvnet", 0.0, marks=pytest.mark.slow),
        pytest.param("two by two", 0.0, marks=pytest.mark.slow),
        pytest.param("resmlp", 0.5, marks=pytest.mark.slow),
        pytest.param("two by two", 0.5, marks=pytest.mark.slow),
    ],
)
def test_compiled_blocks_equal_eager_ones(name: str, share: float):
    torch.compiler.reset()
    model = built(replace(MODELS[name], depth=1 if share == 1.0 else 2))
    names = list(model.state_dict())
    eager = [gradients(model, number) for number in (5, 6)]
    undropped = model.eval()(torch.ones(2, 3, 12, 12)).logits
    model.recompute(share)
    model.compile_blocks()
    assert list(model.state_dict()) == names
    for number, expected in zip((5, 6), eager, strict=True):
        assert distance(gradients(model, number), expected) <= COMPILED
    with torch.no_grad():
        logits = model(torch.ones(2, 3, 12, 12)).logits
    torch.testing.assert_close(logits, undropped, rtol=1e-5, atol=1e-6)
    graphs = torch._dynamo.utils.counters
    assert graphs["stats"]["unique_graphs"] > 0 and not graphs["graph_break"]
