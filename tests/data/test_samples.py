"""`bigvit samples`: a picture of a training batch."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mapped import write_maps
from pictures import DATA, RECIPE, jpegs, write_folders
from PIL import Image

from bigvit.cli import main
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.recipe import (
    Layout,
    LinearStochasticDepth,
    LVViT,
    Mix,
    MixToken,
    ReLabel,
    Run,
    TokenLabeling,
)
from bigvit.task import Task
from bigvit.visualize.samples import Line, Panel, colour, draw_samples, picture

FILE = """
import sys
sys.path.insert(0, {here!r})
from dataclasses import replace
from bigvit.recipe import Mix
from pictures import DATA, RECIPE
photos = replace(
    RECIPE, data=replace(DATA, mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=4))
)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    write_folders(folder, "train", jpegs(60))
    write_folders(folder, "val", jpegs(4, first=60))
    return folder


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("recipe") / "photos.py"
    file.write_text(FILE.format(here=str(Path(__file__).parent)))
    return f"{file}:photos"


def cells(picture: Path, width: int, height: int) -> int:
    """How many cells of the picture are not blank."""
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[0] % height == 0 and pixels.shape[1] % width == 0
    return sum(
        bool((cell != 255).any())
        for row in np.split(pixels, pixels.shape[0] // height)
        for cell in np.split(row, row.shape[1] // width, axis=1)
    )


def cell_size(root: Path, folder: Path) -> tuple[int, int]:
    """(width, height), as a picture of one cell has it."""
    draw_samples(RECIPE, Run(data_root=root), 0, 1, folder / "one.png")
    with Image.open(folder / "one.png") as image:
        return image.size


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 16])
def test_a_picture_has_a_cell_for_each_image(root: Path, recipe: str, tmp_path: Path, count: int):
    out = tmp_path / "samples.png"
    args = ["samples", recipe, "--data-root", str(root), "--count", str(count), "--out", str(out)]
    assert main(args) == 0
    with Image.open(out) as image:
        assert image.format == "PNG"
    assert cells(out, *cell_size(root, tmp_path)) == count


def test_batches_differ_and_a_batch_is_always_the_same(root: Path, tmp_path: Path):
    run = Run(data_root=root)
    mixed = replace(RECIPE, data=replace(DATA, mix=Mix(0.8, 1.0, 0.5, 4)))
    pictures: dict[str, bytes] = {}
    for name, recipe, number in (
        ("first", mixed, 0),
        ("again", mixed, 0),
        ("fifth", mixed, 5),
        ("plain", RECIPE, 0),
    ):
        draw_samples(recipe, run, number, 8, tmp_path / f"{name}.png")
        pictures[name] = (tmp_path / f"{name}.png").read_bytes()
    assert pictures["first"] == pictures["again"]
    assert len(set(pictures.values())) == 3


def test_long_names_of_classes_stay_below_their_image():
    names = [
        "WWWMMMWWWMMM WWWWWWWWW",
        "Crotalus atrox, the western diamondback rattlesnake of Texas",
    ]
    names += [
        "長い名前の種類の写真の説明が続く名前",
        "hippopotomonstrosesquippedaliophobia" * 3,
        "an ant",
    ]
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    figure = picture([Panel(image, [Line(name)]) for name in names])
    renderer: Any = figure.canvas.get_renderer()  # pyright: ignore[reportAttributeAccessIssue]
    with warnings.catch_warnings():  # the font has no Japanese, and draws boxes
        warnings.simplefilter("ignore")
        for axes in figure.axes:
            room = axes.get_window_extent()
            for text in axes.texts:
                assert text.get_window_extent(renderer).x1 <= room.x1 + 1, text.get_text()
    said = [" ".join(text.get_text() for text in axes.texts) for axes in figure.axes]
    assert said[4] == "an ant" and said[3].endswith("…")
    assert said[1].startswith("Crotalus atrox")


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (5, 1, 7, 12), (1, 3, 130, 90)])
def test_every_pixel_is_a_square_of_its_own_colour(shape: tuple[int, ...], tmp_path: Path):
    images = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).byte()
    figure = picture([Panel(image, [Line("a $x^2$ class")]) for image in images])
    figure.savefig(tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as opened:
        pixels = np.asarray(opened.convert("RGB"))
    for axes, image in zip(figure.axes, images, strict=False):
        left, bottom, right, top = np.rint(axes.get_window_extent().extents).astype(int)
        shown = pixels[len(pixels) - top : len(pixels) - bottom, left:right]
        factor = len(shown) // shape[2]
        wanted = image.permute(1, 2, 0).expand(-1, -1, 3).numpy()
        assert factor >= 1 and (shown == wanted.repeat(factor, 0).repeat(factor, 1)).all()
        assert axes.texts[0].get_text() == "a $x^2$ class"


@pytest.mark.parametrize("mix", [None, MixToken(alpha=1.0, cell=8, group=4)])
def test_label_maps_are_drawn_beside_their_images(root: Path, tmp_path: Path, mix: MixToken | None):
    """As the model sees them: a cell's colour is its best class's, of the image that it is of."""
    model = LVViT((8,), (8,), 4, 16, 1, 2, 2.0, 1.0, True, LinearStochasticDepth(0.0, 4), 3, 2)
    labels = TokenLabeling(1.0, 0.0, "map")
    recipe = replace(
        RECIPE,
        model=model,
        data=replace(DATA, image_size=(16, 32), mix=mix),
        objectives=(ReLabel(1.0, 0.0), labels),
    )
    maps = write_maps(open_source(DATA, "train", root), tmp_path / "maps")
    run, out = Run(data_root=root, label_maps=maps.folder), tmp_path / "samples.png"
    draw_samples(recipe, run, 1, 6, out)
    with Image.open(out) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    source, layout = open_source(DATA, "train", root), Layout(1, 16, 1)
    batches = train_batches(source, recipe, layout, 0, 0, 1, Task(recipe).draws, maps=maps)
    inputs = Prepare(recipe)(next(batches)[0])
    found = inputs.targets.map
    assert found is not None and (inputs.mix is not None) == (mix is not None)
    side = pixels.shape[1] // 6  # two of six images in a row, each beside its map
    for number in range(6):
        row, column = divmod(number, 3)
        left = (2 * column + 1) * side
        top = row * pixels.shape[0] // 2
        panel = pixels[top + 4 : top + 68, left + 4 : left + 132].astype(float)
        for i, j in np.ndindex(2, 4):
            share, best = found[number, i, j].max(dim=-1)
            wanted = 255 * (1 - float(share) * (1 - np.array(colour(int(best)))))
            cell = panel[32 * i + 1 : 32 * i + 31, 32 * j + 1 : 32 * j + 31]
            assert np.abs(cell - wanted).max() <= 1


def test_label_maps_that_are_not_given_or_not_asked_for_are_refused(
    root: Path, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = ["--data-root", str(root), "--out", str(tmp_path / "samples.png")]
    assert main(["samples", recipe, *out, "--label-maps", str(tmp_path)]) == 2
    assert "learns from no label maps" in capsys.readouterr().err
    mapped = tmp_path / "mapped.py"
    more = "photos = replace(photos, objectives=(ReLabel(1.0, 0.1),))\n"
    file = (
        FILE.format(here=str(Path(__file__).parent)) + "from bigvit.recipe import ReLabel\n" + more
    )
    mapped.write_text(file)
    assert main(["samples", f"{mapped}:photos", *out]) == 2
    assert "learns from label maps; make them by `bigvit label-maps`" in capsys.readouterr().err
    assert main(["samples", f"{mapped}:photos", *out, "--label-maps", str(tmp_path)]) == 2
    assert "there is no manifest.json" in capsys.readouterr().err


def test_digits_are_drawn_too(tmp_path: Path):
    out = tmp_path / "digits.png"
    assert main(["samples", "digits_vit", "--count", "5", "--out", str(out)]) == 0
    with Image.open(out) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize(
    "option, value",
    [("--batch", "-1"), ("--batch", "9"), ("--count", "0"), ("--count", "-3"), ("--count", "17")],
)
def test_numbers_that_do_not_exist_are_refused(
    root: Path,
    recipe: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
):
    out = tmp_path / "samples.png"
    args = ["samples", recipe, "--data-root", str(root), "--out", str(out), option, value]
    assert main(args) == 2
    assert f"error: {option}: {value}" in capsys.readouterr().err
    assert not out.exists()


def test_the_last_batch_can_be_drawn(root: Path, recipe: str, tmp_path: Path):
    assert RECIPE.updates == 9 and RECIPE.batch_size == 16
    out = tmp_path / "samples.png"
    args = ["samples", recipe, "--data-root", str(root), "--batch", "8", "--out", str(out)]
    assert main(args) == 0
    assert cells(out, *cell_size(root, tmp_path)) == 16  # all of the batch, as it has below 32


def test_a_place_that_cannot_be_written_and_data_that_are_not_there_are_refused(
    root: Path, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "absent" / "samples.png")
    assert main(["samples", recipe, "--data-root", str(root), "--out", out]) == 2
    assert "absent" in capsys.readouterr().err
    out = str(tmp_path / "samples.png")
    assert main(["samples", recipe, "--data-root", str(tmp_path / "none"), "--out", out]) == 2
    assert "--data-root" in capsys.readouterr().err
    assert main(["samples", recipe, "--out", out]) == 2
    assert "--data-root" in capsys.readouterr().err
    assert len(open_source(DATA, "train", root)) == 60
