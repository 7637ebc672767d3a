"""What stands in timm's modules in the place of what is random there, and of BatchNorm.

Shapes: B images of a micro-batch, R rows of a tensor's first dimension, whole images' one after the
other: B of them, or more where an image's patches or windows lie there.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from timm.layers import BatchNormAct2d  # pyright: ignore[reportPrivateImportUsage]
from timm.models import convit, swin_transformer, vision_transformer
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.stochastic_depth import Drop, Kept, recomputed

PLAIN: dict[type, tuple[tuple[str, ...], ...]] = {
    vision_transformer.Block: (
        ("drop_path1", "norm1", "attn", "ls1"),
        ("drop_path2", "norm2", "mlp", "ls2"),
    ),
    swin_transformer.SwinTransformerBlock: (
        ("drop_path1", "norm1", "_attn"),
        ("drop_path2", "norm2", "mlp"),
    ),
    convit.Block: (("drop_path", "norm1", "attn"), ("drop_path", "norm2", "mlp")),
}
"""Blocks that are x + path(f(x)) and nothing else: of each branch the path, and what f is made of.
"""


class Path(nn.Module):
    """A DropPath of timm's, which is told what to drop. One that is called several times in a
    forward pass drops anew each time."""

    skips = False  # its branch is computed for the kept samples alone

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Drop] = []
        self.calls = self.images = 0

    def give(self, drops: list[Drop], images: int) -> None:
        """Be told what the calls of the next forward pass drop; nothing: all are whole."""
        if not self.skips:
            drops = [_factors(drop, images) for drop in drops]
        self.given, self.images, self.calls = drops, images, 0

    def take(self, x: Tensor) -> Drop:
        """What this call drops."""
        if not self.given:
            return None
        self.calls += 1
        return self.given[self.calls - 1]

    def forward(self, x: Tensor) -> Tensor:
        """(R, ...) -> (R, ...), 0 where an image is dropped."""
        return _scaled(x, self.take(x), self.images)


class Dropout(nn.Module):
    """A Dropout of timm's: what it drops is a function of an image's key and an element's place."""

    def __init__(self, rate: float, number: int) -> None:
        super().__init__()
        self.rate, self.number = rate, number
        self.keys: Tensor | None = None
        self.samples: Tensor | None = None  # images that are there, of a branch that skips others

    def forward(self, x: Tensor) -> Tensor:
        """(R, ...) -> (R, ...); nothing is dropped without keys (B,)."""
        if (keys := self.keys) is None:
            return x
        if self.samples is not None:
            keys = keys.index_select(0, self.samples)
        whole = x.reshape(len(keys), -1)
        place = torch.arange(whole.shape[1], device=x.device)
        drawn = _mixed(_mixed(keys + self.number)[:, None] ^ place)
        kept = (drawn & (2**24 - 1)) >= self.rate * 2**24
        return (whole * (kept / (1 - self.rate))).to(x.dtype).view_as(x)


def _mixed(x: Tensor) -> Tensor:
    """Each of some int64 numbers, its bits mixed (SplitMix64's finalizer)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Bits to the right, and zeros where they were."""
    return (x >> by) & ((1 << (64 - by)) - 1)


class BatchNormAct(BatchNorm):
    """timm's: with an activation behind it."""

    drop: Any
    act: Any

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        return self.act(self.drop(super().forward(input)))


NORMS = {
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    BatchNormAct2d: BatchNormAct,
}


def replace_batch_norms(net: nn.Module) -> None:
    """Make all of BatchNorm ours."""
    module: Any
    for module in net.modules():
        if type(module) in NORMS and module.running_mean is not None:
            module.__class__ = NORMS[type(module)]
            module.num_batches_tracked = None


class _Skips:
    """A block of `PLAIN`."""

    branches: tuple[tuple[str, ...], ...]
    dropouts: list[Dropout]

    def forward(self, x: Tensor) -> Tensor:
        """x (B, ...) -> (B, ...)."""
        for path, *parts in self.branches:
            drop = getattr(self, path).take(x)
            for dropout in self.dropouts:
                dropout.samples = drop.samples if isinstance(drop, Kept) else None
            x = _added(x, partial(self._through, parts), drop)
        return x

    def _through(self, parts: list[str], x: Tensor) -> Tensor:
        for part in parts:
            x = getattr(self, part)(x)
        return x


def skip_dropped(net: nn.Module) -> None:
    """Let plain blocks compute their branches for the kept samples alone."""
    module: Any
    for module in net.modules():
        paths = [getattr(module, path) for path, *_ in PLAIN.get(type(module), ())]
        if paths and all(isinstance(path, Path) for path in paths):
            for path in paths:
                path.skips = True
            module.dropouts = [each for each in module.modules() if isinstance(each, Dropout)]
            module.__class__ = _skipping(type(module))


@cache
def _skipping(block: type) -> type:
    return type(block.__name__, (_Skips, block), {"branches": PLAIN[block]})


def recompute(block: nn.Module) -> None:
    """Keep a block's input alone for backward, and compute the rest once more there."""
    paths = [each for each in block.modules() if isinstance(each, Path)]
    once = block.forward

    def again(more: tuple[Any, ...], named: dict[str, Any], x: Tensor) -> Tensor:
        for path in paths:
            path.calls = 0
        output = once(x, *more, **named)
        for path in paths:  # as it was, so that it can be compiled
            path.calls = 0
        return output

    def forward(x: Tensor, *more: Any, **named: Any) -> Tensor:
        return recomputed(partial(again, more, named), x)

    block.forward = forward


def _added(x: Tensor, branch: Callable[[Tensor], Tensor], drop: Drop) -> Tensor:
    """x + branch(x), of the samples that are not dropped."""
    if isinstance(drop, Kept):
        output = branch(x.index_select(0, drop.samples))
        return x.index_add(0, drop.samples, output, alpha=drop.scale)
    return x + _scaled(branch(x), drop, len(x))


def _factors(drop: Drop, images: int) -> Tensor | None:
    """What each image counts."""
    if not isinstance(drop, Kept):
        return drop
    factors = torch.zeros(images, device=drop.samples.device)
    return factors.index_fill_(0, drop.samples, drop.scale)


def _scaled(x: Tensor, drop: Drop, images: int) -> Tensor:
    """x (R, ...) times the factors (B,) of its images, if there are any."""
    if not isinstance(drop, Tensor):
        return x
    factors = drop.repeat_interleave(len(x) // images).view(-1, *[1] * (x.ndim - 1))
    return (x * factors).to(x.dtype)
