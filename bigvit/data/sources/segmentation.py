"""Images with a class for each pixel, as two files of one name: the image, and a PNG whose values
are class numbers (ADE20K's published form, and whatever is laid out like it).

A palette of a map is not looked up: its indices are the classes. 255 is a pixel whose class is not
told, whatever the recipe says of 0.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import BadImage, content_of
from bigvit.data.sources import look
from bigvit.data.sources.folders import FileNames, FileSource, shown
from bigvit.data.sources.source import Source, Split
from bigvit.recipe import Segmentation
from bigvit.recipe.scene import UNTOLD

SPLITS = {"train": ("training", "train"), "test": ("validation", "val", "valid", "test")}
IMAGES = ("images", "image", "img")
MAPS = ("annotations", "labels", "masks", "annotation")
CLASSES = "objectInfo150.txt"
LOOKED_AT = 16  # maps, evenly over a split, before anything heavy is loaded
PNG = b"\x89PNG\r\n\x1a\n"
GRAY, PALETTE = 0, 3  # PNG's colour types
KINDS = {0: "gray", 2: "RGB", 3: "palette", 4: "gray with alpha", 6: "RGB with alpha"}

Zero = Literal["class", "not told"]


class Labelled(Source, Protocol):
    """Images whose pixels have classes."""

    def labels(self, index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """The class of each pixel (H, W), UNTOLD where none is told.

        Args:
            size: (width, height) of the image, which its map must have, too.

        Raises:
            BadImage: the map cannot be read, is no map of classes, or not of this image.
        """
        ...


class MappedFiles(FileSource):
    """Image files below a folder, and a map of classes for each."""

    def __init__(
        self, root: Path, names: FileNames, maps: FileNames, count: int, data: Segmentation
    ) -> None:
        """
        Args:
            maps: paths from the root, too.
        """
        super().__init__(root, names, np.zeros(count, np.int32), class_names(root, data.classes))
        self.maps, self.count = maps, data.classes
        self.zero: Zero = data.zero

    def all_names(self) -> Iterator[bytes]:
        yield from super().all_names()
        yield from self.maps.shown()

    def contents(self) -> NDArray[np.int64]:
        paths = [os.path.join(self.root, self.maps[index]) for index in range(len(self))]
        return np.stack([super().contents(), np.array([look.size(path) for path in paths])], axis=1)

    def labels(self, index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        path = self.maps[index]
        content = content_of(os.path.join(self.root, path), shown(path))
        return read_map(content, shown(path), size, self.count, self.zero)


def read_map(
    content: bytes, name: str, size: tuple[int, int], classes: int, zero: Zero
) -> NDArray[np.uint8]:
    """The classes (H, W) that a PNG's values are.

    Args:
        size: (width, height) of the image that it is of.
        zero: what its 0 means.

    Raises:
        BadImage: it is no such PNG, of another size, or has a class that there is not.
    """
    if content[:8] != PNG or content[12:16] != b"IHDR" or len(content) < 33:
        raise BadImage(name, "a map of classes must be a PNG" if content else "empty")
    depth, kind = content[24], content[25]
    if kind not in (GRAY, PALETTE) or depth > 8:
        said = f"{depth}-bit {KINDS.get(kind, 'strange')}"
        raise BadImage(name, f"a map of classes must be an 8-bit gray or palette PNG, not {said}")
    try:
        opened = Image.open(io.BytesIO(content), formats=("PNG",))
        if opened.size != size:
            (width, height), (across, down) = opened.size, size
            said = f"its map has {width} x {height} pixels, and the image {across} x {down}"
            raise BadImage(name, said)
        values = np.array(opened, np.uint8)
    except BadImage:
        raise
    except Exception as error:  # PIL raises what it meets
        raise BadImage(name, str(error).replace("\n", " ") or type(error).__name__) from None
    if kind == GRAY and 1 < depth < 8:  # Pillow spreads them over 0 to 255
        values //= 255 // (2**depth - 1)
    told = values != UNTOLD
    if zero == "not told":
        told &= values != 0
        values -= 1  # 0 becomes UNTOLD
    if (above := told & (values >= classes)).any():
        most = int(values[above].max())
        written = f", written {most + 1}" if zero == "not told" else ""
        said = f"it has class {most}{written}; the recipe's are 0 to {classes - 1} (data.classes)"
        raise BadImage(name, said)
    return np.where(told, values, np.uint8(UNTOLD))


def class_names(root: Path, count: int) -> list[str]:
    """As ADE20K's list has them, if it is there; else their numbers.

    Raises:
        ValueError: the list cannot be read.
    """
    file = root / CLASSES
    if not file.is_file():
        return [str(number) for number in range(count)]
    rows = [line.split("\t") for line in file.read_text(errors="replace").splitlines()[1:]]
    filled = [[field.strip() for field in row if field.strip()] for row in rows]
    named = {row[0]: row[-1] for row in filled if len(row) > 1}
    if list(named) != [str(number + 1) for number in range(len(named))]:
        raise ValueError(f"{CLASSES} is damaged: its lines are not numbered from 1; get it again")
    names = list(named.values())
    # two of ADE20K's full names could be one word; numbers tell them apart
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({i})" if name in twice else name for i, name in enumerate(names)]


def open_mapped(data: Segmentation, split: Split, root: Path) -> MappedFiles:
    """The images of a split that lie at a root.

    Raises:
        ValueError: the split is not there, or an image has no map.
    """
    folders = _folders(root, split)
    if folders is None:
        wanted = " or ".join(f"images/{name}/" for name in SPLITS[split])
        raise ValueError(f"there is no {wanted} with its maps in annotations/, labels/ or masks/")
    within, below = (os.fsencode(folder) for folder in folders)
    images = look.images(os.path.join(os.fsencode(root), within))
    found = {_stem(name): name for name in look.images(os.path.join(os.fsencode(root), below))}
    if not images:
        raise ValueError(f"{folders[0]}/ has no images")
    stems = [_stem(name) for name in images]
    if len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise ValueError(f"{folders[0]}/ has two images called {shown(twice)}")
    if without := [name for name in images if _stem(name) not in found]:
        raise ValueError(
            f"{len(without):,} of {len(images):,} images in {folders[0]}/ have no map of the same "
            f"name in {folders[1]}/ ({shown(without[0])}, ...); add them, or remove the images"
        )
    names = FileNames(os.path.join(within, name) for name in images)
    maps = FileNames(os.path.join(below, found[stem]) for stem in stems)
    return MappedFiles(root, names, maps, len(images), data)


def refuse_no_maps(source: Labelled) -> None:
    """Look at a few maps: where most of them are no maps of classes, all will be bad.

    Raises:
        ValueError: they are not, and why.
    """
    ids = np.unique(np.linspace(0, len(source) - 1, LOOKED_AT).round().astype(int)).tolist()
    reasons = list[str]()
    for id in ids:
        try:
            image: Any = source.open(id)
        except BadImage:
            continue  # the image's own fault
        try:
            source.labels(id, image.size)
        except BadImage as error:
            reasons.append(str(error))
    if 2 * len(reasons) > len(ids):
        raise ValueError(
            f"{len(reasons)} of {len(ids)} maps that were looked at cannot be used: {reasons[0]}"
        )


def _folders(root: Path, split: Split) -> tuple[str, str] | None:
    """Of a split's images and its maps, from the root: as ADE20K's, or each split's own."""
    for name in SPLITS[split]:
        for form in ("{kind}/{split}", "{split}/{kind}"):
            pairs = (
                tuple(form.format(kind=kind, split=name) for kind in pair)
                for pair in ((image, map) for image in IMAGES for map in MAPS)
            )
            for images, maps in pairs:
                if (root / images).is_dir() and (root / maps).is_dir():
                    return images, maps
    return None


def _stem(name: bytes) -> bytes:
    return os.path.splitext(name)[0]
