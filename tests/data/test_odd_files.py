"""What may lie in a data set and is no ordinary image: pipes, devices, endless files, images of one
line, lists that name files elsewhere. Each is one bad image, soon and in little memory; or is
refused."""

import errno
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import CLASSES, DATA, crop, encoded, jpegs, write_folders
from PIL import Image

from bigvit.data import augment, loader
from bigvit.data.augment import crop as crops
from bigvit.data.decode import BadImage, image_of
from bigvit.data.sources import Source, open_source
from bigvit.recipe import SimpleRandomCrop

LIMITED = """
import resource, sys, time
import numpy, PIL.Image
began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from pathlib import Path
from bigvit.data.decode import BadImage
from bigvit.data.sources.folders import open_folders
source = open_folders(Path(sys.argv[1]), "train")
for index in range(len(source)):
    try:
        source.read(index)
        print(source.name(index), "read")
    except BadImage as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began) // 1024)
"""


def png(width: int, height: int, row: bytes) -> bytes:
    """A valid gray PNG of equal rows, deflated: a few kilobytes may be any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + row) * height, 9)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's whole path may be of 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(encoded(crop(0), "JPEG"))
        file.truncate(2 << 30)


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe.jpg": (pipe, "not a file"),
    "socket.jpg": (listening, "No such device or address"),
    "zero.jpg": (lambda path: path.symlink_to("/dev/zero"), "not a file"),
    "terminal.jpg": (lambda path: path.symlink_to("/dev/ptmx"), "not a file"),
    "to_pipe.jpg": (lambda path: path.symlink_to("pipe.jpg"), "not a file"),
    "folder.jpg": (lambda path: path.symlink_to(".."), ""),
    "circle.jpg": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "sparse.jpg": (sparse, "2,147,483,648 bytes, more than 1,073,741,824"),
    "kernel.jpg": (lambda path: path.symlink_to("/proc/self/maps"), "empty"),
    "bomb.png": (lambda path: void(path.write_bytes(png(20_000, 20_000, bytes(20_000)))), "bomb"),
}


def void(_: object) -> None:
    """Nothing."""


def test_what_is_no_file_or_too_large_is_a_bad_image_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "china"
    write_folders(tmp_path, "train", jpegs(2))
    for name, (make, _) in ODD.items():
        make(folder / name)
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *lines, grown = done.stdout.splitlines()
    said = dict(line.removeprefix("train/china/").split(": ", 1) for line in lines if ": " in line)
    expected = {name: reason for name, (_, reason) in ODD.items() if reason}
    assert said.keys() == expected.keys()
    assert all(expected[name] in said[name] for name in said), said
    assert sum(line.endswith(" read") for line in lines) == 2
    assert int(grown) < 200, "MiB"


@pytest.mark.parametrize("make", [pipe, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_of_the_users_own_that_is_none_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "photo.jpg")
    with pytest.raises(ValueError, match="photo.jpg: cannot be read .*not a file"):
        image_of(tmp_path / "photo.jpg", DATA)


LINES = [(1, 20_000), (20_000, 1), (1, 1_000_000), (3, 100_000), (100_000, 2)]


@pytest.mark.parametrize("size", LINES, ids=str)
def test_an_image_of_one_line_is_trained_and_tested_on(size: tuple[int, int]) -> None:
    """Resized until it covers 224 x 224, 1 x 20,000 would be of 3 GB."""
    data = replace(DATA, image_size=224, crop=SimpleRandomCrop(4, "bicubic"), augment=None)
    long = np.arange(max(size)) * 255 // max(size)
    array = np.broadcast_to(long if size[0] > size[1] else long[:, None], size[::-1])
    image = Image.fromarray(array.astype(np.uint8)).convert("RGB")
    tested = augment.test_image(image, data)
    assert tested.shape == (3, 224, 224)
    assert np.abs(tested.astype(int) - 127).max() <= 2, "the middle"
    seen: list[float] = []
    for slot in range(8):
        for each in (data, replace(DATA, image_size=224, erasing=0.0)):
            pixels = augment.apply(image, augment.draw(each, 0, 0, slot, image.size))
            assert pixels.shape == (3, 224, 224)
            seen.append(float(pixels.mean()))
    assert max(seen) - min(seen) > 50, "another place each time"


def reference_central(image: Image.Image, size: int, ratio: float) -> Image.Image:
    """The whole image resized, and cropped then: torchvision's Resize and CenterCrop."""
    short = int(size / ratio)
    w, h = image.size
    if w <= h:
        wide, high = short, int(short * h / w)
    else:
        wide, high = int(short * w / h), short
    left, top = round((wide - size) / 2), round((high - size) / 2)
    whole = image.resize((wide, high), Image.Resampling.BICUBIC)
    return whole.crop((left, top, left + size, top + size))


@pytest.mark.parametrize("size", [(640, 427), (40, 300), (1, 50), (13, 400), (224, 224), (600, 7)])
@pytest.mark.parametrize("ratio", [1.0, 0.875])
def test_ordinary_images_have_the_pixels_that_they_had(size: tuple[int, int], ratio: float) -> None:
    generator = np.random.default_rng(7)
    image = Image.fromarray(generator.integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    found = crops.taken(image, crops.central(224, ratio, image.size))
    assert np.array_equal(np.asarray(found), np.asarray(reference_central(image, 224, ratio)))


def test_the_part_that_is_kept_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of photographs, up to the order of rounding."""
    monkeypatch.setattr(crops, "WHOLE", 0)
    for number, size in enumerate([(630, 40), (30, 420), (5, 400), (400, 400), (300, 200)]):
        image = crop(number, size)
        one = np.asarray(crops.taken(image, crops.central(64, 0.9, size))).astype(int)
        other = np.asarray(reference_central(image, 64, 0.9)).astype(int)
        assert np.abs(one - other).mean() < 0.1 and np.abs(one - other).max() <= 3, size


def test_a_machine_that_opens_no_file_is_not_an_image_that_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every image would be replaced by another, and the run end for them."""
    from bigvit.data.decode import Unread

    write_folders(tmp_path, "train", jpegs(60))
    source = open_source(DATA, "train", tmp_path)

    def failing(number: int) -> Callable[..., int]:
        def fail(*_: object, **__: object) -> int:
            raise OSError(number, os.strerror(number))

        return fail

    monkeypatch.setattr(os, "open", failing(errno.EIO))
    with pytest.raises(BadImage, match="^train/china/000.jpg: Input/output error"):
        source.read(0)
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        monkeypatch.setattr(os, "open", failing(number))
        with pytest.raises(Unread, match=os.strerror(number)):
            source.read(0)
        with pytest.raises(Unread, match=os.strerror(number)):
            next(loader.test_batches(source, DATA, 4, 0, 1, 0))
        with pytest.raises(Unread, match=os.strerror(number)):  # from a worker, in one line
            next(loader.test_batches(source, DATA, 4, 0, 1, 1))
        assert not multiprocessing.active_children(), "at its end Python would wait for it"


@pytest.mark.parametrize("name", ["/etc/passwd", "../above.jpg", "a/../../above.jpg", "a\0b.jpg"])
def test_a_list_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    import json

    root = tmp_path / "root"
    (root / "train_val2018/a").mkdir(parents=True)
    (root / "train_val2018/a/1.jpg").write_bytes(encoded(crop(0), "JPEG"))
    files = ["train_val2018/a/1.jpg", name]
    listed = {
        "images": [{"id": i, "file_name": file} for i, file in enumerate(files)],
        "annotations": [{"image_id": i, "category_id": 0} for i in range(2)],
    }
    for split in ("train", "val"):
        (root / f"{split}2018.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match="train2018.json names a file outside of it"):
        open_source(replace(DATA, classes=1, train_images=2), "train", root)


def test_links_of_class_folders_are_followed_wherever_they_lead(tmp_path: Path) -> None:
    """As who laid them out wants it: data sets are put together from links."""
    write_folders(tmp_path / "elsewhere", "train", jpegs(60))
    (tmp_path / "root/train").mkdir(parents=True)
    for name in CLASSES:
        (tmp_path / "root/train" / name).symlink_to(tmp_path / "elsewhere/train" / name)
    source: Source = open_source(DATA, "train", tmp_path / "root")
    assert source.read(0).size == (40, 32) and len(source) == 60
