"""An image that was changed under its own name between a stop and a resume is noticed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import (
    folders,
    members,
    parquet,
    saved,
    shards,
    splits,
    write_cifar,
    write_idx,
    write_shard,
)
from pictures import CLASSES, DATA, RECIPE, jpegs, write_folders

from bigvit.checkpoint.manifest import read_manifest, write_manifest
from bigvit.data import sources
from bigvit.data.index import describe
from bigvit.data.sources import open_source
from bigvit.train import main

pytestmark = pytest.mark.usefixtures("own_signals")


def train(folder: Path, *args: object) -> int:
    path = folder / "own.py"
    path.write_text(f"from bigvit.recipe import *\nphotos = {RECIPE!r}\n")
    options = ("--data-root", folder / "data", "--run-dir", folder / "run", "--engine", "single")
    return main([f"{path}:photos", *map(str, (*options, "--workers", 0, *args))])


def write(root: Path) -> None:
    write_folders(root, "train", jpegs(60))
    write_folders(root, "val", jpegs(6, first=60))


@pytest.mark.parametrize("name", ["train/china/004.jpg", "val/flower/061.jpg"])
def test_a_changed_image_is_refused_until_it_is_allowed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path / "data")
    assert train(tmp_path, "--stop-after", 2) == 85
    file = tmp_path / "data" / name
    file.write_bytes(jpegs(1, first=99)[0][2])
    assert train(tmp_path, "--resume", "auto") == 2
    said = capfd.readouterr().err
    split = "train" if name.startswith("train") else "test"
    assert "is of a run on other data" in said and f"index.{split}.contents: " in said
    assert "digest" not in said and f"--allow-change index.{split}.contents" in said
    allowed = ("--allow-change", f"index.{split}.contents")
    assert train(tmp_path, "--resume", "auto", "--stop-after", 4, *allowed) == 85


def test_a_checkpoint_that_says_nothing_of_it_is_taken_up(tmp_path: Path) -> None:
    """As bigvit wrote them before; what they say is still compared."""
    write(tmp_path / "data")
    assert train(tmp_path, "--stop-after", 2) == 85
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("step_*")
    manifest = read_manifest(checkpoint)
    assert manifest.data is not None
    before = {split: dict(values) for split, values in manifest.data.items()}
    for values in before.values():
        del values["contents"]
    write_manifest(checkpoint, replace(manifest, data=before))
    (tmp_path / "data/train/china/004.jpg").write_bytes(jpegs(1, first=99)[0][2])
    (tmp_path / "data/train/china/004.jpg").rename(tmp_path / "data/train/china/005.jpg")
    sources._open.cache_clear()  # pyright: ignore
    assert train(tmp_path, "--resume", "auto") == 2
    (tmp_path / "data/train/china/005.jpg").rename(tmp_path / "data/train/china/004.jpg")
    sources._open.cache_clear()  # pyright: ignore
    assert train(tmp_path, "--resume", "auto", "--stop-after", 3) == 85


def change_folders(root: Path) -> None:
    file = root / "train/china/000.jpg"
    file.write_bytes(file.read_bytes() + b"\0")


def change_parquet(root: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    file = root / "train-00001-of-00002.parquet"
    table = parquet.read_table(file)
    images = table.column("image").to_pylist()
    images[1]["bytes"] += b"\0"
    changed = pa.array(images, table.schema.field("image").type)
    parquet.write_table(table.set_column(0, table.schema.field("image"), changed), file)


def change_shard(root: Path) -> None:
    images = members(splits()["train"][5:])
    images[3] = images[3][0], images[3][1] + b"\0"
    write_shard(root / "set-train-001.tar", images)


def change_byte(root: Path) -> None:
    file = root / "data_batch_3.bin"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (folders, change_folders),
        (parquet, change_parquet),
        (shards, change_shard),
        (lambda root: write_cifar(root, False), change_byte),
    ],
    ids=["folders", "parquet", "shards", "CIFAR"],
)
def test_contents_are_described_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, change: Any
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    make(tmp_path / "root")

    def described() -> dict[str, Any]:
        sources._open.cache_clear()  # as a new process  # pyright: ignore
        return describe(open_source(DATA, "train", tmp_path / "root"))

    before = described()
    assert described() == before
    change(tmp_path / "root")
    after = described()
    assert after.pop("contents") != before.pop("contents") and after == before


def test_saved_images_are_measured(tmp_path: Path) -> None:
    saved(tmp_path / "root")
    source = open_source(DATA, "train", tmp_path / "root")
    assert list(source.contents()) == [len(content) for _, _, content in jpegs(8)]


def test_idx_pixels_are_described(tmp_path: Path) -> None:
    write_idx(tmp_path, True)
    assert open_source(DATA, "train", tmp_path).contents().shape == (10, 20, 28)


def test_sizes_are_those_of_the_files_in_order(tmp_path: Path) -> None:
    write_folders(tmp_path, "train", jpegs(60))
    folder = tmp_path / "train" / CLASSES[0]
    (folder / "001.jpg").symlink_to("absent")
    os.mkfifo(folder / "003.jpg")
    source = open_source(DATA, "train", tmp_path)
    sizes = [
        file.stat().st_size if file.is_file() else -1
        for file in (tmp_path / source.name(index) for index in range(len(source)))
    ]
    assert source.contents().tolist() == sizes and sizes.count(-1) == 2


def test_sizes_of_many_files_are_asked_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 300 files in parts of 128, the last of which is shorter."""
    from bigvit.data.sources import folders as form

    monkeypatch.setattr(form, "CHUNK", 128)
    for number in range(300):
        path = tmp_path / "train" / CLASSES[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(number))
    source = open_source(DATA, "train", tmp_path)
    named = [int(Path(source.name(index)).stem) for index in range(300)]
    assert np.array_equal(source.contents(), named)
