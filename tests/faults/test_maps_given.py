"""Label maps that are not there, damaged, of other images or classes, or not the run's are refused
in one message; the same ones are taken from wherever they lie."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small import content

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from mapped import write_maps  # noqa: E402
from pictures import DATA, jpegs, write_folders  # noqa: E402

from bigvit.checkpoint.trained import trained  # noqa: E402
from bigvit.cli import main as bigvit  # noqa: E402
from bigvit.data.label_maps.form import signed  # noqa: E402
from bigvit.data.label_maps.maps import LabelMaps  # noqa: E402
from bigvit.data.sources import open_source  # noqa: E402
from bigvit.train import main  # noqa: E402

FILE = """
import sys
sys.path.insert(0, {data!r})
from dataclasses import replace
from bigvit.recipe import Digits, LVViT, LinearStochasticDepth, Mix, ReLabel, TokenLabeling
from bigvit.recipes.digits import digits_vit
from pictures import DATA, RECIPE
plain = replace(RECIPE, data=replace(DATA, test_images=0))
relabelled = replace(plain, objectives=(ReLabel(1.0, 0.1),))
model = LVViT((8,), (8,), 4, 16, 1, 2, 2.0, 1.0, True, LinearStochasticDepth(0.0, 4), 3, 2)
labels = TokenLabeling(1.0, 0.1, "map")
tokens = replace(plain, model=model, objectives=(*plain.objectives, labels))
mixed = replace(tokens, data=replace(tokens.data, mix=Mix(0.8, 0.0, 0.5, 4)))
image = TokenLabeling(1.0, 0.1, "image")
both = replace(tokens, objectives=(*tokens.objectives, image))
digits = replace(digits_vit, objectives=(ReLabel(1.0, 0.1),))
headless = replace(plain, objectives=(*plain.objectives, labels))
"""
Make = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, their maps and those of others, and a run that was stopped."""
    root = tmp_path_factory.mktemp("mapped")
    for name, first in (("photographs", 0), ("others", 60)):
        write_folders(root / name, "train", jpegs(60, first))
        write_maps(open_source(DATA, "train", root / name), root / f"maps of {name}")
    renamed = root / "renamed"
    shutil.copytree(root / "photographs", renamed)
    (renamed / "train" / "flower").rename(renamed / "train" / "flora")
    write_maps(open_source(DATA, "train", renamed), root / "maps of renamed")
    file = FILE.format(data=str(Path(__file__).parents[1] / "data"))
    (root / "own.py").write_text(file)
    assert main(words(root, "tokens", "run", "photographs", "--stop-after", 2)) == 85
    return root


@pytest.fixture
def root(mapped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mapped, tmp_path / "all"))


def words(root: Path, name: str, run: str, maps: str | None, *more: object) -> list[str]:
    given = [] if maps is None else ["--label-maps", root / f"maps of {maps}"]
    data = [] if name == "digits" else ["--data-root", root / "photographs"]
    how = ["--engine", "single", "--workers", "0", "--run-dir", root / run, *data, *given]
    return [f"{root / 'own.py'}:{name}", *map(str, (*how, *more))]


def fresh(root: Path, maps: str | None = "photographs", name: str = "tokens") -> list[str]:
    return words(root, name, "fresh", maps, "--stop-after", 2)


def resumed(root: Path, maps: str | None, *more: object) -> list[str]:
    return words(root, "tokens", "run", maps, "--resume", "auto", "--stop-after", 3, *more)


def incomplete(root: Path) -> list[str]:
    (root / "maps of photographs" / "manifest.json").unlink()
    return fresh(root)


def cut_off(root: Path) -> list[str]:
    with (root / "maps of photographs" / "maps_00001.bin").open("r+b") as file:
        file.truncate(100)
    return fresh(root)


def another(root: Path) -> list[str]:
    """Maps of the same images, of which one says something else."""
    folder = root / "maps of photographs"
    said = json.loads((folder / "manifest.json").read_text())
    said["files"][1] = "0" * 32
    (folder / "manifest.json").write_text(json.dumps(signed(said)))
    return resumed(root, "photographs")


def reshaped(root: Path) -> list[str]:
    """As many cells, of another shape."""
    path = root / "maps of photographs" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": [5, 3]}))
    return fresh(root)


CASES: dict[str, tuple[Make, str]] = {
    "none": (lambda r: fresh(r, None), "tokens learns from label maps; make them by"),
    "none at resume": (lambda r: resumed(r, None), "learns from label maps; make them by"),
    "for a recipe without": (
        lambda r: fresh(r, name="plain"),
        "maps of photographs: plain learns from no label maps; leave it out",
    ),
    "no folder": (lambda r: fresh(r, "nothing"), "there is no manifest.json, so they are not comp"),
    "not complete": (incomplete, "there is no manifest.json, so they are not complete; run"),
    "cut off": (cut_off, "maps_00001.bin has 100 bytes and not"),
    "of another shape": (reshaped, "manifest.json is not as it was written; get it again"),
    "of other images": (lambda r: fresh(r, "others"), "60 of 60 images have no map (train/china/"),
    "of other classes": (
        lambda r: fresh(r, "renamed"),
        "they are of 2 classes and the images of 2, class 1 is 'flora' and 'flower'",
    ),
    "others at resume": (another, "holds a run with other label maps than"),
    "with mixup": (
        lambda r: fresh(r, name="mixed"),
        "data.mix: Mix is not allowed where patches learn from label maps, as a patch would",
    ),
    "two labels for a patch": (
        lambda r: fresh(r, name="both"),
        "patches have one label each, from their map or of their image",
    ),
    "of digits": (
        lambda r: fresh(r, name="digits"),
        "objectives.0: ReLabel is not allowed; the digits have no label maps",
    ),
    "without a head on patches": (
        lambda r: fresh(r, name="headless"),
        "TokenLabeling is not allowed; this ViT has no head on patches",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_they_are_refused_in_one_message_and_nothing_is_written(
    case: str, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make, message = CASES[case]
    command = make(root)
    before = content(root)
    assert main(command) == 2
    error = capfd.readouterr().err
    assert message in error and "Traceback" not in error
    assert error.count("error:") == 1
    assert content(root) == before


def test_the_same_maps_are_taken_from_elsewhere_and_others_where_it_is_meant(root: Path) -> None:
    (root / "maps of photographs").rename(root / "maps of elsewhere")
    assert main(resumed(root, "elsewhere")) == 85
    (root / "maps of elsewhere").rename(root / "maps of photographs")
    more = ("--allow-change", "label_maps.digest")
    command = another(root)
    command[command.index("--stop-after") + 1] = "4"
    assert main([*command, *more]) == 85


def test_a_model_with_a_head_on_patches_says_what_they_are(root: Path) -> None:
    """Learning from maps, it may make the next one's; here with random weights, beside them."""
    out = root / "maps of its own"
    given = ["--data-root", str(root / "photographs"), "--out", str(out)]
    sizes = ["--image-size", "24", "40", "--top", "2", "--workers", "0"]
    assert bigvit(["label-maps", str(root / "run"), *given, *sizes]) == 0
    maps = LabelMaps(out)
    assert maps.form.cells == (3, 5)
    model = trained(root / "run", (24, 40)).task.model
    source = open_source(DATA, "train", root / "photographs")
    name = source.name(7)
    with Image.open(root / "photographs" / name) as image:
        pixels = np.asarray(image.convert("RGB").resize((40, 24), Image.Resampling.BICUBIC))
    mean, std = np.array(DATA.mean), np.array(DATA.std)
    images = torch.from_numpy((pixels / 255 - mean) / std).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        logits = model.eval()(images).dense[0].view(3, 5, 2)
    classes, scores = maps.read(name)
    best = logits.sort(dim=-1, descending=True)
    assert np.array_equal(classes, best.indices)
    np.testing.assert_allclose(scores, best.values, rtol=2e-3, atol=2e-3)


def test_one_that_is_damaged_stops_the_training_and_is_named(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (root / "maps of photographs").glob("maps_*.bin"):
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    command = fresh(root)
    command[command.index("--stop-after") + 1] = "9"
    assert main(command) == 1
    error = capfd.readouterr().err
    assert "holds no sound map of train/" in error and "Traceback" not in error
