"""Grafit's losses (thesis section 2.3, equations 2.1 to 2.4), in float32.

Shapes: B images, T views of each, D width of the trunk, E numbers of an embedding, N training
images.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bigvit.data.prepare import Targets
from bigvit.layers.precision import upcast
from bigvit.models.output import Output
from bigvit.objectives.heads import Mlp
from bigvit.objectives.memory import Memory
from bigvit.objectives.objective import Kept, Objective
from bigvit.recipe import Grafit


class NeighboursAndInstances(Objective):
    """Both losses on one projector."""

    def __init__(self, grafit: Grafit, dim: int, images: int, seed: int) -> None:
        """Args:
        dim: width of the trunk's features.
        images: of the training split.
        seed: of the memory's first values.
        """
        super().__init__("grafit", grafit.weight)
        self.grafit = grafit
        self.projector = self.predictor = None
        if projector := grafit.projector:
            hidden = [] if projector.hidden_dim is None else [projector.hidden_dim]
            self.projector = Mlp(dim, hidden, projector.dim, projector.norm, "relu")
            dim, self.followed = projector.dim, "projector"
        if grafit.instance:
            self.seen, self.asked = grafit.seen, grafit.asked
            if predictor := grafit.predictor:
                self.predictor = Mlp(dim, [predictor.hidden_dim], dim, predictor.norm, "relu")
        else:
            self.followed = None
        self.memory = Memory(images, dim, seed) if grafit.knn else None

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        if self.memory is not None:
            self.memory.meet(rank, world, device)

    def kept(self) -> Iterable[Kept]:
        if (memory := self.memory) is not None:
            shape, start = (memory.images, memory.dim), memory.start * memory.dim
            yield Kept("memory", shape, start, memory.rows.view(-1), True)

    def fresh(self, name: str, start: int, stop: int) -> Tensor:
        assert self.memory is not None and name == "memory"
        return self.memory.fresh(start, stop)

    def applied(self) -> None:
        if self.memory is not None:
            self.memory.take_over()

    def forget(self) -> None:
        if self.memory is not None:
            self.memory.forget()

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        grafit, losses = self.grafit, list[Tensor]()
        if self.memory is not None:
            assert targets.ids is not None and targets.every is not None, "what to prepare"
            u = F.normalize(self.project(output.cls), dim=1)
            knn = self.memory.loss(u, targets.ids, targets.every, grafit.sigma)
            losses.append(grafit.knn * knn.mean())
        if self.seen:
            g = self.project(output.views[grafit.views])
            guesses = g if self.predictor is None else self.predictor(g)
            each = instance(guesses, output.followed[grafit.views])
            losses.append(grafit.instance * each.mean())
        return torch.stack(losses).sum()

    def project(self, features: Tensor) -> Tensor:
        """Features (..., D) -> embeddings (..., E), not normalised."""
        return upcast(features) if self.projector is None else self.projector(features)


def instance(guesses: Tensor, followed: Tensor) -> Tensor:
    """The instance loss (B,) of an image's views (equation 2.1).

    Args:
        guesses: (B, T, E) of what the follower makes of the other views.
        followed: (B, T, E) what it does make of each.
    """
    views = guesses.shape[1]
    cosines = F.normalize(guesses, dim=2) @ F.normalize(followed, dim=2).transpose(1, 2)
    others = cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)
    return -others / (views * (views - 1))
