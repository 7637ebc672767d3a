"""ResMLP is timm's `resmlp_*`, its layers are the thesis's equations; and its sizes, ablations,
initial weights and decay.

Shapes: B images, N patches, D width, K classes.
"""

from dataclasses import replace
from typing import Any

import literal_resmlp
import pytest
import timm
import torch
from each import each_of
from randomised import randomised
from timm.models.mlp_mixer import Affine as TimmsAffine
from timm.models.mlp_mixer import MlpMixer, ResBlock
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bigvit import models
from bigvit.models.resmlp import Block
from bigvit.recipe import (
    RESMLP_SIZES,
    AveragePooling,
    ClassMlp,
    Communication,
    ResMLP,
    StochasticDepth,
    resmlp,
)
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

TOLERANCE = 1e-5
NO_DROP = StochasticDepth(rate=0.0, group=8)
TINY = ResMLP(
    patch_size=4,
    embed_dim=24,
    depth=2,
    mlp_ratio=2.0,
    norm="affine",
    communication="linear",
    layer_scale=0.1,
    shift=True,
    pooling=AveragePooling(),
    drop_path=NO_DROP,
    in_chans=3,
    num_classes=10,
)
SIZE = (12, 16)  # 3 x 4 patches
COMMUNICATIONS: tuple[Communication, ...] = (
    *("linear", "none", "mlp", "conv", "depthwise", "separable"),
)
VARIANTS = {
    **{kind: replace(TINY, communication=kind) for kind in COMMUNICATIONS},
    "layer_norm": replace(TINY, norm="layer_norm"),
    "class_mlp": replace(TINY, pooling=ClassMlp(2)),
    "class_mlp of patches alone": replace(TINY, communication="none", pooling=ClassMlp(1)),
    "unshifted": replace(TINY, shift=False),
}
TIMMS = {"resmlp_12_224": "s12", "resmlp_24_224": "s24", "resmlp_36_224": "s36"}


def of_size(size: str, patch_size: int = 16, shift: bool = False) -> ResMLP:
    return resmlp(
        size,
        patch_size=patch_size,
        shift=shift,
        drop_path=NO_DROP,
        num_classes=1000,
        in_chans=3,
    )


def built(model: ResMLP, size: int | tuple[int, int] = SIZE) -> Any:
    return randomised(models.build(model, size))


def images(size: int | tuple[int, int] = SIZE, count: int = 2) -> Tensor:
    height, width = size if isinstance(size, tuple) else (size, size)
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def assert_alike(ours: Any, theirs: Any, x: Tensor) -> None:
    """Equal logits, and gradients of every weight."""
    theirs.load_state_dict(ours.state_dict())
    theirs.eval()
    expected, found = theirs(x), ours(x).logits
    difference = (found - expected).abs().max().item()
    assert expected.std() > 0.3 and difference <= TOLERANCE
    for logits in (expected, found):
        logits.square().mean().backward()
    wanted = dict(theirs.named_parameters())
    apart = {
        name: float((p.grad - wanted[name].grad).norm() / wanted[name].grad.norm())
        for name, p in ours.named_parameters()
    }
    print(f"logits {difference:.1e}, gradients {max(apart.values()):.1e}")
    assert max(apart.values()) <= TOLERANCE


@pytest.mark.parametrize("architecture", ["resmlp_12_224", "resmlp_24_224"])
def test_logits_and_gradients_equal_those_of_timm(architecture: str):
    assert_alike(
        built(of_size(TIMMS[architecture]), 224), timm.create_model(architecture), images(224)
    )


def test_big_in_patches_of_8_equals_timms_at_a_smaller_depth():
    theirs = MlpMixer(*(1000, 224, 3, 8, 2, 768, 4.0), block_layer=ResBlock, norm_layer=TimmsAffine)
    assert_alike(built(replace(of_size("b24", 8), depth=2), 224), theirs, images(224, 1))


def test_state_has_the_names_and_shapes_of_timm():
    for architecture, size in (TIMMS | {"resmlp_big_24_224": "b24"}).items():
        with torch.device("meta"):
            model = of_size(size, 8 if size == "b24" else 16)
            ours = models.build(model, 224).state_dict()
            theirs = timm.create_model(architecture).state_dict()
        assert {n: w.shape for n, w in ours.items()} == {n: w.shape for n, w in theirs.items()}


@each_of("model", [TINY, VARIANTS["unshifted"], VARIANTS["class_mlp"]])
@torch.no_grad()
def test_it_is_the_thesiss_equations(model: ResMLP):
    """4.1 to 4.3, and section 4.2's pooling, in float64."""
    ours, x = built(model).double(), images().double()
    expected = torch.stack([literal_resmlp.logits(ours.state_dict(), image) for image in x])
    assert expected.std() > 0.3
    torch.testing.assert_close(ours(x).logits, expected, rtol=1e-12, atol=1e-12)


@each_of("kind", [kind for kind in COMMUNICATIONS if kind not in ("linear", "none")])
@torch.no_grad()
def test_what_works_across_patches_otherwise(kind: Communication):
    """Table 4.3, "Patch communication", written out in float64."""
    grid = (3, 4)
    block: Any = randomised(Block(replace(TINY, communication=kind), grid, 24)).double()
    of, x_BND = block.state_dict(), images((12, 24), 1).double().reshape(1, -1, 24)[:, :12]
    x = x_BND[0].T
    y = literal_resmlp.aff(x, of["norm1.alpha"], of["norm1.beta"])
    match kind:
        case "mlp":
            y = literal_resmlp.gelu(
                of["mlp_tokens.fc1.weight"] @ y.T + of["mlp_tokens.fc1.bias"][:, None]
            )
            y = (of["mlp_tokens.fc2.weight"] @ y + of["mlp_tokens.fc2.bias"][:, None]).T
        case "separable":
            first, second = (f"conv_tokens.{part}wise" for part in ("depth", "point"))
            y = literal_resmlp.convolved(y, grid, of[f"{first}.weight"], of[f"{first}.bias"])
            y = of[f"{second}.weight"][:, :, 0, 0] @ y + of[f"{second}.bias"][:, None]
        case _:
            y = literal_resmlp.convolved(y, grid, of["conv_tokens.weight"], of["conv_tokens.bias"])
    d = x + literal_resmlp.aff(y, of["ls1"], of["shift1"])
    expected = d + literal_resmlp.mlp(d, of)
    found = block(x_BND, [None, None])[0].T
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_layer_norm_is_torchs_and_nothing_else_changes():
    ours, x = built(VARIANTS["layer_norm"]), images()
    norms = [name for name, module in ours.named_modules() if isinstance(module, nn.LayerNorm)]
    assert norms == ["blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm"]
    stream: list[Tensor] = []
    module = ours.blocks[1].norm1
    module.register_forward_pre_hook(lambda _, inputs: stream.append(*inputs))
    ours(10 * x)
    made = module(stream[0])
    wanted = nn.functional.layer_norm(stream[0], (24,), module.weight, module.bias, 1e-6)
    assert torch.equal(made, wanted)


@each_of("name", VARIANTS)
@torch.no_grad()
def test_each_parameter_shows_in_the_logits(name: str):
    ours, x = built(VARIANTS[name]), images()
    before = ours(x).logits
    for path, parameter in ours.named_parameters():
        saved = parameter.clone()
        parameter.mul_(0.5)
        difference = (ours(x).logits - before).abs().max()
        parameter.copy_(saved)
        # what moves a patch's channels alike is seen by no LayerNorm
        assert difference > TOLERANCE, path


@torch.no_grad()
def test_patches_talk_to_each_other_unless_they_are_not_to():
    """A change of one patch shows in another's last features."""
    for name, model in VARIANTS.items():
        ours, x = built(model), images(count=1)
        changed = x.clone()
        changed[..., :4, :4] += 1
        apart = (ours(x).tokens - ours(changed).tokens).abs().amax(dim=2)[0]
        assert apart[0] > 0.01, name
        assert (apart[1] > 1e-4) == (model.communication != "none"), name


@each_of("name", [*RESMLP_SIZES, *VARIANTS])
def test_sizes_are_counted(name: str):
    model, size = (of_size(name), 224) if name in RESMLP_SIZES else (VARIANTS[name], SIZE)
    with torch.device("meta"):
        ours = models.build(model, size)
        assert model.parameters(size) == sum(p.numel() for p in ours.parameters())
        height, width = size if isinstance(size, tuple) else (size, size)
        with FlopCounterMode(display=False) as counter:
            ours(torch.empty(1, 3, height, width))
    assert 2 * model.macs(size) == counter.get_total_flops()


@torch.no_grad()
def test_initial_weights_are_the_authors():
    """Matrices of deviation 0.02, the one across patches too; affine maps 1 and 0, or small."""
    for size, start in (("s12", 0.1), ("s24", 1e-5), ("s36", 1e-6)):
        model = replace(of_size(size, shift=True), depth=1, pooling=ClassMlp(1))
        ours = models.build(model, 224)
        ours.init_weights(0)
        block = ours.blocks[0]
        for layer in (ours.head, block.linear_tokens, block.mlp_channels.fc2):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert not layer.bias.any()
        for each in (block, ours.blocks_token_only[0]):
            assert (each.ls1 == start).all() and (each.ls2 == start).all()
            assert not each.shift1.any() and not each.shift2.any()
            assert (each.norm1.alpha == 1).all() and not each.norm1.beta.any()
        theirs = nn.Conv2d(3, 384, 16).weight
        assert ours.stem.proj.weight.std() == pytest.approx(theirs.std().item(), rel=0.05)


def test_what_is_decayed_and_how_deep_it_lies():
    """Of the authors' weights matrices are decayed, and affine maps are no matrices there."""
    task = Task(replace(digits_vit, model=replace(VARIANTS["class_mlp"], in_chans=1, patch_size=2)))
    kept = task.no_weight_decay()
    names = {name for name, p in task.named_parameters() if p.ndim > 1} - kept
    assert {name.rpartition(".")[2] for name in names} == {"weight"}
    assert "model.cls_token" in kept and "model.blocks.1.norm2.alpha" in kept
    assert task.layer_id("model.stem.proj.weight") == task.layer_id("model.cls_token") == 0
    assert task.layer_id("model.blocks.1.linear_tokens.weight") == 2
    assert task.layer_id("model.blocks_token_only.0.ls1") == 3
    assert task.layer_id("model.norm.beta") == task.layers == 5


@each_of(
    ("changed", "said"),
    [
        ({"patch_size": 5}, "data.image_size.*model.patch_size"),
        ({"mlp_ratio": 0.01}, "model.mlp_ratio"),
        ({"mlp_ratio": 0.05, "communication": "mlp"}, "model.mlp_ratio"),
    ],
)
def test_what_makes_no_model_is_refused(changed: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        replace(TINY, **changed).check(SIZE, None)
    TINY.check(SIZE, None)
