"""Maps of labels on disk: written, killed, resumed, looked up, damaged."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigvit.data.label_maps.form import BadMaps, Form, Names, Teacher, hashes_of
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.labelling.write import Writer, shard_of
from bigvit.ranks.joining import Ranks

CLASSES = [f"class {n}" for n in range(70_000)]  # more than two bytes count
ALONE = Ranks(0, 1, torch.device("cpu"), None, hosts=("here",))


class Listed:
    """Images that are only named."""

    def __init__(self, names: list[str], classes: list[str] = CLASSES) -> None:
        self.names, self.classes, self.targets = names, classes, np.zeros(len(names), int)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def all_names(self) -> Iterator[bytes]:
        yield b"".join(name.encode() + b"\0" for name in self.names[:7])
        yield b"".join(name.encode() + b"\0" for name in self.names[7:])

    def contents(self) -> Any:
        return self.targets

    def open(self, index: int) -> Any:
        raise AssertionError

    read = open


NAMES = [f"train/n{n % 5}/photo é {n}.jpg" for n in range(50)]


def form(classes: list[str] = CLASSES, top: int = 3) -> Form:
    teacher = Teacher("timm:one", "0" * 32, (96, 64))
    return Form(0, (3, 2), top, tuple(classes), 16, "", teacher)


def map_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """What the image of a name has; class numbers up to the last."""
    random = np.random.default_rng(hashes_of([name.encode()])[0])
    classes = random.integers(0, len(CLASSES), (3, 2, 3))
    classes[0, 0] = len(CLASSES) - 1, 2049, 0
    return classes, random.normal(0, 9, (3, 2, 3)).astype(np.float16)


def make(folder: Path, names: list[str] = NAMES, changed: Form | None = None) -> LabelMaps:
    writer = Writer(folder, changed or form(), Listed(names), ALONE)
    for number in writer.todo:
        each = [map_of(names[row]) for row in writer.form.rows(number)]
        writer.write(number, *map(np.stack, zip(*each, strict=True)))
    return writer.finish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "maps"
    make(folder)
    return folder


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "maps")
    return tmp_path / "maps"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_map_is_found_by_its_name(folder: Path) -> None:
    maps = LabelMaps(folder)
    maps.verify()
    maps.check(Listed(NAMES[::-1]))  # any order, and fewer
    maps.check(Listed(NAMES[3:9]))
    for name in reversed(NAMES):
        for found, wanted in zip(maps.read(name), map_of(name), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_record_is_of_the_bytes_that_the_docs_say() -> None:
    def size(classes: int) -> int:
        names = tuple(map(str, range(classes)))
        return Form(1_281_167, (18, 18), 5, names, 1024, "", form().teacher).nbytes

    assert size(1000) == 1_281_167 * (8 + 18 * 18 * 5 * 4)  # 8.31 GB
    assert size(65_537) == 1_281_167 * (8 + 18 * 18 * 5 * 6)
    assert shard_of(1_281_167) == 1024


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_point_it_goes_on_to_the_same_maps(
    folder: Path, tmp_path: Path, every: int
) -> None:
    """At each flush to the disk, which stand before and after each renaming; or at some."""
    wanted, flush, kill = contents(folder), os.fsync, 0
    for kill in range(every, 40, every):
        there, left = tmp_path / str(kill), kill
        if (child := os.fork()) == 0:

            def dies(descriptor: int) -> None:
                nonlocal left
                if (left := left - 1) == 0:
                    os._exit(9)
                flush(descriptor)

            os.fsync = dies
            make(there)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        if not (there / "manifest.json").exists():
            with pytest.raises(BadMaps, match="not complete"):
                LabelMaps(there)
        make(there)
        assert contents(there) == wanted
    flushes = 2 * (1 + 4 + 3)  # the job, files, names, lookup and manifest
    assert flushes < kill <= flushes + every


def damage(folder: Path, name: str, at: int) -> None:
    content = bytearray((folder / name).read_bytes())
    content[at] ^= 1
    (folder / name).write_bytes(content)


def test_a_damaged_map_is_told_when_it_is_read_and_by_the_digest(copied: Path) -> None:
    damage(copied, "maps_00001.bin", 30)
    maps = LabelMaps(copied)
    with pytest.raises(BadMaps, match=r"maps_00001.bin holds no sound map of .* 16\.jpg"):
        maps.read(NAMES[16])
    maps.read(NAMES[17])
    with pytest.raises(BadMaps, match=r"maps_00001.bin is not as it was written"):
        maps.verify()


def test_reordered_files_are_told(copied: Path) -> None:
    one, other, aside = (copied / name for name in ("maps_00000.bin", "maps_00001.bin", "x"))
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    maps = LabelMaps(copied)
    with pytest.raises(BadMaps, match="of another image"):
        maps.read(NAMES[0])
    with pytest.raises(BadMaps, match=r"maps_00000.bin is not as it was written"):
        maps.verify()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("maps_00002.bin", "maps_00002.bin is missing"),
        ("lookup.bin", "lookup.bin is missing"),
        ("manifest.json", "not complete"),
    ],
)
def test_what_is_missing_is_named(copied: Path, name: str, words: str) -> None:
    (copied / name).unlink()
    with pytest.raises(BadMaps, match=words):
        LabelMaps(copied)


def test_a_cut_file_and_an_odd_manifest_are_told(copied: Path) -> None:
    with (copied / "maps_00003.bin").open("ab") as file:
        file.truncate(40)
    with pytest.raises(BadMaps, match=r"maps_00003.bin has 40 bytes and not"):
        LabelMaps(copied)
    said = json.loads((copied / "manifest.json").read_text())
    for odd, words in (
        ({"format": 2}, "format 2"),
        ({"cells": 3}, "TypeError"),
        ({"top": 0}, "cannot be"),
    ):
        (copied / "manifest.json").write_text(json.dumps(said | odd))
        with pytest.raises(BadMaps, match=words) as met:
            LabelMaps(copied)
        assert "\n" not in str(met.value)


def test_images_without_a_map_and_other_classes_are_named(folder: Path) -> None:
    maps = LabelMaps(folder)
    with pytest.raises(BadMaps, match=r"2 of 52 images have no map \(a.jpg, b.jpg\); .* timm:one"):
        maps.check(Listed([*NAMES, "a.jpg", "b.jpg"]))
    with pytest.raises(BadMaps, match=r"other/photo.jpg has no map"):
        maps.read("other/photo.jpg")
    with pytest.raises(BadMaps, match=r"class 1 is 'class 1' and 'wren'"):
        maps.check(Listed(NAMES, ["class 0", "wren"]))


def test_another_job_is_not_gone_on_with(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(BadMaps, match="another top: 3 there, 2 now"):
        make(copied, changed=form(top=2))
    with pytest.raises(BadMaps, match="another names"):
        make(copied, [*NAMES[:-1], "train/new.jpg"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").touch()
    with pytest.raises(BadMaps, match=r"holds photo.jpg"):
        make(tmp_path / "full")
    with pytest.raises(BadMaps, match=r"two images are called"):
        make(tmp_path / "twice", [*NAMES[:20], NAMES[0]])
    held = Writer(tmp_path / "held", form(), Listed(NAMES), ALONE)
    with pytest.raises(BadMaps, match="another command"):
        make(tmp_path / "held")
    scores = np.full((16, 3, 2, 3), 7e4)
    with pytest.raises(BadMaps, match=r"photo é 0.jpg are not finite, or beyond 65,504"):
        held.write(0, np.zeros((16, 3, 2, 3), int), scores)
    held.release()


def test_what_was_damaged_before_the_end_is_made_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path, form(), Listed(NAMES), ALONE)
    for number in writer.todo:
        each = [map_of(NAMES[row]) for row in writer.form.rows(number)]
        writer.write(number, *map(np.stack, zip(*each, strict=True)))
    damage(tmp_path, "maps_00002.bin", 100)
    with pytest.raises(BadMaps, match="has been removed; run the command again"):
        writer.finish()
    make(tmp_path).verify()


def test_names_are_hashed_as_they_are_looked_up() -> None:
    names = Names(b"".join(name.encode() + b"\0" for name in NAMES))
    assert [names[row].decode() for row in range(len(names))] == NAMES
    np.testing.assert_array_equal(names.hashes(), hashes_of([n.encode() for n in NAMES]))
