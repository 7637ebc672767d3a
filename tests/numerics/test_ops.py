"""What a description says that its model computes, against the model: where the parameters are, and
what backward keeps."""

import re
from collections import Counter

import pytest
import torch
from torch import Tensor

from bigvit import models
from bigvit.recipe import (
    AveragePooling,
    BranchScalar,
    CaiT,
    ClassAttention,
    ClassToken,
    CvT,
    FixedLayerScale,
    LayerScale,
    Model,
    ParallelViT,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    Unscaled,
    ViT,
)

NONE, SIZE = StochasticDepth(rate=0.0, group=4), (64, 96)
TWO = ClassAttention(depth=2, keys="class and patches")
MODELS: dict[str, Model] = {
    "vit": ViT(16, 48, 3, 4, 4.0, 1e-4, NONE, 3, 10),
    "parallel": ParallelViT(16, 48, 3, 2, 4, 4.0, 1e-4, NONE, 3, 10),
    "cait": CaiT(16, 96, 3, 4, 4.0, True, LayerScale(1e-5), TWO, NONE, 3, 10),
    "fixed": CaiT(16, 96, 3, 4, 4.0, True, FixedLayerScale(), TWO, NONE, 3, 10),
    "inserted": CaiT(16, 96, 3, 4, 4.0, False, Unscaled(), ClassToken(1), NONE, 3, 10),
    "pooled": CaiT(16, 96, 3, 4, 4.0, False, BranchScalar(0.5), AveragePooling(), NONE, 3, 10),
    "swin": Swin(4, 24, (2, 2), (3, 6), 4, 4.0, NONE, 3, 10),
    "t2t": T2TViT(16, 48, 3, 4, 3.0, NONE, 3, 10),
    "cvt": CvT((16, 32), (1, 2), (1, 2), 4.0, NONE, 3, 10),
    "resnet": ResNet((2, 2, 1), 3, 10),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_module_has_the_parameters_that_are_said(name: str):
    model = MODELS[name]
    with torch.device("meta"):
        built = models.build(model, SIZE)
    said, found = Counter[str](), Counter[str]()
    for op in model.ops(SIZE):
        said[re.sub(r"\d+", "*", op.module)] += op.times * op.parameters
    for path, parameter in built.named_parameters():
        alike = re.sub(r"\d+", "*", path)
        owner = alike if alike in said else alike.rpartition(".")[0]
        found[owner] += parameter.requires_grad * parameter.numel()
    assert found - Counter() == said - Counter()


@pytest.mark.parametrize("name", MODELS)
def test_backward_keeps_about_what_is_said(name: str):
    """LayerNorm's means come on top, and what timm's windows copy; parallel branches that drop
    nothing share their input."""
    model, images = MODELS[name], torch.randn(4, 3, *SIZE)
    built = models.build(model, SIZE)
    built.init_weights(0)
    own = {p.untyped_storage().data_ptr() for p in (*built.parameters(), *built.buffers())}
    kept: dict[int, Tensor] = {}  # held, so that no two have one address

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        built.train()(images, {})
    found = sum(t.untyped_storage().nbytes() // 4 for at, t in kept.items() if at not in own) / 4
    said = sum(op.times * op.kept for op in model.ops(SIZE))
    assert 0.85 <= said / found <= 1.05
