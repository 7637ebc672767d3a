"""What a start reads of a data set: names by the block, each folder once, and of images nothing."""

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import CLASSES

from bigvit import keyed_random
from bigvit.data.index import describe
from bigvit.data.sampler import Sampler
from bigvit.data.sources import folders
from bigvit.data.sources.folders import FileNames, FileSource, open_classes, shown
from bigvit.data.sources.hugging_face import (
    HuggingFaceSource,
    find_parquet,
    open_parquet,
    open_saved,
)

ODD = [
    b"\xff.png",
    b"two\nlines.png",
    b" a b .jpg",
    "é ü.jpg".encode(),
    "\u200b.jpg".encode(),
    b"\\n",
]


def each_by_its_own(source: Any) -> bytes:
    """As a checkpoint's digest was made of names before there were blocks."""
    return b"".join(source.name(index).encode() + b"\0" for index in range(len(source)))


@pytest.mark.parametrize("count", [1, 127, 128, 129, 256, 300])
@pytest.mark.parametrize("odd", [(), ODD], ids=["plain", "odd"])
def test_names_by_the_block_are_those_of_each_image(count: int, odd: list[bytes]) -> None:
    names = [b"n%04d/n%04d_%d.JPEG" % (i // 9, i // 9, 7 * i) for i in range(count)]
    names[-1:] = [*odd, names[-1]]  # in the last block alone, or on an end
    targets = np.zeros(len(names), np.int32)
    source = FileSource(Path("x"), FileNames(names), targets, ["a"])
    assert b"".join(source.all_names()) == each_by_its_own(source)
    assert each_by_its_own(source) == b"".join(shown(n).encode() + b"\0" for n in names)


@pytest.mark.parametrize(
    "paths",
    [
        [None] * 5,
        ["a.jpg", "b c.png", "é.jpg"],
        ["a.jpg", None, "", "two\nlines.jpg", "zero\0byte.jpg", "\u200b", None, "b.jpg"],
        [f"n{i}.JPEG" for i in range(70)],
    ],
    ids=["null", "plain", "odd", "many"],
)
def test_names_by_the_column_are_those_of_each_row(
    paths: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import ClassLabel, Dataset, Features, Image, concatenate_datasets

    monkeypatch.setattr("bigvit.data.sources.hugging_face.ROWS", 32)
    kinds = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    parts: list[Dataset] = []
    for some in (paths[:2], paths[2:]):  # a chunk each
        cells = [{"bytes": b"x", "path": path} for path in some]
        parts.append(Dataset.from_dict({"image": cells, "label": [0] * len(some)}, kinds))
    source = HuggingFaceSource(concatenate_datasets(parts), "train")
    assert b"".join(source.all_names()) == each_by_its_own(source)


def resident(file: Path) -> int:
    """Bytes of a file that are in memory."""
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    arguments = (start, len(mapped), pages.ctypes.data)
    assert ctypes.CDLL(None).mincore(*map(ctypes.c_void_p, arguments)) == 0
    return int((pages & 1).sum()) * mmap.PAGESIZE


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_of_images_in_tables_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    kinds = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    content = np.random.default_rng(0).bytes(1 << 17)
    cells = [{"bytes": content, "path": f"{i}.jpg"} for i in range(200)]
    rows = Dataset.from_dict({"image": cells, "label": [i % 2 for i in range(200)]}, kinds)
    root = tmp_path / "root"
    if form == "saved":
        DatasetDict({"train": rows}).save_to_disk(root)
    else:
        root.mkdir()
        rows.to_parquet(root / "train.parquet")

    def opened() -> HuggingFaceSource:
        if form == "saved":
            return open_saved(root, "train")
        return open_parquet(root, find_parquet(root), "train")

    wanted = describe(opened())  # parquet is converted here, once
    gc.collect()
    (file,) = tmp_path.glob("**/*.arrow")
    with file.open("rb") as held:
        os.fsync(held.fileno())
        os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(file):
        pytest.skip("this file system keeps what it is to forget")
    source = opened()
    assert describe(source) == wanted and source.contents().tolist() == [1 << 17] * 200
    assert resident(file) < file.stat().st_size / 20
    assert source.rows[199]["image"]["bytes"] == content


def many(tmp_path: Path) -> Path:
    """More images than one process looks at, as `folders.CHUNK` is in these tests."""
    for number in range(60):
        path = tmp_path / "set/train" / f"class {number % 7}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(number))
    return tmp_path / "set"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders are listed at a time, by processes, and what is found is kept."""
    monkeypatch.setattr(folders, "CHUNK", 30)
    monkeypatch.setattr(folders, "FOLDERS", 2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What processes were asked."""
    seen: list[str] = []
    run = subprocess.run

    def seeing(command: list[str], **options: Any) -> Any:
        seen.append(command[-1])
        return run(command, **options)

    monkeypatch.setattr(folders.subprocess, "run", seeing)
    yield seen


def test_many_folders_are_listed_once_and_as_few_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    root = many(tmp_path)
    for name in ODD[:3]:
        with open(os.path.join(os.fsencode(root), b"train/class 3", name), "wb") as file:
            file.write(b"12")
    wanted = open_classes(root, "train")
    sizes = wanted.contents().tolist()
    assert not asked
    monkeypatch.setattr(folders, "CHUNK", 30)
    monkeypatch.setattr(folders, "FOLDERS", 2)
    with ThreadPoolExecutor(8) as ranks:
        found = list(ranks.map(lambda _: open_classes(root, "train"), range(8)))
    assert asked == ["images"] * 4
    for source in (*found, open_classes(root, "train")):
        assert [source.names[i] for i in range(63)] == [wanted.names[i] for i in range(63)]
        assert np.array_equal(source.targets, wanted.targets) and len(source) == 63
        assert source.classes == wanted.classes
    assert asked == ["images"] * 4
    assert found[0].contents().tolist() == sizes and "sizes" in asked


def added(folder: Path) -> None:
    (folder / "new.jpg").write_bytes(b"x")


def removed(folder: Path) -> None:
    (folder / "002.jpg").unlink()


def renamed(folder: Path) -> None:
    (folder / "002.jpg").rename(folder / "002.png")


def replaced(folder: Path) -> None:
    """By a folder with the same names and times, elsewhere until now."""
    other = folder.with_name(".other")
    other.mkdir()
    for file in list(folder.iterdir())[1:]:
        (other / file.name).write_bytes(file.read_bytes())
    status = folder.stat()
    folder.rename(folder.with_name(".before"))
    other.rename(folder)
    os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def renamed_class(folder: Path) -> None:
    folder.rename(folder.with_name("class 9"))


def a_new_class(folder: Path) -> None:
    (folder.with_name("class 10")).mkdir()
    added(folder.with_name("class 10"))


def changed(folder: Path) -> None:
    (folder / "002.jpg").write_bytes(b"of another length")


CHANGES = [added, removed, renamed, replaced, renamed_class, a_new_class, changed]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_class_folder_is_noticed(
    tmp_path: Path, small_chunks: None, asked: list[str], change: Any
) -> None:
    root = many(tmp_path)
    before = describe(open_classes(root, "train"))
    assert describe(open_classes(root, "train")) == before and asked.count("images") == 4
    change(root / "train/class 2")
    source = open_classes(root, "train")
    after = describe(source)
    names = sorted(path.relative_to(root).as_posix() for path in root.glob("train/class*/*"))
    assert sorted(source.name(i) for i in range(len(source))) == names
    assert (after["digest"] != before["digest"]) == (change is not changed)
    assert after["contents"] != before["contents"] or change in (renamed, renamed_class)


def test_what_had_not_settled_counts_for_a_minute(
    tmp_path: Path, small_chunks: None, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = many(tmp_path)
    open_classes(root, "train")
    monkeypatch.setattr("bigvit.data.sources.kept.FRESH", 0)
    open_classes(root, "train")
    assert asked.count("images") == 8
    monkeypatch.setattr("bigvit.data.sources.kept.SETTLED", -(10**9) * 60)
    open_classes(root, "train")
    assert asked.count("images") == 8


@pytest.mark.parametrize("cache", ["cache", "train/class 1/001.jpg"])
def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """Also where nothing can be kept; and where processes cannot be had, it is looked at here."""
    root = many(tmp_path)
    wanted = describe(open_classes(root, "train"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / cache))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert describe(open_classes(root, "train")) == wanted
    circle = [b"train/class %d" % i for i in range(1, 8)]
    (root / "train/class 7").symlink_to("class 7")
    with pytest.raises(OSError, match="class 7"):
        folders._listed(os.fsencode(root), circle)  # pyright: ignore
    monkeypatch.setattr(folders, "marks_of", lambda paths, _: np.zeros((len(paths), 4), np.int64))
    with pytest.raises(OSError, match="class 7"):
        folders._listed(os.fsencode(root), circle)  # pyright: ignore


def test_the_next_order_is_made_while_this_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    permutation = keyed_random.permutation

    def seen(n: int, *key: Any) -> Any:
        made.append(key[-1])
        return permutation(n, *key)

    monkeypatch.setattr(keyed_random, "permutation", seen)
    sampler = Sampler(1001, 1, 100, 77)
    ids = list[int]()
    for number in range(25):
        epoch, _, images = sampler.batch(number)
        assert number != 4 or made == [0]
        if number == 6 and sampler._ahead is not None:  # pyright: ignore
            sampler._ahead.join()  # pyright: ignore
            assert made == [0, 1]
        ids += images.tolist()
        assert epoch == number // 10
    assert made == [0, 1, 2] or made == [0, 1, 2, 3]
    for epoch in range(2):
        here = ids[1000 * epoch : 1000 * (epoch + 1)]
        assert sorted(here) == sorted(permutation(1001, "order", 77, epoch)[:1000].tolist())
    assert sampler.batch(3)[2].tolist() == ids[300:400]  # back, as nothing is said of the way
