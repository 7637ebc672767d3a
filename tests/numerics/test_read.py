"""What is trained and computed of a model in a dense recipe is what its losses depend on, as
autograd tells when nothing is frozen."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from each import each_of
from test_ops import BATCH, DRLOC, MODELS, SIZE
from torch import nn

from benchmarks.plan_kept import inputs_of, predicted_over_found
from bigvit import models
from bigvit.plan.weights import weights_of
from bigvit.recipe import (
    AttentionPooling,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    Recipe,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipes.segmentation import scenes_vit_64
from bigvit.task import Task


def segmenting(name: str, upto: str = "all", *more: Any, channels: int = 16) -> Recipe:
    """A recipe of UperNet on the last block of one stride, or on each stage's last one.

    Args:
        upto: first: on those of the first block, or of the first two stages.
    """
    model: Any = replace(MODELS[name], num_classes=5)
    ends = [end - 1 for end in accumulate(getattr(model, "depths", (model.depth,)))]
    blocks = tuple(ends * 4)[:4] if len(ends) == 1 else tuple(ends)
    if upto == "first":
        blocks = (0,) * 4 if len(ends) == 1 else tuple(ends[:2])
    head: Any = scenes_vit_64.objectives[0]
    head = replace(head, norm="batch", blocks=blocks, dropout=0.0, channels=channels)
    data = replace(scenes_vit_64.data, image_size=SIZE, stride=48)
    recipe = replace(scenes_vit_64, model=model, data=data, objectives=(head, *more))
    check_recipe(recipe if name != "fixed" else replace(recipe, starts_from="any"))
    return recipe


def read_by_losses(recipe: Recipe) -> set[str]:
    """Names of the model's weights on which losses depend, of a model that is computed whole."""
    torch.manual_seed(0)
    task = Task(recipe)
    for p in task.parameters():
        nn.init.normal_(p, std=0.3)
        p.requires_grad_()
    task.read = task.read._replace(pooled=True)  # its forward pass leaves nothing out
    torch.stack(list(task(inputs_of(task, 2)).values())).sum().backward()
    named = task.model.named_parameters()
    return {name for name, p in named if p.grad is not None}


def assert_read(recipe: Recipe) -> None:
    # Performer's features are drawn, and never trained
    own = {n for n, p in models.build(recipe.model, SIZE).named_parameters() if p.requires_grad}
    task = Task(recipe)
    trained = {name for name, p in task.model.named_parameters() if p.requires_grad}
    assert trained == read_by_losses(recipe) & own
    counted = sum(w.size for w in weights_of(recipe).trained if not w.behind)
    assert counted == sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    task.init_weights()
    torch.stack(list(task(inputs_of(task, 2)).values())).sum().backward()
    assert all(p.grad is not None for p in task.parameters() if p.requires_grad)


@each_of("name", MODELS)
def test_what_is_trained_is_what_losses_depend_on(name: str) -> None:
    assert_read(segmenting(name))
    assert_read(segmenting(name, "first"))


@each_of("name", ["vit", "cait", "class-mlp", "patchconvnet", "swin", "t2t"])
def test_localization_beside_reads_the_last_norm_and_no_class_attention(name: str) -> None:
    recipe = segmenting(name, "first", replace(DRLOC, blocks="last", normalised=True))
    assert_read(recipe)
    trained = {n for n, p in Task(recipe).model.named_parameters() if p.requires_grad}
    assert any(n.startswith("norm.") for n in trained)
    assert not any(n.startswith(("blocks_token_only.", "head")) for n in trained)


def test_a_class_token_that_joins_behind_what_is_read_is_not() -> None:
    model = MODELS["inserted"]
    assert isinstance(model, CaiT) and model.pooling == ClassToken(1)
    for upto, read in (("all", True), ("first", False)):
        task = Task(segmenting("inserted", upto))
        assert task.model.cls_token.requires_grad == read


@each_of("name", ["cait", "patchconvnet", "attending swin", "attending resnet", "class-mlp", "cvt"])
def test_what_is_not_read_is_not_computed(name: str) -> None:
    """Losses are those of a model that is computed whole; what is left out never ran."""
    for upto in ("all", "first"):
        assert_left_out(segmenting(name, upto))


def assert_left_out(recipe: Recipe) -> None:
    task = Task(recipe)
    task.init_weights()
    task.train()
    ran: set[str] = set()
    for path, module in task.model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_, path=path: ran.add(path))
    inputs = inputs_of(task, 2)
    losses = task(inputs)
    held = {n.rpartition(".")[0] for n, p in task.model.named_parameters() if not p.requires_grad}
    trained = {n.rpartition(".")[0] for n, p in task.model.named_parameters() if p.requires_grad}
    left_out = {path for path in held - trained if not path.startswith(("stage", "layers.1.down"))}
    assert left_out and not ran & left_out
    read = task.read
    task.read = read._replace(pooled=True)
    whole = task(inputs)
    assert losses.keys() == whole.keys()
    assert all(torch.equal(losses[each], whole[each]) for each in losses)


def test_a_plan_keeps_and_counts_what_is_read() -> None:
    pooled: list[str] = []
    for name, model in MODELS.items():
        pooling = getattr(model, "pooling", None)
        if isinstance(pooling, ClassAttention | ClassMlp | AttentionPooling):
            pooled.append(name)
    assert len(pooled) > 5
    for name in ("cait", "patchconvnet", "attending swin", "class-mlp"):
        assert name in pooled
        for upto in ("all", "first"):
            recipe = segmenting(name, upto, channels=96)
            assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03), name
