"""A trunk's export gives timm's `features_only` our maps, without a head."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from each import each_of
from huggingface_hub import ModelCard
from oblong import recipe_of, saved
from torch import Tensor

import bigvit
from bigvit.cli import main
from bigvit.export.folder import export
from bigvit.recipe import (
    AttentionPooling,
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    CrossEntropy,
    CvT,
    DeiT,
    ImageSize,
    LayerScale,
    LinearStochasticDepth,
    Model,
    PaddedSwin,
    PatchConvNet,
    Recipe,
    ResNet,
    StochasticDepth,
    Swin,
    Timm,
    TimmSizes,
    TokenLabeling,
    ViT,
    resmlp,
)
from bigvit.recipes.segmentation import scenes_swin_64, scenes_vit_64

NONE, LINEAR = StochasticDepth(rate=0.0, group=4), LinearStochasticDepth(0.0, 4)
MEAN, ONE = AveragePooling(), AttentionPooling(2, "one", 2.0, 0.1)
TWO = ClassAttention(depth=2, keys="class and patches")
RESMLP = resmlp("s12", patch_size=16, shift=False, drop_path=NONE, num_classes=5, in_chans=3)
MODELS: dict[str, tuple[Model, ImageSize]] = {
    "vit": (ViT(4, 24, 4, 3, 2.0, 1e-1, ClassToken(0), False, NONE, 3, 5), (16, 64)),
    "deit": (DeiT(4, 24, 5, 3, 2.0, None, LINEAR, 3, 5), (16, 64)),
    "cait": (CaiT(4, 48, 4, 4, 4.0, True, LayerScale(0.1), TWO, None, False, NONE, 3, 5), 16),
    "resmlp": (RESMLP, 32),
    "swin": (Swin(4, 24, (1, 2, 2), (1, 2, 4), 5, 2.0, MEAN, NONE, 3, 5), (64, 96)),
    "padded swin": (PaddedSwin(4, 24, (1, 2), (1, 2), 4, 2.0, MEAN, NONE, 3, 5), 32),
    "resnet": (ResNet((1, 1, 1, 1), MEAN, None, False, 3, 5), (64, 96)),
}


def of(model: Model, size: ImageSize) -> Recipe:
    return replace(recipe_of(size), model=model)


def maps_of(folder: Path, images: Tensor) -> list[Tensor]:
    """As a stranger gets them."""
    trunk: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, features_only=True)
    return trunk.eval()(images)


def assert_maps(folder: Path, run: Path, recipe: Recipe, size: ImageSize | None = None) -> None:
    trained = bigvit.load_trained(run, image_size=size)
    h, w = bigvit.recipe.sides(size or recipe.data.image_size)
    images = torch.randn(2, 3, h, w, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = maps_of(folder, images), trained.features(images)
    found = found[1:] if isinstance(recipe.model, ResNet) else found
    assert len(found) == len(wanted) >= 2
    for theirs, ours in zip(found, wanted, strict=True):
        own = theirs if theirs.shape == ours.shape else theirs.movedim(3, 1)
        assert (own - ours).abs().max() <= 1e-5 * ours.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_timm_has_our_maps(name: str, tmp_path: Path) -> None:
    recipe = of(*MODELS[name])
    saved(tmp_path / "run", recipe, 3)
    assert main(["export", "--backbone", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "backbone"
    assert_maps(folder, tmp_path / "run", recipe)
    config = json.loads((folder / "config.json").read_text())
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 0
    names = timm.models.load_state_dict(str(folder / "model.safetensors"))
    assert not any(n.startswith(("head", "fc.")) for n in names)
    whole: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert whole.num_classes == 0  # also without features_only
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict()["pipeline_tag"] == "image-feature-extraction"
    assert "features_only=True" in card.text and "logits" not in card.text


@each_of(("name", "size"), [("vit", (24, 40)), ("swin", (16, 32)), ("resmlp", (48, 32))])
def test_at_another_size(name: str, size: ImageSize, tmp_path: Path) -> None:
    """Positions, windows smaller than before, matrices across patches."""
    model, before = MODELS[name]
    recipe, run = of(model, 96 if name == "swin" else before), tmp_path / name
    saved(run, recipe, 3)
    assert_maps(export(run, run / "backbone", size, backbone=True), run, recipe, size)


@pytest.mark.parametrize("recipe", [scenes_vit_64, scenes_swin_64], ids=["vit", "swin"])
def test_of_a_run_that_segments(recipe: Recipe, tmp_path: Path, capsys: Any) -> None:
    """ViT's maps are those that the head reads; a head for classes there is none to export."""
    recipe = replace(recipe, data=replace(recipe.data, image_size=96))
    run = tmp_path / "run"
    saved(run, recipe, 2)
    assert main(["export", str(run)]) == 2
    assert "Segmentation runs train no head that classifies" in capsys.readouterr().err
    assert_maps(export(run, tmp_path / "out", backbone=True), run, recipe)
    if isinstance(recipe.model, PaddedSwin):  # windows of 6, on 24, 12 and 6 tokens until here
        with pytest.raises(ValueError, match="Swin that pads its grid before it is shifted"):
            export(run, tmp_path / "other", 64, backbone=True)
        assert not (tmp_path / "other").exists()


def test_without_a_head_on_patches(tmp_path: Path) -> None:
    recipe = of(replace(MODELS["vit"][0], dense_head=True), (16, 64))  # type: ignore[arg-type]
    objectives = (CrossEntropy(1.0, 0.1, None), TokenLabeling(1.0, 0.1, "image"))
    recipe = replace(recipe, objectives=objectives)
    saved(tmp_path / "run", recipe, 3)
    folder = export(tmp_path / "run", tmp_path / "out", backbone=True)
    assert_maps(folder, tmp_path / "run", recipe)


REFUSED: dict[str, tuple[Model, ImageSize, str]] = {
    "cvt": (CvT((8, 8), (1, 1), (1, 1), 2.0, NONE, 3, 5), 32, "no CvT like this"),
    "patchconvnet": (
        PatchConvNet(16, "linear", 16, 2, "layer", 0.1, ONE, NONE, 3, 5),
        32,
        "no PatchConvNet like this",
    ),
    "attending": (Swin(4, 24, (1, 1), (1, 2), 4, 2.0, ONE, NONE, 3, 5), 32, "attention"),
    "shifts": (replace(RESMLP, shift=True), 32, "--backbone: timm's ResMLP has no shift"),
    "timm's": (
        Timm("resnet10t", (), TimmSizes(4_924_869, 0, 4), NONE, 3, 5),
        32,
        "--backbone: resnet10t is timm's own, whose whole export",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_timm_does_not_have_is_refused(name: str, tmp_path: Path) -> None:
    model, size, said = REFUSED[name]
    saved(tmp_path / "run", of(model, size), 3)
    with pytest.raises(ValueError, match=said):
        export(tmp_path / "run", tmp_path / "out", backbone=True)
    assert not (tmp_path / "out").exists()


def test_it_has_no_logits_for_onnx(tmp_path: Path, capsys: Any) -> None:
    assert main(["export", "--backbone", "--onnx", str(tmp_path / "run")]) == 2
    assert "--onnx: it is of logits, and --backbone has no head" in capsys.readouterr().err
