# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""One plain process: the reference that the sharded engines are compared with."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.engines.engine import (
    BuildTask,
    Check,
    Pending,
    Slice,
    StepInfo,
    backward,
    mean_losses,
)
from bigvit.engines.kept import meet, settled
from bigvit.engines.masters import Master, Masters
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates, Recipe
from bigvit.task import DTYPES


class SingleEngine:
    """Runs the micro-batches of all ranks one after the other. In bf16 and fp16 the working weights
    are copies of float32 master weights, as in DeepSpeed."""

    def __init__(self, build: BuildTask, recipe: Recipe, ranks: Ranks) -> None:
        self.ranks = ranks
        self.task = build().to(ranks.device)
        named = self.task.own_parameters()
        masters = named
        if recipe.precision != "fp32":
            masters = {name: nn.Parameter(p.detach().clone().float()) for name, p in named.items()}
            self.task.to(DTYPES[recipe.precision])
            for p in named.values():
                p.grad_dtype = DTYPES[recipe.gradient_precision]
        self.pairs = [(p, masters[name]) for name, p in named.items()]
        held = [Master(name, tuple(p.shape), 0, p) for name, p in masters.items()]
        self.masters = Masters(held, self.task, recipe, ranks, followers=self.task.following())
        meet(self.task, ranks)

    @settled
    def update(
        self,
        micro: Sequence[Pending],
        rates: Rates,
        check: Check | None = None,
        norms: bool = False,
    ) -> StepInfo:
        losses = dict(zip(self.task.names, self._accumulate(micro).unbind(), strict=True))
        gradients = {name: p.grad for name, p in self.task.named_parameters()}
        for p in self.task.parameters():
            p.grad = None
        info = self.masters.update(losses, gradients, rates, check, norms)
        self._refresh()
        return info

    def _accumulate(self, micro: Sequence[Pending]) -> Tensor:
        """Leave the global batch's gradient in the working weights; return the mean losses."""
        factor = self.masters.loss_scale.scale, len(micro)
        return mean_losses([backward(self.task(inputs()), *factor) for inputs in micro])

    @torch.no_grad()
    def _refresh(self) -> None:
        """Master weights -> working weights."""
        for working, master in self.pairs:
            if working is not master:
                working.copy_(master)
        self.masters.follow()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.task.predict(images)

    @torch.no_grad()
    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        return self.task.predictions(images)

    def slices(self) -> Iterator[Slice]:
        return self.masters.slices()

    def scalars(self) -> dict[str, Any]:
        return self.masters.scalars()

    def loaded(self, scalars: dict[str, Any]) -> None:
        self.masters.loaded(scalars)
        self._refresh()
