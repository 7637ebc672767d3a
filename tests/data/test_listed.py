"""Data sets as publishers pack them, in miniature: Flowers-102, Stanford Cars, Food-101, Pets,
SVHN, DomainNet and CIFAR. torchvision reads the same folders beside us where it knows the form."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import jpegs
from scipy.io import savemat
from torchvision import datasets

from bigvit.data.decode import BadImage
from bigvit.data.sources import Source, open_source, open_splits
from bigvit.recipe import Images
from bigvit.recipe.find import find_recipe

PHOTOS = [content for _, _, content in jpegs(12)]
DATA = find_recipe("drloc_swin_t_cifar100")[1].data
assert isinstance(DATA, Images)


def put(root: Path, names: list[str]) -> None:
    """A photograph in each place."""
    for name, content in zip(names, PHOTOS, strict=False):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def flowers(root: Path) -> None:
    """Eight images of four classes: two to train, two to validate, four to test, not in order."""
    put(root, [f"jpg/image_{n:05d}.jpg" for n in range(1, 9)])
    labels = np.array([[4, 1, 3, 2, 2, 1, 4, 3]], np.uint8)
    savemat(root / "imagelabels.mat", {"labels": labels})
    sets = {"trnid": [[3, 1]], "valid": [[6, 4]], "tstid": [[8, 2, 5, 7]]}
    savemat(root / "setid.mat", {k: np.array(v, np.uint16) for k, v in sets.items()})


def cars(root: Path, beside: bool = True) -> None:
    """Annotations are struct arrays, with boxes; the test images' classes came later."""
    put(root, [f"cars_train/{n:05d}.jpg" for n in range(1, 4)])
    put(root, [f"cars_test/{n:05d}.jpg" for n in range(1, 3)])
    (root / "devkit").mkdir()
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], object)[None]
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": names})
    kind = [(f"bbox_{c}", object) for c in ("x1", "y1", "x2", "y2")]
    for split, numbers in (("train", [2, 1, 2]), ("test", [1, 2])):
        rows = [(39, 116, 569, 375, n, f"{i:05d}.jpg") for i, n in enumerate(numbers, 1)]
        whole = np.array(rows, [*kind, ("class", object), ("fname", object)])[None]
        bare = np.array([(*r[:4], r[5]) for r in rows], [*kind, ("fname", object)])[None]
        given = whole if split == "train" else bare
        savemat(root / "devkit" / f"cars_{split}_annos.mat", {"annotations": given})
        if split == "test":
            place = root if beside else root / "devkit"
            savemat(place / "cars_test_annos_withlabels.mat", {"annotations": whole})


def food(root: Path) -> None:
    split = {
        "train": ["waffles/1005649", "apple_pie/1014775", "apple_pie/1026328"],
        "test": ["apple_pie/1011328", "waffles/101251"],
    }
    put(root, [f"images/{name}.jpg" for names in split.values() for name in names])
    (root / "meta").mkdir()
    (root / "meta" / "classes.txt").write_text("apple_pie\nwaffles")
    (root / "meta" / "labels.txt").write_text("Apple pie\nWaffles")
    for key, names in split.items():
        (root / "meta" / f"{key}.txt").write_text("\n".join(names))
        by_class = {c: [n for n in names if n.startswith(c)] for c in ("apple_pie", "waffles")}
        (root / "meta" / f"{key}.json").write_text(json.dumps(by_class))


def pets(root: Path) -> None:
    train = [("Abyssinian_100", 1), ("american_bulldog_10", 2), ("Abyssinian_101", 1)]
    test = [("american_bulldog_9", 2), ("Abyssinian_1", 1)]
    put(root, [f"images/{name}.jpg" for name, _ in [*train, *test]])
    (root / "annotations").mkdir()
    for file, rows in (("trainval", train), ("test", test)):
        lines = [f"{name} {number} {number} 1\n" for name, number in rows]
        (root / "annotations" / f"{file}.txt").write_text("".join(lines))
    (root / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")


def svhn(root: Path) -> None:
    """Pixels are (H, W, C, images), and the digit 0 is class 10."""
    root.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for split, numbers in (("train", [1, 9, 10, 2, 2]), ("test", [10, 3])):
        x = generator.integers(0, 256, (32, 32, 3, len(numbers)), np.uint8)
        savemat(root / f"{split}_32x32.mat", {"X": x, "y": np.array(numbers, np.uint8)[:, None]})


def domain(root: Path) -> None:
    """The lists lie beside the domain's folder, another domain's too; a class has no test image."""
    train = [("aircraft_carrier", 0), ("zigzag", 2), ("alarm_clock", 1), ("zigzag", 2)]
    test = [("zigzag", 2), ("aircraft_carrier", 0)]
    lines: dict[str, list[str]] = {"train": [], "test": []}
    names: list[str] = []
    for split, rows in (("train", train), ("test", test)):
        for name, number in rows:
            names.append(f"{name}/{root.name}_{number + 1:03d}_{len(names):06d}.jpg")
            lines[split].append(f"{root.name}/{names[-1]} {number}\n")
    put(root, names)
    for split, each in lines.items():
        (root.parent / f"{root.name}_{split}.txt").write_text("".join(each))
        (root.parent / f"sketch_{split}.txt").write_text("sketch/zigzag/sketch_345_000001.jpg 2\n")


PACKED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "flowers": ("flowers-102", flowers),
    "cars": ("stanford_cars", cars),
    "food": ("food-101", food),
    "pets": ("oxford-iiit-pet", pets),
    "svhn": ("svhn", svhn),
    "domain": ("domain_net/clipart", domain),
}


class Flowers(datasets.Flowers102):
    def _check_integrity(self) -> bool:  # of the real files
        return True


class Digits(datasets.SVHN):
    def _check_integrity(self) -> bool:
        return True


def by_torchvision(name: str, root: Path) -> dict[str, list[Any]]:
    """(image, class) of each split, as torchvision reads them."""

    def splits(kind: Any, **of: tuple[str, ...]) -> dict[str, list[Any]]:
        each = {key: [kind(str(root), split=s) for s in names] for key, names in of.items()}
        return {key: [pair for part in parts for pair in part] for key, parts in each.items()}

    match name:
        case "flowers":
            return splits(Flowers, train=("train", "val"), test=("test",))
        case "cars":
            return splits(datasets.StanfordCars, train=("train",), test=("test",))
        case "food":
            return splits(datasets.Food101, train=("train",), test=("test",))
        case "pets":
            return splits(datasets.OxfordIIITPet, train=("trainval",), test=("test",))
        case _:
            root = root / "svhn"
            return splits(Digits, train=("train",), test=("test",))


def sources(root: Path) -> tuple[Source, Source]:
    train, test = open_splits(DATA, root)
    assert test is not None
    return train, test


@pytest.mark.parametrize("name", [name for name in PACKED if name != "domain"])
def test_they_are_what_torchvision_reads(name: str, tmp_path: Path) -> None:
    folder, pack = PACKED[name]
    pack(tmp_path / folder)
    wanted = by_torchvision(name, tmp_path)
    for split, source in zip(("train", "test"), sources(tmp_path / folder), strict=True):
        theirs = [(np.asarray(image.convert("RGB")).tobytes(), n) for image, n in wanted[split]]
        ours = [
            (np.asarray(source.read(i)).tobytes(), int(source.targets[i]))
            for i in range(len(source))
        ]
        assert len(ours) == len(theirs) > 1
        assert sorted(ours) == sorted(theirs), split


def test_classes_have_the_publishers_names(tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    for name, (folder, pack) in PACKED.items():
        pack(tmp_path / folder)
        train, test = sources(tmp_path / folder)
        assert train.classes == test.classes
        found[name] = train.classes
    assert found["flowers"] == ["1", "2", "3", "4"]
    assert found["cars"] == ["AM General Hummer SUV 2000", "Acura RL Sedan 2012"]
    assert found["food"] == ["apple_pie", "waffles"]
    assert found["pets"] == ["Abyssinian", "american_bulldog"]
    assert found["svhn"] == list("0123456789")
    assert found["domain"] == ["aircraft_carrier", "alarm_clock", "zigzag"]


def test_a_domain_has_its_own_lists(tmp_path: Path) -> None:
    domain(tmp_path / "clipart")
    train, test = sources(tmp_path / "clipart")
    assert train.targets.tolist() == [0, 2, 1, 2] and test.targets.tolist() == [2, 0]
    assert train.name(1) == "zigzag/clipart_003_000001.jpg"
    assert train.read(1).size == train.open(1).size


def test_test_classes_of_cars_may_lie_in_the_devkit(tmp_path: Path) -> None:
    cars(tmp_path / "cars", beside=False)
    assert sources(tmp_path / "cars")[1].targets.tolist() == [0, 1]


def test_cars_of_kaggle_lie_one_folder_deeper(tmp_path: Path) -> None:
    cars(tmp_path / "cars")
    cars(tmp_path / "deeper")
    for folder in ("cars_train", "cars_test"):
        (tmp_path / "deeper" / folder).rename(tmp_path / "deeper" / "aside")
        (tmp_path / "deeper" / folder).mkdir()
        (tmp_path / "deeper" / "aside").rename(tmp_path / "deeper" / folder / folder)
    for flat, deep in zip(sources(tmp_path / "cars"), sources(tmp_path / "deeper"), strict=True):
        assert flat.targets.tolist() == deep.targets.tolist() and flat.classes == deep.classes
        assert all(flat.read(i).tobytes() == deep.read(i).tobytes() for i in range(len(flat)))


class Ten(datasets.CIFAR10):
    meta = {**datasets.CIFAR10.meta, "md5": None}  # noqa: RUF012

    def _check_integrity(self) -> bool:
        return True


class Hundred(datasets.CIFAR100):
    meta = {**datasets.CIFAR100.meta, "md5": None}  # noqa: RUF012

    def _check_integrity(self) -> bool:
        return True


TEN = "airplane automobile bird cat deer dog frog horse ship truck".split()
FRUIT = "apple aquarium_fish baby bear".split()  # CIFAR-100's first of 100


def cifar(root: Path, fine: bool) -> None:
    """The same images in both versions that are given out: of bytes, and pickled for Python."""
    rng, names = np.random.default_rng(0), FRUIT if fine else TEN
    binary, python = (
        root / name
        for name in (
            ("cifar-100-binary", "cifar-100-python")
            if fine
            else ("cifar-10-batches-bin", "cifar-10-batches-py")
        )
    )
    binary.mkdir()
    python.mkdir()
    batches = [("train", 12), ("test", 5)]
    if not fine:
        batches = [*((f"data_batch_{i}", 3) for i in range(1, 6)), ("test_batch", 5)]
    for batch, count in batches:
        images = rng.integers(0, 256, (count, 3072), np.uint8)  # red, green, blue planes
        labels, coarse = rng.integers(0, len(names), count), rng.integers(0, 20, count)
        own = {"fine_labels": labels.tolist(), "coarse_labels": coarse.tolist()}
        own = own if fine else {"labels": labels.tolist(), "batch_label": batch}
        (python / batch).write_bytes(pickle.dumps({"data": images, **own}, protocol=2))
        columns = [coarse[:, None], labels[:, None]] if fine else [labels[:, None]]
        np.concatenate([*columns, images], axis=1).astype(np.uint8).tofile(binary / f"{batch}.bin")
    key, file = ("fine_label_names", "meta") if fine else ("label_names", "batches.meta")
    (python / file).write_bytes(pickle.dumps({key: names}, protocol=2))
    listed = "fine_label_names.txt" if fine else "batches.meta.txt"
    (binary / listed).write_text("\n".join(names) + "\n\n")


@pytest.mark.parametrize(("fine", "kind"), [(False, Ten), (True, Hundred)])
def test_cifar_in_bytes_is_what_torchvision_unpickles(
    fine: bool, kind: Any, tmp_path: Path
) -> None:
    cifar(tmp_path, fine)
    folder = "cifar-100-binary" if fine else "cifar-10-batches-bin"
    for train, source in zip((True, False), sources(tmp_path / folder), strict=True):
        theirs = kind(str(tmp_path), train=train)
        assert source.classes == theirs.classes and len(source) == len(theirs) > 4
        for i, (image, number) in enumerate(theirs):
            assert source.read(i).tobytes() == image.tobytes() and source.targets[i] == number


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no images": ("flowers", lambda r: (r / "jpg").rename(r / "other"), "jpg/ is missing; unpack"),
    "cut list": (
        "flowers",
        lambda r: (r / "setid.mat").write_bytes((r / "setid.mat").read_bytes()[:150]),
        "Flowers-102: a list is damaged .*setid.mat.*; get it again",
    ),
    "class 0": (
        "flowers",
        lambda r: savemat(r / "imagelabels.mat", {"labels": np.array([[0] * 8])}),
        r"image 0 of the list \(jpg/image_00008.jpg\) is of class 0, not of 1 to 0",
    ),
    "no test classes": (
        "cars",
        lambda r: (r / "cars_test_annos_withlabels.mat").unlink(),
        "cars_test_annos_withlabels.mat is missing; get it, too",
    ),
    "old test classes": (
        "cars",
        lambda r: (r / "devkit" / "cars_test_annos.mat").rename(
            r / "cars_test_annos_withlabels.mat"
        ),
        "says no classes",
    ),
    "other class": (
        "food",
        lambda r: (r / "meta" / "test.txt").write_text("pizza/1\n"),
        "Food-101: a list is damaged .*pizza.*; get it again",
    ),
    "empty": (
        "pets",
        lambda r: (r / "annotations" / "test.txt").write_text("\n"),
        "its list of images to test is empty",
    ),
    "elsewhere": (
        "pets",
        lambda r: (r / "annotations" / "test.txt").write_text("../../../x 1 1 1\n"),
        "a list names a file outside of its folder",
    ),
    "no number": (
        "domain",
        lambda r: (r.parent / "clipart_test.txt").write_text("clipart/zigzag/a.jpg\n"),
        "DomainNet: a list is damaged",
    ),
    "another domain": (
        "domain",
        lambda r: (r.parent / "clipart_test.txt").write_text("real/zigzag/a.jpg 2\n"),
        "real/zigzag/a.jpg is of another domain",
    ),
    "cut pixels": (
        "svhn",
        lambda r: (r / "test_32x32.mat").write_bytes((r / "test_32x32.mat").read_bytes()[:900]),
        "test_32x32.mat is damaged .*; get it again",
    ),
    "one split": ("svhn", lambda r: (r / "test_32x32.mat").unlink(), "test_32x32.mat is missing"),
    "class 11": (
        "svhn",
        lambda r: savemat(
            r / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [11]]}
        ),
        "image 1 of .*test_32x32.mat, counted from 0, is of class 11, not of 1 to 10",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_refused_in_one_message(case: str, tmp_path: Path) -> None:
    name, damage, message = BROKEN[case]
    folder, pack = PACKED[name]
    root = tmp_path / folder
    pack(root)
    damage(root)
    with pytest.raises(ValueError, match=f"--data-root {root}: .*{message}") as caught:
        open_source(DATA, "test", root)
    assert "\n" not in str(caught.value)


def test_an_image_that_is_not_there_is_a_bad_image(tmp_path: Path) -> None:
    food(tmp_path / "food")
    (tmp_path / "food" / "images" / "waffles" / "101251.jpg").unlink()
    test = sources(tmp_path / "food")[1]
    assert test.contents().tolist()[1] == -1
    with pytest.raises(BadImage):
        test.read(1)
