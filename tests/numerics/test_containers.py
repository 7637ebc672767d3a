"""Files packed as the papers' authors publish them load with the logits of an independent model,
and nothing that is pickled in a file is run.

The models are timm's, or written down from the authors' code; names and containers are theirs.
"""

import argparse
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from literal_t2t import T2T_ViT
from oblong import recipe_of, saved, task_of
from randomised import randomised
from safetensors.torch import save_file
from timm.models.swin_transformer import checkpoint_filter_fn
from timm.models.vision_transformer import checkpoint_filter_fn as checkpoint_filter_fn_of_vit
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.weights import Unfit, fit, read_init
from bigvit.recipe import (
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    LayerScale,
    LinearStochasticDepth,
    Model,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    ViT,
    deit,
    vit,
)

State = dict[str, Tensor]
NO_DROP = StochasticDepth(rate=0.0, group=8)
VIT = ViT(16, 48, 2, 3, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 10)
CAIT = CaiT(
    16, 96, 2, 2, 4.0, True, LayerScale(1e-5), ClassAttention(2, "class and patches"), None,
    False, NO_DROP, 3, 10,
)  # fmt: skip
SWIN = Swin(4, 24, (1, 1, 2), (1, 2, 4), 4, 4.0, AveragePooling(), NO_DROP, 3, 10)
T2T = T2TViT(32, 48, 2, 3, 3.0, NO_DROP, 3, 10)
RESNET = ResNet((1, 1, 1, 1), AveragePooling(), None, False, 3, 10)
SIZE = 64


def of_timm(model: Model) -> nn.Module:
    """timm's model of these sizes, random."""
    match model:
        case ViT():
            made = timm.create_model(
                "deit3_small_patch16_224",
                img_size=SIZE, embed_dim=48, depth=2, num_heads=3, num_classes=10,
            )  # fmt: skip
        case CaiT():
            made = timm.create_model(
                "cait_xxs24_224", img_size=SIZE, embed_dim=96, depth=2, num_heads=2, num_classes=10
            )
        case Swin():
            made = timm.create_model(
                "swin_tiny_patch4_window7_224",
                img_size=SIZE, window_size=4, embed_dim=24, depths=(1, 1, 2), num_heads=(1, 2, 4),
                num_classes=10,
            )  # fmt: skip
        case ResNet():
            made = timm.create_model("resnet50", layers=(1, 1, 1, 1), num_classes=10)
        case _:
            made = T2T_ViT(SIZE, 48, 2, 3, 32, 10)
    fixed = made.pos_embed.clone() if isinstance(made, T2T_ViT) else None
    randomised(made)
    if fixed is not None:
        made.pos_embed.data = fixed  # type: ignore[union-attr]
    return made


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": weight for name, weight in state.items()}


def deit3(state: State) -> State:
    """timm's names -> facebookresearch/deit's, models_v2.py."""
    return {re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", n): w for n, w in state.items()}


def swin(state: State) -> State:
    """timm's names -> microsoft/Swin-Transformer's, with the buffers that it saves."""
    found: State = {}
    for name, weight in state.items():
        if match := re.fullmatch(r"layers\.(\d)\.downsample\.(.+)", name):
            name = f"layers.{int(match[1]) - 1}.downsample.{match[2]}"
        found[name.replace("head.fc.", "head.")] = weight
    found["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.int64)
    found["layers.2.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    assert "layers.0.downsample.reduction.weight" in found and "head.weight" in found
    return found


def of_blocks(state: State) -> State:
    """As each block's `torch.compile` names them."""
    return {re.sub(r"(blocks\.\d)\.", r"\1._orig_mod.", n): w for n, w in state.items()}


def namespace() -> argparse.Namespace:
    """As `args` lies in training checkpoints of all these repositories."""
    return argparse.Namespace(lr=1e-3, output=Path("/data/out"), dtype=torch.float16, world=[0, 1])


def training(model: nn.Module) -> dict[str, Any]:
    """What lies beside the weights in a training checkpoint."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sum(p.sum() for p in model.parameters() if p.requires_grad).backward()  # type: ignore[union-attr]
    optimizer.step()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return {
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "epoch": 299,
        "args": namespace(),
        "scaler": {"scale": 65536.0},
    }


def yacs_config() -> dict[str, Any]:
    """yacs.config.CfgNode, a dict with attributes, from a module that is gone when it is read."""

    class CfgNode(dict[str, Any]):
        def __init__(self, init: dict[str, Any]) -> None:
            super().__init__(init)
            self.__dict__["__immutable__"] = True

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module: Any = types.ModuleType("yacs.config")
    module.CfgNode = CfgNode
    sys.modules |= {"yacs": types.ModuleType("yacs"), "yacs.config": module}
    return CfgNode({"MODEL": CfgNode({"NAME": "swin_tiny"}), "AMP_OPT_LEVEL": "O1"})


Pack = Callable[[nn.Module], Any]
PUBLISHED: dict[str, tuple[Model, Pack, str]] = {
    # who: model, how it is packed, what is said of it
    "DeiT III": (VIT, lambda m: {"model": deit3(m.state_dict())}, "model"),
    "DeiT III, training": (
        VIT,
        lambda m: {"model": deit3(m.state_dict()), **training(m)},
        "model",
    ),
    "CaiT": (
        CAIT,
        lambda m: {"model": under("module.", m.state_dict())},
        "model, module. taken off",
    ),
    "ResMLP and LV-ViT, plain": (VIT, lambda m: m.state_dict(), ""),
    "LV-ViT": (
        VIT,
        lambda m: {"state_dict": under("module.", m.state_dict()), **training(m)},
        "state_dict, module. taken off",
    ),
    "T2T": (
        T2T,
        lambda m: {"state_dict_ema": m.state_dict()},
        "state_dict_ema, all that the file holds",
    ),
    "Swin": (SWIN, lambda m: {"model": swin(m.state_dict())}, "model"),
    "Swin, training": (
        SWIN,
        lambda m: {"model": swin(m.state_dict()), **training(m), "config": yacs_config()},
        "model",
    ),
    "VTs-Drloc": (
        SWIN,
        lambda m: {
            "model": {**swin(m.state_dict()), "drloc.0.layers.0.weight": torch.ones(4, 96)},
            "config": yacs_config(),
        },
        "model, drloc. left out",
    ),
    "torch.compile": (
        VIT,
        lambda m: {"model": under("_orig_mod.", m.state_dict())},
        "model, _orig_mod. taken off",
    ),
    "torch.compile under DDP": (
        VIT,
        lambda m: under("module._orig_mod.", m.state_dict()),
        "_orig_mod. taken off, module. taken off",
    ),
    "torch.compile of blocks": (
        VIT,
        lambda m: {"model": of_blocks(m.state_dict())},
        "model, _orig_mod. taken off",
    ),
    "parameters": (VIT, lambda m: {"model": dict(m.named_parameters())}, "model"),
}  # fmt: skip


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_logits(given: Any, model: Model, theirs: nn.Module) -> None:
    """With every weight from the file."""
    mine = models.build(model, SIZE)
    randomised(mine, seed=9)
    done = fit(given, mine, model.grid(SIZE))
    assert not done.resampled and not done.new_head
    expected = theirs(images())
    assert expected.std() > 0.1
    torch.testing.assert_close(mine.eval()(images()).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("older", [False, True], ids=["zip", "older"])
@pytest.mark.parametrize("who", PUBLISHED)
def test_a_published_file_has_its_authors_logits(tmp_path: Path, who: str, older: bool):
    model, pack, said = PUBLISHED[who]
    theirs = of_timm(model)
    content = pack(theirs)
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=not older)
    for name in ("yacs", "yacs.config"):
        sys.modules.pop(name, None)
    given = read_init(str(tmp_path / "x.pth"))
    assert ", ".join(given.notes) == said
    assert_logits(given, model, theirs)
    assert "yacs" not in sys.modules


def test_swins_names_are_as_timm_reads_them():
    """Its own reader of Microsoft's files takes the file that the tests make."""
    theirs, fresh = of_timm(SWIN), randomised(of_timm(SWIN), seed=5)
    read = checkpoint_filter_fn({"model": swin(theirs.state_dict())}, fresh)
    fresh.load_state_dict(read)
    with torch.no_grad():
        torch.testing.assert_close(fresh(images()), theirs(images()))


def two_of_timm() -> tuple[nn.Module, nn.Module]:
    return of_timm(VIT), randomised(of_timm(VIT), seed=4)


BOTH = {
    "timm, T2T and LV-ViT": ("state_dict", "state_dict_ema", "module."),
    "DeiT": ("model", "model_ema", ""),
    "DINO": ("student", "teacher", "module.backbone."),
}


@pytest.mark.parametrize("who", BOTH)
def test_of_weights_and_their_average_one_is_chosen(tmp_path: Path, who: str):
    key, average_key, prefix = BOTH[who]
    weights, average = two_of_timm()
    content = {
        average_key: under(prefix, average.state_dict()),
        key: under(prefix, weights.state_dict()),
    }
    torch.save({**content, "args": namespace()}, tmp_path / "x.pth")
    given = read_init(str(tmp_path / "x.pth"))
    assert given.notes[:2] == (key, f"not {average_key}, which --init-ema takes")
    assert_logits(given, VIT, weights)
    given = read_init(str(tmp_path / "x.pth"), average=True)
    assert given.notes[0] == average_key
    assert_logits(given, VIT, average)


@torch.no_grad()
def test_dinos_backbone_is_taken_without_its_head(tmp_path: Path):
    """dino_resnet50_pretrain_full_checkpoint.pth: no classifier, and a projection beside it."""
    student, teacher = of_timm(RESNET), randomised(of_timm(RESNET), seed=4)
    content: dict[str, Any] = {"epoch": 800, "args": namespace()}
    for key, model in (("student", student), ("teacher", teacher)):
        state = {n: w for n, w in model.state_dict().items() if not n.startswith("fc.")}
        head = {"mlp.0.weight": torch.ones(4, 2048), "last_layer.weight_g": torch.ones(8, 1)}
        content[key] = under("module.backbone.", state) | under("module.head.", head)
    torch.save(content, tmp_path / "x.pth")
    for average, theirs in ((False, student), (True, teacher)):
        given = read_init(str(tmp_path / "x.pth"), average)
        assert given.notes[-2:] == ("backbone. taken off", "head left out")
        mine = models.build(RESNET, SIZE)
        randomised(mine, seed=9)
        assert str(fit(given, mine, RESNET.grid(SIZE))) == "head made anew"
        features: Any = theirs
        wanted = features.forward_features(images()).mean(dim=(2, 3))
        found = mine.eval()(images()).cls
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


class MultiCropWrapper(nn.Module):
    """facebookresearch/dino's: a backbone without its classifier, and a head."""

    def __init__(self, backbone: nn.Module, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        last = nn.ParameterDict({"weight_g": torch.ones(16, 1), "weight_v": torch.ones(16, 8)})
        layers = {"mlp": nn.Sequential(nn.Linear(dim, 8), nn.GELU(), nn.Linear(8, 8))}
        self.head = nn.ModuleDict({**layers, "last_layer": last})


class Parallel(nn.Module):
    """What DistributedDataParallel does to names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@torch.no_grad()
@pytest.mark.parametrize("size", [pytest.param(224, marks=pytest.mark.slow), 96])
@pytest.mark.parametrize("packed", ["full checkpoint", "backbone alone"])
@pytest.mark.parametrize("kind", ["deit", "deit3"])
def test_dinos_vit_s_has_the_features_of_timms(
    kind: str, packed: str, size: int, tmp_path: Path
) -> None:
    """dino_deitsmall16_pretrain_full_checkpoint.pth, as main_dino.py saves it, and its teacher's
    backbone alone, dino_deitsmall16_pretrain.pth; at its own size and at that of small crops."""
    each = [
        randomised(timm.create_model("vit_small_patch16_224", num_classes=0), seed=seed)
        for seed in (1, 2)
    ]
    student, teacher = (Parallel(MultiCropWrapper(net, 384)) for net in each)
    optimizer = torch.optim.AdamW(student.parameters())
    whole = {
        "student": student.state_dict(),
        "teacher": teacher.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 100,
        "args": namespace(),
        "dino_loss": {"center": torch.zeros(1, 16)},
        "fp16_scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 7},
    }
    alone = packed == "backbone alone"
    file = tmp_path / "dino.pth"
    torch.save(each[1].state_dict() if alone else whole, file)
    given = read_init(str(file), average=not alone)
    recipe = (
        deit(
            "s16",
            distillation=None,
            drop_path=LinearStochasticDepth(0.0, 8),
            num_classes=10,
            in_chans=3,
        )
        if kind == "deit"
        else vit("s16", layer_scale=1e-4, drop_path=NO_DROP, num_classes=10, in_chans=3)
    )
    mine = models.build(recipe, size)
    done = fit(given, mine, recipe.grid(size))
    assert done.new_head and done.plain == (kind == "deit3") and done.resampled == (size != 224)
    theirs: Any = timm.create_model("vit_small_patch16_224", num_classes=0, img_size=size).eval()
    state = checkpoint_filter_fn_of_vit(each[1].state_dict(), theirs, interpolation="bicubic")
    theirs.load_state_dict(state)
    pixels = torch.randn(2, 3, size, size)
    found, wanted = mine.eval().embed(pixels), theirs(pixels)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_an_average_that_is_not_there_is_refused(tmp_path: Path):
    theirs = of_timm(VIT)
    torch.save({"model": theirs.state_dict()}, tmp_path / "x.pth")
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    saved(tmp_path / "run", recipe_of(32), 1)
    for name in ("x.pth", "x.safetensors", "run"):
        with pytest.raises(Unfit, match=r"holds no average.* leave --init-ema out"):
            read_init(str(tmp_path / name), average=True)


def test_an_average_of_a_run_of_ours_is_taken_by_the_same_option(tmp_path: Path):
    recipe = recipe_of(32, ema=0.5)
    saved(tmp_path / "run", recipe, 1)
    wanted = task_of(recipe, 1).model.state_dict()
    given = read_init(str(tmp_path / "run"), average=True)
    assert given.notes == ("ema",) and given.grid == (8, 8)
    assert all(torch.equal(given.weights[name], weight) for name, weight in wanted.items())
