# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""DeepSpeed: the main engine, ZeRO stages 0 to 3."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import deepspeed
import torch
from torch import Tensor

from bigvit import optim
from bigvit.engines.deepspeed import inside
from bigvit.engines.deepspeed.config import offloads, stage_of
from bigvit.engines.deepspeed.following import Following
from bigvit.engines.engine import (
    BuildTask,
    Check,
    Pending,
    Slice,
    StepInfo,
    mean_over_ranks,
    sound,
)
from bigvit.engines.kept import meet, settled
from bigvit.engines.loss_scale import LossScale
from bigvit.engines.norms import Squares
from bigvit.optim.groups import parameter_groups
from bigvit.optim.state import steps
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates, Recipe
from bigvit.task import DTYPES, PREDICTION


class DeepSpeedEngine:
    """A task under ZeRO. Losses are averaged over micro-batches and ranks, and so are gradients."""

    def __init__(
        self, build: BuildTask, recipe: Recipe, config: dict[str, Any], ranks: Ranks
    ) -> None:
        """Build the task, and shard it as `config` (made by `deepspeed_config`) says. At stage 3 no
        rank ever holds more of it than a module."""
        self.ranks = ranks
        # takes over the collectives that are there; stage 3 needs them before `initialize`
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage_of(config) == 3):
            self.task = build()
        named = self.task.own_parameters()
        trained = {name for name, p in named.items() if p.requires_grad}
        whole = inside.whole_shape
        groups = parameter_groups(named, trained, self.task, recipe, whole)
        self.clip_norm = recipe.clip_norm
        self.loss_scale = LossScale(recipe.precision == "fp16")
        on_gpu = ranks.device.type != "cpu" and not offloads(config)
        optimizer = optim.build(
            recipe.optim, recipe.ema, groups, fused=on_gpu or offloads(config), compiled=on_gpu
        )
        self.engine = inside.initialize(self.task, optimizer, config)
        self.task.cast_constants(DTYPES[recipe.precision])
        self.inside = inside.Inside(self.engine, self.task, ranks, recipe.clip_norm)
        self.following = Following(self.inside, self.task)
        meet(self.task, ranks)
        self.gradient = DTYPES[recipe.gradient_precision]
        # every stage calls this with the norm known and no weight changed yet
        self.inside.optimizer.register_step_pre_hook(self._before_step)

    @settled
    def update(
        self,
        micro: Sequence[Pending],
        rates: Rates,
        check: Check | None = None,
        norms: bool = False,
    ) -> StepInfo:
        scale = self.loss_scale.scale
        self.inside.set_loss_scale(scale)
        self.inside.take_gradients(self.gradient)
        losses = []
        for inputs in micro[:-1]:
            losses.append(self._backward(inputs))
            self.engine.step()  # counts the micro-batch; the weights change at the last one only
        losses.append(self._backward(micro[-1]))
        self.losses = mean_over_ranks(self.task, losses, self.inside.gathered, self.ranks)
        if check is not None:
            try:
                check(sum(map(float, self.losses.values())))
            except Exception:
                self.inside.discard()
                raise
        optim.set_rates(self.inside.optimizer, rates)
        self.inside.before_step()
        self.squares = Squares(self.inside.shapes) if norms else None
        self.engine.step()
        norm, applied = self.inside.grad_norm(), not self.inside.overflow
        if applied:
            self.loss_scale.succeeded()
            self.following.follow()
        else:
            self.loss_scale.overflowed(self.losses)
        found = None
        if self.squares is not None and applied:
            found = self.squares.by_block(self.ranks, float(norm), self.clip_norm)
        return StepInfo(self.losses, norm, applied, scale, found)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # stage 0 in float32 is the one that DeepSpeed lets through with a gradient not finite
        if self.inside.plain and not math.isfinite(self.inside.grad_norm()):
            self.inside.discard()
            self.loss_scale.overflowed(self.losses)
        self.inside.clip(optimizer)
        if self.squares is not None:
            self.inside.count(self.squares, optimizer)

    def _backward(self, inputs: Pending) -> dict[str, Tensor]:
        self.ranks.went_on()
        losses = self.engine(inputs())
        self.engine.backward(self.inside.scaled(sound(losses)))
        return losses

    def predict(self, images: Tensor) -> Tensor:
        return self.predictions(images)[PREDICTION]

    @torch.no_grad()
    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        self.engine.eval()
        logits = self.task(images)
        self.engine.train()
        return logits

    def slices(self) -> Iterator[Slice]:
        return self.inside.slices()

    def scalars(self) -> dict[str, Any]:
        return {"optimizer_steps": steps(self.inside.optimizer), **self.loss_scale.scalars()}

    def loaded(self, scalars: dict[str, Any]) -> None:
        self.loss_scale.take(scalars)
        self.inside.loaded(scalars["optimizer_steps"])
        self.following.follow()
