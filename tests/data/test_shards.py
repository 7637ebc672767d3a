"""Tar shards as GNU tar, Python and webdataset write them: read by their headers alone as Python
reads them, or refused by their names; and damaged, replaced and odd ones."""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forms import JPEG, PAIR, opened, write_shard
from pictures import CLASSES, DATA, crop, encoded, equal, jpegs

from bigvit.data.decode import BadImage
from bigvit.data.sources import open_source, open_splits
from bigvit.data.sources.shards import ShardSource, find_shards
from bigvit.data.sources.tar import Archive, Member


def names(source: ShardSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def listed(path: Path) -> list[Member]:
    with path.open("rb", buffering=0) as file:
        return list(Archive(file.fileno()).members())


def by_python(path: Path) -> list[Member]:
    with tarfile.open(path) as archive:
        return [
            Member(member.name.encode("utf-8", "surrogateescape"), member.offset_data, size, link)
            for member in archive
            if not member.isdir()
            for link in (member.islnk() or member.issym(),)
            for size in (0 if link else member.size,)
        ]


@pytest.mark.parametrize("format", ["gnu", "oldgnu", "pax", "ustar", "v7"])
def test_what_gnu_tar_writes_is_read(tmp_path: Path, format: str) -> None:
    long = {"v7": 60, "ustar": 90}.get(format, 180)
    folder = tmp_path / "files" / ("d" * long) / ("" if format == "v7" else "e" * long)
    folder.mkdir(parents=True)
    for name, target, content in jpegs(12):
        (folder / f"é{name}").write_bytes(content)
        (folder / f"é{name[:-4]}.cls").write_text(f"{target}\n")
    (folder / "._é000.jpg").write_bytes(b"\0\5\x16\7Mac OS X")
    (tmp_path / "root/train").mkdir(parents=True)
    shard = tmp_path / "root/train/0.tar"
    command = ["tar", "--sort=name", f"--format={format}", "-cf", shard, "-C", folder.parents[0]]
    subprocess.run([*command, "."], check=True)
    assert listed(shard) == by_python(shard) and len(listed(shard)) == 25
    source = opened(tmp_path / "root")
    wanted = sorted(jpegs(12))
    inside = folder.relative_to(folder.parents[0])
    assert names(source) == [f"train/0.tar/{inside}/é{name}" for name, _, _ in wanted]
    for index, (_, target, content) in enumerate(wanted):
        assert source.content(index) == content and source.targets[index] == target
    assert list(source.contents()) == [len(content) for _, _, content in wanted]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_beyond_eight_gigabytes_are_passed_over(tmp_path: Path, format: Any) -> None:
    """Their sizes are in other digits, or in pax headers. The file has a hole."""
    large, path = tarfile.TarInfo("a.jpg"), tmp_path / "train/0.tar"
    large.size = 9 << 30
    write_shard(tmp_path / "small.tar", [("a.cls", b"0"), ("b.cls", b"1"), ("b.jpg", JPEG)])
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(large.tobuf(format))
        file.seek(9 << 30, os.SEEK_CUR)
        file.write((tmp_path / "small.tar").read_bytes())
    assert listed(path) == by_python(path)
    source = opened(tmp_path)
    assert source.content(1) == JPEG and list(source.contents()) == [9 << 30, len(JPEG)]
    with pytest.raises(BadImage, match=r"train/0.tar/a.jpg: 9,663,676,416 bytes, more than"):
        source.read(0)


def test_what_belongs_together_is_found_and_the_rest_left_out(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "set-train-0.tar",
        [
            ("x.y/b.JPEG", JPEG),
            ("x.y/b.CLS", b"3\n"),
            ("c.json", b'{"label": 2, "cls": 1, "caption": "\xc3\xa9"}'),
            ("c.seg.png", b"no image of its own"),
            ("c.webp", encoded(crop(2), "WEBP")),
            ("d.png", encoded(crop(3))),
            ("d.json", b'{"label": 7}'),
            ("d.cls", b"2"),
            ("e.json", b'{"label": 0}'),
            ("e.jpg", JPEG),
            ("x.y/._b.JPEG", b"Mac OS X"),
            (".c.jpg", b"hidden"),
            ("__meta__.json", b"{}"),
            ("notes.txt", b"none"),
            ("no-ending", b""),
        ],
    )
    source = opened(tmp_path)
    found = ["x.y/b.JPEG", "c.webp", "d.png", "e.jpg"]
    assert names(source) == [f"set-train-0.tar/{name}" for name in found]
    assert list(source.targets) == [3, 1, 2, 0] and source.classes == ["0", "1", "2", "3"]
    assert equal(source.read(2), crop(3))


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("imagenet1k-train-0000.tar", "train"),
        ("imagenet1k-validation-00.tar", "validation"),
        ("imagenet_train-000000-train.tar", "train"),
        ("data/val-000.tar", "val"),
        ("train/00000.tar", "train"),
        ("test/train-0.1.tar", "test"),
        ("trainee-0.tar", ""),
        ("TRAIN.tar.gz", "train"),
        ("train.target", None),
        ("other/train.tar", None),
        (".train.tar", None),
    ],
)
def test_splits_go_by_folders_and_names(tmp_path: Path, path: str, split: str | None) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    assert find_shards(tmp_path) == ({} if split is None else {split: [Path(path)]})


def test_class_folders_and_lists_come_before_an_archive_beside_them(tmp_path: Path) -> None:
    (tmp_path / "train/china").mkdir(parents=True)
    (tmp_path / "train/china/0.jpg").write_bytes(JPEG)
    (tmp_path / "ILSVRC2012_img_train.tar").touch()
    (tmp_path / "train/n01440764.tar").touch()
    assert open_source(DATA, "train", tmp_path).name(0) == "train/china/0.jpg"


CHINA = b'["china", "flower"]'


@pytest.mark.parametrize(
    ("file", "text", "wanted"),
    [
        ("classes.json", CHINA, CLASSES),
        ("_info.json", b'{"splits": {}, "class_names": %s}' % CHINA, CLASSES),
        ("_info.json", b'{"splits": {"train": {"num_samples": 1}}}', ["0", "1"]),
        ("classnames.txt", b"china\r\ncave painting\n\n", ["china", "cave painting"]),
        ("classes.json", b'{"0": "china"}', None),
        ("classnames.txt", b"china\n\nflower", None),
        ("classnames.txt", b"china\n", None),
        ("classes.json", b"[", None),
    ],
)
def test_classes_have_the_names_that_stand_beside(
    tmp_path: Path, file: str, text: bytes, wanted: list[str] | None
) -> None:
    write_shard(tmp_path / "train.tar", PAIR)
    (tmp_path / file).write_bytes(text)
    if wanted is None:
        with pytest.raises(ValueError, match=rf"{file}|train.tar/a.jpg is of class 1, not of 0"):
            opened(tmp_path)
    else:
        assert opened(tmp_path).classes == wanted


def test_without_names_the_test_images_have_the_classes_of_training(tmp_path: Path) -> None:
    write_shard(tmp_path / "train/0.tar", [*PAIR, ("b.cls", b"8"), ("b.jpg", JPEG)])
    write_shard(tmp_path / "val/0.tar", PAIR)
    train, test = open_splits(replace(DATA, test_images=1), tmp_path)
    assert test is not None and test.classes == train.classes and len(test.classes) == 9


def raw(change: Callable[[bytearray], object], more: bytes = b"") -> Callable[[Path], None]:
    """A sound shard, changed byte by byte."""

    def write(path: Path) -> None:
        write_shard(path, [*PAIR, ("b.cls", b"1"), ("b.jpg", JPEG)])
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content + more)

    return write


def at(start: int, new: bytes) -> Callable[[bytearray], object]:
    return lambda content: content.__setitem__(slice(start, start + len(new)), new)


def linked(kind: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.parent.mkdir()
        with tarfile.open(path, "w") as shard:
            for name, content in [*PAIR, ("b.cls", b"1")]:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
            link = tarfile.TarInfo("b.jpg")
            link.type, link.linkname = kind, "a.jpg"
            shard.addfile(link)

    return write


def sparse(format: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.parent.mkdir()
        with (path.parent / "a.jpg").open("wb") as file:
            file.truncate(1 << 20)
            file.seek(1 << 19)
            file.write(JPEG)
        command = ["tar", "-S", f"--format={format}", "-cf", path, "-C", path.parent, "a.jpg"]
        subprocess.run(command, check=True)

    return write


def of(*files: tuple[str, bytes]) -> Callable[[Path], None]:
    return lambda path: write_shard(path, [*PAIR, *files])


def text(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.parent.mkdir(), path.write_bytes(content)) and None


B = -(-len(JPEG) // 512) * 512 + 1536  # where the third header of `raw` stands

REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "gzip under another name": (text(b"\x1f\x8b\x08" + bytes(600)), "compressed by gzip; unpack"),
    "a pointer": (text(b"version https://git-lfs.github.com/spec/v1\noid"), "pointer of Git LFS"),
    "no archive": (text(b"<html>" + bytes(1000)), "no tar header at byte 0: it is damaged"),
    "a damaged header": (raw(at(B + 3, b"?")), f"no tar header at byte {B:,}: it is damaged"),
    "a cut header": (raw(lambda content: content.__delitem__(slice(B + 99, None))), f"byte {B:,}"),
    "a hole": (raw(at(B, bytes(512))), f"ends at byte {B:,}, but goes on at {B + 512:,}"),
    "two in one": (raw(lambda content: content.extend(content)), "two in one"),
    "an image without class": (of(("b.jpg", JPEG)), r"1 of 2 images have no class \(b.jpg, ...\)"),
    "json without class": (
        of(("b.jpg", JPEG), ("b.json", b'{"label": true}')),
        r"1 of 2 images have no class \(b.jpg",
    ),
    "damaged json": (of(("b.jpg", JPEG), ("b.json", b"[" * 100_000)), "images have no class"),
    "a class without image": (of(("b.cls", b"0")), r"1 files are without the image .* \(b.cls"),
    "a key with dots": (
        of(("b.v2.jpg", JPEG), ("b.v2.cls", b"0")),
        r"1 files are without the image of their key \(b.v2.cls, ...\): keys end at the first dot",
    ),
    "a hard link": (linked(tarfile.LNKTYPE), r"\(b.jpg, ...\): .*links are not followed"),
    "a link": (linked(tarfile.SYMTYPE), r"\(b.jpg, ...\): .*links are not followed"),
    "two images": (of(("a.png", JPEG)), "a.jpg and a.png are two images of one key"),
    "an image twice": (of(("a.jpg", JPEG)), "a.jpg and a.jpg are two images of one key"),
    "a class twice": (of(("a.cls", b"2")), "a.cls is there twice"),
    "a name for a class": (of(("b.cls", b"n01440764"), ("b.jpg", JPEG)), "b.cls, at .* no class"),
    "a negative class": (of(("b.cls", b"-1"), ("b.jpg", JPEG)), "b.cls, at byte .* no class"),
    "an empty class": (of(("b.cls", b""), ("b.jpg", JPEG)), "b.cls, at byte .* no class number"),
    "a large class": (of(("b.cls", b"9" * 12), ("b.jpg", JPEG)), "b.cls, at .* no class number"),
    "many classes": (of(("b.cls", b"2000000"), ("b.jpg", JPEG)), "of 2,000,001 classes the names"),
    "a cut class": (
        raw(lambda content: content.__delitem__(slice(B + 512, None))),
        f"b.cls, at byte {B + 512:,}, holds no class number",
    ),
    "sparse, by GNU": (sparse("gnu"), "a sparse or split file at byte 0; write it again"),
    "sparse, by pax": (sparse("pax"), "a sparse file at byte 512; write it again, by plain tar"),
    "a folder": (lambda path: path.mkdir(parents=True), "train/0.tar is not a file"),
    "a pipe": (lambda path: (path.parent.mkdir(), os.mkfifo(path)) and None, "is not a file"),
    "compressed": (
        lambda path: text(b"")(path.with_name("1.tar.gz")),
        "train/1.tar.gz is compressed, .* unpack it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_known_is_refused_by_shard_and_place(tmp_path: Path, case: str) -> None:
    write, message = REFUSED[case]
    write(tmp_path / "train/0.tar")
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path)
    assert f"--data-root {tmp_path}: " in str(caught.value)
    assert "train/" in str(caught.value) or case == "many classes"


def test_every_cut_and_every_damaged_header_byte_is_told(tmp_path: Path) -> None:
    """Whole up to the cut, or an error; never another class."""
    path = tmp_path / "train/0.tar"
    raw(lambda content: content)(path)
    whole = path.read_bytes()
    for end in range(0, B + 2048, 97):
        path.write_bytes(whole[:end])
        try:
            source = opened(tmp_path)
        except ValueError:
            continue
        assert list(source.targets) == [1] * len(source), end
        assert source.name(0) == "train/0.tar/a.jpg"
    path.unlink()
    write_shard(path, [("b.jpg", JPEG), ("b.cls", b"1")])
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ValueError, match=r"it is cut off: .*b\.jpg.* would end .*; get it again"):
        opened(tmp_path)
    for byte in set(range(512)) - {155}:  # a flip of any but the space behind the sum is noticed
        path.write_bytes(whole[: B + byte] + bytes([whole[B + byte] ^ 1]) + whole[B + byte + 1 :])
        with path.open("rb", buffering=0) as file, pytest.raises(ValueError, match=f"{B:,}"):
            list(Archive(file.fileno()).members())


def test_a_damaged_member_is_a_bad_image(tmp_path: Path) -> None:
    images = [("a.jpg", JPEG), ("b.jpg", b""), ("c.jpg", bytes(3000)), ("d.jpg", JPEG)]
    write_shard(
        tmp_path / "train/0.tar",
        [file for name, content in images for file in ((f"{name[0]}.cls", b"0"), (name, content))],
    )
    with tarfile.open(tmp_path / "train/0.tar") as archive:
        last = archive.getmember("d.jpg").offset_data
    os.truncate(tmp_path / "train/0.tar", last + 500)
    source = opened(tmp_path)
    assert source.content(0) == JPEG
    cut = f"cut off: 500 of {len(JPEG):,} bytes are there"
    for index, said in ((1, "empty"), (2, "not an image"), (3, cut)):
        with pytest.raises(BadImage, match=f"^train/0.tar/{'abcd'[index]}.jpg: {said}"):
            source.read(index)
    assert list(source.contents()) == [len(JPEG), 0, 3000, len(JPEG)]
