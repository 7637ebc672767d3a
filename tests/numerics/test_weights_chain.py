"""DeiT III's ViT-B all the way: timm's file, our model, a checkpoint, an export, timm again."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from randomised import randomised
from safetensors.torch import save_file
from saving import save
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.weights import fit, read_init
from bigvit.cli import main
from bigvit.engines.single import SingleEngine
from bigvit.models import ClassTokenTransformer
from bigvit.ranks.joining import alone
from bigvit.recipe import ImageSize, sides
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task

TOLERANCE = 1e-5
NAME = "deit3_base_patch16_224"
RECIPE = find_recipe("deit3_b16_in1k_224")[1]


@pytest.fixture(scope="module")
def original() -> nn.Module:
    return randomised(timm.create_model(NAME, weight_init="skip"))


@pytest.fixture(scope="module")
def file(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The weights as timm's users have them. What is beside the file goes too: it is gigabytes."""
    folder = tmp_path_factory.mktemp("chain")
    save_file(original.state_dict(), folder / "model.safetensors")
    yield folder / "model.safetensors"
    shutil.rmtree(folder)


def resized(file: Path, size: tuple[int, int]) -> nn.Module:
    """timm's model of another size, which resamples the file's positions as it is loaded."""
    return timm.create_model(
        NAME,
        pretrained=True,
        pretrained_cfg_overlay={"file": str(file)},
        img_size=size,
        weight_init="skip",
    )


def ours(file: Path, size: ImageSize) -> ClassTokenTransformer:
    with torch.device("meta"):
        model = models.build(RECIPE.model, size)
    model.to_empty(device="cpu")
    fit(read_init(str(file)), model, RECIPE.model.grid(size))
    return model


@pytest.fixture(scope="module")
def run(file: Path) -> Path:
    """A run folder with a checkpoint of the recipe, bf16 as it is, that starts from the file."""

    def build() -> Task:
        with torch.device("meta"):
            task = Task(RECIPE)
        task.to_empty(device="cpu")
        fit(read_init(str(file)), task.model, RECIPE.model.grid(RECIPE.data.image_size))
        return task

    engine = SingleEngine(build, RECIPE, replace(alone(), device=torch.device("cpu")))
    folder = file.parent / "run"
    save(engine, folder / "checkpoints", 1, to_json(RECIPE), keep=1)
    (folder / "recipe.json").write_text("{}")
    return folder


@pytest.mark.parametrize("size", [224, pytest.param(160, marks=pytest.mark.slow), (224, 320)])
@torch.no_grad()
def test_ours_and_the_export_have_timms_logits(
    original: nn.Module, file: Path, run: Path, size: ImageSize
):
    height, width = sides(size)
    theirs = original if size == 224 else resized(file, (height, width)).eval()
    out = file.parent / "export"
    args = ["export", str(run), "--out", str(out), "--image-size", str(height), str(width)]
    assert main(args) == 0
    again = timm.create_model(f"local-dir:{out}", pretrained=True).eval()

    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
    expected: Tensor = theirs(x)
    assert expected.std() > 0.3
    for name, found in (("ours", ours(file, size)(x).logits), ("the export", again(x))):
        difference = (found - expected).abs().max().item()
        assert difference <= TOLERANCE, f"{name} at {height} x {width}: {difference:.1e}"
