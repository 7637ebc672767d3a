"""`bigvit new`: own data, as people have them, become a recipe file that fits them."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import forms
import numpy as np
import pyarrow as pa
import pytest
from pictures import DATA, crop, encoded, jpegs, write_folders
from pyarrow import parquet

from bigvit.cli import main
from bigvit.data import sources
from bigvit.data.check import check_data
from bigvit.data.sources import open_splits
from bigvit.recipe import Images, Recipe, Run
from bigvit.recipe.find import find_recipe

COUNT = 60


def bare(root: Path) -> None:
    """Class folders and nothing else, as most people's first data."""
    write_folders(root, "train", jpegs(COUNT))
    for folder in (root / "train").iterdir():
        shutil.move(folder, root / folder.name)
    (root / "train").rmdir()


def in_splits(root: Path) -> None:
    write_folders(root, "train", jpegs(COUNT))
    write_folders(root, "test", jpegs(6, first=COUNT))


def table(root: Path) -> None:
    """One parquet file, classes in words, as pandas writes it."""
    root.mkdir()
    images = [encoded(crop(i)) for i in range(COUNT)]
    words = pa.array([("china", "flower")[i % 2] for i in range(COUNT)])
    parquet.write_table(pa.table({"image": images, "label": words}), root / "train.parquet")


def tar(root: Path) -> None:
    images = jpegs(COUNT)
    forms.write_shard(root / "pictures-train-0.tar", forms.members(images[:30]))
    forms.write_shard(root / "pictures-train-1.tar", forms.members(images[30:]))


FORMS = {"bare": bare, "in_splits": in_splits, "table": table, "tar": tar}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.enable_progress_bars()


def new(tmp_path: Path, *words: object) -> int:
    out = ["--data-root", tmp_path / "My photos (2)", "--out", tmp_path / "mine.py"]
    return main(["new", *map(str, (*words, *out))])


def written(tmp_path: Path) -> Recipe:
    return find_recipe(str(tmp_path / "mine.py"))[1]


@pytest.mark.parametrize("form", FORMS)
def test_a_recipe_that_fits(form: str, tmp_path: Path, capsys: Any) -> None:
    root = tmp_path / "My photos (2)"
    FORMS[form](root)
    capsys.readouterr()
    assert new(tmp_path, "deit3_s16_in1k_224") == 0
    said, aside = capsys.readouterr()
    assert aside == ""  # no bar of `datasets`
    assert find_recipe(str(tmp_path / "mine.py"))[0] == "my_photos_2"
    base, made = find_recipe("deit3_s16_in1k_224")[1], written(tmp_path)
    data = made.data
    assert isinstance(data, Images)
    parted = form != "in_splits"
    test = 6
    assert (data.classes, data.train_images, data.test_images) == (2, COUNT - 6 * parted, test)
    assert data.held_out == (0.1 if parted else 0.0) and made.model.num_classes == 2
    assert data.image_size == 32  # the images are 40 x 32 pixels
    assert made.batch_size == 4 and data.repeats == 1 or made.batch_size == 8
    pixels = np.concatenate([np.asarray(crop(i)).reshape(-1, 3) for i in range(COUNT)]) / 255
    np.testing.assert_allclose(data.mean, pixels.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(data.std, pixels.std(axis=0), atol=0.03)
    assert made.schedule == base.schedule and made.objectives == base.objectives
    check_data(data, Run(data_root=root))
    for command in ("samples", "plan", "train"):
        assert f"bigvit {command} {tmp_path / 'mine.py'}" in said
    assert f"bigvit train {tmp_path / 'mine.py'} --data-root '{root}'" in said


def test_what_is_held_out_goes_by_the_names(tmp_path: Path) -> None:
    """Every image once, whatever the form; the same files in another order part alike."""
    bare(tmp_path / "bare")
    data = replace(DATA, held_out=0.25)
    train, test = open_splits(data, tmp_path / "bare")
    assert test is not None and (len(train), len(test)) == (45, 15)
    names = [[part.name(i) for i in range(len(part))] for part in (train, test)]
    assert [*train.all_names(), *test.all_names()] != []
    for part, own in zip((train, test), names, strict=True):
        assert b"".join(part.all_names()) == b"".join(name.encode() + b"\0" for name in own)
        assert len(part.contents()) == len(part)
        for i in (0, len(part) - 1):
            folder = own[i].split("/")[-2]
            assert part.classes[part.targets[i]] == folder
            assert part.read(i).size == (40, 32)
    assert not set(names[0]) & set(names[1]) and len(set(names[0] + names[1])) == COUNT
    (tmp_path / "bare" / names[0][3]).unlink()
    for kept in (sources._open, sources._parts):  # pyright: ignore[reportPrivateUsage]
        kept.cache_clear()  # as a new process
    train, again = open_splits(data, tmp_path / "bare")
    assert again is not None and (len(train), len(again)) == (44, 15)
    assert {again.name(i) for i in range(15)} == set(names[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits_vit"], "BASE digits_vit: it is of the bundled digits"),
        (["deit3_s16_in1k_225"], "no recipe is named 'deit3_s16_in1k_225'"),
        (["deit3_s16_in1k_224", "--held-out", "1.5"], "--held-out: 1.5 is not allowed"),
    ],
)
def test_other_input_is_refused(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    bare(tmp_path / "My photos (2)")
    assert new(tmp_path, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "mine.py").exists()


def test_a_file_that_is_there_and_no_data_are_refused(tmp_path: Path, capsys: Any) -> None:
    assert new(tmp_path, "deit3_s16_in1k_224") == 2
    assert "there is no such folder" in capsys.readouterr().err
    bare(tmp_path / "My photos (2)")
    (tmp_path / "mine.py").write_text("precious")
    assert new(tmp_path, "deit3_s16_in1k_224") == 2
    assert "mine.py: it is there already" in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["class", "2020", "base", "replace", "Blümen \"1\" '2'", "..."])
def test_any_name_of_a_folder_will_do(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    bare(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "deit3_s16_in1k_224", "--data-root", name]) == 0
    (file,) = tmp_path.glob("*.py")
    assert find_recipe(str(file))[0] == file.stem


def test_too_few_images_are_refused_and_nothing_is_written(tmp_path: Path, capsys: Any) -> None:
    write_folders(tmp_path / "My photos (2)", "train", jpegs(5))
    assert new(tmp_path, "deit3_s16_in1k_224") == 2
    said = capsys.readouterr().err
    assert "4 images to train on are fewer than the smallest batch of deit3_s16_in1k_224, 8" in said
    assert not (tmp_path / "mine.py").exists()


def test_one_class_is_refused_and_a_class_without_images_is_named(
    tmp_path: Path, capsys: Any
) -> None:
    root = tmp_path / "My photos (2)"
    bare(root)
    for i in range(8):  # some are held out
        (root / f"rare {i}").mkdir()
        shutil.copy(next((root / "china").iterdir()), root / f"rare {i}")
    assert new(tmp_path, "deit3_s16_in1k_224", "--held-out", "0.5") == 0
    said = re.search(r"(\d) classes have no image to train on: rare \d", capsys.readouterr().out)
    assert said is not None and 1 <= int(said[1]) <= 7
    (tmp_path / "mine.py").unlink()
    shutil.rmtree(root)
    bare(root)
    shutil.rmtree(root / "china")
    for kept in (sources._open, sources._parts):  # pyright: ignore[reportPrivateUsage]
        kept.cache_clear()  # as a new process
    assert new(tmp_path, "deit3_s16_in1k_224") == 2
    assert "there is one class, 'flower'; a classifier needs two" in capsys.readouterr().err
