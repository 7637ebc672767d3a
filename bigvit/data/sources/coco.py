"""COCO as it is given out, and what others write in its form: ROOT/annotations/instances_train2017
.json and instances_val2017.json list images that lie in ROOT/train2017/ and ROOT/val2017/ (other
years too, or none: instances_train.json, train/).

Classes are the categories in the order of their numbers, which may have gaps. As torchvision and
detectron2 have it, boxes are clipped to their image, and what is empty then is left out; so are
polygons of less than three corners (detectron2). Crowds are left out of training and kept for
measuring. Images without an object that is left are left out of training, and kept for testing.

Shapes: I images, A annotations, M polygons (or one list of runs for each mask that has runs).
"""

import json
import os
from array import array
from collections import defaultdict
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bigvit.data.sources.folders import FileNames, FileSource, is_below, shown
from bigvit.data.sources.kept import Arrays, kept, marks_of
from bigvit.data.sources.runs import cover
from bigvit.data.sources.source import Split

LISTS = {"train": "instances_train*.json", "test": "instances_val*.json"}
POLYGONS, RUNS, PACKED = range(3)  # how a mask is written: its corners; run lengths; these as text
CORNERS = 6  # numbers of the smallest polygon
LARGE = RecursionError, OverflowError
FAR = 100_000  # pixels: no image is as large, and to draw a polygon takes time as it is long


class Found(NamedTuple):
    """Objects in one image, crowds left out. Shapes: O objects, H x W pixels of the image."""

    boxes: NDArray[np.float64]  # (O, 4) left, top, right, bottom, within the image, pixels
    classes: NDArray[np.int64]  # (O,)
    masks: list[NDArray[np.bool_]]  # (H, W) each


class CocoSource(FileSource):
    """Images with objects. `targets` say nothing of them: an image has no one class."""

    def __init__(self, root: Path, file: Path, arrays: Arrays, split: Split) -> None:
        self.file, self.arrays = file, arrays
        self._own_classes = _texts(arrays["categories"])  # by the numbers in this list
        usable = _usable(arrays)
        first, counts = arrays["first"], np.zeros(len(arrays["sizes"]), np.int64)
        np.add.at(counts, np.repeat(np.arange(len(counts)), np.diff(first)), usable)
        chosen = np.flatnonzero(counts) if split == "train" else np.arange(len(counts))
        self._usable, self._images = usable, chosen
        names = FileNames.of(arrays)
        if len(chosen) < len(counts):
            names = FileNames(names[int(i)] for i in chosen)
        super().__init__(root, names, np.zeros(len(chosen), np.int32), list(self._own_classes))

    def first(self, count: int) -> "CocoSource":
        """The same of its first images."""
        some = copy(self)
        some._images, some.targets = self._images[:count], self.targets[:count]
        some.names = FileNames(self.names[i] for i in range(len(some.targets)))
        return some

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of an image as the list says it, pixels."""
        height, width = self.arrays["sizes"][self._images[index]].tolist()
        return height, width

    @property
    def standing(self) -> NDArray[np.bool_]:
        """Which images are higher than wide (images,)."""
        height, width = self.arrays["sizes"][self._images].T
        return height > width

    def number(self, index: int) -> int:
        """An image's own number in the list."""
        return int(self.arrays["numbers"][self._images[index]])

    def objects(self, index: int) -> Found:
        """What is to be found in an image."""
        arrays, (height, width) = self.arrays, self.size(index)
        here = [each for each in self._annotations(index) if self._usable[each]]
        boxes = clipped(arrays["boxes"][here], height, width)
        classes = np.array([self._class(each) for each in here], np.int64)
        return Found(boxes, classes, [self._mask(each, height, width) for each in here])

    def truth(self, index: int) -> list[dict[str, Any]]:
        """All annotations of an image, crowds too, in COCO's words, for its own measure; but that a
        category is called by its class number, and an image by `index`."""
        arrays, size = self.arrays, self.size(index)
        return [
            {
                "id": int(arrays["ids"][each]) + 1,  # pycocotools takes 0 for none
                "image_id": index,
                "category_id": self._class(each),
                "bbox": arrays["boxes"][each].tolist(),
                "area": float(arrays["areas"][each]),
                "iscrowd": int(arrays["crowds"][each]),
                "segmentation": self._runs(each, *size),
            }
            for each in self._annotations(index)
        ]

    def contents(self) -> NDArray[np.int64]:
        """(images, 2): how many bytes the file has, and a digest of what is told of it."""
        told = ("boxes", "areas", "crowds", "kinds", "categories_of")
        digests = np.empty(len(self), np.int64)
        for index in range(len(self)):
            here = self._annotations(index)
            hasher = xxhash.xxh3_64(self.arrays["sizes"][self._images[index]].tobytes())
            for name in told:
                hasher.update(np.ascontiguousarray(self.arrays[name][here]).tobytes())
            parts = self.arrays["parts"][here.start : here.stop + 1]
            ends = self.arrays["ends"][parts[0] : parts[-1] + 1]
            hasher.update((ends - ends[0]).tobytes())
            hasher.update(self.arrays["values"][ends[0] : ends[-1]].tobytes())
            digests[index] = np.uint64(hasher.intdigest()).astype(np.int64)
        return np.stack([super().contents(), digests], 1)

    def _annotations(self, index: int) -> range:
        image = self._images[index]
        return range(int(self.arrays["first"][image]), int(self.arrays["first"][image + 1]))

    def _class(self, annotation: int) -> int:
        """By the number that its name has in `classes`, which may be another list's."""
        name = self._own_classes[self.arrays["categories_of"][annotation]]
        return self.classes.index(name)

    def _runs(self, annotation: int, height: int, width: int) -> dict[str, Any]:
        """A mask's run lengths, packed as pycocotools does it."""
        arrays, mask = self.arrays, _pycocotools()
        parts = range(int(arrays["parts"][annotation]), int(arrays["parts"][annotation + 1]))
        ends, values = arrays["ends"], arrays["values"]
        each = [values[ends[part] : ends[part + 1]] for part in parts]
        match arrays["kinds"][annotation]:
            case 0:  # POLYGONS
                corners = [part.tolist() for part in each]
                return mask.merge(mask.frPyObjects(corners or [[0.0] * CORNERS], height, width))
            case 1:  # RUNS
                counts = each[0].astype(np.int64).tolist()
                return mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)
            case _:
                return {"size": [height, width], "counts": each[0].astype(np.uint8).tobytes()}

    def _mask(self, annotation: int, height: int, width: int) -> NDArray[np.bool_]:
        runs = self._runs(annotation, height, width)
        return _pycocotools().decode(runs).astype(np.bool_)


def _pycocotools() -> Any:
    from pycocotools import mask

    return mask


def find_coco(root: Path) -> bool:
    """Whether COCO's list of a split is there."""
    return any(any(root.glob(f"annotations/{name}")) for name in LISTS.values())


@lru_cache(maxsize=2)  # read once: for the check before torch is imported, and for training
def open_coco(root: Path, split: Split) -> CocoSource:
    """The images of a split, in the order of their numbers.

    Raises:
        ValueError: there is no list of it, or several; or it is damaged, or says what cannot be; or
            images are not there.
    """
    found = sorted(root.glob(f"annotations/{LISTS[split]}"))
    if len(found) != 1:
        there = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"one annotations/{LISTS[split]} is needed, but there is {there}; keep one year in a "
            "folder"
        )
    file, place = found[0], os.fsencode(root)
    paths = [os.fsencode(file)]
    arrays = kept(f"coco-{split}", place, paths, marks_of(paths), lambda: _listed(file))
    source = CocoSource(root, file, arrays, split)
    if not len(source):
        raise ValueError(f"{file.name} lists no image with an object")
    _refuse_missing(root, file, FileNames.of(arrays), len(arrays["sizes"]))
    return source


def clipped(boxes: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Boxes (O, 4) of left, top, width and height -> of left, top, right and bottom, as much of
    them as lies in the image."""
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    return corners.clip(0, [width, height, width, height])


def _usable(arrays: Arrays) -> NDArray[np.bool_]:
    """Which annotations (A,) are trained on."""
    sizes = np.repeat(arrays["sizes"], np.diff(arrays["first"]), axis=0).astype(np.float64)
    low, high = arrays["boxes"][:, :2], arrays["boxes"][:, :2] + arrays["boxes"][:, 2:]
    extent = np.minimum(high, sizes[:, ::-1]) - np.maximum(low, 0)
    masked = np.diff(arrays["parts"]) > 0
    return (extent > 0).all(1) & masked & ~arrays["crowds"]


class _Annotations:
    """Collects what a list says of objects, as it is read: the rest of it would be gigabytes."""

    def __init__(self) -> None:
        self.numbers = defaultdict[str, "array[Any]"](lambda: array("q"))
        self.boxes, self.areas, self.values = array("d"), array("d"), array("d")
        self.parts, self.ends = array("q", [0]), array("q", [0])

    def hook(self, item: dict[str, Any]) -> Any:
        if "image_id" in item and ("category_id" in item or "bbox" in item):
            return self._add(item)
        if "file_name" in item:
            return item["id"], item["file_name"], int(item["height"]), int(item["width"])
        if "name" in item and "id" in item:
            return item["id"], str(item["name"])
        return item

    def _add(self, item: dict[str, Any]) -> None:
        left, top, width, height = item["bbox"]
        self.boxes.extend((left, top, width, height))
        self.areas.append(item["area"])
        for name in ("id", "image_id", "category_id"):
            self.numbers[name].append(item[name])
        self.numbers["crowd"].append(int(item.get("iscrowd", 0)))
        mask, kind, size = item["segmentation"], POLYGONS, (-1, -1)
        if isinstance(mask, dict):
            counts, size = mask["counts"], mask["size"]
            kind = PACKED if isinstance(counts, str) else RUNS
            mask = [list(counts.encode()) if isinstance(counts, str) else counts]
        elif any(len(part) % 2 for part in mask):
            raise ValueError(f"annotation {item['id']}: a polygon of {len(mask[0])} numbers")
        elif any(part and (max(part) > FAR or min(part) < -FAR) for part in mask):
            raise ValueError(f"annotation {item['id']}: a polygon {FAR:,} pixels away and more")
        self.numbers["kind"].append(kind)
        self.numbers["height"].append(size[0])
        self.numbers["width"].append(size[1])
        for part in mask:
            if kind != POLYGONS or len(part) >= CORNERS:
                self.values.extend(part)
                self.ends.append(len(self.values))
        self.parts.append(len(self.ends) - 1)


def _listed(file: Path) -> Arrays:
    """What a list says, as arrays."""
    told = _Annotations()
    try:
        with file.open("rb") as opened:
            listed = json.load(opened, object_hook=told.hook)
        images = sorted(listed["images"])
        categories = sorted(listed["categories"])
        numbers = np.array([number for number, *_ in images], np.int64)
        named = np.array([number for number, _ in categories], np.int64)
        names = [os.fsencode(name) for _, name, *_ in images]
        every = [size for *_, height, width in images for size in (height, width)]
        sizes = np.array(every, np.int64).reshape(-1, 2)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, *LARGE) as error:
        raise ValueError(
            f"{file.name} is damaged, or not COCO's list of images, annotations and categories "
            f"({type(error).__name__}: {error}); get it again"
        ) from None
    each = {name: np.frombuffer(of, np.int64) for name, of in told.numbers.items()}
    for name in ("id", "image_id", "category_id", "crowd", "kind", "height", "width"):
        each.setdefault(name, np.zeros(0, np.int64))
    said = _Refuse(file, each["id"])
    for what, values in (("images", numbers), ("categories", named), ("annotations", each["id"])):
        distinct = len(np.unique(values)) == len(values)
        said.unless(distinct, f"lists {what} that have the same number")
    texts = [name for _, name in categories]
    said.unless(len(set(texts)) == len(texts), "lists categories that have the same name")
    said.unless(len(set(names)) == len(names), "lists images that have the same file name")
    fits = bool(((sizes > 0) & (sizes <= FAR)).all())
    said.unless(fits, f"lists an image of a side that is not 1 to {FAR:,} pixels")
    image, known = _places(numbers, each["image_id"])
    said.of_first(~known, "is of image {}, which it does not list", each["image_id"])
    category, known = _places(named, each["category_id"])
    said.of_first(~known, "is of category {}, which it does not list", each["category_id"])
    own = np.stack([each["height"], each["width"]], 1)
    other = (each["kind"] != POLYGONS) & (own != sizes[image]).any(1)
    said.of_first(other, "has a mask of another size than its image, {}", each["image_id"])
    boxes = np.frombuffer(told.boxes, np.float64).reshape(-1, 4)
    areas, values = (np.frombuffer(of, np.float64) for of in (told.areas, told.values))
    finite = np.isfinite(boxes).all(1) & np.isfinite(areas)
    said.of_first(~finite, "has a box or an area that is not of finite numbers")
    said.unless(bool(np.isfinite(values).all()), "has masks that are not of finite numbers")
    parts, ends = (np.frombuffer(of, np.int64) for of in (told.parts, told.ends))
    for at in np.flatnonzero(each["kind"] != POLYGONS):
        runs, packed = values[ends[parts[at]] : ends[parts[at] + 1]], each["kind"][at] == PACKED
        whole = cover(runs, packed, int(sizes[image[at]].prod()))
        said.unless(whole, f"is damaged: annotation {each['id'][at]} is not of all its image")
    if strange := next((name for name in names if not is_below(name)), None):
        raise ValueError(
            f"{file.name} names a file outside of it, {shown(strange)!r}; names must lead from the "
            "images' folder down"
        )
    folder = os.fsencode(file.stem.removeprefix("instances_"))
    return {
        **FileNames(os.path.join(folder, name) for name in names).arrays(),
        "categories": np.frombuffer("\0".join(texts).encode(), np.uint8),
        "numbers": numbers,
        "sizes": sizes,
        **_by_image(image, len(numbers), category, each, boxes, areas, (parts, ends, values)),
    }


def _by_image(
    image: NDArray[np.int64],
    images: int,
    category: NDArray[np.int64],
    each: dict[str, NDArray[np.int64]],
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    masks: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
) -> Arrays:
    """Annotations in the order of their images, and within one as they are listed."""
    order, (parts, ends, values) = np.argsort(image, kind="stable"), masks
    first = np.searchsorted(image[order], np.arange(images + 1))
    counts = np.diff(parts)[order]
    chosen = _runs_of(parts[:-1][order], counts)
    lengths = np.diff(ends)[chosen]
    return {
        "first": first.astype(np.int64),
        "ids": each["id"][order],
        "categories_of": category[order],
        "crowds": each["crowd"][order].astype(np.bool_),
        "kinds": each["kind"][order].astype(np.uint8),
        "boxes": boxes[order],
        "areas": areas[order],
        "parts": np.concatenate([[0], counts.cumsum()]).astype(np.int64),
        "ends": np.concatenate([[0], lengths.cumsum()]).astype(np.int64),
        "values": values[_runs_of(ends[:-1][chosen], lengths)],
    }


def _runs_of(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers start, start + 1, ... of each run, one run after the other."""
    before = np.repeat(starts - np.concatenate([[0], counts.cumsum()[:-1]]), counts)
    return before.astype(np.int64) + np.arange(int(counts.sum()))


def _places(
    of: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where numbers stand in an ascending list, and whether they do."""
    places = np.searchsorted(of, wanted).clip(0, max(0, len(of) - 1))
    known = of[places] == wanted if len(of) else np.zeros(len(wanted), np.bool_)
    return places.astype(np.int64), known


class _Refuse(NamedTuple):
    """Says what of a list cannot be."""

    file: Path
    ids: NDArray[np.int64]

    def unless(self, fine: bool, what: str) -> None:
        if not fine:
            raise ValueError(f"{self.file.name} {what}; mend it")

    def of_first(self, wrong: Any, what: str, values: Any = None) -> None:
        """Where annotations are wrong (A,), by the first of them."""
        if not wrong.any():
            return
        at = int(wrong.argmax())
        said = what.format("" if values is None else values[at])
        more = f" ({int(wrong.sum()):,} of {len(wrong):,} are so)"
        raise ValueError(f"{self.file.name}: annotation {self.ids[at]} {said}{more}; mend the list")


def _refuse_missing(root: Path, file: Path, names: FileNames, count: int) -> None:
    """Refuse a list of images that are not there."""
    there, missing = dict[bytes, set[bytes]](), 0
    first = b""
    for index in range(count):
        folder, name = os.path.split(names[index])
        if folder not in there:
            try:
                there[folder] = set(os.listdir(os.path.join(os.fsencode(root), folder)))
            except OSError:
                there[folder] = set()
        if name not in there[folder]:
            first, missing = first or names[index], missing + 1
    if missing:
        raise ValueError(
            f"{missing:,} of {count:,} images that {file.name} lists are not there "
            f"({shown(first)}, ...); unpack them into {root.name}/"
        )


def _texts(joined: NDArray[np.uint8]) -> list[str]:
    text = joined.tobytes().decode()
    return text.split("\0") if text else []
