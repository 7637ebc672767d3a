"""A data set that is not the recipe's: all that differs is said at once, with what to add."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pictures import DATA, RECIPE, encoded, jpegs, write_folders
from pictures import crop as photo

from bigvit.data.check import check_data
from bigvit.recipe import Run
from bigvit.train import main

pytestmark = pytest.mark.usefixtures("own_signals")


def write(root: Path, train: int, test: int, classes: int) -> None:
    for split, count in (("train", train), ("val", test)):
        for number in range(count):
            file = root / split / f"class {number % classes}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(photo(number)))


def test_all_is_said_at_once_and_what_it_says_to_add_makes_the_run_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "data", 33, 9, 3)
    recipe = replace(RECIPE, data=replace(DATA, test_images=50))
    (tmp_path / "own.py").write_text(f"from bigvit.recipe import *\nphotos = {recipe!r}\n")
    options = ("--data-root", tmp_path / "data", "--run-dir", tmp_path / "run", "--workers", 0)
    args = [f"{tmp_path / 'own.py'}:photos", *map(str, options), "--engine", "single"]
    assert main(args) == 2
    said = capfd.readouterr().err
    for part in (
        "train has 33 images, but photographs has 60 in the recipe (data.train_images)",
        "train has 3 classes, but photographs has 2 in the recipe (data.classes)",
        "test has 9 images, but photographs has 50 in the recipe (data.test_images)",
    ):
        assert part in said
    flags = re.search(r"Then add (--.*)$", said.strip())
    assert flags is not None
    assert flags[1] == (
        "--data.train-images 33 --data.classes 3 --model.num-classes 3 --data.test-images 9"
    )
    assert not (tmp_path / "run").exists()
    assert main([*args, *flags[1].split(), "--stop-after", "1"]) == 85


def test_other_classes_for_testing_are_said_beside_the_numbers(tmp_path: Path) -> None:
    write_folders(tmp_path, "train", jpegs(8))
    write_folders(tmp_path, "val", jpegs(4))
    (tmp_path / "val/flower").rename(tmp_path / "val/rose")
    with pytest.raises(ValueError) as caught:
        check_data(DATA, Run(data_root=tmp_path))
    assert "train has 8 images" in str(caught.value)
    assert "test has other classes than train: 1 of 2 classes are not among" in str(caught.value)
    assert str(caught.value).endswith("Then add --data.train-images 8")


@pytest.mark.parametrize("lacking", ["train", "val"])
def test_a_class_of_one_split_alone_is_refused(tmp_path: Path, lacking: str) -> None:
    write(tmp_path, 60, 9, 3)
    (tmp_path / lacking / "class 1").rename(tmp_path / "elsewhere")
    images = len(list(tmp_path.glob("train/*/*")))
    data = replace(DATA, train_images=images, classes=2 if lacking == "train" else 3)
    with pytest.raises(ValueError, match=r"test has other classes than train.*\(class 1\)$"):
        check_data(data, Run(data_root=tmp_path))


def test_a_class_number_without_a_name_is_named_with_its_record(tmp_path: Path) -> None:
    from forms import write_cifar

    write_cifar(tmp_path / "root", False)
    file = tmp_path / "root/data_batch_3.bin"
    content = bytearray(file.read_bytes())
    content[3073] = 200  # the class of the second of its two, the sixth in all
    file.write_bytes(content)
    with pytest.raises(ValueError, match="record 5 of train .* is of class 200, not of 0 to 1"):
        check_data(replace(DATA, train_images=10), Run(data_root=tmp_path / "root"))
