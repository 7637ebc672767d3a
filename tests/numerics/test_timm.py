"""Any of timm's models under a recipe: timm's own numbers where nothing is dropped, the recipe's
where something is, and what cannot be trained exactly is refused.

Counted are the products of linear layers, convolutions and attention, as torch's `FlopCounterMode`
sees them on meta, halved; so are our own models' (`test_counts_are_ours`).
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from each import each_of
from timm.layers.drop import DropPath
from timm.models._registry import _model_to_module
from timm.optim._param_groups import param_groups_layer_decay
from torch import Tensor

from bigvit import models
from bigvit.checkpoint.weights import Given, Unfit, fitted
from bigvit.layers.stochastic_depth import Kept
from bigvit.layers.timm import Path as BranchPath
from bigvit.models.timm import TimmModel
from bigvit.models.timm_skeleton import counted
from bigvit.optim.groups import parameter_groups
from bigvit.recipe import (
    AveragePooling,
    ClassToken,
    DRLoc,
    Recipe,
    ResNet,
    StochasticDepth,
    Swin,
    Timm,
    TimmSizes,
    ViT,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.task import Task

sys.path.append(str(Path(__file__).parents[1] / "engines"))
from timm_list import ARCHITECTURES, QUICK, REFUSED  # noqa: E402

NOTHING, NO_DROP = TimmSizes(0, 0, 0), StochasticDepth(rate=0.0, group=4)
SOME = StochasticDepth(rate=0.25, group=4)
RECIPES = all_recipes()
TABLE_6_13 = {  # millions of parameters, 10^9 multiply-accumulates
    "pit_s_in1k_224": (23.5, 2.9),
    "pit_b_in1k_224": (73.8, 12.5),
    "tnt_s_in1k_224": (23.8, 5.2),
    "tnt_b_in1k_224": (65.6, 14.1),
    "convit_s_in1k_224": (27.8, 5.8),
    "convit_b_in1k_224": (86.5, 17.5),
    "swin_s_in1k_224": (49.6, 8.7),
    "swin_b_in1k_224": (87.8, 15.4),
}


def of(text: str, drop_path: StochasticDepth = NO_DROP, **changes: Any) -> Timm:
    """timm's model by a name and arguments in a line."""
    name, *arguments = text.split()
    model = Timm(name, tuple(arguments), NOTHING, drop_path, in_chans=3, num_classes=10)
    return replace(model, **changes)


def built(model: Timm, image_size: int) -> TimmModel:
    made = models.build(model, image_size)
    made.init_weights(0)
    for name in made.state_dict().keys() - dict(made.named_parameters()).keys():
        made.get_buffer(name).copy_(made.initial_weight(name, 0))
    return made


def theirs(model: Timm, ours: TimmModel, image_size: int, **more: Any) -> Any:
    """timm's own model, with the same weights."""
    try:
        made = timm.create_model(
            model.architecture, num_classes=10, img_size=image_size, **model.named, **more
        )
    except TypeError:
        made = timm.create_model(model.architecture, num_classes=10, **model.named, **more)
    made.load_state_dict(ours.state_dict(), strict=False)
    return made


def images(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_the_list_has_every_family_with_a_drop_path() -> None:
    folder = Path(timm.models.__path__[0])
    families = {
        path.stem
        for path in folder.glob("*.py")
        if "DropPath" in path.read_text() and not path.stem.startswith("_")
    }
    # no more than a class of another family's, or blocks of one
    assert families - {"naflexvit"} <= ARCHITECTURES.keys()
    assert len(ARCHITECTURES) >= 40
    for family, (text, _) in ARCHITECTURES.items():
        assert _model_to_module[text.split()[0]] == family or family == "efficientnet"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(("pit_s", "regnet")) else pytest.mark.slow)
        for name, recipe in RECIPES.items()
        if isinstance(recipe.model, Timm)
    ],
)
def test_sizes_are_those_of_the_built_model(name: str) -> None:
    recipe = RECIPES[name]
    assert isinstance(recipe.model, Timm) and isinstance(recipe.data.image_size, int)
    with torch.device("meta"):
        made = models.build(recipe.model, recipe.data.image_size)
    made.check()
    found = counted(recipe.model, recipe.data.image_size)
    assert found == recipe.model.sizes
    assert found.parameters == sum(p.numel() for p in made.parameters() if p.requires_grad)


def test_sizes_are_those_of_table_6_13() -> None:
    for name, (parameters, macs) in TABLE_6_13.items():
        model: Any = RECIPES[name].model
        assert model.sizes.parameters / 1e6 == pytest.approx(parameters, abs=0.2)
        assert model.sizes.macs / 1e9 == pytest.approx(macs, abs=0.11)


def test_counts_are_ours() -> None:
    small = ViT(16, 384, 2, 6, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 10)
    for ours, text, size in (
        (small, "deit3_small_patch16_224 depth=2", 64),
        (
            Swin(4, 96, (2, 2), (3, 6), 7, 4.0, AveragePooling(), NO_DROP, 3, 10),
            "swin_tiny_patch4_window7_224 depths=(2,2) num_heads=(3,6)",
            56,
        ),
        (
            ResNet((1, 1, 1, 1), AveragePooling(), None, False, 3, 10),
            "resnet50 layers=(1,1,1,1)",
            64,
        ),
    ):
        found = counted(of(text), size)
        assert (found.parameters, found.macs) == (ours.parameters(size), ours.macs(size))


@each_of("family", QUICK)
def test_with_nothing_dropped_it_is_timms(family: str) -> None:
    text, size = ARCHITECTURES[family]
    model = of(text)
    ours = built(model, size)
    other = theirs(model, ours, size, drop_path_rate=0.0).train()
    found, expected = ours(images(3, size)).logits, other(images(3, size))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for each in (found, expected):
        each.square().sum().backward()
    gradients = {name: p.grad for name, p in other.named_parameters()}
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-5, atol=1e-6)
    for name, buffer in other.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            torch.testing.assert_close(ours.get_buffer(name), buffer)


@each_of(("family", "rate"), [*((f, 0.25) for f in QUICK), ("tnt", 0.1), ("pit", 0.1)])
def test_what_is_dropped_is_what_timm_would_multiply_by(
    family: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm's own paths, told the same factors in the order in which they are called."""
    text, size = ARCHITECTURES[family]
    model = of(text, StochasticDepth(rate=rate, group=4))
    ours, count = built(model, size), 8
    drawn = ours.draws(1, 2, (0, count))
    factors = factors_of(ours, drawn, count)
    shares = torch.stack(factors)
    if rate > 0.1:
        assert (shares > 0).float().mean().item() == pytest.approx(
            1 - rate, abs=1 / (2 * 4 * len(factors)) + 1e-6
        )
        assert all(((each > 0).view(-1, 4).sum(1) == (each > 0).sum() / 2).all() for each in shares)
    other = theirs(model, ours, size, drop_path_rate=0.5).train()
    told = iter(factors)

    def multiplied(self: object, x: Tensor) -> Tensor:
        each = next(told).repeat_interleave(len(x) // count)
        return x * each.view(-1, *[1] * (x.ndim - 1))

    paths(other, monkeypatch, multiplied)
    expected = other(images(count, size))
    assert next(told, None) is None
    torch.testing.assert_close(ours(images(count, size), drawn).logits, expected)


def factors_of(model: TimmModel, drawn: Any, count: int) -> list[Tensor]:
    """What each image counts in each branch, in the order of the forward pass."""
    found = []
    for name in model.traced.order:
        assert isinstance(model.paths[name], BranchPath)
    for drop in model.given(drawn):
        if isinstance(drop, Kept):
            drop = torch.zeros(count).index_fill_(0, drop.samples, drop.scale)
        assert isinstance(drop, Tensor)
        found.append(drop)
    return found


def paths(net: Any, monkeypatch: pytest.MonkeyPatch, forward: Any) -> None:
    """Let a forward pass of timm's call this for every path, also where timm has none because the
    linear rate of a first block is 0."""
    monkeypatch.setattr(DropPath, "forward", forward)
    places = {
        (type(module), name)
        for module in net.modules()
        for name, child in module.named_children()
        if isinstance(child, DropPath)
    }
    for module in net.modules():
        for kind, name in places:
            if type(module) is kind:
                setattr(module, name, DropPath(0.5))


def test_dropout_is_a_function_of_the_image_alone() -> None:
    text = ARCHITECTURES["vision_transformer"][0] + " drop_rate=0.25 proj_drop_rate=0.25"
    model = of(f"{text} attn_drop_rate=0.25", SOME)
    ours = built(replace(model, sizes=counted(model, 32)), 32)
    ours.check()
    assert len(ours.dropouts) == 2 * 4 + 1
    whole = ours(images(8, 32), ours.draws(0, 1, (0, 8))).logits
    halves = [ours(images(8, 32)[i : i + 4], ours.draws(0, 1, (i, i + 4))).logits for i in (0, 4)]
    torch.testing.assert_close(whole, torch.cat(halves))
    assert not torch.allclose(whole, ours(images(8, 32), ours.draws(0, 2, (0, 8))).logits)
    x = torch.ones(4, 50, 100)
    ours.dropouts[0].keys, ours.dropouts[0].samples = ours.draws(0, 1, (0, 4)).keys, None
    dropped = ours.dropouts[0](x)
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 4 / 3]))
    shares = (dropped == 0).float().flatten(1).mean(1)
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.03, rtol=0)
    assert (dropped[0] != dropped[1]).any()
    ours.eval()
    plain = theirs(of(text), ours, 32).eval()
    torch.testing.assert_close(ours(images(2, 32)).logits, plain(images(2, 32)))


@each_of("family", QUICK)
def test_recomputing_changes_nothing(family: str) -> None:
    text, size = ARCHITECTURES[family]
    model, found = of(text, SOME), []
    for share in (0.0, 1.0):
        ours = built(model, size)
        ours.recompute(share)
        assert ours.all_blocks()
        logits = ours(images(4, size), ours.draws(1, 2, (0, 4))).logits
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in ours.parameters()), *ours.buffers()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-6, atol=1e-6)


def recipe_of(model: Timm, image_size: int = 32, **changes: Any) -> Recipe:
    recipe = RECIPES["pit_b_in1k_224"]
    data = replace(recipe.data, image_size=image_size, classes=model.num_classes)
    return replace(recipe, model=model, data=data, **changes)


@each_of(
    ("text", "said"),
    [
        ("no_such_model", "Unknown model"),
        ("vit_tiny_patch16_224 no_such=1", "unexpected keyword argument 'no_such'"),
        ("vit_tiny_patch16_224 depth=2", "write sizes=TimmSizes(parameters=1040842, macs=5034624,"),
        ("vit_tiny_patch16_224 patch_drop_rate=0.5", "draws at random"),
        ("resnet18 drop_rate=0.5", "draws at random"),
        *((ARCHITECTURES[family][0], said) for family, said in REFUSED.items()),
    ],
)
def test_what_cannot_be_trained_exactly_is_refused(text: str, said: str) -> None:
    model = of(text)
    check_recipe(recipe_of(model))
    with torch.device("meta"), pytest.raises(ValueError) as raised:
        models.build(model, 32).check()
    assert said in str(raised.value) and text.split()[0] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_rate_without_a_path_is_refused() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="has no stochastic depth: choose 0"):
        models.build(of("test_efficientnet", SOME), 32).check()


@each_of(
    ("changes", "said"),
    [
        ({"arguments": ("img_size=32",)}, "left out: data.image_size says it"),
        ({"arguments": ("drop_path_rate=0.1",)}, "left out: model.drop_path says it"),
        ({"arguments": ("depth",)}, "NAME=VALUE"),
        ({"arguments": ("depth=1", "depth=2")}, "of a name each"),
        ({"architecture": "hf-hub:timm/vit"}, "a name of timm's"),
    ],
)
def test_what_is_not_allowed_is_refused_before_torch(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="model") as raised:
        check_recipe(recipe_of(of("vit_tiny_patch16_224", **changes)))
    assert said in str(raised.value)


def test_what_needs_a_description_says_so() -> None:
    drloc = next(o for r in RECIPES.values() for o in r.objectives if isinstance(o, DRLoc))
    recipe = recipe_of(of("vit_tiny_patch16_224"))
    with pytest.raises(ValueError, match="dense relative localization"):
        check_recipe(replace(recipe, objectives=(*recipe.objectives, drloc)))
    for command in (["plan"], ["rehearse", "--ranks", "8"]):
        words = [sys.executable, "-m", "bigvit.cli", command[0], "pit_b_in1k_224", *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1 and "nothing describes what it computes" in done.stderr


def test_a_recipe_is_read_back() -> None:
    recipe = recipe_of(of("vit_tiny_patch16_224 depth=2 act_layer=relu", SOME))
    assert recipe_from_json(to_json(recipe)) == recipe
    model: Any = recipe.model
    assert model.named == {"depth": 2, "act_layer": "relu"}


def test_initial_weights_are_timms_of_a_seed() -> None:
    model = of(ARCHITECTURES["convit"][0])
    found = []
    for seed in (1, 1, 2):
        with torch.device("meta"):
            outline = models.build(model, 32)
        found.append({n: outline.initial_weight(n, seed) for n, _ in outline.named_parameters()})
    for name, weight in found[0].items():
        assert torch.equal(weight, found[1][name]) and weight.dtype == torch.float32
    assert not torch.equal(found[0]["head.weight"], found[2]["head.weight"])
    identity = found[0]["blocks.0.attn.v.weight"]  # what ConViT's own initialiser does
    assert torch.equal(identity, torch.eye(len(identity)))
    assert found[0]["head.weight"].std().item() == pytest.approx(0.02, rel=0.2)


@each_of("text", [ARCHITECTURES[family][0] for family in ("swin_transformer", "pit", "regnet")])
def test_decay_and_layers_are_timms(text: str) -> None:
    recipe = replace(recipe_of(of(text)), layer_decay=0.5)
    with torch.device("meta"):
        task = Task(recipe)
    named = dict(task.named_parameters())
    groups = parameter_groups(named, set(named), task, recipe)
    found = {id(p): (g["weight_decay"], g["lr_scale"]) for g in groups for p in g["params"]}
    net: Any = task.model.__dict__["net"]
    decay = recipe.optim.weight_decay
    no_decay = getattr(net, "no_weight_decay", set)()
    expected = {
        id(p): (g["weight_decay"], g["lr_scale"])
        for g in param_groups_layer_decay(net, decay, no_decay, layer_decay=0.5)
        for p in g["params"]
    }
    assert found == expected and len({scale for _, scale in found.values()}) > 2


def test_weights_from_elsewhere_at_another_size() -> None:
    text = ARCHITECTURES["vision_transformer"][0]
    given = timm.create_model(text.split()[0], img_size=48, num_classes=7, **of(text).named)
    model = models.build(of(text), 32)
    weights, done = fitted(Given(dict(given.state_dict())), model, (0, 0))
    assert done.new_head and weights["pos_embed"].shape == (1, 5, 24)
    assert "head.weight" not in weights
    expected: Any = timm.create_model(text.split()[0], img_size=32, num_classes=7, **of(text).named)
    expected.load_state_dict(
        timm.models.vision_transformer.checkpoint_filter_fn(given.state_dict(), expected)
    )
    torch.testing.assert_close(weights["pos_embed"], expected.pos_embed.detach())
    with pytest.raises(Unfit, match="weights"):
        fitted(Given(dict(timm.create_model("resnet18").state_dict())), model, (0, 0))
