# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""One plain process: the reference that the sharded engines are compared with."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bigvit import optim
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
from bigvit.optim.state import fresh_state, set_steps, steps
from bigvit.recipe import Recipe
from bigvit.task import Batch


class SingleEngine:
    """Runs the micro-batches of all ranks one after the other. In bf16 the working weights are
    copies of float32 master weights, as in DeepSpeed."""

    def __init__(self, build: BuildTask, recipe: Recipe, ranks: Ranks) -> None:
        self.ranks = ranks
        self.task = build().to(ranks.device)
        named = dict(self.task.named_parameters())
        masters = {name: nn.Parameter(p.detach().clone().float()) for name, p in named.items()}
        if recipe.precision == "bf16":
            self.task.to(torch.bfloat16)
        else:
            masters = named
        self.pairs = [(name, p, masters[name]) for name, p in named.items()]
        self.trained = {name for name, p in named.items() if p.requires_grad}
        groups = parameter_groups(
            ((name, master) for name, master in masters.items() if name in self.trained),
            self.task.no_weight_decay(),
            recipe.optim.weight_decay,
        )
        self.optimizer = optim.build(recipe.optim, groups)
        self.clip_norm = recipe.clip_norm

    def update(self, micro: Sequence[Batch], lr: float) -> StepInfo:
        means = dict(zip(self.task.names, self._accumulate(micro).tolist(), strict=True))
        require_finite_losses(means)
        for name, working, master in self.pairs:
            if name in self.trained:
                gradient = torch.zeros_like(master) if working.grad is None else working.grad
                master.grad = gradient.to(master.dtype)
        gradients = [master.grad for _, _, master in self.pairs if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        grad_norm = require_finite_norm(norm.item())
        if self.clip_norm is not None:
            divisor = torch.clamp((norm + 1e-6) / self.clip_norm, min=1)
            for gradient in gradients:
                gradient.mul_(1 / divisor)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        self.optimizer.step()
        for _, working, master in self.pairs:
            working.grad = master.grad = None
        self._refresh()
        return StepInfo(means, grad_norm)

    def _accumulate(self, micro: Sequence[Batch]) -> Tensor:
        """Leave the global batch's gradient in the working weights; return the mean losses."""
        losses: list[dict[str, Tensor]] = []
        for batch in micro:
            losses.append(self.task(batch.to(self.ranks.device)))
            (torch.stack(list(losses[-1].values())).sum() / len(micro)).backward()
        return mean_losses(losses)

    @torch.no_grad()
    def _refresh(self) -> None:
        """Master weights -> working weights."""
        for _, working, master in self.pairs:
            if working is not master:
                working.copy_(master)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        return self.task.predict(batch.to(self.ranks.device))

    def slices(self) -> Iterator[Slice]:
        for name, _, master in self.pairs:
            views = {"weight": master.detach()}
            if name in self.trained:
                state = fresh_state(self.optimizer, master)
                views |= {kind: state[kind] for kind in optim.MOMENTS}
            for kind, tensor in views.items():
                view = tensor.view(-1)
                yield Slice(name, kind, tuple(tensor.shape), 0, len(view), view, writer=True)

    def scalars(self) -> dict[str, Any]:
        return {"optimizer_steps": steps(self.optimizer)}

    def loaded(self, scalars: dict[str, Any]) -> None:
        set_steps(self.optimizer, scalars["optimizer_steps"])
        self._refresh()
