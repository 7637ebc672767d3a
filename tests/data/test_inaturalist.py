"""iNaturalist's lists of images, written here for real photographs: read as written, or refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import DATA, crop, encoded, equal
from torchvision import datasets

from bigvit.data.check import check_data
from bigvit.data.decode import BadImage
from bigvit.data.sources import open_source
from bigvit.data.sources.inaturalist import open_lists
from bigvit.recipe import Images, Run

FOLDERS = {10: "Aves/10", 2: "Plantae/2", 7: "Plantae/7"}  # by category number
NAMES = {10: "Parus major", 2: "Poa annua", 7: "Bellis perennis"}
SMALL = replace(DATA, dataset="iNaturalist 2018", train_images=6, classes=3)


def item(id: int, path: str) -> dict[str, Any]:
    return {"id": id, "file_name": path, "width": 40, "height": 32, "license": 4}


def listed(year: int, numbers: range, categories: bool = True) -> dict[str, Any]:
    """The list of pictures of these numbers, of which every third is of one category."""
    order = list(FOLDERS)
    paths = {n: f"train_val{year}/{FOLDERS[order[n % 3]]}/{99 - n}.jpg" for n in numbers}
    kinds = [
        {"id": id, "name": NAMES[id], "supercategory": FOLDERS[id].split("/")[0]} for id in order
    ]
    return {
        "info": {"year": year, "description": "as on GitHub"},
        "licenses": [{"id": 4, "name": "CC BY", "url": ""}],
        "images": [item(1000 + n, path) for n, path in paths.items()],
        # in another order than the images
        "annotations": [
            {"id": n, "image_id": 1000 + n, "category_id": order[n % 3]} for n in reversed(numbers)
        ],
    } | ({"categories": kinds} if categories else {})


def write(root: Path, year: int = 2018, categories: bool = True) -> None:
    for split, numbers in (("train", range(6)), ("val", range(6, 9))):
        content = listed(year, numbers, categories)
        for number, image in zip(numbers, content["images"], strict=True):
            path = root / image["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(crop(number), "PNG"))
        (root / f"{split}{year}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("year", [2018, 2019])
@pytest.mark.parametrize("categories", [True, False])
def test_lists_are_read_as_they_were_written(tmp_path: Path, year: int, categories: bool) -> None:
    write(tmp_path, year, categories)
    check_data(SMALL, Run(data_root=tmp_path))
    train, test = (open_source(SMALL, split, tmp_path) for split in ("train", "test"))
    assert (len(train), len(test)) == (6, 3)
    names = [NAMES[n] for n in (2, 7, 10)] if categories else ["2", "7", "10"]
    assert train.classes == test.classes == names
    # by category number, then file name; picture n is called 99 - n
    wanted = {"train": [(4, 0), (1, 0), (5, 1), (2, 1), (3, 2), (0, 2)]}
    wanted["test"] = [(7, 0), (8, 1), (6, 2)]
    folders = ["Plantae/2", "Plantae/7", "Aves/10"]
    for source, split in ((train, "train"), (test, "test")):
        assert list(source.targets) == [target for _, target in wanted[split]]
        for index, (number, target) in enumerate(wanted[split]):
            assert equal(source.read(index), crop(number))
            assert source.targets[index] == target
            assert source.name(index) == f"train_val{year}/{folders[target]}/{99 - number}.jpg"


@pytest.mark.parametrize("year", ["2018", "2019"])
def test_images_have_the_classes_that_torchvision_reads(
    tmp_path: Path, year: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As both years number them: categories from 0 on, whose folders are called by the number."""
    folders = {1: "Plantae/1", 0: "Plantae/0", 2: "Aves/2"}
    monkeypatch.setitem(globals(), "FOLDERS", folders)
    monkeypatch.setitem(globals(), "NAMES", {n: f"species {n}" for n in folders})
    write(tmp_path, int(year))
    (tmp_path / year).symlink_to(f"train_val{year}")
    theirs = datasets.INaturalist(str(tmp_path), version=year, target_type="full")
    wanted = sorted((np.asarray(image).tobytes(), number) for image, number in theirs)
    found: list[tuple[bytes, int]] = []
    for split in ("train", "test"):
        source = open_source(SMALL, split, tmp_path)
        images = (np.asarray(source.read(i)).tobytes() for i in range(len(source)))
        found += zip(images, map(int, source.targets), strict=True)
    assert sorted(found) == wanted and len(wanted) == 9


def test_class_folders_beside_the_lists_are_taken(tmp_path: Path) -> None:
    write(tmp_path)
    for split, numbers in (("train", range(6)), ("val", range(6, 9))):
        for number in numbers:
            path = tmp_path / split / str(number % 3) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(crop(number)))
    check_data(SMALL, Run(data_root=tmp_path))
    assert open_source(SMALL, "train", tmp_path).name(0) == "train/0/0.png"


def test_a_missing_image_is_bad_by_its_name(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train_val2018/Plantae/7/94.jpg").unlink()
    with pytest.raises(BadImage, match=r"^train_val2018/Plantae/7/94\.jpg: No such file"):
        open_source(SMALL, "train", tmp_path).read(2)


def drop(key: str, count: int = 1) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        del content[key][:count]

    return change


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no images": (lambda content: content.pop("images"), "train2018.json is damaged"),
    "no annotations": (lambda content: content.pop("annotations"), "train2018.json is damaged"),
    "an image of no class": (drop("annotations"), "train2018.json is damaged.*KeyError: 1005"),
    "an unknown class": (drop("categories"), "train2018.json is damaged.*KeyError: 10"),
    "an empty list": (drop("images", 6), r"lists \(none/...\) are not there"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_list_is_refused(case: str, tmp_path: Path) -> None:
    change, message = DAMAGED[case]
    write(tmp_path)
    file = tmp_path / "train2018.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"^--data-root {tmp_path}: .*{message}"):
        check_data(SMALL, Run(data_root=tmp_path))


def refused(data: Images, root: Path, message: str) -> None:
    with pytest.raises(ValueError, match=f"^--data-root {root}: {message}"):
        check_data(data, Run(data_root=root))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in ("cut", "no val", "no images", "two years", "other"):
        write(tmp_path / name)
    text = (tmp_path / "cut/train2018.json").read_text()
    (tmp_path / "cut/train2018.json").write_text(text[:100])
    refused(SMALL, tmp_path / "cut", "train2018.json is damaged.*JSONDecodeError")
    (tmp_path / "no val/val2018.json").unlink()
    refused(SMALL, tmp_path / "no val", "one val20YY.json is needed, but there is none")
    (tmp_path / "no images/train_val2018").rename(tmp_path / "no images/elsewhere")
    where = r"the images that train2018.json lists \(train_val2018/Plantae/2/...\) are not there"
    refused(SMALL, tmp_path / "no images", where)
    write(tmp_path / "two years", 2019)
    refused(SMALL, tmp_path / "two years", "one train20YY.json.*train2018.json, train2019.json;")
    other = replace(SMALL, classes=8142)
    refused(other, tmp_path / "other", "train has 3 classes, but iNaturalist 2018 has 8,142")


def test_a_list_of_iNaturalist_2018s_length_keeps_little(tmp_path: Path) -> None:
    """A tenth of it."""
    count, categories = 43_751, 814
    folder = "train_val2018/Plantae"
    (tmp_path / folder / "0").mkdir(parents=True)
    hashes = np.random.default_rng(0).bytes(16 * count).hex()
    images = [
        item(n, f"{folder}/{n % categories}/{hashes[32 * n : 32 * n + 32]}.jpg")
        for n in range(count)
    ]
    content = {
        "images": images,
        "annotations": [
            {"id": n, "image_id": n, "category_id": n % categories} for n in range(count)
        ],
        "categories": [{"id": n, "name": str(n)} for n in range(categories)],
    }
    file = tmp_path / "train2018.json"
    file.write_text(json.dumps(content))
    source = open_lists(tmp_path, "train")
    assert len(source) == count and len(source.classes) == categories
    assert np.bincount(source.targets).tolist() == [54] * 609 + [53] * 205
    assert source.names.nbytes + source.targets.nbytes < 32 * count
