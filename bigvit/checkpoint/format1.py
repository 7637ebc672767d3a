"""Manifests of format 1, which had a row for each piece of each kind. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bigvit.checkpoint.rows import Part, Row, joined, label, must
from bigvit.recipe.store import build


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a flattened tensor, in a file."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    file: str


def rows_of(pieces: Any, files: Sequence[str]) -> tuple[Row, ...]:
    """The rows that pieces make.

    Args:
        files: their names, in their order.

    Raises:
        ValueError: names the key, the value given and what is allowed; or a tensor is not whole.
    """
    if not isinstance(pieces, list):
        raise ValueError("body.pieces must be a list")
    return joined(_parts(pieces, {name: number for number, name in enumerate(files)}))


def _parts(pieces: list[Any], numbers: dict[str, int]) -> Iterator[Part]:
    for i, value in enumerate(pieces):
        piece = build(Piece, value, f"body.pieces.{i}")
        must(piece.file in numbers, f"pieces.{i}.file", piece.file, "one of the files")
        must(piece.start <= piece.stop, f"pieces.{i}.stop", piece.stop, f"{piece.start} or more")
        of = label(piece.name, piece.shape, {piece.kind: piece.dtype})
        yield numbers[piece.file], of, piece.start, piece.stop
