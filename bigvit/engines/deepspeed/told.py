# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What LAMB and Muon are told of the tensors that DeepSpeed has them step."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.engines.engine import Slice, total
from bigvit.optim import LAMB, MUON, Segment, Shard
from bigvit.optim.groups import matrices
from bigvit.optim.matrices import Exchange, Matrix, matrices_of
from bigvit.ranks.joining import Ranks
from bigvit.task import Task


class Told(Protocol):
    """What `Inside` knows of a rank's tensors."""

    optimizer: torch.optim.Optimizer
    ranks: Ranks
    task: Task
    names: dict[int, str]
    shapes: dict[str, tuple[int, ...]]

    def flats(self) -> Iterator[tuple[list[Any], Tensor, Any]]: ...

    def parts(self) -> Iterator[tuple[Slice, Tensor, int]]: ...

    def cuts(self) -> Iterator[tuple[str, Tensor, int, list[range]]]: ...


def tell(inside: Told) -> None:
    """Tell an optimizer that works on whole parameters, if it is one, where these lie."""
    match inside.optimizer:
        case LAMB():
            inside.optimizer.shards.update(_shards(inside))
        case MUON():
            group = next((group for _, _, group in inside.flats()), None)
            exchange = Exchange(dist.get_rank(group), group, inside.ranks.device)
            inside.optimizer.attach(_matrices(inside, exchange.rank), exchange)
        case _:
            pass


def _shards(inside: Told) -> Iterator[tuple[Tensor, Shard]]:
    """What each tensor of LAMB holds, where that is not one whole parameter."""
    for params, flat, group in inside.flats():
        slots = {inside.names[id(p)]: slot for slot, p in enumerate(params)}
        segments = tuple(
            Segment(slots[part.name], offset, offset + len(part.view))
            for part, tensor, offset in inside.parts()
            if tensor is flat
        )
        of = torch.tensor([each.slot for each in segments], dtype=torch.long, device=flat.device)
        yield flat, Shard(segments, len(params), of, partial(total, group, inside.ranks.device))


def _matrices(inside: Told, rank: int) -> Iterator[Matrix]:
    """What each tensor of Muon holds."""
    hidden = matrices(inside.task, inside.task.recipe, inside.shapes)
    for name, tensor, start, held in inside.cuts():
        if name in hidden:
            shape, parts = inside.shapes[name], hidden[name]
            yield from matrices_of(shape, parts, held, rank, tensor, start)
