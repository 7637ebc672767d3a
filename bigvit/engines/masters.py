# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""From gradients to weights, for engines that step their own full-precision weights."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bigvit import optim
from bigvit.engines.engine import Check, Slice, StepInfo, buffer_slices
from bigvit.engines.kept import kept_slices
from bigvit.engines.loss_scale import LossScale
from bigvit.engines.norms import Squares
from bigvit.optim import EMA, LAMB, MUON, Segment, Shard
from bigvit.optim.groups import matrices, parameter_groups
from bigvit.optim.matrices import Exchange, matrices_of
from bigvit.optim.state import fresh_state, kinds, set_steps, steps
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates, Recipe
from bigvit.task import Task

Total = Callable[[Tensor], Tensor]
"""The sum of a tensor over the ranks that hold the model's pieces. Collective."""


@dataclass(frozen=True)
class Master:
    """What a rank holds of a parameter, in full precision."""

    name: str
    shape: tuple[int, ...]  # of the whole parameter
    start: int  # its first element in the flattened parameter
    weight: nn.Parameter
    writer: bool = True  # is this rank the one that saves it
    held: tuple[range, ...] = ()  # by rank that has pieces: their elements; left out: it is whole


class Masters:
    """The full-precision weights of a rank, with the optimizer that steps them."""

    def __init__(
        self,
        held: Sequence[Master],
        task: Task,
        recipe: Recipe,
        ranks: Ranks,
        total: Total | None = None,
        step: Callable[[], object] | None = None,
        exchange: Exchange | None = None,
        followers: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Args:
        held: what this rank holds, in the model's order; pieces may be empty.
        total: None where every parameter is here.
        exchange: the ranks that have pieces of the same parameters; None where these are whole.
        followers: of the task's follower what this rank is to fill, by the names of what that
            follows; cut as these are.
        step: ends in a step of `optimizer`, which it is by itself. Parameters are whole then.
        """
        self.held, self.task, self.ranks, self.total = held, task, ranks, total
        self.trained = {name for name, p in task.own_parameters().items() if p.requires_grad}
        self.stepped = [each for each in held if each.name in self.trained]
        weights = {each.name: each.weight for each in held}
        shapes: dict[Tensor, tuple[int, ...]] = {each.weight: each.shape for each in held}
        groups = parameter_groups(weights, self.trained, task, recipe, lambda p: shapes[p])
        fused = ranks.device.type != "cpu"  # also where they are offloaded
        compiled = all(each.weight.device.type != "cpu" for each in held)
        self.optimizer = optim.build(recipe.optim, recipe.ema, groups, fused, compiled)
        if isinstance(self.optimizer, MUON):
            self._attach(self.optimizer, exchange)
        for each in self.stepped:
            fresh_state(self.optimizer, each.weight)
        self.following = list(self._followed(followers))
        self.step = step
        if isinstance(self.optimizer, LAMB) and total is not None and step is None:
            names = sorted(self.trained)
            for each in self.stepped:
                slot, weight = names.index(each.name), each.weight
                slots = torch.tensor([slot], device=weight.device)
                segments = (Segment(slot, 0, weight.numel()),)
                self.optimizer.shards[weight] = Shard(segments, len(names), slots, total)
        self.clip_norm = recipe.clip_norm
        self.loss_scale = LossScale(recipe.precision == "fp16")

    def _followed(self, followers: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Each follower with the average that is copied into it. Where both are of one type and in
        one place they are the same memory, and nothing is."""
        for each in self.held:
            if (own := followers.get(each.name)) is None:
                continue
            own, average = own.detach(), each.weight.detach()
            if each.name in self.trained:
                state = self.optimizer.state[each.weight]
                if (own.dtype, own.device) == (average.dtype, average.device):
                    state[EMA] = own
                    continue
                average = state[EMA]
            yield own, average

    @torch.no_grad()
    def follow(self) -> None:
        """The average, as it is now, for the follower."""
        for own, average in self.following:
            own.copy_(average)

    def _attach(self, muon: MUON, exchange: Exchange | None) -> None:
        """Tell Muon which matrices there are."""
        shapes = {each.name: each.shape for each in self.held}
        hidden = matrices(self.task, self.task.recipe, shapes)
        rank = 0 if exchange is None else exchange.rank
        for each in self.stepped:
            if each.name in hidden:
                held = each.held or (range(math.prod(each.shape)),)
                parts = hidden[each.name]
                muon.attach(matrices_of(each.shape, parts, held, rank, each.weight, 0), exchange)
        muon.attach((), exchange)  # where there is none

    def update(
        self,
        losses: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor | None],
        rates: Rates,
        check: Check | None,
        norms: bool,
    ) -> StepInfo:
        """Step by the mean gradient over the global batch, of the scaled losses.

        Args:
            losses: means over the global batch, not scaled.
            gradients: of what this rank holds, by name; None where nothing came by.

        Raises:
            NotFinite: on every rank, before the weights change. What `check` raises, too.
        """
        try:
            return self._update(losses, gradients, rates, check, norms)
        finally:
            for each in self.stepped:
                each.weight.grad = None

    def _update(
        self,
        losses: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor | None],
        rates: Rates,
        check: Check | None,
        norms: bool,
    ) -> StepInfo:
        scale = self.loss_scale.scale
        if check is not None:
            check(sum(map(float, losses.values())))
        found: list[Tensor] = []
        for each in self.stepped:
            gradient = gradients[each.name]
            if gradient is None:
                gradient = torch.zeros_like(each.weight)
            each.weight.grad = gradient.to(each.weight.dtype)
            found.append(each.weight.grad)
        norm = self._norm(found) / scale
        finite = math.isfinite(norm)
        of_blocks = None
        if finite:
            self.loss_scale.succeeded()
            self._unscale_and_clip(found, norm, scale)
            of_blocks = self._norms(float(norm)) if norms else None
            optim.set_rates(self.optimizer, rates)
            (self.step or self.optimizer.step)()
        else:
            self.loss_scale.overflowed(losses)
        return StepInfo(losses, norm, finite, scale, of_blocks)

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Norm of the whole gradient."""
        # a rank may hold nothing; else it lies where the gradients do, as what scales them must
        norm = torch.zeros((), device=self.ranks.device)
        if gradients:
            norm = torch.nn.utils.get_total_norm(gradients)
        return norm if self.total is None else self.total(norm.square()).sqrt()

    def _unscale_and_clip(self, gradients: Sequence[Tensor], norm: Tensor, scale: float) -> None:
        divisor: Tensor | float = scale
        if self.clip_norm is not None:
            divisor = scale * torch.clamp((norm + 1e-6) / self.clip_norm, min=1)
        elif scale == 1:
            return
        for gradient in gradients:
            gradient.mul_(1 / divisor)

    def _norms(self, norm: float) -> dict[str, dict[str, float]]:
        squares = Squares(self.task.own_parameters())
        for each in self.stepped:
            if each.writer and each.weight.grad is not None:
                squares.add(each.name, each.weight.grad, each.weight)
        return squares.by_block(self.ranks, norm, self.clip_norm)

    def slices(self) -> Iterator[Slice]:
        """What a checkpoint holds of this rank's weights, moments and buffers."""
        for each in self.held:
            views = {"weight": each.weight.detach()}
            if each.name in self.trained:
                views = kinds(self.optimizer, each.weight)
            start, stop = each.start, each.start + each.weight.numel()
            if start < stop:
                for kind, tensor in views.items():
                    view = tensor.view(-1)
                    yield Slice(each.name, kind, each.shape, start, stop, view, each.writer)
        yield from buffer_slices(self.task.statistics(), writer=self.ranks.rank == 0)
        yield from kept_slices(self.task)

    def scalars(self) -> dict[str, Any]:
        """What else a resumed run needs."""
        return {"optimizer_steps": steps(self.optimizer), **self.loss_scale.scalars()}

    def loaded(self, scalars: dict[str, Any]) -> None:
        """Take over a checkpoint's counters."""
        set_steps(self.optimizer, scalars["optimizer_steps"])
        self.loss_scale.take(scalars)
