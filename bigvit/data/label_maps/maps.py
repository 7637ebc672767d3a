"""Maps of labels, read by the images' names. No torch here."""

from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bigvit.data.label_maps.form import (
    LOOKUP,
    LOOKUP_BYTES,
    MANIFEST,
    NAMES,
    BadMaps,
    Form,
    check_of,
    file_name,
    form_of,
    hashes_of,
    signed,
)
from bigvit.data.sources import Source
from bigvit.recipe.words import read_json

AGAIN = "get it again, or make the maps anew into another folder"


class LabelMaps:
    """Maps in a folder. Forked processes share what was read of them."""

    def __init__(self, folder: Path) -> None:
        """Open them; files are looked at by their sizes alone.

        Raises:
            BadMaps: they are not complete, or no maps.
        """
        self.folder = folder
        if not (folder / MANIFEST).is_file():
            raise BadMaps(
                f"label maps {folder}: there is no {MANIFEST}, so they are not complete; run "
                "`bigvit label-maps` to its end"
            )
        try:
            said: Any = read_json(folder / MANIFEST)
            self.form: Form = form_of(said)
            self.digests: list[str] = [str(digest) for digest in said["files"]]
            self.lookup_digest = str(said["lookup"])
            if said.get("digest") != signed(said)["digest"]:
                raise BadMaps(f"{MANIFEST} is not as it was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadMaps(f"label maps {folder}: {error}; {AGAIN}") from None
        form, count = self.form, self.form.images
        if len(self.digests) != form.files:
            raise self._damaged(MANIFEST, f"lists {len(self.digests)} files, not {form.files}")
        for number in range(form.files):
            size = len(form.rows(number)) * form.record.itemsize
            self._check_size(file_name(number), size)
        self._check_size(LOOKUP, count * LOOKUP_BYTES)
        lookup = np.asarray(np.memmap(folder / LOOKUP, np.uint8, "r"))
        halves = lookup[: 16 * count].view("<u8").reshape(2, count)
        self._high, self._low = halves
        self._rows = lookup[16 * count :].view("<u4")
        self._files: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self.form.images

    @property
    def digest(self) -> str:
        """Of what they say of which image, wherever they lie and whoever made them."""
        said = [self.form.names, *self.form.classes, *self.digests]
        return xxhash.xxh3_128_hexdigest("\0".join(said).encode())

    def row(self, name: str) -> int:
        """Which row is an image's.

        Raises:
            BadMaps: it has no map.
        """
        row = int(self._rows_of(hashes_of([name.encode(errors="replace")]))[0])
        if row < 0:
            raise BadMaps(f"label maps {self.folder}: {name} has no map; {self._of_what}")
        return row

    def read(self, name: str) -> tuple[NDArray[Any], NDArray[np.float16]]:
        """An image's class numbers and their scores, each (h, w, k), best first; not to be changed.

        Raises:
            BadMaps: it has none, or a damaged one.
        """
        row = self.row(name)
        number, within = divmod(row, self.form.shard)
        record = self._file(number)[within]
        if int(record["check"]) != check_of(name.encode(errors="replace"), record):
            raise self._damaged(
                file_name(number), f"holds no sound map of {name} (damaged, or of another image)"
            )
        return record["classes"], record["scores"]

    def verify(self, rank: int = 0, world: int = 1) -> None:
        """Compare a rank's share of the files with their digests; rank 0's is the lookup, too.

        Raises:
            BadMaps: one is not as it was written.
        """
        files = [(file_name(n), self.digests[n]) for n in range(rank, self.form.files, world)]
        if rank == 0:
            files += [(NAMES, self.form.names), (LOOKUP, self.lookup_digest)]
        for name, digest in files:
            try:
                found = digest_of(self.folder / name)
            except OSError as error:
                raise self._damaged(name, f"cannot be read ({error.strerror})") from None
            if found != digest:
                raise self._damaged(name, "is not as it was written")

    def check(self, source: Source) -> None:
        """Refuse maps that are not of a source's images and classes.

        Raises:
            BadMaps: says which images have none, or which class is another one.
        """
        if (theirs := list(self.form.classes)) != source.classes:
            pairs = zip(theirs, source.classes, strict=False)
            at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
            which = (
                "" if at is None else f", class {at} is {theirs[at]!r} and {source.classes[at]!r}"
            )
            raise BadMaps(
                f"label maps {self.folder}: they are of {len(theirs):,} classes and the images of "
                f"{len(source.classes):,}{which}; {self._of_what}"
            )
        missing, first = 0, list[str]()
        for block in source.all_names():
            names = block.split(b"\0")[:-1]
            for at in np.flatnonzero(self._rows_of(hashes_of(names)) < 0).tolist():
                missing += 1
                if len(first) < 3:
                    first.append(names[at].decode())
        if missing:
            shown = ", ".join(first) + ", ..." * (missing > len(first))
            raise BadMaps(
                f"label maps {self.folder}: {missing:,} of {len(source):,} images have no map "
                f"({shown}); {self._of_what}"
            )

    @property
    def _of_what(self) -> str:
        with open(self.folder / NAMES, "rb") as file:
            name = file.read(1 << 12).partition(b"\0")[0].decode(errors="replace")
        return (
            f"these are maps of {len(self):,} images ({name}, ...), made by "
            f"{self.form.teacher.name}: choose those of the data set, or make them by "
            "`bigvit label-maps`"
        )

    def _rows_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of names' hashes (n, 2), -1 where there is none."""
        high, low = hashes.T
        at = np.minimum(np.searchsorted(self._high, high), len(self) - 1)
        rows = self._rows[at].astype(np.int64)
        rows[(self._high[at] != high) | (self._low[at] != low)] = -1
        return rows

    def _file(self, number: int) -> NDArray[Any]:
        if number not in self._files:
            try:
                mapped = np.memmap(self.folder / file_name(number), self.form.record, "r")
            except (OSError, ValueError) as error:
                raise self._damaged(file_name(number), f"cannot be read ({error})") from None
            self._files[number] = np.asarray(mapped)
        return self._files[number]

    def _check_size(self, name: str, size: int) -> None:
        try:
            found = (self.folder / name).stat().st_size
        except OSError:
            raise self._damaged(name, "is missing") from None
        if found != size:
            raise self._damaged(name, f"has {found:,} bytes and not {size:,}")

    def _damaged(self, name: str, what: str) -> BadMaps:
        return BadMaps(f"label maps {self.folder}: {name} {what}; {AGAIN}")


def digest_of(path: Path) -> str:
    """Of a file."""
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            hasher.update(block)
    return hasher.hexdigest()
