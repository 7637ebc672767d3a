# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""DeepSpeed: the main engine, ZeRO stages 0 to 3."""

from collections.abc import Iterator, Sequence
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor

from bigvit import optim
from bigvit.engines import deepspeed_inside
from bigvit.engines.engine import (
    BuildTask,
    Slice,
    StepInfo,
    mean_losses,
    require_finite_losses,
    require_finite_norm,
)
from bigvit.engines.ranks import Ranks
from bigvit.optim.groups import parameter_groups
from bigvit.recipe import Recipe
from bigvit.task import Batch


class DeepSpeedEngine:
    """A task under ZeRO. Losses are averaged over micro-batches and ranks, and so are gradients."""

    def __init__(
        self, build: BuildTask, recipe: Recipe, config: dict[str, Any], ranks: Ranks
    ) -> None:
        """Build the task, and shard it as `config` (made by `deepspeed_config`) says."""
        self.ranks = ranks
        self.task = build()
        named = dict(self.task.named_parameters())
        trained = {name for name, p in named.items() if p.requires_grad}
        groups = parameter_groups(named, trained, self.task, recipe)
        self.engine: Any
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.task, optimizer=optim.build(recipe.optim, groups), config=config
        )
        self.inside = deepspeed_inside.Inside(self.engine, self.task, ranks)
        # every stage calls this with the norm known and no weight changed yet
        self.inside.optimizer.register_step_pre_hook(self._require_finite)

    def update(self, micro: Sequence[Batch], lr: float) -> StepInfo:
        losses = []
        for batch in micro[:-1]:
            losses.append(self._backward(batch))
            self.engine.step()  # counts the micro-batch; the weights change at the last one only
        losses.append(self._backward(micro[-1]))
        total = mean_losses(losses)
        dist.all_reduce(total)  # not finite on one rank is not finite on all
        means = dict(zip(self.task.names, (total / self.ranks.world).tolist(), strict=True))
        require_finite_losses(means)
        for group in self.inside.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        self.inside.before_step()
        self.engine.step()
        return StepInfo(means, require_finite_norm(self.inside.grad_norm()))

    def _require_finite(self, *_: Any) -> None:
        require_finite_norm(self.inside.grad_norm())

    def _backward(self, batch: Batch) -> dict[str, Tensor]:
        losses = self.engine(batch.to(self.ranks.device))
        self.engine.backward(torch.stack(list(losses.values())).sum())
        return losses

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        self.engine.eval()
        logits = self.task.predict(batch.to(self.ranks.device))
        self.engine.train()
        return logits

    def slices(self) -> Iterator[Slice]:
        return self.inside.slices()

    def scalars(self) -> dict[str, Any]:
        return self.inside.scalars()

    def loaded(self, scalars: dict[str, Any]) -> None:
        self.inside.loaded(scalars)
