"""A head on the patches of DeiT III's ViT and of CaiT, and their MixToken: beside timm's models in
float64, whose last tokens go through such a head, and whose embedded patches are exchanged.

Shapes: B images, N patches of a grid h x w, D width, K classes.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from each import each_of
from randomised import randomised
from torch import Tensor, nn

from bigvit import models
from bigvit.data.mix import draw, patch_sources
from bigvit.export.folder import timm_config
from bigvit.recipe import (
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    CrossEntropy,
    DistillationToken,
    Fixup,
    HardDistillation,
    LayerScale,
    MixToken,
    Recipe,
    StochasticDepth,
    TokenLabeling,
    ViT,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipes.photos import photos_vit_64
from bigvit.task import Task

TOLERANCE = 1e-5
SIZE, CELL, GROUP, COUNT = (32, 48), 8, 4, 8
NO_DROP, BOTH = StochasticDepth(0.0, GROUP), ClassAttention(2, "class and patches")
MODELS: dict[str, Any] = {
    "vit": ViT(CELL, 48, 2, 3, 3.0, 0.1, ClassToken(0), True, NO_DROP, 3, 7),
    "cait": CaiT(CELL, 48, 2, 3, 3.0, True, LayerScale(0.1), BOTH, None, True, NO_DROP, 3, 7),
}
NAMES = {"vit": "deit3_small_patch16_224", "cait": "cait_s24_224"}  # timm's
POOLINGS = {"inserted": ClassToken(layer=1), "average": AveragePooling()}


def recipe_of(model: Any) -> Recipe:
    data = replace(photos_vit_64.data, image_size=SIZE, classes=7, mix=MixToken(1.0, CELL, GROUP))
    labels = (TokenLabeling(weight=1.0, smoothing=0.1, labels="image"),)
    objectives = (
        CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
        *(labels if model.dense_head else ()),
    )
    return replace(photos_vit_64, model=model, data=data, objectives=objectives)


def built(model: Any) -> Any:
    return randomised(models.build(model, SIZE))


def images() -> Tensor:
    return torch.randn(COUNT, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def as_timm(kind: str, ours: nn.Module) -> tuple[Any, Tensor, Tensor]:
    """timm's model with our weights, and the patches' head, weight (K, D) and bias; float64."""
    sizes: dict[str, Any] = {"img_size": SIZE, "patch_size": CELL, "embed_dim": 48, "depth": 2}
    sizes |= {"num_heads": 3, "mlp_ratio": 3.0, "num_classes": 7}
    if kind == "cait":
        sizes["mlp_ratio_token_only"] = 3.0
    theirs = timm.create_model(NAMES[kind], **sizes).double().eval()
    state = {name: weight.double() for name, weight in ours.state_dict().items()}
    head = state.pop("aux_head.weight"), state.pop("aux_head.bias")
    theirs.load_state_dict(state)
    return theirs, *head


def expected(theirs: Any, weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the class token (B, K) and of the patches (B, N, K)."""
    tokens = theirs.forward_features(x.double())  # after the last norm, the class token first
    assert tokens.shape == (COUNT, 1 + 24, 48)
    return theirs.forward_head(tokens), tokens[:, 1:] @ weight.T + bias


@each_of("kind", MODELS)
@torch.no_grad()
def test_patches_are_classified_as_the_last_norm_leaves_them(kind: str):
    ours, x = built(MODELS[kind]), images()
    output = ours(x)
    of_class, of_patches = expected(*as_timm(kind, ours), x)
    assert of_class.std() > 0.3 and of_patches.std() > 0.3
    assert (output.logits - of_class).abs().max() <= TOLERANCE
    assert (output.dense - of_patches).abs().max() <= TOLERANCE
    both = of_class + of_patches.max(dim=1).values / 2
    assert (output.prediction(None) - both).abs().max() <= TOLERANCE
    plain: Any = models.build(replace(MODELS[kind], dense_head=False), SIZE).eval()
    plain.load_state_dict({n: w for n, w in ours.state_dict().items() if "aux_head" not in n})
    assert torch.equal(plain(x).logits, output.logits) and plain(x).dense is None


@each_of("kind", MODELS)
@torch.no_grad()
def test_mixed_patches_are_those_of_a_model_whose_embedded_patches_are_exchanged(kind: str):
    ours, x = built(MODELS[kind]), images()
    theirs, weight, bias = as_timm(kind, ours)
    data: Any = recipe_of(MODELS[kind]).data
    draws = draw(data, 0, 3, (0, COUNT))
    assert draws is not None

    def exchange(module: nn.Module, given: Any, tokens: Tensor) -> Tensor:
        """(B, N, D), without positions."""
        before = tokens.numpy().reshape(COUNT, 4, 6, 48)
        after = before.copy()
        for i, (top, bottom, left, right) in enumerate((draws.box // CELL).tolist()):
            partner = i // GROUP * GROUP + GROUP - 1 - i % GROUP
            after[i, top:bottom, left:right] = before[partner, top:bottom, left:right]
        assert 0.1 < np.mean(after != before) < 0.9
        return torch.from_numpy(after.reshape(COUNT, 24, 48))

    of_class, of_patches = expected(theirs, weight, bias, x)
    theirs.patch_embed.register_forward_hook(exchange)
    mixed_class, mixed_patches = expected(theirs, weight, bias, x)
    output = ours(x, mix=patch_sources(data.mix, SIZE, draws))
    assert (output.logits - mixed_class).abs().max() <= TOLERANCE
    assert (output.dense - mixed_patches).abs().max() <= TOLERANCE
    assert (mixed_class - of_class).abs().max() > 0.1
    assert (mixed_patches - of_patches).abs().max() > 0.1


@each_of("pooling", POOLINGS)
@torch.no_grad()
def test_other_poolings_of_cait_have_it_too(pooling: str):
    model = replace(MODELS["cait"], pooling=POOLINGS[pooling])
    ours = built(model)
    output = ours(images())
    by_hand = output.tokens @ ours.aux_head.weight.T + ours.aux_head.bias
    assert output.tokens.shape == (COUNT, 24, 48)
    torch.testing.assert_close(output.dense, by_hand, rtol=0, atol=TOLERANCE)


@each_of("kind", MODELS)
def test_how_the_head_begins_and_is_trained(kind: str):
    model = MODELS[kind]
    task = Task(replace(recipe_of(model), trainable="attention"))
    trained = {name for name, weight in task.named_parameters() if weight.requires_grad}
    assert {"model.aux_head.weight", "model.aux_head.bias"} <= trained
    assert "model.patch_embed.proj.weight" not in trained
    assert task.layer_id("model.aux_head.weight") == task.layers
    assert "model.aux_head.weight" not in task.no_weight_decay()
    task.init_weights()
    head = task.model.aux_head
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.1) and not head.bias.any()
    plain = Task(recipe_of(replace(model, dense_head=False)))
    plain.init_weights()
    assert all(torch.equal(w, task.state_dict()[n]) for n, w in plain.state_dict().items())
    at_once = replace(MODELS["cait"], residual=Fixup())
    assert not models.initial_weight(models.build(at_once, SIZE), "aux_head.weight", 0).any()


@each_of("kind", MODELS)
def test_what_is_said_of_it(kind: str):
    model = MODELS[kind]
    assert model.summary.endswith("patch 8, dense head")
    plain = replace(model, dense_head=False)
    assert plain.summary.endswith("patch 8")
    assert model.parameters(SIZE) - plain.parameters(SIZE) == 49 * 7
    assert model.macs(SIZE) - plain.macs(SIZE) == 24 * 48 * 7
    timm_config(recipe_of(plain), SIZE, None)
    with pytest.raises(ValueError, match=f"timm's entry points build no {type(model).__name__}"):
        timm_config(recipe_of(model), SIZE, None)


def test_a_head_on_patches_and_a_distillation_token_are_refused():
    token = DistillationToken(prediction="softmax", decayed=False)
    recipe = recipe_of(replace(MODELS["cait"], distillation=token))
    taught = (*recipe.objectives, HardDistillation(0.5, "distillation"))
    with pytest.raises(ValueError, match="model.dense_head: .* a distillation token"):
        check_recipe(replace(recipe, objectives=taught))
    check_recipe(recipe_of(MODELS["cait"]))
