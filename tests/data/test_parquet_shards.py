"""Parquet as others pack it, by pyarrow: each shard with names and metadata of its own; replaced
under the same name; with labels that are none; with paths that lead elsewhere."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pictures import CLASSES, DATA, crop, encoded, equal, jpegs, write_folders
from PIL import Image
from pyarrow import parquet

from bigvit.data import sources
from bigvit.data.check import check_data
from bigvit.data.decode import BadImage
from bigvit.data.index import describe
from bigvit.data.sources import open_source
from bigvit.recipe import Run

NAMES = ["rose", "tulip", "daisy"]
SEEN = [2, 0, 1, 1, 0, 2, 2, 1]  # class of each image, by NAMES
TRAIN = 3 * len(SEEN)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cache of `datasets` in the test's folder, and no progress bars."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def write_shard(
    path: Path,
    images: list[Any],
    labels: list[Any],
    names: list[str] | None,
) -> None:
    """A file with the schema's metadata that `datasets` writes, made by hand; or without any."""
    cells = [cell if isinstance(cell, dict) else {"bytes": cell, "path": None} for cell in images]
    fields = [
        pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        pa.field("label", pa.int64()),
    ]
    kinds = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    said = {"huggingface": json.dumps({"info": {"features": kinds}})}
    schema = pa.schema(fields, metadata=said if names is not None else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": cells, "label": pa.array(labels, pa.int64())}, schema=schema)
    parquet.write_table(table, path, row_group_size=3)


def photos(first: int, count: int = len(SEEN)) -> list[bytes]:
    return [encoded(crop(number)) for number in range(first, first + count)]


def write_splits(root: Path, orders: list[list[str]], test: list[str]) -> None:
    """Shards of the same classes, numbered by each one's own order of names."""
    for number, names in enumerate(orders):
        labels = [names.index(NAMES[seen]) for seen in SEEN]
        name = f"train-0000{number}-of-0000{len(orders)}.parquet"
        write_shard(root / name, photos(8 * number), labels, names)
    labels = [test.index(NAMES[seen]) for seen in SEEN]
    write_shard(root / "validation-00000-of-00001.parquet", photos(90), labels, test)


def data_of(train: int = TRAIN, classes: int = 3) -> Any:
    return replace(DATA, train_images=train, classes=classes)


ORDERS = [NAMES, sorted(NAMES), NAMES[::-1]]


def test_classes_are_those_of_the_names_whatever_their_order_in_a_shard(tmp_path: Path) -> None:
    write_splits(tmp_path / "root", ORDERS, ["tulip", "rose", "daisy"])
    check_data(data_of(), Run(data_root=tmp_path / "root"))
    from bigvit.data.sources import open_splits

    train, test = open_splits(data_of(), tmp_path / "root")
    assert test is not None
    for source, wanted in ((train, SEEN * 3), (test, SEEN)):
        assert source.classes == NAMES
        assert [source.targets[index] for index in range(len(source))] == wanted
        assert list(source.targets) == wanted
    assert all(equal(train.read(index), crop(index)) for index in range(TRAIN))
    assert all(equal(test.read(index), crop(90 + index)) for index in range(len(SEEN)))


def test_saved_shards_are_renumbered_too(tmp_path: Path) -> None:
    """`save_to_disk` writes names into every Arrow file, and into dataset_info.json beside them."""
    from datasets import Dataset, DatasetDict, load_from_disk

    write_splits(tmp_path / "parquet", [NAMES, NAMES, NAMES], NAMES)
    files = sorted(str(path) for path in (tmp_path / "parquet").glob("train-*"))
    rows: Any = Dataset.from_parquet(
        files,  # pyright: ignore
        cache_dir=str(tmp_path / "other"),
    )
    whole = DatasetDict({"train": rows, "validation": rows.select(range(3))})
    whole.save_to_disk(tmp_path / "root", num_shards={"train": 2, "validation": 1})
    second = tmp_path / "root/train/data-00001-of-00002.arrow"
    table = pa.ipc.open_stream(second.read_bytes()).read_all()
    told = json.loads(table.schema.metadata[b"huggingface"])
    told["info"]["features"]["label"]["names"] = NAMES[::-1]
    turned = pa.array([2 - label for label in table.column("label").to_pylist()])
    table = table.set_column(table.schema.get_field_index("label"), "label", turned)
    table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
    with pa.OSFile(str(second), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert load_from_disk(str(tmp_path / "root/train"))["label"][-8:] == [2 - s for s in SEEN]
    assert list(open_source(data_of(), "train", tmp_path / "root").targets) == SEEN * 3


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            None,
            "train-1.parquet says no names of its classes, and .*train-0.parquet does; write all",
        ),
        ([*NAMES[:2], "lily"], r"other classes \(3 and 3; 'daisy' is in one of them only\)"),
        ([*NAMES, "lily"], r"other classes \(4 and 3; 'lily' is in one of them only\)"),
    ],
    ids=["no metadata", "another name", "a name more"],
)
def test_shards_whose_classes_are_not_known_to_be_the_same_are_refused(
    tmp_path: Path, names: list[str] | None, said: str
) -> None:
    write_shard(tmp_path / "train-0.parquet", photos(0), SEEN, NAMES)
    write_shard(tmp_path / "train-1.parquet", photos(8), SEEN, names)
    write_shard(tmp_path / "test.parquet", photos(16), SEEN, NAMES)
    with pytest.raises(ValueError, match=f"--data-root {tmp_path}.*{said}"):
        check_data(data_of(16), Run(data_root=tmp_path))
    assert not (tmp_path / "cache").exists(), "before anything is converted"


@pytest.mark.parametrize("value", [20_000, 3, -1, None], ids=str)
def test_a_label_that_is_no_class_is_named_with_its_row(tmp_path: Path, value: int | None) -> None:
    write_shard(tmp_path / "train-0.parquet", photos(0), SEEN, NAMES)
    write_shard(tmp_path / "train-1.parquet", photos(8), [*SEEN[:5], value, *SEEN[6:]], NAMES)
    what = "has no class" if value is None else f"is of class {value}, not of 0 to 2"
    said = f"row 5 of .*train-1.parquet.* {what}"
    with pytest.raises(ValueError, match=f"--data-root {tmp_path}: {said}"):
        open_source(data_of(16), "train", tmp_path)
    assert not (tmp_path / "cache").exists(), "before anything is converted"


def test_a_file_replaced_with_its_time_of_change_kept_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "root/train.parquet"
    write_shard(file, photos(0), SEEN, NAMES)
    first = open_source(data_of(8), "train", tmp_path / "root")
    before, old = describe(first), file.stat()
    write_shard(file, photos(50), SEEN[::-1], NAMES)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    sources._open.cache_clear()  # as a new process  # pyright: ignore
    second = open_source(data_of(8), "train", tmp_path / "root")
    assert list(second.targets) == SEEN[::-1]
    assert all(equal(second.read(index), crop(50 + index)) for index in range(8))
    assert describe(second)["digest"] != before["digest"]
    assert describe(second)["contents"] != before["contents"]


def test_what_was_converted_once_is_not_converted_again(tmp_path: Path) -> None:
    write_shard(tmp_path / "root/train.parquet", photos(0), SEEN, NAMES)
    seen: list[dict[Path, int]] = []
    for _ in range(2):
        sources._open.cache_clear()  # pyright: ignore
        open_source(data_of(8), "train", tmp_path / "root")
        arrows = tmp_path.glob("cache/**/*.arrow")
        seen.append({path: path.stat().st_mtime_ns for path in arrows})
    assert len(seen[0]) == 1 and seen[0] == seen[1]


def test_describing_reads_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 million rows the names and lengths are read, not the gigabytes between them."""
    write_shard(tmp_path / "root/train.parquet", photos(0), SEEN, NAMES)
    source = open_source(data_of(8), "train", tmp_path / "root")
    assert list(source.contents()) == [len(content) for content in photos(0)]
    monkeypatch.setattr(source, "rows", None)
    assert describe(source)["images"] == 8


@pytest.mark.parametrize("path", ["/etc/hostname", "../outside.png", "x/../../outside.png"])
def test_a_cell_that_names_a_file_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside.png").write_bytes(encoded(crop(0)))
    cells = [*photos(0, 3), {"bytes": None, "path": path}]
    write_shard(tmp_path / "root/train.parquet", cells, SEEN[:4], NAMES)
    with pytest.raises(ValueError, match=rf"train\[3\] {path} is outside of it"):
        open_source(data_of(4), "train", tmp_path / "root")


def test_a_cell_may_name_a_file_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_folders(root, "images", jpegs(2))
    inside = [f"images/{CLASSES[0]}/000.jpg", str(root / f"images/{CLASSES[1]}/001.jpg")]
    paths = [*inside, "images/absent.jpg", "images"]
    cells = [*({"bytes": None, "path": path} for path in paths), {"bytes": None, "path": None}]
    write_shard(root / "train.parquet", [*cells, *photos(2, 1)], SEEN[:6], NAMES)
    source = open_source(data_of(6), "train", root)
    for index, (_, _, content) in enumerate(jpegs(2)):
        (tmp_path / "wanted.jpg").write_bytes(content)
        assert equal(source.read(index), Image.open(tmp_path / "wanted.jpg"))
    for index, reason in ((2, "No such file"), (3, "Is a directory"), (4, "empty")):
        with pytest.raises(BadImage, match=rf"^train\[{index}\].*: {reason}"):
            source.read(index)
    sizes = [len(content) for _, _, content in jpegs(2)]
    assert list(source.contents()) == [*sizes, -1, -1, -1, len(photos(2, 1)[0])]
    assert np.array_equal(source.targets, SEEN[:6])


def test_a_path_beside_bytes_is_a_name_and_no_more(tmp_path: Path) -> None:
    cells = [{"bytes": content, "path": "/data/a\nb.png"} for content in photos(0)]
    write_shard(tmp_path / "root/train.parquet", cells, SEEN, NAMES)
    source = open_source(data_of(8), "train", tmp_path / "root")
    assert equal(source.read(7), crop(7)) and source.name(7) == "train[7] /data/a\\nb.png"


def plain(path: Path, images: list[bytes], labels: Any, column: str, as_struct: bool) -> None:
    """As pandas, pyarrow or polars write them: no word of `datasets` in the file."""
    cells: Any = [{"bytes": content, "path": None} for content in images] if as_struct else images
    table = pa.table(
        {column: pa.array(labels), "image": pa.array(cells), "width": [40] * len(images)}
    )
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table, path)


@pytest.mark.parametrize("as_struct", [False, True])
@pytest.mark.parametrize(
    ("column", "values", "classes"),
    [
        ("label", [10, 2, 30], ["2", "10", "30"]),
        ("class", ["rose", "daisy", "tulip"], ["daisy", "rose", "tulip"]),
        ("target", np.array([0, 1, 2], np.uint8), ["0", "1", "2"]),
    ],
)
def test_classes_that_are_integers_or_text(
    column: str, values: Any, classes: list[str], as_struct: bool, tmp_path: Path
) -> None:
    """In order; a file may lack some of them."""
    seen = [[2, 0, 2, 1], [1, 1, 0]]
    for number, these in enumerate(seen):
        name = f"train-{number}.parquet"
        labels = [values[i] for i in these]
        plain(tmp_path / "root" / name, photos(8 * number, len(these)), labels, column, as_struct)
    labels = [values[i] for i in (0, 1, 2)]
    plain(tmp_path / "root" / "test.parquet", photos(16, 3), labels, column, as_struct)
    check_data(data_of(7), Run(data_root=tmp_path / "root"))
    source = open_source(data_of(7), "train", tmp_path / "root")
    assert source.classes == classes
    wanted = [str(values[i]) for these in seen for i in these]
    assert [source.classes[number] for number in source.targets] == wanted
    assert equal(source.read(5), crop(9))


def test_text_without_a_class_is_refused(tmp_path: Path) -> None:
    plain(tmp_path / "root" / "train.parquet", photos(0, 3), ["a", None, "b"], "label", True)
    plain(tmp_path / "root" / "test.parquet", photos(0, 2), ["a", "b"], "label", True)
    with pytest.raises(ValueError, match="row 1 of .*train.parquet.* has no class"):
        check_data(data_of(3, 2), Run(data_root=tmp_path / "root"))
