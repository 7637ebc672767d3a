"""Images with a class for each pixel, as others write them: PNG byte by byte, ADE20K's folders."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.recipe import Distortion, Segmentation

DATA = Segmentation(
    dataset="scenes",
    train_images=6,
    test_images=3,
    classes=4,
    zero="not told",
    image_size=(24, 32),
    longest=80,
    shortest=40,
    factor=(0.5, 2.0),
    most_of_one=0.75,
    flip=0.5,
    distortion=Distortion(32, (0.5, 1.5), (0.5, 1.5), 18),
    repeats=1,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    stride=16,
)
OBJECTS = """Idx\tRatio\tTrain\tVal\tName
1\t0.1576\t11664\t1172\twall                            
2\t0.1072\t6046\t612\tbuilding, edifice              
3\t0.0878\t8265\t796\tsky                            
4\t0.0621\t9336\t917\tfloor, flooring                
"""
"""The first lines of ADE20K's list, as it is."""


def png(values: NDArray[Any], kind: int = 0, depth: int = 8, palette: bytes = b"") -> bytes:
    """A PNG of values (H, W) or (H, W, channels), whatever they mean.

    Args:
        kind: 0 gray, 2 RGB, 3 palette, 4 gray with alpha.
        depth: bits of a value.
    """
    height, width = values.shape[:2]
    rows = values.reshape(height, -1)
    if depth == 16:
        packed = rows.astype(">u2").view(np.uint8)
    else:
        bits = np.unpackbits(rows.astype(np.uint8)[..., None], axis=2)[..., 8 - depth :]
        packed = np.packbits(bits.reshape(height, -1), axis=1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), packed], axis=1)
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b"")]
    if palette:
        chunks.insert(1, (b"PLTE", palette))
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        content += struct.pack(">I", len(data)) + name + data
        content += struct.pack(">I", zlib.crc32(name + data))
    return content


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def scene(seed: int, height: int, width: int, classes: int = 4) -> tuple[bytes, NDArray[np.uint8]]:
    """A photograph-like JPEG, and its classes, 0 being none: three blocks of one each."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (5, 6, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    labels = np.zeros((height, width), np.uint8)
    for place in np.array_split(np.arange(width), 3):
        labels[:, place] = generator.integers(0, classes + 1)
    labels[: height // 3] = generator.integers(1, classes + 1)
    return jpeg(pixels), labels


def ade20k(root: Path, train: int = 6, test: int = 3, objects: bool = True) -> Path:
    """ADE20K's folders with scenes of several sizes."""
    for split, part, count in (("training", "train", train), ("validation", "val", test)):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            image, labels = scene(i + 1000 * (part == "val"), 37 + 5 * (i % 8), 61 - 3 * (i % 8))
            name = f"ADE_{part}_{i + 1:08d}"
            (root / "images" / split / f"{name}.jpg").write_bytes(image)
            (root / "annotations" / split / f"{name}.png").write_bytes(png(labels))
    if objects:
        (root / "objectInfo150.txt").write_text(OBJECTS)
    return root
