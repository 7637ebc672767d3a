"""BatchNorm that stands still: by a recipe's word, and wherever its weights are frozen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from each import each_of
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from benchmarks.plan_kept import inputs_of, recipe_of
from bigvit.layers.batch_norm import BatchNorm
from bigvit.plan.traffic import traffic
from bigvit.plan.weights import weights_of
from bigvit.recipe import (
    AveragePooling,
    CvT,
    Layout,
    LVViT,
    PatchConvNet,
    Recipe,
    ResNet,
    Run,
    StochasticDepth,
    Swin,
)
from bigvit.recipe.depth import LinearStochasticDepth
from bigvit.task import Task

SIZE, MEAN = 64, AveragePooling()
NONE = StochasticDepth(0.0, 4)
RESNET = ResNet((1, 2), MEAN, None, False, 3, 10)
MLP = replace(RESNET, head_hidden_dim=24)
MODELS: dict[str, Any] = {
    "resnet": RESNET,
    "cvt": CvT((16, 32), (1, 1), (1, 2), 2.0, NONE, 3, 10),
    "patchconvnet": PatchConvNet(16, "linear", 24, 2, "batch", 0.1, MEAN, NONE, 3, 10),
    "swin": Swin(4, 24, (1, 2), (3, 6), 4, 2.0, MEAN, NONE, 3, 10),
}


def of(model: Any, trainable: Any = "all", **changes: Any) -> Recipe:
    recipe = recipe_of(replace(model, **changes), SIZE, "fp32")
    return replace(recipe, trainable=trainable, starts_from="a test")


def built(recipe: Recipe, seed: int = 0) -> Task:
    """With statistics of some batches, and the last norms of branches not 0."""
    task = Task(recipe)
    task.init_weights()
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in task.statistics().items():
        low = 0.5 if name.endswith("var") else -0.5
        buffer.uniform_(low, low + 1, generator=generator)
    with torch.no_grad():
        for name, p in task.named_parameters():
            if name.endswith("bn3.weight"):
                p.uniform_(0.2, 0.6, generator=generator)
    return task


def statistics(task: Task) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in task.statistics().items()}


def stepped(task: Task, images: int = 4) -> dict[str, Tensor]:
    """Statistics after a step forward and back."""
    torch.stack(list(task(inputs_of(task, images)).values())).sum().backward()
    return statistics(task)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if torch.equal(one[name], other[name])]


def test_a_norm_that_stands_still_is_torchvisions():
    ours, theirs, generator = BatchNorm(5), FrozenBatchNorm2d(5), torch.Generator().manual_seed(0)
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = torch.rand(5, generator=generator) + 0.5
        getattr(theirs, name).copy_(value)
        getattr(ours, name).data.copy_(value)
    ours.frozen = True
    x = torch.randn(4, 5, 6, 7, generator=generator)
    found, wanted = (norm.train()(x.requires_grad_()) for norm in (ours, theirs))
    torch.testing.assert_close(found, wanted)
    ways = torch.randn(x.shape, generator=generator)
    a, b = (torch.autograd.grad((y * ways).sum(), x)[0] for y in (found, wanted))
    torch.testing.assert_close(a, b)
    assert torch.equal(ours.running_mean, theirs.get_buffer("running_mean"))
    assert torch.equal(ours(x)[:1], ours(x[:1]))
    ours.frozen = False
    assert not torch.allclose(ours(x), wanted)


def test_statistics_of_resnet_stand_still_and_its_norms_are_trained():
    task = built(of(RESNET, frozen_statistics=True))
    before = statistics(task)
    assert task.gathered() == {} and len(before) == 24
    task.model.recompute(0.5)
    assert len(same(stepped(task), before)) == len(before)
    assert all(p.grad is not None and p.grad.any() for p in task.parameters())
    gathering = built(of(RESNET))
    assert gathering.gathered().keys() == before.keys()
    assert same(stepped(gathering), before) == []


def test_a_batch_may_be_cut_as_one_likes():
    """Losses of images are those of each by itself, and so are gradients: in float64."""
    for frozen, exact in ((True, True), (False, False)):
        task = built(of(RESNET, frozen_statistics=frozen)).double()
        inputs = inputs_of(task, 4)
        images = inputs.images.double()
        labels = torch.arange(4)
        found = list[Tensor]()
        for parts in (1, 4):
            task.zero_grad()
            for x, y in zip(images.chunk(parts), labels.chunk(parts), strict=True):
                logits = task.model(x, None).logits
                (nn.functional.cross_entropy(logits, y, reduction="sum") / 4).backward()
            found.append(torch.cat([p.grad.flatten() for p in task.model.parameters()]))  # type: ignore[union-attr]
        apart = float((found[0] - found[1]).norm() / found[0].norm())
        assert (apart < 1e-12) == exact, apart


@each_of("name", MODELS)
def test_a_frozen_trunk_stands_still(name: str):
    recipe = of(MODELS[name], "head")
    task = built(recipe)
    before = statistics(task)
    assert task.gathered() == {} and bool(before) == (name != "swin")
    assert len(same(stepped(task), before)) == len(before)
    trunk = {n for n, p in task.named_parameters() if p.grad is not None and p.grad.any()}
    assert {n.split(".")[1] for n in trunk} <= {"head", "fc"} and trunk


def test_a_head_that_is_trained_gathers_on_a_trunk_that_does_not():
    for recipe in (of(MLP, "head"), of(MLP, frozen_statistics=True)):
        task = built(recipe)
        own = {"model.fc.norm.running_mean", "model.fc.norm.running_var"}
        assert task.gathered().keys() == own
        before = statistics(task)
        assert set(before) - set(same(stepped(task), before)) == own
        weights = weights_of(recipe)
        assert weights.gathered == 2 * 24 < weights.statistics


def test_a_stem_that_is_frozen_stands_still_where_attention_alone_is_trained():
    drop = LinearStochasticDepth(0.0, 4)
    model = LVViT((7, 8), (2, 8), 8, 24, 2, 3, 2.0, 2.0, False, drop, 3, 10)
    task = built(of(model, "attention"))
    before = statistics(task)
    assert task.gathered() == {} and before
    assert len(same(stepped(task), before)) == len(before)
    attention = built(of(MODELS["cvt"], "attention"))
    assert attention.gathered() and all(".attn." in n for n in attention.gathered())


@each_of(
    ("name", "first"),
    [
        ("resnet", ("conv1.", "bn1.", "layer1.")),
        ("swin", ("patch_embed.", "layers.0.")),
        ("cvt", ("stage0.",)),
    ],
)
def test_a_stem_and_a_first_stage_are_frozen_and_nothing_goes_back_through_them(
    name: str, first: tuple[str, ...]
):
    recipe = of(MODELS[name], "later_stages")
    task = built(recipe)
    before = statistics(task)
    named = {n.removeprefix("model."): p for n, p in task.named_parameters()}
    assert {n for n, p in named.items() if not p.requires_grad} == {
        n for n in named if n.startswith(first)
    }
    walk = task.model.walk(None, {0, 1, 2} if name != "cvt" else {0, 1})
    maps = task.model.features(torch.randn(2, 3, SIZE, SIZE), walk).blocks
    needed = [maps[i].tokens.requires_grad for i in sorted(maps)]
    assert needed == [False, *[True] * (len(needed) - 1)]
    before = statistics(task)
    kept = same(stepped(task), before)
    assert set(kept) == {n for n in before if n.removeprefix("model.").startswith(first)}
    assert all((p.grad is not None) == p.requires_grad for p in task.parameters())
    weights = weights_of(recipe)
    assert sum(w.size for w in weights.trained) == sum(
        p.numel() for p in task.parameters() if p.requires_grad
    )
    assert weights.statistics == sum(b.numel() for b in before.values())
    assert weights.gathered == sum(b.numel() for b in task.gathered().values())


def test_no_rank_sends_statistics_that_stand_still():
    layout, run = Layout(2, 2, 1), Run(engine="fsdp2", sharding="full")
    for frozen, sent in ((False, 1), (True, 0)):
        recipe = of(RESNET, frozen_statistics=frozen)
        found = [each for each in traffic(recipe, layout, run, 2) if each.what == "statistics"]
        assert len(found) == sent


def test_norms_of_any_kind_in_a_head_are_unread_by_a_recipe_without_classes():
    from bigvit.recipes.detection import scenes_mask_rcnn

    model = replace(MLP, depths=(1, 1, 1, 1), frozen_statistics=True, num_classes=4)
    task = built(replace(scenes_mask_rcnn, model=model, starts_from="a test"))
    assert task.gathered() == {}


@pytest.mark.parametrize("kind", ["frozen", "attention"])
def test_a_follower_goes_by_each_batch_and_so_must_its_model(kind: str):
    from bigvit.recipe.check import check_recipe
    from bigvit.recipes import grafit

    recipe: Recipe = grafit.grafit_r50_in1k_224  # type: ignore[attr-defined]
    check_recipe(recipe)
    if kind == "frozen":
        model = replace(recipe.model, frozen_statistics=True)  # type: ignore[call-arg]
        other = replace(recipe, model=model, starts_from="a test")
    else:
        other = replace(recipe, trainable="later_stages")
    with pytest.raises(ValueError, match="BatchNorm goes by each batch"):
        check_recipe(other)
