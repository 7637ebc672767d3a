"""Every parameter of a recipe, one by one, from what its model says that it
computes. No torch here."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Literal, NamedTuple

from bigvit.recipe import (
    Dino,
    DRLoc,
    Grafit,
    ImageSize,
    MaskRCNN,
    Model,
    Muon,
    Objective,
    Recipe,
    UperNet,
)
from bigvit.recipe.depth import sides
from bigvit.recipe.models.ops import Op
from bigvit.recipe.muon import parts_of
from bigvit.recipe.read import Read
from bigvit.recipe.recipe import Trainable, trains
from bigvit.recipe.views import views_of

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}  # of a number in a recipe's precision
WIDE = 4  # of one in float32: of the residual stream, masters, moments and averages


class Weight(NamedTuple):
    """A parameter, or several of one module that are gathered together."""

    size: int  # elements
    rows: int  # its first dimension
    block: int | None  # the block that it lies in, None outside of them
    layer: int  # its depth: 0 the embedding, i the i-th block, then what follows
    module: int  # number of its module in the order of the forward pass
    decayed: bool
    trained: bool
    parts: int = 1  # matrices that lie above each other in it, as Muon takes them
    hidden: bool = False  # one that Muon steps
    behind: bool = False  # of an objective, not of the model
    followed: bool = True  # one that a follower, where there is one, has a copy of
    held: bool = False  # one that an objective holds back at first
    read: bool = True  # of the model: by an objective; what is not is not computed


def hidden(weights: Iterable[Weight]) -> list[Weight]:
    """Those that Muon steps."""
    return [w for w in weights if w.hidden]


class Weights(NamedTuple):
    """A recipe's parameters in the order of the model's, and BatchNorm's statistics."""

    all: tuple[Weight, ...]
    statistics: int  # elements
    gathered: int  # of these, that training changes

    @property
    def trained(self) -> tuple[Weight, ...]:
        return tuple(w for w in self.all if w.trained)

    def groups(self, by_layer: bool) -> list[list[Weight]]:
        """The optimizer's groups, as `bigvit.optim.groups` makes them."""
        found: dict[tuple[int, bool, bool, bool], list[Weight]] = {}
        for w in self.trained:
            key = w.layer if by_layer else 0, not w.decayed, not w.hidden, w.held
            found.setdefault(key, []).append(w)
        return [found[key] for key in sorted(found)]


def weights_of(recipe: Recipe) -> Weights:
    """All that a recipe's task has, the objectives' too; but for a follower's."""
    size = recipe.data.image_size
    qkv = recipe.optim.qkv if isinstance(recipe.optim, Muon) else None
    behind = tuple(
        (op, _followed(each, op))
        for each in recipe.objectives
        for op in heads(each, recipe)
        if op.parameters
    )
    gathers = frozenset(
        op.module
        for op in recipe.model.ops(size)
        if op.kind == "batch norm" and recipe.gathers(op.module)
    )
    own = recipe.trainable, recipe.read
    return _weights(recipe.model, size, behind, *own, qkv, gathers)


def _followed(objective: Objective, op: Op) -> bool:
    """Whether an objective's follower has what it computes by itself."""
    asks = isinstance(objective, Grafit | Dino) and bool(objective.asked)
    return asks and not op.module.startswith("predictor")


def heads(objective: Objective, recipe: Recipe) -> Iterator[Op]:
    """What an objective computes of an image by itself."""
    maps, data = recipe.model.maps(recipe.data.image_size), recipe.data
    match objective:
        case DRLoc():
            yield from objective.ops(maps)
        case Grafit():
            count = views_of(data, objective.views) if objective.instance else 0
            yield from objective.ops(maps[-1][0], count, data.train_images)
        case Dino():
            large, small = (
                sum(views_of(data, group) for group in groups)
                for groups in (objective.large, objective.small)
            )
            yield from objective.ops(maps[-1][0], large + small, large)
        case UperNet():
            pixels = prod(sides(data.image_size))
            yield from objective.ops(objective.levels(maps), data.classes, pixels)
        case MaskRCNN():
            yield from objective.ops(maps, data.classes)
        case _:
            pass


class Size(NamedTuple):
    """How large a model is."""

    parameters: int
    macs: int  # multiply-accumulates of an image's forward pass


def size_of(recipe: Recipe) -> Size:
    """The model with the head that answers in the place of its own, if there is one."""
    model, pixels, head = recipe.model, recipe.data.image_size, head_of(recipe)
    return Size(model.parameters(pixels) + head.parameters, model.macs(pixels) + head.macs)


def head_of(recipe: Recipe) -> Size:
    """That head alone; 0 where there is none. A detector's is that of training."""
    ops = [] if recipe.dense is None else list(heads(recipe.dense, recipe))
    return Size(sum(op.parameters * op.times for op in ops), sum(op.macs * op.times for op in ops))


@lru_cache
def _weights(
    model: Model,
    size: ImageSize,
    behind: tuple[tuple[Op, bool], ...],
    trainable: Trainable,
    read: Read,
    qkv: Literal["split", "whole"] | None,
    gathers: frozenset[str],
) -> Weights:
    """Args:
    behind: of the objectives, and whether it is followed.
    qkv: what Muon does with these, None where the optimizer is another one.
    gathers: which BatchNorms of the model gather statistics.
    """
    ops = (op for op in model.ops(size) if op.parameters)
    own: list[Weight] = []  # of the model itself: they stand before those of its modules
    found: list[Weight] = []
    blocks = modules = statistics = frozen = 0
    for (block, times), alike in groupby(ops, lambda op: (op.block, op.times)):
        each = list(alike)
        for number in range(times):
            layer = blocks + 1 if block is not None or blocks else 0
            for op in each:
                place = None if block is None else block + number
                name = f"{op.module}."
                used = read.reads(name, layer)
                trained = used and trains(name, trainable, model.beginning)
                mine = own if op.kind == "embedding" and "." not in op.module else found
                its = _of(op, place, layer, modules, trained)
                mine += (w._replace(read=used) for w in its)
                modules += 1
                statistics += op.parameters * (op.kind == "batch norm")
                frozen += op.parameters * (op.kind == "batch norm" and op.module not in gathers)
            blocks += block is not None
    if qkv is not None:
        own, found = ([_for_muon(w, blocks, qkv) for w in each] for each in (own, found))
    for op, followed in behind:
        held = op.module.startswith("head.prototypes")
        its = _of(op, None, blocks + 1, modules, True)
        found += (w._replace(behind=True, followed=followed, held=held) for w in its)
        modules += 1
        statistics += op.parameters * (op.kind == "batch norm")
    return Weights((*own, *found), statistics, statistics - frozen)


def _for_muon(w: Weight, blocks: int, qkv: Literal["split", "whole"]) -> Weight:
    """A weight with what Muon makes of it, as `bigvit.optim.groups` says."""
    parts = w.parts if qkv == "split" and w.rows % w.parts == 0 else 1
    inside = w.decayed and 0 < w.layer <= blocks
    return w._replace(parts=parts, hidden=inside and w.rows > parts and w.size > w.rows)


def _of(op: Op, block: int | None, layer: int, module: int, trained: bool) -> Iterator[Weight]:
    """The parameters of one module."""

    def made(size: int, rows: int, decayed: bool = False) -> Weight:
        return Weight(size, rows, block, layer, module, decayed, trained)

    if op.shape:  # of a product with a matrix
        matrix = op.shape[1] * op.shape[2]
        yield made(matrix, op.shape[2], True)._replace(parts=parts_of(f"{op.module}.weight"))
        if op.parameters > matrix:
            yield made(op.parameters - matrix, op.shape[2])
    elif op.kind in ("norm", "batch norm"):
        yield from [made(op.parameters // 2, op.parameters // 2)] * 2
    elif op.kind == "affine":  # of shape (1, 1, D)
        yield from [made(op.parameters // 2, 1)] * 2
    elif op.kind == "embedding":
        yield made(op.parameters, op.rows)
    else:
        yield made(op.parameters, op.parameters)
