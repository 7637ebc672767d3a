"""UperNet against transformers' of the same weights, its parts against torch's, and its loss and
draws against what is worked out here."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from randomised import randomised
from torch import Tensor, nn
from transformers import SwinConfig, UperNetConfig, UperNetForSemanticSegmentation

from bigvit import keyed_random
from bigvit.data.prepare import Inputs, Targets
from bigvit.layers.conv_norm import ConvNorm
from bigvit.models.upernet import Averages, Neck
from bigvit.objectives.segmentation import PixelClasses, cross_entropy
from bigvit.recipe import DRLoc, PaddedSwin, Recipe, StochasticDepth, UperNet
from bigvit.recipes.segmentation import ade20k_swin_t_512, scenes_swin_64, scenes_vit_64
from bigvit.task import PREDICTION, Task

CLASSES = scenes_vit_64.data.classes
NONE = StochasticDepth(rate=0.0, group=4)


def head_of(task: Task) -> PixelClasses:
    head = task.objectives["segmentation"]
    assert isinstance(head, PixelClasses)
    return head


def with_head(recipe: Recipe, **changes: Any) -> Recipe:
    (own,) = recipe.objectives
    assert isinstance(own, UperNet)
    model: Any = recipe.model
    model = replace(model, drop_path=NONE)
    return replace(recipe, model=model, objectives=(replace(own, **changes),))


def inputs_of(task: Task, batch: int, number: int = 0, told: float = 0.9) -> Inputs:
    """Images and labels without meaning, some of whose pixels are of no told class."""
    size, recipe = task.recipe.data.image_size, task.recipe
    h, w = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(batch, 3, h, w, generator=generator)
    labels = torch.randint(0, recipe.data.classes, (batch, h, w), generator=generator)
    labels[torch.rand(batch, h, w, generator=generator) > told] = 255
    nothing = torch.zeros(batch, recipe.model.num_classes)
    targets = Targets(torch.arange(batch), nothing, labels=labels)
    return Inputs(images, targets, task.draws(number, (0, batch)), number)


THEIRS = {  # ours: theirs
    r"^heads\.segmentation\.(decode|auxiliary)_head\.": r"\1_head.",
    r"conv_seg\.": "classifier.",
    r"\.bn\.": ".batch_norm.",
    r"^heads\.segmentation\.norms\.0\.": "backbone.hidden_states_norms.stage1.",
    r"^heads\.segmentation\.norms\.1\.": "backbone.hidden_states_norms.stage2.",
    r"^heads\.segmentation\.norms\.2\.": "backbone.hidden_states_norms.stage3.",
    r"^model\.patch_embed\.proj\.": "backbone.swin.embeddings.patch_embeddings.projection.",
    r"^model\.patch_embed\.norm\.": "backbone.swin.embeddings.norm.",
    r"^model\.layers\.(\d)\.downsample\.": lambda m: (
        f"backbone.swin.encoder.layers.{int(m[1]) - 1}.downsample."
    ),
    r"^model\.layers\.": "backbone.swin.encoder.layers.",
    r"\.norm1\.": ".layernorm_before.",
    r"\.norm2\.": ".layernorm_after.",
    r"\.attn\.proj\.": ".attention.o_proj.",
    r"\.attn\.relative": ".attention.relative_position_bias.relative",
}


def as_theirs(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by transformers' names; queries, keys and values part."""
    found: dict[str, Tensor] = {}
    for name, value in ours.items():
        for own, other in THEIRS.items():
            name = re.sub(own, other, name)
        if ".attn.qkv." in name:
            for part, of in zip("qkv", value.chunk(3), strict=True):
                found[name.replace(".attn.qkv.", f".attention.{part}_proj.")] = of
        else:
            found[name] = value
    return found


@torch.no_grad()
@pytest.mark.parametrize("size", [96, (64, 120)], ids=["square", "oblong, padded windows"])
def test_logits_and_loss_are_those_of_transformers(size: Any) -> None:
    """Swin with three stages, each map normalised, BatchNorm by its statistics."""
    recipe = with_head(scenes_swin_64, norm="batch", dropout=0.0, auxiliary_channels=48)
    recipe = replace(recipe, data=replace(recipe.data, image_size=size))
    model = recipe.model
    assert isinstance(model, PaddedSwin)
    task = Task(recipe)
    randomised(task)
    for module in task.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    backbone = SwinConfig(
        image_size=size,
        patch_size=model.patch_size,
        embed_dim=model.embed_dim,
        depths=list(model.depths),
        num_heads=list(model.num_heads),
        window_size=model.window_size,
        mlp_ratio=model.mlp_ratio,
        out_features=["stage1", "stage2", "stage3"],  # pyright: ignore[reportCallIssue]
    )
    config = UperNetConfig(
        backbone_config=backbone,
        hidden_size=96,
        pool_scales=[1, 2, 3],
        auxiliary_in_channels=96,
        auxiliary_channels=48,
        num_labels=CLASSES,  # pyright: ignore[reportCallIssue]
    )
    theirs = UperNetForSemanticSegmentation(config).eval()
    assert theirs.auxiliary_head is not None
    theirs.auxiliary_head.in_index = 1  # of three stages, the last but one
    lacking = theirs.load_state_dict(as_theirs(task.state_dict()), strict=False)
    counts = [n for n in lacking.missing_keys if not n.endswith("num_batches_tracked")]
    assert all(n.startswith("backbone.swin.layernorm.") for n in counts)  # it is not read
    assert {n.split(".")[1] for n in lacking.unexpected_keys} == {"norm", "head"}
    inputs = inputs_of(task, 2, told=1.0)
    labels = inputs.targets.labels
    assert labels is not None
    # to compare the loss by the same statistics
    task.train()
    for module in head_of(task).modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    wanted = theirs(inputs.images, labels=labels)
    found = task.predict(inputs.images)
    assert found.shape == wanted.logits.shape == (2, CLASSES, *inputs.images.shape[2:])
    assert wanted.logits.std() > 0.1
    assert (found - wanted.logits).abs().max() <= 1e-5 * wanted.logits.abs().max()
    task.train()
    for module in head_of(task).modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    loss = torch.stack(list(task(inputs).values())).sum()
    assert loss.item() == pytest.approx(wanted.loss.item(), rel=1e-5)


@pytest.mark.parametrize("cells", [1, 2, 3, 6])
@pytest.mark.parametrize("grid", [(16, 16), (7, 5), (3, 4)])
def test_averages_are_those_of_torch(cells: int, grid: tuple[int, int]) -> None:
    x = torch.randn(2, 5, *grid, dtype=torch.float64, requires_grad=True)
    found, wanted = Averages(cells)(x), F.adaptive_avg_pool2d(x, cells)
    assert (found - wanted).abs().max() < 1e-14
    weights = torch.randn_like(found)
    one, other = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, wanted))
    assert (one - other).abs().max() < 1e-14


@torch.no_grad()
def test_the_neck_makes_four_strides_of_one() -> None:
    neck = Neck(32, "group")
    maps = neck([torch.randn(2, 32, 7, 6)] * 4)
    assert [tuple(m.shape[2:]) for m in maps] == [(28, 24), (14, 12), (7, 6), (3, 3)]
    names = {name for name, _ in neck.named_parameters()}
    own = {"fpn1.0", "fpn1.1", "fpn1.3", "fpn2.0"}  # XCiT's
    assert names == {f"{module}.{of}" for module in own for of in ("weight", "bias")}


def test_the_loss_is_of_all_pixels_also_those_of_no_told_class() -> None:
    logits, labels = torch.randn(2, 5, 4, 4), torch.randint(0, 5, (2, 8, 6))
    labels[0, :3] = 255
    labels[1, 1, 1] = 255
    p = F.interpolate(logits, (8, 6), mode="bilinear").double().softmax(dim=1)
    lost = 0.0
    for b in range(2):
        for y in range(8):
            for x in range(6):
                if (own := int(labels[b, y, x])) != 255:
                    lost -= math.log(p[b, own, y, x].item())
    assert cross_entropy(logits, labels).item() == pytest.approx(lost / (2 * 8 * 6), rel=1e-6)
    # half a batch each: the mean
    halves = [cross_entropy(logits[i, None], labels[i, None]) for i in range(2)]
    assert cross_entropy(logits, labels).item() == pytest.approx(
        torch.stack(halves).mean().item(), rel=1e-6
    )


def test_of_an_image_of_no_told_class_nothing_is_learned_and_nothing_is_nan() -> None:
    task = Task(with_head(scenes_vit_64))
    task.init_weights()
    task.train()
    inputs = inputs_of(task, 2, told=-1.0)
    loss = torch.stack(list(task(inputs).values())).sum()
    assert loss == 0
    loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in task.parameters())


def test_channels_are_dropped_as_drawn() -> None:
    recipe = with_head(scenes_vit_64, dropout=0.25)
    task = Task(recipe)
    (drawn,) = task.draws(7, (0, 64)).objectives[0]
    assert drawn.shape == (64, 96 + 32)
    assert drawn.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (drawn == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    (part,) = task.draws(7, (24, 32)).objectives[0]
    assert torch.equal(part, drawn[24:32])
    (other,) = task.draws(8, (0, 64)).objectives[0]
    assert not torch.equal(other, drawn)
    # of a channel that is dropped the last layer hears nothing
    task.init_weights()
    head = head_of(task).train()
    inputs = inputs_of(task, 2)
    output = task.model(inputs.images, None, task.wanted)
    factors = torch.ones(2, 128)
    factors[:, [3, 102]] = 0
    head(output, inputs.targets, (factors,)).backward()
    assert head.auxiliary_head is not None
    lost = list[Tensor]()
    for module in (head.decode_head, head.auxiliary_head):
        grad = module.conv_seg.weight.grad
        assert grad is not None
        lost.append(grad.abs().sum(dim=(0, 2, 3)) == 0)
    assert [each.nonzero().flatten().tolist() for each in lost] == [[3], [102 - 96]]


@pytest.mark.parametrize("recipe", [scenes_vit_64, scenes_swin_64], ids=["vit", "swin"])
def test_gradients_are_those_of_differences(recipe: Recipe) -> None:
    """In float64, along a random direction of all that is trained."""
    task = Task(with_head(recipe)).double()
    randomised(task)
    task.train()
    inputs = inputs_of(task, 2)
    targets, images = inputs.targets, inputs.images.double()
    trained = [p for p in task.parameters() if p.requires_grad]
    along = [torch.randn_like(p) * p.detach().abs().mean() for p in trained]

    def loss() -> Tensor:
        return torch.stack(
            list(task(inputs._replace(images=images, targets=targets)).values())
        ).sum()

    gradients = torch.autograd.grad(loss(), trained)
    slope = sum((g * d).sum() for g, d in zip(gradients, along, strict=True))
    sides: list[Tensor] = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for p, d in zip(trained, along, strict=True):
                p += step * d
            sides.append(loss())
            for p, d in zip(trained, along, strict=True):
                p -= step * d
    # the float32 parts round at 1e-7 of a loss of about 10
    assert ((sides[0] - sides[1]) / 2e-6).item() == pytest.approx(float(slope), rel=1e-4)
    # all of a pyramid is reached, and the model's own head is not
    reached = {n for n, p in task.named_parameters() if p.grad is not None or p.requires_grad}
    assert not any(n.startswith("model.head") for n in reached)


def test_a_norm_over_one_value_is_refused() -> None:
    task = Task(with_head(scenes_vit_64, norm="batch"))
    task.init_weights()
    task.train()
    with pytest.raises(ValueError, match="two images or more at once, or the norm of groups"):
        task(inputs_of(task, 1))
    task(inputs_of(task, 2))


def test_predictions_leave_the_statistics_and_drop_nothing() -> None:
    task = Task(with_head(scenes_vit_64, norm="batch", dropout=0.5))
    task.init_weights()
    task.train()
    for number in range(3):
        task(inputs_of(task, 4, number))
    before = {name: value.clone() for name, value in task.statistics().items()}
    assert before and all(n.startswith("heads.segmentation.") for n in before)
    images = torch.randn(2, 3, 64, 64)
    one, other = task.predict(images), task.predictions(images[:1])[PREDICTION]
    assert (one[:1] - other).abs().max() <= 1e-5 * one.abs().max()
    assert all(torch.equal(value, before[n]) for n, value in task.statistics().items())
    assert task.training


def test_initial_weights_are_those_of_mmsegmentation() -> None:
    """Kaiming's normal of the fan out before a norm, 0.01 at the last layer (BaseDecodeHead)."""
    task = Task(ade20k_swin_t_512)
    head = "heads.segmentation.decode_head"
    conv = task.initial_weight(f"{head}.fpn_convs.1.conv.weight")
    wanted = nn.init.kaiming_normal_(
        torch.empty(512, 512, 3, 3), mode="fan_out", nonlinearity="relu"
    )
    assert conv.std().item() == pytest.approx(wanted.std().item(), rel=0.01)
    last = task.initial_weight(f"{head}.conv_seg.weight")
    assert last.std().item() == pytest.approx(0.01, rel=0.02)
    assert not task.initial_weight(f"{head}.conv_seg.bias").any()
    assert (task.initial_weight(f"{head}.bottleneck.bn.running_var") == 1).all()
    assert not torch.equal(conv, task.initial_weight(f"{head}.fpn_convs.0.conv.weight"))
    wider = Task(replace(scenes_vit_64, seed=1))
    name = "heads.segmentation.neck.fpn1.0.weight"  # torch's own
    bound = 1 / math.sqrt(96 * 4)
    value = wider.initial_weight(name)
    assert 0.99 * bound < value.abs().max() <= bound
    assert not torch.equal(value, Task(scenes_vit_64).initial_weight(name))


def test_of_the_head_matrices_are_decayed_and_all_is_as_deep_as_can_be() -> None:
    task = Task(scenes_vit_64)
    assert {task.layer_id(n) for n in task.state_dict() if n.startswith("heads.")} == {task.layers}
    assert not any(n.startswith("heads.") for n in task.no_weight_decay())


def test_localization_goes_along() -> None:
    drloc = DRLoc(1.0, None, "classes", "grid", 0.001, "last", False, 16, 4, "mean", 32, 2)
    task = Task(replace(scenes_vit_64, objectives=(*scenes_vit_64.objectives, drloc)))
    task.init_weights()
    losses = task(inputs_of(task, 4))
    assert set(losses) == {"segmentation", "drloc"}
    torch.stack(list(losses.values())).sum().backward()


def test_a_module_has_mmsegmentations_names() -> None:
    """Of its UPerHead and FCNHead, and of ConvModule."""
    names = {
        n.removeprefix("heads.segmentation.")
        for n, _ in Task(ade20k_swin_t_512).named_parameters()
        if n.startswith("heads.")
    }
    wanted = {f"norms.{i}.{of}" for i in range(4) for of in ("weight", "bias")}
    conv = [*(f"decode_head.psp_modules.{i}.1" for i in range(4))]
    conv += ["decode_head.bottleneck", "decode_head.fpn_bottleneck", "auxiliary_head.convs.0"]
    conv += [f"decode_head.{of}_convs.{i}" for of in ("lateral", "fpn") for i in range(3)]
    wanted |= {f"{c}.{of}" for c in conv for of in ("conv.weight", "bn.weight", "bn.bias")}
    wanted |= {
        f"{h}_head.conv_seg.{of}" for h in ("decode", "auxiliary") for of in ("weight", "bias")
    }
    assert names == wanted


def test_keyed_draws_have_the_objectives_name() -> None:
    """So that two of a task would differ."""
    head = head_of(Task(scenes_vit_64))
    (one,), (other,) = (head.draws(name, 0, 0, (0, 2)) for name in ("a", "b"))
    assert not torch.equal(one, other)
    expected = keyed_random.uniform(128, "dropout", "a", 0, 0, 1) >= 0.1
    assert torch.equal(one[1] > 0, torch.from_numpy(expected))


def test_a_convolution_a_norm_and_a_rectifier() -> None:
    module = ConvNorm(3, 64, 3, "group")
    for p in module.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 3, 5, 6)
    y = F.conv2d(x, module.conv.weight, padding=1)
    own = module.get_submodule("gn")
    wanted = F.relu(F.group_norm(y, 32, own.weight, own.bias))  # type: ignore[arg-type]
    assert (module(x) - wanted).abs().max() < 1e-5
