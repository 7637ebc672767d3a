"""`bigvit label-maps`: by one process and by two, one of which is killed; and what it refuses."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
import timm
import torch
from PIL import Image
from timm.models import save_for_hf

from bigvit.cli import main
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.sources import open_source

SIZE, IMAGES = (64, 96), 100


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photographs")
    pictures.write_folders(root, "train", pictures.jpegs(IMAGES))
    return root


def teacher(folder: Path, name: str, **arguments: Any) -> Any:
    """A small model of timm's with random weights, as an export is."""
    torch.manual_seed(3)
    model: Any = timm.create_model(name, num_classes=2, **arguments).eval()
    for parameter in model.parameters():  # timm's heads begin at about zero
        if parameter.shape == (2, model.num_features):
            torch.nn.init.normal_(parameter)
    save_for_hf(model, str(folder), model_args=arguments, safe_serialization=True)
    return model


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = tmp_path_factory.mktemp("resnet")
    model = teacher(folder, "resnet10t", channels=(8, 8, 16, 16), stem_width=8)
    return f"timm:local-dir:{folder}", model


def words(given: str, root: Path, out: Path, top: int = 2) -> list[str]:
    size = map(str, SIZE)
    options = ["--data-root", str(root), "--out", str(out), "--image-size", *size]
    more = ["--top", str(top), "--batch-size", "8", "--workers", "0"]
    return ["label-maps", given, *options, *more]


@pytest.fixture(scope="module")
def made(resnet: tuple[str, Any], root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "maps"
    assert main(words(resnet[0], root, out)) == 0
    return out


def test_a_map_is_the_teachers_layer_on_each_cell_of_the_whole_image(
    resnet: tuple[str, Any], root: Path, made: Path
) -> None:
    model, maps = resnet[1], LabelMaps(made)
    maps.verify()
    source = open_source(pictures.DATA, "train", root)
    maps.check(source)
    assert maps.form.cells == (2, 3) and len(maps) == IMAGES
    assert maps.form.teacher.image_size == SIZE and maps.form.teacher.name == resnet[0]
    for id in (0, 17, 99):
        name = source.name(id)
        image = (
            Image.open(root / name)
            .convert("RGB")
            .resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC)
        )
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        config = model.pretrained_cfg
        mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
        with torch.no_grad():
            features = model.forward_features(((pixels - mean) / std)[None])[0]
            logits = torch.einsum("kd,dhw->hwk", model.fc.weight, features) + model.fc.bias
        classes, scores = maps.read(name)
        best = logits.sort(dim=-1, descending=True)
        assert np.array_equal(classes, best.indices)
        np.testing.assert_allclose(scores, best.values, rtol=2e-3, atol=2e-3)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_two_ranks_one_of_them_killed_make_the_same_maps(
    resnet: tuple[str, Any], root: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "maps"

    def launch() -> list[subprocess.Popen[str]]:
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            port = str(door.getsockname()[1])
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        command = [sys.executable, "-m", "bigvit.cli", *words(resnet[0], root, out)]
        return [
            subprocess.Popen(
                command,
                env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]

    first = launch()
    while not list(out.glob("maps_*.bin")) and first[1].poll() is None:
        time.sleep(0.01)
    first[1].send_signal(signal.SIGKILL)
    said = [each.communicate(timeout=120)[0] for each in first]
    finished = (out / "manifest.json").exists()
    if not finished:
        assert first[0].returncode == 1 and "rank 1 on" in said[0], said
    second = launch()
    said = [each.communicate(timeout=120)[0] for each in second]
    assert [each.returncode for each in second] == [0, 0], said
    assert f"{IMAGES} maps of 2 x 3 cells" in said[0] and said[1] == ""
    assert contents(out) == contents(made)


def test_what_is_complete_is_left_as_it_is(
    resnet: tuple[str, Any], root: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.glob("*.*")}
    assert main(words(resnet[0], root, made)) == 0
    assert {path.name: path.stat().st_mtime_ns for path in made.glob("*.*")} == before
    assert main(words(resnet[0], root, made, top=1)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "another top: 2 there, 1 now" in said
    file = made / "maps_00001.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(words(resnet[0], root, made)) == 2
    assert "maps_00001.bin is not as it was written" in capsys.readouterr().err
    file.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        (
            "vit_tiny_patch16_224",
            {"depth": 1, "embed_dim": 24, "num_heads": 2, "img_size": 64},
            "it has a class token",
        ),
        (
            "convnext_atto",
            {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)},
            "does not classify the mean of a map by one layer",
        ),
    ],
)
def test_teachers_that_say_nothing_of_cells_are_refused(
    name: str,
    arguments: dict[str, Any],
    why: str,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    teacher(tmp_path / "model", name, **arguments)
    assert main(words(f"timm:local-dir:{tmp_path / 'model'}", root, tmp_path / "maps")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and why in said and not (tmp_path / "maps").exists()


def test_a_batch_that_no_memory_holds_is_refused_before_an_image_is_read(
    resnet: tuple[str, Any], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words(resnet[0], root, out := tmp_path / "maps")
    given[given.index("--batch-size") + 1] = str(2**20)
    at = given.index("--image-size")
    given[at + 1 : at + 3] = ["960", "1440"]  # 17 TB of pixels
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--batch-size 1048576 at --image-size" in said
    assert "out of memory (" in said and not list(out.glob("*.bin"))


def test_other_input_is_refused_in_a_line(
    resnet: tuple[str, Any], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "maps"
    (tmp_path / "other" / "train").mkdir(parents=True)
    for number in range(3):
        (folder := tmp_path / "other" / "train" / f"class {number}").mkdir()
        pictures.crop(number).save(folder / "one.jpg")
    bad = tmp_path / "bad"
    pictures.write_folders(bad, "train", [*pictures.jpegs(3), ("x.jpg", 0, b"\xff\xd8\xff none")])
    for given, more, why in (
        (str(tmp_path / "none"), (), "no run folder"),
        (resnet[0], ("--ema",), "--ema"),
        ("timm:no_such_model", (), "timm cannot make it"),
    ):
        assert main([*words(given, root, out), *more]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and why in said
    for data, why in ((tmp_path / "other", "2 classes apart, and the training"), (bad, "x.jpg")):
        assert main(words(resnet[0], data, out)) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and why in said, said
