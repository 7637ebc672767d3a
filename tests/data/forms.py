"""The same small data set of photographs in every form that is read."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pictures import CLASSES, DATA, crop, jpegs, write_folders

from bigvit.data import sources
from bigvit.data.sources import open_source
from bigvit.data.sources.shards import ShardSource

TRAIN, TEST = 8, 4


def splits() -> dict[str, list[tuple[str, int, bytes]]]:
    return {"train": jpegs(TRAIN), "test": jpegs(TEST, first=TRAIN)}


def tables() -> dict[str, Any]:
    """The same images as Hugging Face data sets."""
    from datasets import ClassLabel, Dataset, Features, Image

    kinds = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    return {
        split: Dataset.from_dict(
            {
                "image": [{"bytes": content, "path": name} for name, _, content in images],
                "label": [target for _, target, _ in images],
            },
            features=kinds,
        )
        for split, images in splits().items()
    }


def folders(root: Path) -> None:
    for split, name in (("train", "train"), ("test", "val")):
        write_folders(root, name, splits()[split])


def folders_with_test(root: Path) -> None:
    for split in ("train", "test"):
        write_folders(root, split, splits()[split])


def parquet(root: Path) -> None:
    root.mkdir(exist_ok=True)
    tables()["train"].select(range(5)).to_parquet(root / "train-00000-of-00002.parquet")
    tables()["train"].select(range(5, TRAIN)).to_parquet(root / "train-00001-of-00002.parquet")
    tables()["test"].to_parquet(root / "validation-00000-of-00001.parquet")


def parquet_below(root: Path) -> None:
    (root / "data").mkdir(parents=True)
    tables()["train"].to_parquet(root / "data" / "train-00000-of-00001.parquet")
    tables()["test"].to_parquet(root / "data" / "test-00000-of-00001.parquet")


def saved(root: Path) -> None:
    from datasets import DatasetDict

    DatasetDict({"train": tables()["train"], "validation": tables()["test"]}).save_to_disk(root)


def write_shard(path: Path, members: list[tuple[str, bytes]], **options: Any) -> None:
    """A tar archive of files, by Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as shard:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))


def members(images: list[tuple[str, int, bytes]]) -> list[tuple[str, bytes]]:
    """Of each image the class and the content, in webdataset's order."""
    found: list[tuple[str, bytes]] = []
    for name, target, content in images:
        found += [(f"{name[:-4]}.cls", b"%d" % target), (name, content)]
    return found


def shards(root: Path) -> None:
    train = splits()["train"]
    write_shard(root / "set-train-000.tar", members(train[:5]))
    write_shard(root / "set-train-001.tar", members(train[5:]))
    write_shard(root / "set-validation-000.tar", members(splits()["test"]))
    (root / "classnames.txt").write_text("\n".join(CLASSES) + "\n")


def pixels(count: int, first: int, size: int) -> NDArray[np.uint8]:
    """(count, size, size, 3)"""
    return np.stack([np.asarray(crop(n, (size, size))) for n in range(first, first + count)])


def write_cifar(root: Path, fine: bool) -> None:
    root.mkdir(parents=True)
    names = "fine_label_names.txt" if fine else "batches.meta.txt"
    (root / names).write_text("\n".join(CLASSES) + "\n\n")
    files = (
        [("train.bin", 0, 10)]
        if fine
        else [(f"data_batch_{i}.bin", 2 * i - 2, 2) for i in range(1, 6)]
    )
    for name, first, count in (*files, ("test.bin" if fine else "test_batch.bin", 10, 4)):
        images = pixels(count, first, 32).transpose(0, 3, 1, 2).reshape(count, -1)
        fine_or_only = np.arange(first, first + count, dtype=np.uint8)[:, None] % 2
        coarse = [np.full_like(fine_or_only, 7)] if fine else []
        np.concatenate([*coarse, fine_or_only, images], axis=1).tofile(root / name)


def write_idx(root: Path, zipped: bool) -> None:
    root.mkdir(exist_ok=True)
    for split, first, count in (("train", 0, 10), ("t10k", 10, 4)):
        images = np.stack(
            [np.asarray(crop(n, (28, 20)).convert("L")) for n in range(first, first + count)]
        )
        labels = np.arange(first, first + count, dtype=np.uint8) % 2
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = np.array([0x800 + values.ndim, *values.shape], ">i4")
            content = header.tobytes() + values.tobytes()
            path = root / f"{split}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)


JPEG = jpegs(1)[0][2]
PAIR = [("a.cls", b"1"), ("a.jpg", JPEG)]


def opened(root: Path) -> ShardSource:
    """The training images, as a new process would find them."""
    sources._open.cache_clear()  # pyright: ignore
    found = open_source(DATA, "train", root)
    assert isinstance(found, ShardSource)
    return found
