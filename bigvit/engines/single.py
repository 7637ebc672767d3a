# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""One plain process: the reference that the sharded engines are compared with."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bigvit import optim
from bigvit.engines.engine import (
    GRADIENT,
    BuildTask,
    Check,
    NotFinite,
    Pending,
    Slice,
    StepInfo,
    buffer_slices,
    mean_losses,
    not_finite,
)
from bigvit.engines.loss_scale import LossScale
from bigvit.engines.norms import Squares
from bigvit.optim.groups import parameter_groups
from bigvit.optim.state import fresh_state, kinds, set_steps, steps
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Recipe
from bigvit.task import DTYPES


class SingleEngine:
    """Runs the micro-batches of all ranks one after the other. In bf16 and fp16 the working weights
    are copies of float32 master weights, as in DeepSpeed."""

    def __init__(self, build: BuildTask, recipe: Recipe, ranks: Ranks) -> None:
        self.ranks = ranks
        self.task = build().to(ranks.device)
        named = dict(self.task.named_parameters())
        masters = {name: nn.Parameter(p.detach().clone().float()) for name, p in named.items()}
        if recipe.precision == "fp32":
            masters = named
        else:
            self.task.to(DTYPES[recipe.precision])
            for p in named.values():
                p.grad_dtype = DTYPES[recipe.gradient_precision]
        self.pairs = [(name, p, masters[name]) for name, p in named.items()]
        self.trained = {name for name, p in named.items() if p.requires_grad}
        groups = parameter_groups(masters, self.trained, self.task, recipe)
        on_gpu = ranks.device.type != "cpu"
        self.optimizer = optim.build(recipe.optim, recipe.ema, groups, on_gpu, on_gpu)
        for name in self.trained:
            fresh_state(self.optimizer, masters[name])
        self.clip_norm = recipe.clip_norm
        self.loss_scale = LossScale(recipe.precision == "fp16")

    def update(
        self, micro: Sequence[Pending], lr: float, check: Check | None = None, norms: bool = False
    ) -> StepInfo:
        scale = self.loss_scale.scale
        losses = dict(zip(self.task.names, self._accumulate(micro).tolist(), strict=True))
        if error := not_finite(losses):
            raise error
        if check is not None:
            check(sum(losses.values()))
        for name, working, master in self.pairs:
            if name in self.trained:
                gradient = torch.zeros_like(master) if working.grad is None else working.grad
                master.grad = gradient.to(master.dtype)
        gradients = [master.grad for _, _, master in self.pairs if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) / scale
        finite = math.isfinite(norm.item())
        found = None
        if finite:
            self.loss_scale.succeeded()
            self._unscale_and_clip(gradients, norm, scale)
            found = self._norms(float(norm)) if norms else None
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group["lr_scale"]
            self.optimizer.step()
        elif self.loss_scale.enabled:
            self.loss_scale.overflowed()
        else:
            raise NotFinite(GRADIENT)
        for _, working, master in self.pairs:
            working.grad = master.grad = None
        self._refresh()
        return StepInfo(losses, norm, finite, scale, found)

    def _accumulate(self, micro: Sequence[Pending]) -> Tensor:
        """Leave the global batch's gradient in the working weights; return the mean losses."""
        losses: list[dict[str, Tensor]] = []
        for inputs in micro:
            losses.append(self.task(inputs()))
            loss = torch.stack(list(losses[-1].values())).sum() * self.loss_scale.scale
            (loss / len(micro)).backward()
        return mean_losses(losses)

    def _unscale_and_clip(self, gradients: Sequence[Tensor], norm: Tensor, scale: float) -> None:
        divisor: Tensor | float = scale
        if self.clip_norm is not None:
            divisor = scale * torch.clamp((norm + 1e-6) / self.clip_norm, min=1)
        elif scale == 1:
            return
        for gradient in gradients:
            gradient.mul_(1 / divisor)

    def _norms(self, norm: float) -> dict[str, dict[str, float]]:
        squares = Squares([name for name, _, _ in self.pairs])
        for name, _, master in self.pairs:
            if master.grad is not None:
                squares.add(name, master.grad, master)
        return squares.by_block(self.ranks, norm, self.clip_norm)

    @torch.no_grad()
    def _refresh(self) -> None:
        """Master weights -> working weights."""
        for _, working, master in self.pairs:
            if working is not master:
                working.copy_(master)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.task.predict(images)

    def slices(self) -> Iterator[Slice]:
        for name, _, master in self.pairs:
            views = {"weight": master.detach()}
            if name in self.trained:
                views = kinds(self.optimizer, master)
            for kind, tensor in views.items():
                view = tensor.view(-1)
                yield Slice(name, kind, tuple(tensor.shape), 0, len(view), view, writer=True)
        yield from buffer_slices(self.task.statistics(), writer=True)

    def scalars(self) -> dict[str, Any]:
        return {"optimizer_steps": steps(self.optimizer), **self.loss_scale.scalars()}

    def loaded(self, scalars: dict[str, Any]) -> None:
        set_steps(self.optimizer, scalars["optimizer_steps"])
        self.loss_scale.take(scalars)
        self._refresh()
