"""Crops of the two photographs that scikit-learn ships, written in every form; and bad images."""

import gzip
import io
import struct
import zipfile
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bigvit.recipe import Images, RandomResizedCrop, Recipe, StochasticDepth, ThreeAugment
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

CLASSES = ["china", "flower"]
DATA = Images(
    dataset="photographs",
    train_images=60,
    test_images=None,
    classes=2,
    image_size=16,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=ThreeAugment(color_jitter=0.3),
    erasing=0.25,
    repeats=1,
    mix=None,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    test_crop_ratio=1.0,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)
RECIPE: Recipe = replace(
    digits_vit,
    model=replace(
        digits_vit.model,
        patch_size=8,
        embed_dim=16,
        depth=1,
        num_heads=2,
        in_chans=3,
        num_classes=2,
        drop_path=StochasticDepth(rate=0.5, group=4),
    ),
    data=DATA,
    schedule=replace(digits_vit.schedule, epochs=3, warmup_epochs=1),
    batch_size=16,
)
"""Three updates an epoch, nine in all."""


@lru_cache
def photographs() -> list[NDArray[np.uint8]]:
    from sklearn.datasets import load_sample_images

    loaded: Any = load_sample_images()
    return [np.asarray(image) for image in loaded.images]


def crop(number: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """A crop of photograph number % 2; neighbouring numbers are other places."""
    photo = photographs()[number % 2]
    x, y = (number * 37) % (640 - size[0]), (number * 53) % (427 - size[1])
    return Image.fromarray(photo[y : y + size[1], x : x + size[0]])


def equal(a: object, b: object) -> bool:
    """Whether two images, or arrays, hold the same pixels."""
    return np.array_equal(np.asarray(a), np.asarray(b))


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, format, **options)
        return file.getvalue()


def jpegs(count: int, first: int = 0) -> list[tuple[str, int, bytes]]:
    """(name, class, content) in the order of class folders."""
    numbers = sorted(range(first, first + count), key=lambda number: (number % 2, number))
    return [
        (f"{number:03}.jpg", number % 2, encoded(crop(number), "JPEG", quality=90))
        for number in numbers
    ]


def write_folders(root: Path, split: str, images: list[tuple[str, int, bytes]]) -> None:
    for name, target, content in images:
        folder = root / split / CLASSES[target]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def spread(recipe: Recipe, seed: int) -> Task:
    """A task whose predictions differ from image to image: some are right, and some are not even
    among the best five."""
    task, generator = Task(recipe), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task.parameters():
            if parameter.ndim >= 2:
                scale = parameter[0].numel() ** -0.5
                parameter.normal_(0, scale, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return task


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises more than follows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def bad_contents() -> dict[str, bytes | None]:
    """Twelve ways to be no image, by name; None stands for a link that leads nowhere."""
    photo = crop(0, (200, 160))
    jpeg, png = encoded(photo, "JPEG"), encoded(photo)
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.jpg", jpeg)
        zipped = file.getvalue()
    broken = bytearray(png)
    broken[len(png) // 2] ^= 0xFF  # a checksum does not fit
    return {
        "empty.jpg": b"",
        "text.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
        "page.jpg": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "header.jpg": jpeg[:20],
        "enormous.png": png_claiming(50_000, 50_000),
        "broken.png": bytes(broken),
        "zeros.jpg": bytes(5000),
        "archive.jpg": zipped,
        "squeezed.jpg": gzip.compress(jpeg),
        "nowhere.jpg": None,
    }


def write_sixty(root: Path) -> set[str]:
    """60 images for training, the same for testing, of which 12 are bad; their names."""
    write_folders(root, "train", jpegs(48))
    for number, (name, content) in enumerate(bad_contents().items()):
        path = root / "train" / CLASSES[number % 2] / name
        if content is None:
            path.symlink_to("absent")
        else:
            path.write_bytes(content)
    (root / "val").symlink_to("train")
    return {f"{CLASSES[n % 2]}/{name}" for n, name in enumerate(bad_contents())}
