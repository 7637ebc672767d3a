# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What a number may be, as part of its field's type: `Annotated[int, Bound(1, 64)]`. No torch here.

A lower bound is below which a number means nothing. An upper bound is generous: what no machine
can hold or count, so that a slip of the keyboard is refused by its name and not by what breaks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints


@dataclass(frozen=True)
class Bound:
    """The numbers from `low` to `high`."""

    low: float
    high: float
    above: bool = False  # low itself is not allowed
    below: bool = False  # high itself is not allowed

    def allows(self, number: float) -> bool:
        """Whether a number lies within; nan never does."""
        low = number > self.low if self.above else number >= self.low
        return low and (number < self.high if self.below else number <= self.high)

    def __str__(self) -> str:
        low, high = (f"{n:,}" if type(n) is int else f"{n:g}" for n in (self.low, self.high))
        if self.above:
            return f"above {low} and {'below' if self.below else 'at most'} {high}"
        return f"{low} or more and below {high}" if self.below else f"{low} to {high}"


MOST_UPDATES = 10**8 - 1  # the eight digits of a checkpoint's name
MOST_PARAMETERS = 10**13  # with moments and gradients 160 TB
MOST_STAGES = 16

T = TypeVar("T")  # int or float, or None, or several of them

# ranges that fields of several files share: Width[int], Width[tuple[int, ...]]
Width = Annotated[T, Bound(1, 2**20)]
Depth = Annotated[T, Bound(1, 10_000)]
Heads = Annotated[T, Bound(1, 2**16)]
MlpRatio = Annotated[T, Bound(0.0, 1000.0, above=True)]
Factor = Annotated[T, Bound(-1e6, 1e6)]
Side = Annotated[T, Bound(1, 2**16)]  # of an image, pixels; of a grid or a window, tokens
PatchSize = Annotated[T, Bound(1, 4096)]
Channels = Annotated[T, Bound(1, 10_000)]
Classes = Annotated[T, Bound(1, 10**8)]
CropRatio = Annotated[T, Bound(0.05, 1.0)]
Pairs = Annotated[T, Bound(1, 10**6)]
Share = Annotated[T, Bound(0.0, 1.0)]
ShareBelow1 = Annotated[T, Bound(0.0, 1.0, below=True)]
Batch = Annotated[T, Bound(1, 2**20)]  # images at once, over all ranks
Length = Annotated[T, Bound(1, MOST_UPDATES)]  # of a training, in epochs or updates
LengthFrom0 = Annotated[T, Bound(0, MOST_UPDATES)]
Weight = Annotated[float, Bound(0.0, 1e6)]  # of a loss in a sum
Temperature = Annotated[T, Bound(1e-3, 1e3)]  # that logits are divided by
Memory = Annotated[T, Bound(0.0, 2.0**20, above=True)]  # of a device, GiB
Workers = Annotated[T, Bound(0, 1024)]
# of optimizers
PeakLr = Annotated[float, Bound(0.0, 1e30, above=True)]
Epsilon = Annotated[float, Bound(1e-38, 1000.0)]  # the smallest is what float32 tells from 0
Decay = Annotated[T, Bound(0.0, 1000.0)]


@cache
def bounds_of(kind: type) -> dict[str, Bound]:
    """What the numbers in a dataclass's fields may be, by field: it stands in the field's type."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: hint.__metadata__[0] for name, hint in hints if get_origin(hint) is Annotated}


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value inside a dataclass, with its dotted path."""
    for below, _, leaf in _leaves(value, path):
        yield below, leaf


def check_numbers(value: object, called: Callable[[str], str] = str) -> None:
    """Check every number inside a dataclass by itself.

    Args:
        called: what the field at a path is called in a message.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    for path, bound, leaf in _leaves(value, ""):
        for number in leaf if isinstance(leaf, tuple) else (leaf,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                if number != number or number in (float("inf"), float("-inf")):
                    raise ValueError(
                        f"{called(path)}: {shown(leaf)} is not a finite number; give one"
                    )
                if bound is not None:
                    allow(called(path), leaf, bound.allows(number), str(bound))


def shown(value: object) -> str:
    """A value in a message, shortened where it is long."""
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"


def allow(path: str, value: object, fine: bool, allowed: str) -> None:
    """Raise ValueError where a value is not fine, with its field and what it must be."""
    if not fine:
        raise ValueError(f"{path}: {shown(value)} is not allowed; it must be {allowed}")


def _leaves(value: object, path: str) -> Iterator[tuple[str, Bound | None, Any]]:
    """Every plain value inside a dataclass: its path, what its numbers may be, and itself."""
    assert is_dataclass(value)
    for field in fields(value):
        item: Any = getattr(value, field.name)
        below = f"{path}.{field.name}" if path else field.name
        if is_dataclass(item):
            yield from _leaves(item, below)
        elif isinstance(item, tuple) and any(is_dataclass(part) for part in item):
            for i, part in enumerate(item):
                yield from _leaves(part, f"{below}.{i}")
        else:
            yield below, bounds_of(type(value)).get(field.name), item
