# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What a number may be: one table for recipes, runs and commands. No torch here.

A lower bound is below which a number means nothing. An upper bound is generous: what no machine
can hold or count, so that a slip of the keyboard is refused by its name and not by what breaks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


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

_COUNT = Bound(1, 10**9)
_BATCH = Bound(1, 2**20)  # images at once, over all ranks
_WIDTH = Bound(1, 2**20)
_DEPTH = Bound(1, 10_000)
_FACTOR = Bound(-1e6, 1e6)
_WEIGHT = Bound(0.0, 1e6)
_SHARE = Bound(0.0, 1.0)
_PORT = Bound(1, 65_535)

BOUNDS = {
    # models
    "patch_size": Bound(1, 4096),
    "embed_dim": _WIDTH,
    "embed_dims": _WIDTH,
    "token_dim": _WIDTH,
    "depth": _DEPTH,
    "depths": _DEPTH,
    "branches_per_block": Bound(1, 64),
    "num_heads": Bound(1, 2**16),
    "window_size": Bound(1, 2**16),
    "mlp_ratio": Bound(0.0, 1000.0, above=True),
    "layer_scale": _FACTOR,
    "init": _FACTOR,
    "UniformLayerScale.mean": Bound(0.0, 1e6, above=True),
    "ClassToken.layer": Bound(0, 10_000),
    "rate": Bound(0.0, 1.0, below=True),
    "in_chans": Bound(1, 10_000),
    "num_classes": Bound(1, 10**8),
    # data
    "image_size": Bound(1, 2**16),
    "train_images": Bound(1, 10**11),
    "test_images": Bound(0, 10**11),
    "classes": Bound(1, 10**8),
    "pixels": Bound(0, 2**16),
    "repeats": Bound(1, 1000),
    "mean": Bound(-1000.0, 1000.0),
    "std": Bound(1e-6, 1000.0),
    "scale": Bound(1e-4, 1.0),  # of an image of a megapixel, a box 10 wide
    "ratio": Bound(0.01, 100.0),
    "padding": Bound(0, 2**16),
    "color_jitter": _SHARE,
    "operations": Bound(1, 100),
    "magnitude": Bound(0.0, 10.0),
    "magnitude_std": Bound(0.0, 100.0),
    "mixup": Bound(0.0, 1e6),
    "cutmix": Bound(0.0, 1e6),
    "switch": _SHARE,
    "Mix.group": Bound(2, 2**20),
    "StochasticDepth.group": Bound(1, 2**20),
    "flip": _SHARE,
    "erasing": _SHARE,
    "test_crop_ratio": Bound(0.05, 1.0),
    # objectives
    "weight": _WEIGHT,
    "threshold": Bound(0.0, 1.0, below=True),
    "smoothing": Bound(0.0, 1.0, below=True),
    "alpha": _WEIGHT,
    "pairs": Bound(1, 10**6),
    "grid": Bound(1, 2**16),
    "hidden_dim": _WIDTH,
    "hidden_layers": Bound(1, 1000),
    "last": _SHARE,
    # optimization; the smallest are what float32 tells from 0
    "lr": Bound(0.0, 1e30, above=True),
    "betas": Bound(0.0, 1.0, below=True),
    "eps": Bound(1e-38, 1000.0),
    "weight_decay": Bound(0.0, 1000.0),
    "clip_norm": Bound(1e-38, 1e30),
    "epochs": Bound(1, MOST_UPDATES),
    "warmup_epochs": Bound(0, MOST_UPDATES),
    "warmup_lr": Bound(0.0, 1000.0),
    "min_lr": Bound(0.0, 1000.0),
    "layer_decay": Bound(0.0, 1.0, above=True),
    "ema": Bound(0.0, 1.0, above=True, below=True),
    "batch_size": _BATCH,
    "seed": Bound(0, 2**63 - 1),
    # runs
    "bad_images": _SHARE,
    "init_grid": Bound(1, 2**16),
    "micro_batch": _BATCH,
    "checkpoint_activations": _SHARE,
    "workers": Bound(0, 1024),
    "log_every": _COUNT,
    "loss_jump": Bound(1.0, 1e9, above=True),
    "evaluate_every": _COUNT,
    "checkpoint_every": _COUNT,
    "keep": _COUNT,
    "keep_every": _COUNT,
    "stop_after": Bound(1, MOST_UPDATES),
    "timeout": Bound(1.0, 86_400.0),  # a day, in seconds
    "max_minutes": Bound(0.0, 5_256_000.0, above=True),  # ten years
    # commands, beside what they share with the above
    "batch": Bound(0, MOST_UPDATES),
    "count": _BATCH,
    "images": _BATCH,
    "layers": _DEPTH,
    "crop_ratio": Bound(0.05, 1.0),
    "ssh_port": _PORT,
    "master_port": _PORT,
}
"""By a field's or an option's name; by Class.field where classes mean different things by it."""


def bound_of(owner: object, name: str) -> Bound | None:
    """What a number in a field may be."""
    return BOUNDS.get(f"{type(owner).__name__}.{name}") or BOUNDS.get(name)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value inside a dataclass, with its dotted path."""
    for below, _, _, leaf in _leaves(value, path):
        yield below, leaf


def check_numbers(value: object, called: Callable[[str], str] = str) -> None:
    """Check every number inside a dataclass by itself.

    Args:
        called: what the field at a path is called in a message.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    for path, owner, name, leaf in _leaves(value, ""):
        bound = bound_of(owner, name)
        for number in leaf if isinstance(leaf, tuple) else (leaf,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                if number != number or number in (float("inf"), float("-inf")):
                    raise ValueError(
                        f"{called(path)}: {shown(leaf)} is not a finite number; give one"
                    )
                if bound is not None and not bound.allows(number):
                    raise ValueError(
                        f"{called(path)}: {shown(leaf)} is not allowed; it must be {bound}"
                    )


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


def _leaves(value: object, path: str) -> Iterator[tuple[str, object, str, Any]]:
    """Every plain value inside a dataclass: its path, the dataclass, its name there, and itself."""
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
            yield below, value, field.name, item
