"""A manifest's rows: pieces that make each tensor's every element once, joined and checked."""

import random
import re
from dataclasses import replace

import pytest

from bigvit.checkpoint.rows import Part, Row, check_rows, joined, label


def part(
    start: int,
    stop: int,
    file: int = 0,
    name: str = "w",
    shape: tuple[int, ...] = (2, 5),
    kind: str = "weight",
    dtype: str = "F32",
) -> Part:
    """A part of a tensor of 2 x 5 elements."""
    return file, label(name, shape, {kind: dtype}), start, stop


def cuts(*parts: Part) -> list[tuple[tuple[int, int, int], ...]]:
    return [row.cuts for row in joined(parts)]


def test_parts_that_are_every_element_once_are_joined() -> None:
    assert joined([]) == ()
    assert joined([part(0, 10)]) == (Row("w", (2, 5), {"weight": "F32"}, ((0, 1, 10),)),)
    assert cuts(part(7, 10, 2), part(0, 3), part(3, 7, 1)) == [((0, 1, 3), (1, 1, 4), (2, 1, 3))]
    assert cuts(part(0, 4, 5), part(4, 8, 6), part(8, 10, 7)) == [((5, 2, 4), (7, 1, 2))]
    assert cuts(part(0, 5, 1), part(5, 10, 3)) == [((1, 1, 5), (3, 1, 5))]
    assert cuts(part(0, 10), part(0, 4, name="v"), part(4, 10, 1, name="v")) == [
        ((0, 1, 10),),
        ((0, 1, 4), (1, 1, 6)),
    ]
    assert cuts(part(0, 1, shape=()), part(0, 0, name="v", shape=(0, 3))) == [((0, 1, 1),), ()]
    assert cuts(part(0, 10), part(10, 10, 1)) == [((0, 1, 10),)]


@pytest.mark.parametrize(
    "parts",
    [
        [part(0, 4), part(5, 10)],  # a gap
        [part(1, 10)],
        [part(0, 9)],
        [part(0, 11)],
        [part(0, 6), part(5, 10)],  # an overlap
        [part(0, 10), part(0, 10)],
        [part(0, 10, 0), part(0, 10, 1)],
        [part(0, 5), part(5, 10, shape=(10,))],  # shapes that differ
        [part(0, 5), part(5, 10, shape=(5, 2))],
        [part(0, 5), part(5, 10, dtype="BF16")],
        [part(0, 5), part(5, 10, kind="exp_avg")],  # halves of two tensors
        [part(0, 10), part(0, 9, name="v")],  # one of two
    ],
)
def test_parts_with_gaps_overlaps_or_other_shapes_are_refused(parts: list[Part]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        joined(parts)


def test_the_pieces_of_a_range_are_those_that_were_written() -> None:
    draw = random.Random(0)
    for _ in range(50):
        size = draw.randint(1, 24)
        inner = sorted(draw.sample(range(1, size), draw.randint(0, size - 1)))
        if draw.random() < 0.5:  # as ranks cut: each the same
            inner = list(range(step := draw.randint(1, size), size, step))
        ranges = list(zip([0, *inner], [*inner, size], strict=True))
        files = draw.sample(range(40), len(ranges)) if draw.random() < 0.5 else range(len(ranges))
        written = [(f, a, b) for f, (a, b) in zip(files, ranges, strict=True)]
        (row,) = joined(part(a, b, f, shape=(size,)) for f, a, b in written)
        for start in range(size):
            for stop in range(start + 1, size + 1):
                wanted = [(f, a, b) for f, a, b in written if a < stop and b > start]
                assert list(row.pieces(start, stop)) == wanted


FILES = {"a": 80, "b": 80, "c": 80}  # bytes
WHOLE = Row("w", (2, 5), {"weight": "F32", "exp_avg": "F32"}, ((0, 2, 4), (2, 1, 2)))


def test_rows_whose_files_have_room_are_fine() -> None:
    check_rows([WHOLE, replace(WHOLE, name="v", cuts=((2, 1, 4), (0, 2, 3)))], FILES)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([WHOLE, WHOLE], "tensors.1.name"),
        ([WHOLE, replace(WHOLE, kinds={"exp_avg": "F32"})], "tensors.1.name"),
        ([replace(WHOLE, cuts=((0, 2, 4),))], "tensors.0.cuts"),  # too few
        ([replace(WHOLE, cuts=((0, 3, 4),))], "tensors.0.cuts"),  # too many
        ([replace(WHOLE, cuts=((0, 2, 4), (1, 1, 2)))], "a piece in a file"),  # in one file twice
        ([replace(WHOLE, cuts=((1, 2, 4), (3, 1, 2)))], "in the 3 files"),  # there is no such file
        ([replace(WHOLE, cuts=((-1, 2, 4), (2, 1, 2)))], "in the 3 files"),
        ([replace(WHOLE, cuts=((0, 2, 6), (2, -1, 2)))], "in the 3 files"),
        ([replace(WHOLE, cuts=((0, 1, 12), (1, 1, -2)))], "in the 3 files"),
        ([replace(WHOLE, cuts=((0, 1, 10), (1, 2, 0)))], "in the 3 files"),
        ([replace(WHOLE, kinds={})], "tensors.0.kinds"),
        ([replace(WHOLE, kinds={"": "F32"})], "tensors.0.kinds"),
        ([replace(WHOLE, kinds={"weight": "F33"})], "tensors.0.kinds.weight"),
        ([replace(WHOLE, shape=(-2, -5))], "tensors.0.shape"),
        ([replace(WHOLE, shape=(2, 6))], "tensors.0.cuts"),
        ([replace(WHOLE, name="v", cuts=((1, 1, 10),)), WHOLE], "tensors in b"),
    ],
)
def test_rows_that_say_another_thing_are_refused(rows: list[Row], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_rows(rows, FILES)
