"""Every form of a data set, written here from real photographs: read as written, or refused."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forms import (
    TEST,
    TRAIN,
    folders,
    folders_with_test,
    parquet,
    parquet_below,
    saved,
    shards,
    splits,
    tables,
    write_cifar,
    write_idx,
)
from pictures import CLASSES, DATA, bad_contents, crop, encoded, equal, jpegs, write_folders
from PIL import Image

from bigvit.data import sources
from bigvit.data.check import check_data
from bigvit.data.decode import BadImage
from bigvit.data.sources import open_source
from bigvit.data.sources.folders import FileNames, open_folders
from bigvit.data.sources.hugging_face import HuggingFaceSource
from bigvit.recipe import Run
from bigvit.recipe.find import find_recipe

SMALL = replace(DATA, train_images=TRAIN)
Write = Callable[[Path], object]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cache of `datasets` in the test's folder, and no progress bars."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.mark.parametrize(
    "write", [folders, folders_with_test, parquet, parquet_below, saved, shards]
)
def test_a_data_set_is_read_as_it_was_written(write: Write, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root)
    check_data(SMALL, Run(data_root=root))
    for split, images in splits().items():
        source = open_source(SMALL, "train" if split == "train" else "test", root)
        assert source.classes == CLASSES
        assert len(source) == len(source.targets) == len(images)
        for index, (name, target, content) in enumerate(images):
            assert source.targets[index] == target
            assert name in source.name(index)
            (tmp_path / name).write_bytes(content)
            with Image.open(tmp_path / name) as image:
                assert equal(source.read(index), image)


def test_images_of_hugging_face_need_not_be_in_the_table(tmp_path: Path) -> None:
    """Tables made of a folder of images hold the files' paths."""
    import datasets

    paths = [str(tmp_path / name) for name in ("a.png", "b.png", "absent.png")]
    for number, path in enumerate(paths[:2]):
        crop(number).save(path)
    kinds = {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=CLASSES)}
    kinds["coarse_label"] = datasets.ClassLabel(names=["x"])
    rows = {"img": paths, "fine_label": [0, 1, 1], "coarse_label": [0, 0, 0]}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    source = HuggingFaceSource(table, "train", [tmp_path])
    assert equal(source.read(1), crop(1))
    assert list(source.targets) == [0, 1, 1]
    with pytest.raises(BadImage, match=r"train\[2\].*absent.png: No such file"):
        source.read(2)


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("below", [False, True])
def test_cifar_is_read_from_its_binary_form(fine: bool, below: bool, tmp_path: Path) -> None:
    folder = tmp_path / ("cifar-100-binary" if fine else "cifar-10-batches-bin")
    write_cifar(folder, fine)
    root = tmp_path if below else folder
    data = replace(DATA, train_images=10)
    check_data(data, Run(data_root=root))
    for split, first, count in (("train", 0, 10), ("test", 10, 4)):
        source = open_source(data, "train" if first == 0 else "test", root)
        assert source.classes == CLASSES and len(source) == count
        for index in range(count):
            assert equal(source.read(index), crop(first + index, (32, 32)))
            assert source.targets[index] == (first + index) % 2
        assert source.name(3) == f"{split}[3]"


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_as_rgb(zipped: bool, tmp_path: Path) -> None:
    write_idx(tmp_path, zipped)
    data = replace(DATA, train_images=10)
    check_data(data, Run(data_root=tmp_path))
    for split, first, count in (("train", 0, 10), ("test", 10, 4)):
        source = open_source(data, "train" if first == 0 else "test", tmp_path)
        assert (len(source), source.classes, source.name(0)) == (count, ["0", "1"], f"{split}[0]")
        for index in range(count):
            wanted = crop(first + index, (28, 20)).convert("L").convert("RGB")
            assert equal(source.read(index), wanted)
            assert source.targets[index] == index % 2


FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not there")
def test_fashion_mnist_is_read_from_debians_files() -> None:
    data = replace(DATA, train_images=60_000, test_images=10_000, classes=10)
    check_data(data, Run(data_root=FASHION))
    train, test = open_source(data, "train", FASHION), open_source(data, "test", FASHION)
    assert (len(train), len(test)) == (60_000, 10_000)
    assert np.bincount(train.targets).tolist() == [6000] * 10
    assert train.read(0).size == (28, 28) and train.targets[0] == 9  # an ankle boot


def test_class_folders_hold_what_torchvision_takes_in_its_order(tmp_path: Path) -> None:
    content = encoded(crop(0))
    for name in ("b/2.JPEG", "b/10.jpg", "b/1.Png", "a b/x.webp", "é/y.jpg", ".hidden/z.jpg"):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_bytes(content)
    for name in ("b/notes.txt", "readme.md"):
        (tmp_path / "train" / name).write_text("no image")
    (tmp_path / "train/b/folder.jpg").mkdir()
    (tmp_path / "train/b/._10.jpg").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")  # tar's, there
    source = open_folders(tmp_path, "train")
    assert source.classes == ["a b", "b", "é"]
    found = [source.name(index).removeprefix("train/") for index in range(len(source))]
    assert found == ["a b/x.webp", "b/1.Png", "b/10.jpg", "b/2.JPEG", "é/y.jpg"]
    assert list(source.targets) == [0, 1, 1, 1, 2]


def test_names_of_any_bytes_are_read_and_shown_on_one_line(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "train" / "a")
    os.makedirs(folder)
    for name in (b"\xff.png", b"two\nlines.png"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(encoded(crop(0)))
    source = open_folders(tmp_path, "train")
    assert [source.name(i) for i in (0, 1)] == ["train/a/two\\nlines.png", "train/a/\\xff.png"]
    assert all(equal(source.read(i), crop(0)) for i in (0, 1))


def test_folders_named_by_numbers_are_the_classes_of_these_numbers(tmp_path: Path) -> None:
    """As in ImageNet-V2, where torchvision's order 0, 1, 10, 2 would be silently wrong."""
    for number in range(12):
        path = tmp_path / "val" / str(number) / "x.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(encoded(crop(number)))
    source = open_source(replace(DATA, classes=12), "test", tmp_path)
    assert source.classes == [str(number) for number in range(12)]
    assert equal(source.read(11), crop(11))


def test_an_unreadable_file_is_bad_by_its_name(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "train/china/000.jpg").write_bytes(bad_contents()["cut.jpg"] or b"")
    (tmp_path / "train/china/002.jpg").unlink()
    (tmp_path / "train/china/002.jpg").symlink_to("absent")
    source = open_source(SMALL, "train", tmp_path)
    with pytest.raises(BadImage, match="^train/china/000.jpg: .*truncated"):
        source.read(0)
    with pytest.raises(BadImage, match="^train/china/002.jpg: No such file"):
        source.read(1)


def test_file_names_cost_few_bytes() -> None:
    """As ImageNet-21k names its files."""
    count = 200_000

    def names() -> Iterator[bytes]:
        for number in range(count):
            yield b"n%08d_%d.JPEG" % (1440764 + number // 650, 10 + (number % 650) * 13)

    index = FileNames(names())
    each = index.nbytes / count + np.dtype(np.int32).itemsize
    assert each * 14.2e6 * 8 < 2e9  # eight ranks on a node, each with an index of its own
    wanted = {n: name for n, name in enumerate(names()) if n % 19_991 == 0 or n == count - 1}
    assert {n: index[n] for n in wanted} == wanted


NOTHING: dict[str, tuple[Write, str]] = {
    "absent": (lambda root: None, "there is no such folder"),
    "a file": (lambda root: root.write_text("x"), "there is no such folder"),
    "empty": (lambda root: root.mkdir(), "no data set is recognised"),
    "no test folder": (
        lambda root: write_folders(root, "train", jpegs(8)),
        "no validation/ or val/",
    ),
    "no train folder": (lambda root: write_folders(root, "val", jpegs(8)), "no train/"),
    "no classes": (lambda root: (root / "train").mkdir(parents=True), "has no class folders"),
    "an empty class": (
        lambda root: (folders(root), (root / "train/empty").mkdir()),
        r"1 of 3 class folders in train/ have no images \(empty",
    ),
    "empty shards": (
        lambda root: (root.mkdir(), (root / "train-000.tar").touch()),
        "the shards of train have no images",
    ),
    "shards of no split": (
        lambda root: (root.mkdir(), (root / "000.tar").touch()),
        "it has no train split, only files of another name",
    ),
    "pickled CIFAR": (
        lambda root: (root / "cifar-10-batches-py").mkdir(parents=True),
        "binary version",
    ),
    "broken parquet": (
        lambda root: (root.mkdir(), (root / "train-0.parquet").write_text("no table")),
        "train cannot be read",
    ),
    "parquet of no training split": (
        lambda root: [
            root.mkdir(),
            *((root / f"{name}.parquet").touch() for name in ("0000", "test")),
        ],
        "has no train split, only files of another name, test",
    ),
    "parquet without classes": (
        lambda root: (
            (
                root.mkdir(),
                tables()["train"].select_columns("image").to_parquet(root / "train.parquet"),
            )
            and None
        ),
        r"one of classes \(ClassLabel, or integers or text in .* is needed, not image \(Image\)",
    ),
    "a saved split alone": (
        lambda root: tables()["train"].save_to_disk(root),
        "save a DatasetDict",
    ),
    "a broken saved set": (
        lambda root: (saved(root), (root / "dataset_dict.json").write_text("{")),
        "dataset_dict.json is damaged",
    ),
    "IDX cut off": (
        lambda root: (
            (
                write_idx(root, False),
                (root / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\3\0\0\0\x0a"),
            )
            and None
        ),
        "is not a whole IDX file",
    ),
    "IDX without labels": (
        lambda root: (
            (write_idx(root, True), (root / "t10k-labels-idx1-ubyte.gz").unlink()) and None
        ),
        "t10k-labels-idx1-ubyte.*is missing",
    ),
    "CIFAR cut off": (
        lambda root: (write_cifar(root, True), (root / "train.bin").write_bytes(b"123")),
        "3 bytes, not a multiple of 3,074",
    ),
    "CIFAR without a batch": (
        lambda root: (write_cifar(root, False), (root / "data_batch_3.bin").unlink()),
        "data_batch_3.bin is missing",
    ),
}


@pytest.mark.parametrize("case", NOTHING)
def test_what_is_not_there_is_refused(case: str, tmp_path: Path) -> None:
    write, message = NOTHING[case]
    root = tmp_path / "root"
    write(root)
    train_images = 10 if case.startswith(("IDX", "CIFAR")) else TRAIN
    with pytest.raises(ValueError, match=message) as caught:
        check_data(replace(DATA, train_images=train_images), Run(data_root=root))
    assert "--data-root" in str(caught.value) and str(root) in str(caught.value)


def test_a_missing_root_names_the_data_set_and_the_forms() -> None:
    with pytest.raises(ValueError, match="--data-root is missing: where is photographs"):
        check_data(DATA, Run())


@pytest.mark.parametrize("write", [folders, parquet, saved])
def test_another_number_of_images_or_classes_is_refused_naming_both(
    write: Write, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    write(root)
    with pytest.raises(ValueError, match="train has 8 images, but photographs has 60 in"):
        check_data(DATA, Run(data_root=root))
    with pytest.raises(ValueError, match="train has 2 classes, but photographs has 1,000 in"):
        check_data(replace(SMALL, classes=1000), Run(data_root=root))
    check_data(replace(SMALL, test_images=TEST), Run(data_root=root))
    more = replace(SMALL, test_images=TEST + 1)
    with pytest.raises(ValueError, match="test has 4 images, but photographs has 5 in the recipe"):
        check_data(more, Run(data_root=root))
    assert len(open_source(more, "test", root)) == TEST  # evaluation takes other test images too


def test_other_classes_for_testing_are_refused(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "val/flower").rename(tmp_path / "val/rose")
    with pytest.raises(ValueError, match=r"other classes than train: 1 of 2 .*\(rose\)"):
        check_data(SMALL, Run(data_root=tmp_path))


def test_folders_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders(tmp_path)
    check_data(SMALL, Run(data_root=tmp_path))
    monkeypatch.setattr(sources, "_open_folder", None)
    assert len(open_source(SMALL, "train", tmp_path)) == TRAIN


def test_digits_without_scikit_learn_are_refused_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bigvit.data.sources.digits.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'bigvit\[demo\]'"):
        check_data(find_recipe("digits_vit")[1].data, Run())
