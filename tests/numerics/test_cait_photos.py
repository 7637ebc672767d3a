"""A small CaiT trained on real photographs: exported, fine-tuned from its export, and looked at."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import timm
import torch
from PIL import Image
from torch import Tensor

from bigvit import models
from bigvit.checkpoint.trained import trained
from bigvit.checkpoint.weights import Fitted, fit, read_init
from bigvit.cli import main
from bigvit.data.sources import open_source
from bigvit.evaluate import evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    Command,
    CrossEntropy,
    ImageSize,
    LayerScale,
    ParallelViT,
    Recipe,
    Run,
    StochasticDepth,
    ViT,
    batch_layout,
    sides,
)
from bigvit.recipe.find import find_recipe
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start
from bigvit.visualize.attention import attended, attention_maps
from bigvit.visualize.branches import branch_ratios

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5
NO_DROP = StochasticDepth(0.0, 8)


def train(
    recipe: Recipe, folder: Path, data_root: Path, init: Path | None = None, updates: int = 0
) -> Path:
    """Run a recipe as the loop does, or so many updates, in this process; its last checkpoint."""
    values = Run(
        log_every=1,
        stop_after=updates or None,
        run_dir=folder,
        data_root=data_root,
        engine="single",
        workers=0,
        init=init and str(init),
        evaluate_every=100,
    )
    command = Command(folder.name, recipe, values, ())
    start, opened = plan_start(command), RunFolder(folder, command, 1)
    run(command, batch_layout(recipe, 1, None), start, alone(), opened, lambda: False)
    opened.close()
    return folder / "checkpoints" / f"step_{updates or recipe.updates:08d}"


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "cut"
    script = ROOT / "scripts" / "photos.py"
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    subprocess.run([sys.executable, script, folder], check=True, env=env)
    return folder


@pytest.fixture(scope="module")
def checkpoint(photos: Path) -> Path:
    """photos_cait_64, a sixth as long."""
    _, recipe = find_recipe("photos_cait_64")
    recipe = replace(recipe, schedule=replace(recipe.schedule, epochs=2))
    return train(recipe, photos.parent / "at 64", photos)


def test_it_learns(checkpoint: Path):
    first, *_, last = losses(checkpoint.parents[1])
    print(f"loss {first:.3f} -> {last:.3f}")
    assert last < 0.7 * first


@pytest.mark.parametrize(
    "size", [(64, 96), *(pytest.param(s, marks=pytest.mark.slow) for s in (96, (96, 64)))], ids=str
)
def test_fine_tuned_from_its_own_export_at_a_higher_resolution(
    checkpoint: Path, photos: Path, size: ImageSize
):
    folder = export(checkpoint, photos.parent / "export")
    _, recipe = find_recipe("photos_cait_64_ft96" if size == 96 else "photos_cait_64_ft64x96")
    recipe = replace(recipe, data=replace(recipe.data, image_size=size))
    tuned = train(recipe, photos.parent / f"at {size}", photos, folder, updates=20)
    _, _, before = trained(checkpoint, image_size=size)
    _, _, after = trained(tuned)
    model, x = models.build(recipe.model, size), photographs(photos, sides(size))
    grid = recipe.model.grid(size)
    assert fit(read_init(str(folder)), model, grid) == Fitted(True, False)
    with torch.no_grad():
        at_start, resampled = model(x).logits, before.model(x).logits
        torch.testing.assert_close(at_start, resampled, rtol=0, atol=TOLERANCE)
        output = after.model(x)
    assert output.grid == grid and (output.logits - resampled).abs().max() > 0.1
    assert timm_logits(export(tuned, photos.parent / f"tuned {size}"), x).allclose(
        output.logits, rtol=0, atol=TOLERANCE
    )
    found = [
        evaluate_checkpoint(each, 60, photos, 0, size)["test_loss"] for each in (checkpoint, tuned)
    ]
    print(f"{size}: test loss {found[0]:.4f} -> {found[1]:.4f}")
    assert found[1] < found[0]


def test_exported_for_images_that_are_not_square(checkpoint: Path, photos: Path):
    for size in ((64, 96), (96, 64)):
        folder = export(checkpoint, photos.parent / f"export {size}", image_size=size)
        _, _, task = trained(checkpoint, image_size=size)
        x = photographs(photos, size)
        with torch.no_grad():
            logits = task.model(x).logits
        torch.testing.assert_close(logits, timm_logits(folder, x), rtol=0, atol=TOLERANCE)


def photographs(photos: Path, size: tuple[int, int]) -> Tensor:
    """Two training images of each photograph (24, 3, H, W), normalised."""
    data = find_recipe("photos_cait_64")[1].data
    source = open_source(data, "train", photos)
    ids = [i for c in range(12) for i in np.flatnonzero(source.targets == c)[:2]]
    pixels = [np.asarray(source.read(int(i)).resize((size[1], size[0]))) for i in ids]
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    return (torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255 - mean) / std


def timm_logits(folder: Path, x: Tensor) -> Tensor:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return model(x)


def test_pictures_and_a_page_of_photographs(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files: list[str] = []
    for name in ("astronaut", "cat"):
        files.append(str(tmp_path / f"{name}.png"))
        Image.fromarray(getattr(skimage.data, name)()).save(files[-1])
    out = tmp_path / "out"
    assert main(["attention", str(checkpoint), *files, "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "index.html")
    page = (out / "index.html").read_text()
    for i, name in enumerate(("astronaut", "cat")):
        assert f'src="{i:03d}_{name}.png"' in page and f"{name}.png</h2>" in page
        with Image.open(out / f"{i:03d}_{name}.png") as picture:
            across, down = picture.width / (192 + 4 + 4), picture.height / (192 + 40 + 4)
            assert (across, down) == (2 + 2, 2)  # image, mean, two heads; two layers
            colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(colours, axis=0)) > 1000
    assert page.count("<li>") == 10 and page.count(" % ") >= 10


def test_branches_of_every_checkpoint(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "branches.png"
    assert main(["branches", str(checkpoint.parents[1]), "--out", str(out)]) == 0
    *lines, said = capsys.readouterr().out.splitlines()
    assert said == str(out)
    with Image.open(out) as picture:
        assert picture.height > 600
    for line in map(json.loads, lines):
        assert len(line["attention"]) == len(line["mlp"]) == 4 + 2
        assert all(0 < ratio < 5 for ratio in (*line["attention"], *line["mlp"]))
    assert json.loads(lines[-1])["update"] == 50


SIDE, PATCH = 32, 8
"""Pixels of an image and of a patch of the synthetic images."""


def informative(folder: Path, split: str, count: int) -> Iterator[tuple[Path, int]]:
    """Gray noise with a class's colour in one patch, or nowhere: files with it, and which patch it
    is. Without the class of none one colour could be told from the others' absence."""
    colours = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230), "none": None}
    draw = np.random.default_rng(0 if split == "train" else 1)
    for name, colour in colours.items():
        target = folder / split / name
        target.mkdir(parents=True)
        for i in range(count):
            pixels = draw.normal(120, 20, (SIDE, SIDE, 1)).clip(0, 255).repeat(3, axis=2)
            row, column = draw.integers(SIDE // PATCH, size=2)
            path = target / f"{i:03d}.png"
            if colour:
                pixels[row * PATCH :, column * PATCH :][:PATCH, :PATCH] = colour
                yield path, int(row * (SIDE // PATCH) + column)
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def test_the_one_informative_patch_has_the_maximum(tmp_path: Path):
    data_root = tmp_path / "data"
    list(informative(data_root, "train", 96))
    tests = list(informative(data_root, "val", 8))
    _, recipe = find_recipe("photos_cait_64")
    second_stage = ClassAttention(1, "class and patches")
    model = CaiT(
        PATCH, 48, 1, 2, 2.0, False, LayerScale(0.1), second_stage, None, False, NO_DROP, 3, 4
    )
    data: Any = recipe.data
    whole = replace(data.crop, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    data = replace(data, dataset="one patch", train_images=384, classes=4, image_size=SIDE)
    data = replace(data, augment=None, mix=None, crop=whole)
    recipe = replace(
        recipe,
        model=model,
        data=data,
        objectives=(CrossEntropy(weight=1.0, smoothing=0.0, class_weights=None),),
        optim=replace(recipe.optim, lr=3e-3),
        batch_size=32,
    )
    model = trained(train(recipe, tmp_path / "run", data_root))
    found = attention_maps(model, [path for path, _ in tests])
    right = 0
    for (path, patch), each in zip(tests, found, strict=True):
        assert each.maps.shape == (1, 2, 4, 4)
        right += int(each.maps.mean(dim=(0, 1)).flatten().argmax()) == patch
        assert each.predictions[0][1] == path.parent.name
    print(f"the informative patch has the maximum in {right} of {len(tests)} images")
    assert right == len(tests) == 24


MEAN = AveragePooling()
LOOKED_AT = {
    "vit": (ViT(4, 32, 3, 4, 2.0, 0.5, ClassToken(0), False, NO_DROP, 3, 10), 3),
    "two by two": (ParallelViT(4, 32, 2, 2, 4, 2.0, 0.5, NO_DROP, 3, 10), 4),
    "inserted": (
        CaiT(4, 32, 3, 4, 2.0, True, LayerScale(0.5), ClassToken(2), None, False, NO_DROP, 3, 10),
        1,
    ),
    "average": (
        CaiT(4, 32, 3, 4, 2.0, True, LayerScale(0.5), MEAN, None, False, NO_DROP, 3, 10),
        0,
    ),
}


@pytest.mark.parametrize(("config", "layers"), LOOKED_AT.values(), ids=LOOKED_AT)
@torch.no_grad()
def test_whatever_has_a_class_token_is_looked_at(config: Any, layers: int):
    model = models.build(config, (12, 16))
    model.init_weights(0)
    found, output = attended(model, torch.randn(2, 3, 12, 16))
    assert len(found) == layers and output.grid == (3, 4)
    for name, maps in found.items():
        assert maps.shape == (2, 4, 12), name
        if not isinstance(config, CaiT):  # with its share of the class token they are a whole
            assert ((0 < maps) & (maps < 1)).all() and (maps.sum(dim=2) < 1).all()


@torch.no_grad()
def test_ratios_of_branches_are_what_the_blocks_add():
    second = ClassAttention(1, "patches")
    config = CaiT(4, 32, 2, 4, 2.0, True, LayerScale(1e-6), second, None, False, NO_DROP, 3, 10)
    model = models.build(config, 12).double()
    model.init_weights(0)
    images = torch.randn(4, 3, 12, 12).double()
    found = branch_ratios(model, images)
    assert found.shape == (3, 2)
    block: Any = model.blocks[0]
    x = model.patch_embed(images)[0] + model.pos_embed
    branch = block.gamma_1 * block.attn(block.norm1(x))
    expected = (branch.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).mean()
    assert found[0, 0].item() == pytest.approx(expected.item(), rel=1e-6)
    for gamma in (block.gamma_1, block.gamma_2):
        gamma.mul_(1000)
    larger = branch_ratios(model, images)
    assert larger[0, 0].item() == pytest.approx(1000 * found[0, 0].item(), rel=1e-3)
    assert larger[1].tolist() == pytest.approx(found[1].tolist(), rel=0.1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["attention", "CHECKPOINT", "nowhere.png"], "nowhere.png: cannot be read"),
        (["attention", "CHECKPOINT", "x.png", "--layers", "0"], "--layers: 0"),
        (
            ["attention", "CHECKPOINT", "PICTURE", "--layers", "99"],
            "--layers: 99 is not allowed; this model has 2 attention layers with a class token",
        ),
        (["attention", "nowhere", "x.png"], "no run folder or checkpoint nowhere"),
        (["branches", "CHECKPOINT", "--images", "0"], "--images: 0"),
        (["branches", "CHECKPOINT", "--data-root", "nowhere"], "nowhere: there is no such folder"),
    ],
)
def test_bad_input_is_one_message(
    args: list[str],
    said: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    picture = tmp_path / "cat.png"
    Image.fromarray(skimage.data.cat()).save(picture)
    named = {"CHECKPOINT": str(checkpoint), "PICTURE": str(picture)}
    assert main([named.get(arg, arg) for arg in args]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
