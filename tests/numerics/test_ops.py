"""What a description says that its model computes, against the model: where the parameters are,
what a step multiplies, and what backward keeps."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from each import each_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plan_kept import alive_over_found, inputs_of, predicted_over_found, recipe_of
from bigvit import models
from bigvit.plan.activations import executed_macs, kept_bytes, most_at_once
from bigvit.plan.weights import heads, weights_of
from bigvit.recipe import (
    AttentionPooling,
    AveragePooling,
    BranchScalar,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    CrossEntropy,
    CvT,
    DeiT,
    DistillationToken,
    DRLoc,
    FixedLayerScale,
    LayerScale,
    LinearStochasticDepth,
    LVViT,
    Model,
    PaddedSwin,
    ParallelViT,
    PatchConvNet,
    Recipe,
    ResMLP,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    Unscaled,
    ViT,
)
from bigvit.recipes.deit3 import deit3_h14_in1k_126 as vit_h
from bigvit.recipes.dino import dino_vit_s16_in1k_224_100 as dino
from bigvit.recipes.segmentation import scenes_swin_64, scenes_vit_64
from bigvit.task import Task

NONE, SIZE, BATCH = StochasticDepth(rate=0.0, group=4), (64, 96), 8
SKIP, MASK = StochasticDepth(rate=0.4, group=4), StochasticDepth(rate=0.1, group=4)
NONE_LINEAR, TOKEN = LinearStochasticDepth(0.0, 4), DistillationToken("softmax", False)
MEAN = AveragePooling()
TWO = ClassAttention(depth=2, keys="class and patches")
ONE = AttentionPooling(2, "one", 2.0, 0.1)
EACH = AttentionPooling(2, "classes", 2.0, 0.1)
MODELS: dict[str, Model] = {
    "vit": ViT(16, 48, 3, 4, 4.0, 1e-4, ClassToken(0), False, NONE, 3, 10),
    "deit": DeiT(16, 48, 3, 4, 4.0, None, NONE_LINEAR, 3, 10),
    "distilled": DeiT(16, 48, 3, 4, 4.0, TOKEN, NONE_LINEAR, 3, 10),
    "parallel": ParallelViT(16, 48, 3, 2, 4, 4.0, 1e-4, NONE, 3, 10),
    "cait": CaiT(16, 96, 3, 4, 4.0, True, LayerScale(1e-5), TWO, None, False, NONE, 3, 10),
    "distilled cait": CaiT(
        16, 96, 3, 4, 4.0, True, LayerScale(1e-5), TWO, TOKEN, False, NONE, 3, 10
    ),
    "fixed": CaiT(16, 96, 3, 4, 4.0, True, FixedLayerScale(), TWO, None, False, NONE, 3, 10),
    "inserted": CaiT(16, 96, 3, 4, 4.0, False, Unscaled(), ClassToken(1), None, False, NONE, 3, 10),
    "pooled": CaiT(16, 96, 3, 4, 4.0, False, BranchScalar(0.5), MEAN, None, False, NONE, 3, 10),
    "lv_vit": LVViT((7, 3, 8), (2, 1, 8), 8, 48, 3, 4, 3.0, 2.0, False, NONE_LINEAR, 3, 10),
    "dense vit": ViT(16, 48, 3, 4, 4.0, 1e-4, ClassToken(0), True, NONE, 3, 10),
    "dense cait": CaiT(16, 96, 3, 4, 4.0, True, LayerScale(1e-5), TWO, None, True, NONE, 3, 10),
    "dense pooled": CaiT(16, 96, 3, 4, 4.0, False, Unscaled(), MEAN, None, True, NONE, 3, 10),
    "dense": LVViT((7, 3, 8), (2, 1, 8), 8, 48, 3, 4, 3.0, 2.0, True, NONE_LINEAR, 3, 10),
    "resmlp": ResMLP(16, 48, 3, 4.0, "affine", "linear", 0.1, True, MEAN, NONE, 3, 10),
    "class-mlp": ResMLP(16, 48, 3, 4.0, "affine", "linear", 0.1, False, ClassMlp(2), NONE, 3, 10),
    "resmlp, layer norms": ResMLP(
        16, 48, 3, 4.0, "layer_norm", "linear", 0.1, False, MEAN, NONE, 3, 10
    ),
    "resmlp, none": ResMLP(16, 48, 3, 4.0, "affine", "none", 0.1, True, ClassMlp(1), NONE, 3, 10),
    "resmlp, mlp": ResMLP(16, 48, 3, 4.0, "affine", "mlp", 0.1, False, MEAN, NONE, 3, 10),
    "resmlp, conv": ResMLP(16, 48, 3, 4.0, "affine", "conv", 0.1, False, MEAN, NONE, 3, 10),
    "resmlp, depthwise": ResMLP(
        16, 48, 3, 4.0, "affine", "depthwise", 0.1, False, MEAN, NONE, 3, 10
    ),
    "resmlp, separable": ResMLP(
        16, 48, 3, 4.0, "affine", "separable", 0.1, False, MEAN, NONE, 3, 10
    ),
    "swin": Swin(4, 24, (2, 2), (3, 6), 5, 4.0, AveragePooling(), NONE, 3, 10),
    "padded swin": PaddedSwin(4, 24, (2, 2), (3, 6), 5, 4.0, AveragePooling(), NONE, 3, 10),
    "t2t": T2TViT(16, 48, 3, 4, 3.0, NONE, 3, 10),
    "cvt": CvT((16, 32), (1, 2), (1, 2), 4.0, NONE, 3, 10),
    "resnet": ResNet((2, 2, 1), AveragePooling(), None, False, 3, 10),
    "resnet, mlp": ResNet((2, 2, 1), AveragePooling(), 512, False, 3, 10),
    "patchconvnet": PatchConvNet(16, "convolutions", 48, 3, "layer", 0.1, ONE, NONE, 3, 10),
    "queries": PatchConvNet(16, "convolutions", 48, 3, "layer", 0.1, EACH, NONE, 3, 10),
    "batch norm": PatchConvNet(16, "linear", 48, 3, "batch", 0.1, MEAN, NONE, 3, 10),
    "attending vit": ViT(16, 48, 3, 4, 4.0, 1e-4, ONE, False, NONE, 3, 10),
    "attending swin": Swin(4, 24, (2, 2), (3, 6), 5, 4.0, EACH, NONE, 3, 10),
    "attending resnet": ResNet((2, 2, 1), ONE, None, False, 3, 10),
    "attending resmlp": ResMLP(16, 48, 3, 4.0, "affine", "linear", 0.1, True, ONE, NONE, 3, 10),
}
DRLOC = DRLoc(1.0, None, "classes", "grid", 0.001, "all", False, 16, 4, "mean", 32, 2)


def dense(recipe: Recipe, **changes: Any) -> Recipe:
    """One of UperNet, of which the trunk drops nothing."""
    model: Any = recipe.model
    head: Any = recipe.objectives[0]
    model, head = replace(model, drop_path=NONE, num_classes=13), replace(head, **changes)
    # logits of each pixel that are not next to nothing
    data: Any = replace(recipe.data, classes=13)  # pyright: ignore[reportCallIssue]
    return replace(recipe, model=model, data=data, objectives=(head,))


LAST = {"blocks": (3,) * 4, "normalised": False, "auxiliary": 0.0, "dropout": 0.0}
DENSE = {
    "vit": dense(scenes_vit_64),
    "the last map": dense(scenes_vit_64, norm="batch", **LAST),
    "swin": dense(scenes_swin_64),
    "swin, batch": dense(scenes_swin_64, norm="batch", normalised=False),
}

every = pytest.mark.parametrize("name", MODELS)


def of(name: str, drop: StochasticDepth = NONE, precision: str = "fp32") -> Recipe:
    model = MODELS[name]
    if isinstance(model, DeiT | LVViT):
        model = replace(model, drop_path=LinearStochasticDepth(drop.rate, drop.group))
    elif not isinstance(model, ResNet):
        model = replace(model, drop_path=drop)
    return recipe_of(model, SIZE, precision)


@every
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


@every
@pytest.mark.parametrize(
    ("drop", "precision", "recomputed"),
    [(NONE, "fp32", 0), (MASK, "fp32", 1), (NONE, "bf16", 1), (SKIP, "bf16", 0.5)],
    ids=["plain", "masked and recomputed", "recomputed", "skipped and half recomputed"],
)
def test_backward_keeps_what_is_said(
    name: str, drop: StochasticDepth, precision: str, recomputed: float
):
    recipe = of(name, drop, precision)
    assert predicted_over_found(recipe, recomputed, BATCH) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", ["vit", "cait", "swin", "t2t", "cvt"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_backward_keeps_what_is_said_of_objectives(name: str, precision: str):
    recipe = replace(
        of(name, NONE, precision), objectives=(CrossEntropy(1.0, 0.1, class_weights=None), DRLOC)
    )
    assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03)


@each_of("name", MODELS)
def test_a_head_alone_is_trained_and_little_is_kept(name: str):
    whole = of(name)
    recipe = replace(whole, trainable="head")
    with torch.device("meta"):
        task = Task(recipe)
    trained = {path for path, weight in task.named_parameters() if weight.requires_grad}
    every = {path for path, _ in task.named_parameters()}
    heads = {
        path for path in every if path.split(".")[1] in ("head", "head_dist", "aux_head", "fc")
    }
    assert trained == heads and len(trained) >= 2
    assert kept_bytes(recipe, BATCH) < 0.1 * kept_bytes(whole, BATCH)


@pytest.mark.parametrize(("precision", "gain"), [("fp32", "trained"), ("bf16", "one")])
def test_backward_keeps_what_is_said_of_dino(precision: Any, gain: Any):
    """Its logits are most of it: those of ten crops, and of the follower's two."""
    (loss,), views = dino.objectives, dino.data.views
    assert isinstance(views, tuple)
    recipe = replace(
        dino,
        precision=precision,
        model=replace(dino.model, depth=2, embed_dim=48, num_heads=3),
        objectives=(replace(loss, gain=gain, outputs=8192, hidden_dim=32, bottleneck_dim=16),),
        data=replace(
            dino.data,
            image_size=32,
            views=tuple(
                replace(each, image_size=32 if i == 0 else 16) for i, each in enumerate(views)
            ),
        ),
    )
    assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", DENSE)
def test_backward_keeps_what_is_said_of_upernet(name: str, precision: Any):
    recipe = replace(DENSE[name], precision=precision)
    assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03)
    assert 0.93 < alive_over_found(recipe, 0, BATCH) < 1.15


@pytest.mark.parametrize("name", DENSE)
def test_upernet_has_the_parameters_and_multiplies_what_is_said(name: str):
    recipe = DENSE[name]
    task = Task(recipe)
    task.init_weights()
    (head,), (module,) = recipe.objectives, task.objectives.values()
    said = {op.module: op.parameters for op in heads(head, recipe) if op.parameters}
    found = {of: sum(p.numel() for p in module.get_submodule(of).parameters()) for of in said}
    assert found == said
    own = sorted((p.numel(), p.shape[0]) for p in module.parameters())
    assert sum(said.values()) == sum(count for count, _ in own)
    behind = weights_of(recipe).all[-len(own) :]
    assert sorted((w.size, w.rows) for w in behind) == own
    statistics = sum(each.numel() for each in task.statistics().values())
    assert weights_of(recipe).statistics == statistics
    inputs = inputs_of(task, BATCH)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = torch.stack(list(task(inputs).values())).sum()
        forward = counter.get_total_flops() / 2 / BATCH
        loss.backward()
        step = counter.get_total_flops() / 2 / BATCH
    macs = executed_macs(recipe)
    # averages are products here, which no paper counts
    assert forward * (1 - 5e-4) < macs.forward < forward
    assert step * (1 - 5e-4) < macs.forward + macs.backward < step


@pytest.mark.parametrize("name", ["vit", "parallel", "cait"])
def test_backward_keeps_less_where_weights_are_frozen(name: str):
    whole = of(name, SKIP, "bf16")
    recipe = replace(whole, trainable="attention")
    assert kept_bytes(recipe, BATCH) < 0.9 * kept_bytes(whole, BATCH)
    assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", ["swin", "cvt", "resnet", "resnet, frozen"])
def test_backward_keeps_nothing_of_a_frozen_beginning(name: str):
    whole = of(name.partition(",")[0], NONE, "bf16")
    if name == "resnet, frozen":
        model: Any = replace(whole.model, frozen_statistics=True)  # type: ignore[call-arg]
        whole = replace(whole, model=model, starts_from="a test")
    recipe = replace(whole, trainable="later_stages")
    assert kept_bytes(recipe, BATCH) < 0.75 * kept_bytes(whole, BATCH)
    assert predicted_over_found(recipe, 0, BATCH) == pytest.approx(1, abs=0.03)
    assert predicted_over_found(whole, 0.5, BATCH) == pytest.approx(1, abs=0.03)


@every
def test_a_step_multiplies_what_is_said(name: str):
    recipe, recomputed = of(name, SKIP), 0.5
    task = Task(recipe)
    task.init_weights()
    task.model.recompute(recomputed)
    inputs = inputs_of(task, BATCH)
    # the counter knows attention that is not fused
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = torch.stack(list(task(inputs).values())).sum()
        forward = counter.get_total_flops() / 2 / BATCH
        loss.backward()
        step = counter.get_total_flops() / 2 / BATCH
    said = executed_macs(recipe, recomputed)
    assert said.dense == recipe.model.macs(SIZE)
    assert said.forward == pytest.approx(forward, rel=1e-6)
    depthwise = ("cvt", "resmlp, depthwise", "resmlp, separable", "patchconvnet", "queries")
    # the counter takes the gradient of a depthwise convolution for a whole one's
    if name not in (*depthwise, "batch norm"):
        # talking heads compute their maps again by themselves; the Performer's features are frozen
        exact = name not in ("cait", "dense cait", "distilled cait", "fixed", "t2t")
        whole = said.forward + said.backward + said.again
        assert whole == pytest.approx(step, rel=1e-6 if exact else 0.01)


def test_a_billion_parameters_keep_what_is_worked_out_by_hand():
    """ViT-H at 126 pixels, 64 images of 82 tokens, 32 blocks, in bf16. Of a token and block: the
    stream twice in float32 (8 D); results of both norms, q, k, v and their result, LayerScale's
    inputs, and the hidden layer before and after GELU (16 D numbers in bf16); means, deviations and
    16 heads' sums (20 in float32)."""
    recipe = replace(vit_h, model=replace(vit_h.model, drop_path=NONE))
    tokens, d = 64 * 82, 1280
    block = tokens * (8 * d + 2 * 16 * d + 4 * 20)
    ends = 64 * (2 * 3 * 126**2 + 2 * 4 * 1000) + tokens * (4 * d + 8 + 2 * d)
    assert kept_bytes(recipe, 64) == 32 * block + ends == 8_658_713_088
    assert kept_bytes(recipe, 64, 1) == 32 * tokens * 8 * d + ends == 1_766_619_648
    # half the samples, and the place of each in each of 64 branches
    assert kept_bytes(vit_h, 64) == 16 * block + ends + 64 * 64 * 8 == 4_352_866_816
    # the last block's MLP made anew: gradients of the stream (4 D), of the hidden layer and of the
    # result (10 D), beside 18 D that was not kept; logits, head and last norm (6 D) are done with
    pixels, logits = 64 * 3 * 126**2, 64 * 2 * 4 * 1000
    most = kept_bytes(recipe, 64, 1) + tokens * 26 * d - logits + pixels
    assert most_at_once(recipe, 64, 1) == most
    # with gradients in bf16 of the head, the last norm and that MLP, which have come by then
    head, mlp = 1000 * (d + 1), 8 * d * d + 5 * d + 2 * d + d
    trained = recipe.model.parameters(126)
    with_them = most_at_once(recipe, 64, 1, 2 * trained)
    assert abs(with_them - (most + 2 * (head + 2 * d + mlp))) <= 1
