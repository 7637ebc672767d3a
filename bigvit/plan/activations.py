"""What a rank computes of a micro-batch, and what it keeps of it for backward: sums over what the
model and the objectives say that they compute. Blocks are eager; compiled ones keep less.
docs/plan.md has the formulas. No torch here."""

from collections.abc import Iterator
from itertools import groupby
from math import prod
from typing import NamedTuple

from bigvit.plan.weights import BYTES, WIDE, heads
from bigvit.recipe import Dino, MaskRCNN, OfFeatures, Recipe, TokenLabeling, UperNet
from bigvit.recipe.depth import sides, spread
from bigvit.recipe.models.ops import Op
from bigvit.recipe.recipe import trains

INDEX = 8
"""Bytes of a sample's position."""


class Macs(NamedTuple):
    """Multiply-accumulates an image, the objectives' too."""

    dense: float  # of a forward pass that skips nothing
    forward: float  # of one that skips
    backward: float  # of its gradients
    again: float  # of the recomputed blocks' second forward pass, in backward


class Step(NamedTuple):
    """An operation, and what backward does about it."""

    op: Op  # without what is not kept of it, as its weights are frozen
    gradients: int  # computed of it, each as many products as itself: of its weights, of its input
    trained: int  # parameters of it that are


class Part(NamedTuple):
    """Steps one after the other: a residual branch of each of some blocks, or what is between
    blocks. All sizes are an image's, in bytes."""

    steps: list[Step]
    shares: list[float]  # of the samples that it is computed for, block by block
    again: list[int]  # 1 where backward computes the block once more
    narrow: int  # bytes of a number in the weights' type
    skips: bool  # whether branches work on the kept samples alone

    @property
    def trained(self) -> int:
        """Parameters of it that are trained, of one block."""
        return sum(step.trained for step in self.steps)

    @property
    def read(self) -> int:
        """What is kept of it where it is recomputed."""
        return sum(self._kept(s.op) for s in self.steps if s.op.kind in ("stream", "shared"))

    @property
    def kept(self) -> int:
        """What is kept of it."""
        return sum(self._kept(step.op) for step in self.steps)

    @property
    def repeated(self) -> int:
        """Products of it that backward computes once more where it is recomputed: not a last layer,
        whose result nothing behind it needs."""
        last = self.steps[-1].op
        return sum(op.macs for op, *_ in self.steps) - (last.kind == "linear") * last.macs

    @property
    def forward(self) -> int:
        """The most that is alive of it in forward."""
        most, kept = 0, 0
        for op, *_ in self.steps:
            kept += self._kept(op)
            most = max(most, kept + self._moving(op) // 2)
        return max(most, kept + self.read)

    @property
    def passing(self) -> int:
        """The same where it is recomputed later."""
        return self.read + max(self._moving(op) for op, *_ in self.steps)

    @property
    def backward(self) -> int:
        """The most that is alive of it in backward, what is kept included."""
        most, kept = 0, 0
        for op, *_ in self.steps:
            kept += self._kept(op)
            most = max(most, kept + self._moving(op))
        returned = self.read if self.skips else 0  # the kept samples' share of the gradient
        return max(most, kept + self._moving(self.steps[-1].op) + returned)

    def _kept(self, op: Op) -> int:
        if op.kind == "shared" and not self.skips:
            return 0
        return self.narrow * op.kept + WIDE * op.wide

    def _moving(self, op: Op) -> int:
        """What an operation reads and returns; their gradients are as large."""
        size = WIDE if op.wide else self.narrow
        match op:
            case Op(kind="attention", shape=(maps, heads, _)):  # six maps of talking heads
                return 6 * size * maps * heads
            case Op(kind="linear", shape=(rows, inputs, outputs)):
                return size * rows * (inputs + outputs)
            case Op(kind="conv", shape=(rows, _, outputs)):
                return size * (rows * outputs + op.kept)
            case Op(kind="scale"):  # of the float32 product
                return (size + WIDE) * op.kept
            case _:
                return 2 * self._kept(op)


def executed_macs(recipe: Recipe, recomputed: float = 0.0) -> Macs:
    """What is computed of an image in a step of training. What a kernel computes once more by
    itself, as a fused attention's map in backward, is not counted.

    Args:
        recomputed: share of the blocks.
    """
    dense = forward = backward = again = 0.0
    for part in parts(recipe, recomputed):
        share = sum(part.shares)
        twice = sum(s for s, again in zip(part.shares, part.again, strict=True) if again)
        for op, gradients, _ in part.steps:
            dense += op.macs * len(part.shares)
            forward += op.macs * share
            backward += op.macs * share * gradients
        again += part.repeated * twice
    return Macs(dense, forward, backward, again)


def kept_bytes(recipe: Recipe, micro_batch: int, recomputed: float = 0.0) -> int:
    """Bytes that autograd keeps at the end of a micro-batch's forward pass.

    Args:
        micro_batch: images; whole groups, where samples are kept by groups.
        recomputed: share of the blocks, of which what their branches read is kept alone.
    """
    kept = 0.0
    for part in parts(recipe, recomputed):
        twice = sum(s for s, again in zip(part.shares, part.again, strict=True) if again)
        kept += part.kept * (sum(part.shares) - twice) + part.read * twice
    if recipe.model.drop_path.grouped:
        kept += INDEX * recipe.model.branches
    return round(micro_batch * kept) + _copies(recipe)


def most_at_once(
    recipe: Recipe, micro_batch: int, recomputed: float = 0.0, gradients: int = 0
) -> int:
    """Bytes at the worst moment of a forward and a backward pass: what is kept for backward and not
    freed yet, gradients of weights that have come, and, for the operation at work, activations,
    their gradients and a recomputed branch; with the pixels of the next micro-batch, which are on
    the device already, and further views as they are fed. What is computed of these is not in it.

    Args: as those of `kept_bytes`, and
        gradients: of weights, bytes at the end of backward; none where they are not to count.
    """
    height, width = sides(recipe.data.image_size)
    pixels = recipe.model.in_chans * height * width
    images = 0 if recipe.precision == "fp32" else WIDE * pixels  # beside those that were cast
    groups = ((each.count, *sides(each.image_size)) for each in recipe.data.groups)
    views = recipe.model.in_chans * sum(map(prod, groups))
    all_parts = parts(recipe, recomputed)
    coming = sum(part.trained * len(part.shares) for part in all_parts)  # from here to the end
    each = gradients / max(1, coming)
    stages = [list(s) for _, s in groupby(all_parts, key=lambda part: part.steps[0].op.block)]
    reads = [max(part.read for part in stage) for stage in stages]
    before = most = 0.0
    for stage, own, following in zip(stages, reads, [*reads[1:], 0], strict=True):
        stream = max(own, following)  # what a block returns is what the next one reads
        sizes = [(p.read, p.kept, p.passing, p.forward, p.backward) for p in stage]
        for i in range(len(stage[0].shares)):
            for part, (read, kept, passing, forward, backward) in zip(stage, sizes, strict=True):
                share, again = part.shares[i], part.again[i]
                ahead = images + share * (passing if again else forward)
                back = micro_batch * (before + stream + share * backward) + each * coming
                most = max(most, micro_batch * (before + stream + ahead), back)
                before += share * (read if again else kept)
                coming -= part.trained
    index = INDEX * recipe.model.branches * recipe.model.drop_path.grouped
    fed = pixels + views + WIDE * views  # the next ones as bytes, and this one's
    return round(most + micro_batch * (fed + index)) + _copies(recipe)


def parts(recipe: Recipe, recomputed: float) -> list[Part]:
    """All that a step computes, in order."""
    model, steps = recipe.model, list(_steps(recipe))
    ops = model.ops(recipe.data.image_size)  # of blocks that are not read, too
    blocks = max(op.block + op.times for op in ops if op.block is not None)
    again = spread(round(recomputed * blocks), blocks)
    drop, each = model.drop_path, model.branches // model.depth
    kept = [k / drop.group for k in drop.kept(model.branches)] if drop.grouped else []
    kept += [1.0] * (each * model.depth - len(kept))
    narrow = BYTES[recipe.precision]
    parts: list[Part] = []
    for (block, times, branch), some in groupby(
        steps, key=lambda step: (step.op.block, step.op.times, step.op.branch)
    ):
        if block is None:
            parts.append(Part(list(some), [1.0], [0], narrow, False))
        elif times:
            mine = range(block, block + times)
            # class attention drops nothing
            shares = [kept[each * i + branch] if i < model.depth else 1.0 for i in mine]
            parts.append(Part(list(some), shares, again[block:][:times], narrow, drop.grouped))
    return parts


def _steps(recipe: Recipe) -> Iterator[Step]:
    """What is computed of an image: by the model, then by the objectives."""
    ops = list(_read(recipe))
    within = {op.block for op in ops if op.times > 1 and _trained(op, recipe)}
    moved = False  # whether what is read depends on weights that are trained
    for op in ops:
        own, moved = _trained(op, recipe), moved or op.block in within
        if op.kind in ("linear", "conv", "scale"):
            reads, gradients = own, own + moved
        else:
            # what is kept of a stream is what the first weights of its block read
            read = own or op.kind == "stream" and _allowed(op, recipe)
            reads, gradients = read or moved, 2 * moved
        yield Step(op if reads else op._replace(kept=0, wide=0), gradients, own * op.parameters)
        moved = moved or own
    # logits, or their logarithms, and targets, of each objective that reads them
    patches = prod(recipe.model.grid(recipe.data.image_size))
    reading = sum(
        patches if isinstance(objective, TokenLabeling) else not isinstance(objective, OfFeatures)
        for objective in recipe.objectives
    )
    yield Step(Op("", "activation", 0, 0, 0, wide=2 * reading * recipe.model.num_classes), 0, 0)
    yield from (Step(op, 2, op.parameters) for op in _localizers(recipe))


def _read(recipe: Recipe) -> Iterator[Op]:
    """What the model computes of an image: what objectives read."""
    read, past = recipe.read, False
    for op in recipe.model.ops(recipe.data.image_size):
        if f"{op.module}.".startswith(read.unread):
            continue
        if op.block is None:
            if not past:
                yield op
        elif (left := read.blocks - op.block) > 0:
            yield op._replace(times=int(min(op.times, left)))
            past = op.times >= left


def _trained(op: Op, recipe: Recipe) -> bool:
    """As `Task` says of what is read."""
    return op.parameters > 0 and _allowed(op, recipe)


def _allowed(op: Op, recipe: Recipe) -> bool:
    """Whether `trainable` lets it be trained."""
    return trains(f"{op.module}.", recipe.trainable, recipe.model.beginning)


def _localizers(recipe: Recipe) -> Iterator[Op]:
    for objective in recipe.objectives:
        yield from heads(objective, recipe)


def _copies(recipe: Recipe) -> int:
    """Bytes of the objectives' weights in float32, where they are not so already and are wanted
    so, and of DINO's last layer with its rows of norm 1 (and again, times their gain)."""
    dinos = (each for each in recipe.objectives if isinstance(each, Dino))
    unit = sum(
        each.outputs * (each.bottleneck_dim * (1 + (each.gain == "trained")) + 1) for each in dinos
    )
    others = (each for each in recipe.objectives if not isinstance(each, UperNet | MaskRCNN))
    numbers = sum(op.parameters for each in others for op in heads(each, recipe))
    return WIDE * (unit + (0 if recipe.precision == "fp32" else numbers))
