"""How maps of labels lie on disk. No torch here.

    M/manifest.json    what they are, and digests; written last: without it they are not complete
    M/names.bin        every image's name in UTF-8, a zero byte behind each, in the order of rows
    M/lookup.bin       the names' 128-bit hashes, ascending (high halves, then low ones), and rows
    M/maps_00000.bin   records of `shard` images each, in the order of rows

An image's record is one piece: a check, its class numbers and their scores, best first. The check
is a hash of the image's name and of the rest, so that a record that is damaged, at another's place
or of another image is told when it is read.

Shapes: N images, h x w cells, the k best classes of each.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

FORMAT = 1
MANIFEST, NAMES, LOOKUP = "manifest.json", "names.bin", "lookup.bin"
SMALL = 1 << 16  # classes whose numbers have two bytes; those of more have four
LOOKUP_BYTES = 8 + 8 + 4  # of an image


class BadMaps(ValueError):
    """Maps of labels that are damaged, not complete, or not of the images."""


@dataclass(frozen=True)
class Teacher:
    """Who made maps."""

    name: str  # as the command was given it
    digest: str  # of its weights
    image_size: tuple[int, int]  # that whole images were resized to


@dataclass(frozen=True)
class Form:
    """What maps are."""

    images: int
    cells: tuple[int, int]  # (h, w)
    top: int
    classes: tuple[str, ...]  # names, by number
    shard: int  # images in a file
    names: str  # digest of names.bin
    teacher: Teacher

    @property
    def record(self) -> np.dtype[Any]:
        """Of one image, without gaps."""
        shape = (*self.cells, self.top)
        number = "<u2" if len(self.classes) <= SMALL else "<u4"
        return np.dtype([("check", "<u8"), ("classes", number, shape), ("scores", "<f2", shape)])

    @property
    def files(self) -> int:
        return -(-self.images // self.shard)

    @property
    def nbytes(self) -> int:
        """Of all records."""
        return self.images * self.record.itemsize

    def rows(self, number: int) -> range:
        """The images of a file."""
        return range(number * self.shard, min(self.images, (number + 1) * self.shard))

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def form_of(said: Any) -> Form:
    """The form that a manifest says.

    Raises:
        BadMaps: it says none, or another format's.
    """
    try:
        if (number := said["format"]) != FORMAT:
            raise BadMaps(f"they are of format {number!r}, and this bigvit reads {FORMAT}")
        teacher = said["teacher"]
        made = Form(
            int(said["images"]),
            (int(said["cells"][0]), int(said["cells"][1])),
            int(said["top"]),
            tuple(map(str, said["classes"])),
            int(said["shard"]),
            str(said["names"]),
            Teacher(str(teacher["name"]), str(teacher["digest"]), tuple(teacher["image_size"])),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise BadMaps(f"{MANIFEST} does not say what they are ({error!r})") from None
    if min(made.images, *made.cells, made.top, len(made.classes), made.shard) < 1:
        raise BadMaps(f"{MANIFEST} holds a number that cannot be")
    return made


def signed(said: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with a digest of all else that it says."""
    rest = {key: value for key, value in said.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "digest": xxhash.xxh3_128_hexdigest(text.encode())}


def file_name(number: int) -> str:
    """Of the records' files."""
    return f"maps_{number:05}.bin"


class Names:
    """Images' names by row, in one piece of memory."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 0)
        self.ends = np.concatenate([[-1], ends]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.text[self.ends[row] + 1 : self.ends[row + 1]]

    @property
    def digest(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.text)

    def hashes(self) -> NDArray[np.uint64]:
        """Those of all names, high and low halves (N, 2)."""
        return hashes_of(self.text.split(b"\0")[:-1])


def hashes_of(names: Sequence[bytes]) -> NDArray[np.uint64]:
    """High and low halves of the names' hashes (names, 2)."""
    joined = b"".join(map(xxhash.xxh3_128_digest, names))
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)


def check_of(name: bytes, record: NDArray[Any]) -> int:
    """The check of an image's record (of shape ())."""
    return xxhash.xxh3_64_intdigest(name + b"\0" + record.tobytes()[8:])
