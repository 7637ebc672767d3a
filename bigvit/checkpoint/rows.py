"""How a checkpoint's tensors are cut into its files: a row each, however many ranks wrote them. No
torch here."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bigvit.recipe.bounds import shown
from bigvit.recipe.words import fault

BYTES = dict(F64=8, F32=4, F16=2, BF16=2, I64=8, I32=4, I16=2, I8=1, U8=1, BOOL=1)
"""What an element takes in a file, by its dtype as safetensors names it."""

Cut = tuple[int, int, int]
"""(file, count, length): pieces of `length` elements, one after another, in as many files one after
another, the first of this number."""

Part = tuple[int, str, int, int]
"""(file, label, start, stop): the number of a file, and which elements it holds of a tensor."""


@dataclass(frozen=True)
class Row:
    """A flattened tensor, whose kinds are cut alike."""

    name: str
    shape: tuple[int, ...]
    kinds: dict[str, str]  # by kind, the dtype
    cuts: tuple[Cut, ...]  # in the order of its elements, all of which they hold

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The file's number and elements [first, last) of each piece that has some of
        [start, stop)."""
        first = 0
        for file, count, length in self.cuts:
            for i in range(max(0, start - first) // length, count):
                if first + i * length >= stop:
                    return
                yield file + i, first + i * length, first + (i + 1) * length
            first += count * length


def key_of(kind: str, name: str) -> str:
    """A tensor's name in a file."""
    return f"{kind}/{name}"


def label(name: str, shape: Sequence[int], kinds: Mapping[str, str]) -> str:
    """Of which tensor a part is: the same in every file."""
    return json.dumps([name, shape, kinds])


def joined(parts: Iterable[Part]) -> tuple[Row, ...]:
    """Rows of the parts in all files.

    Raises:
        ValueError: the parts of a tensor are not all of its elements, each once.
    """
    tensors: dict[str, list[tuple[int, int, int]]] = {}
    for file, of, start, stop in parts:
        tensors.setdefault(of, []).append((start, stop, file))
    return tuple(_row(of, sorted(pieces)) for of, pieces in tensors.items())


def _row(of: str, pieces: Sequence[tuple[int, int, int]]) -> Row:
    name, shape, kinds = json.loads(of)
    starts = [start for start, _, _ in pieces]
    ends = [stop for _, stop, _ in pieces]
    if [0, *ends] != [*starts, math.prod(shape)]:
        raise ValueError(
            f"the pieces of {name} ({', '.join(kinds)}), of shape {shown(shape)}, do not fit: "
            f"{shown(starts)} and {shown(ends)}"
        )
    cuts: list[Cut] = []
    after = length = 0
    for start, stop, file in pieces:
        if 0 < stop - start == length and file == after:
            cuts[-1] = (cuts[-1][0], cuts[-1][1] + 1, length)
        elif start < stop:
            length = stop - start
            cuts.append((file, 1, length))
        after = file + 1
    return Row(name, tuple(shape), kinds, tuple(cuts))


def check_rows(rows: Sequence[Row], files: Mapping[str, int]) -> None:
    """Check rows that were read: each value by itself, that each tensor is there once and whole,
    and that the files have room.

    Args:
        files: bytes of each, in their order.

    Raises:
        ValueError: names the key, the value given and what is allowed.
    """
    keys = set[str]()
    added = [0] * (len(files) + 1)  # bytes in a file above those in the one before
    for i, row in enumerate(rows):
        where = f"tensors.{i}"
        must(not fault(row.name), f"{where}.name", row.name, "a name")
        must(all(n >= 0 for n in row.shape), f"{where}.shape", row.shape, "sizes, 0 or more")
        must(bool(row.kinds), f"{where}.kinds", row.kinds, "a dtype by kind")
        width = 0
        for kind, dtype in row.kinds.items():
            must(not fault(key_of(kind, row.name)) and kind, f"{where}.kinds", kind, "names")
            fine = type(dtype) is str and dtype in BYTES
            must(fine, f"{where}.kinds.{kind}", dtype, f"one of {', '.join(BYTES)}")
            fine = key_of(kind, row.name) not in keys
            must(fine, f"{where}.name", row.name, f"there once with the kind {kind}")
            keys.add(key_of(kind, row.name))
            width += BYTES[dtype]
        held, last = 0, sorted(file + count for file, count, _ in row.cuts)
        for file, count, length in row.cuts:
            fine = 0 <= file < file + count <= len(files) and length > 0
            allowed = f"[file, count, length] of pieces in the {len(files)} files"
            must(fine, f"{where}.cuts", [file, count, length], allowed)
            added[file] += width * length
            added[file + count] -= width * length
            held += count * length
        must(held == row.size, f"{where}.cuts", held, f"of {shown(row.size)} elements")
        firsts = sorted(file for file, _, _ in row.cuts)[1:]
        fine = all(end <= first for end, first in zip(last, firsts, strict=False))
        must(fine, f"{where}.cuts", row.cuts, "a piece in a file")
    taken = 0
    for more, (name, size) in zip(added, files.items(), strict=False):
        taken += more
        must(taken <= size, f"tensors in {name}", taken, f"{size} bytes at most")


def must(fine: object, where: str, value: object, allowed: str) -> None:
    """Raise ValueError unless a value of a manifest is fine."""
    if not fine:
        raise ValueError(f"body.{where} is {shown(repr(value))}; it must be {allowed}")
