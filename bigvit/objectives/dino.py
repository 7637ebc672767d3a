"""DINO's loss with its centre (arXiv:2104.14294, section 3.1), in float32.

Shapes: B images, D width of the trunk, K outputs; L crops of an image that the follower sees, V
that the student sees, those L first.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.data.prepare import Targets
from bigvit.layers.precision import upcast
from bigvit.models.output import Output
from bigvit.objectives.heads import DinoHead
from bigvit.objectives.objective import Kept, Objective
from bigvit.recipe import Dino


class SelfDistillation(Objective):
    """The loss with its head. Centre: the follower's mean output, averaged over updates."""

    followed = "head"

    def __init__(self, dino: Dino, dim: int, updates_per_epoch: int) -> None:
        """Args: dim: width of the trunk's features."""
        super().__init__("dino", dino.weight)
        self.dino, self.updates_per_epoch = dino, updates_per_epoch
        self.head = DinoHead(dino, dim)
        self.seen, self.asked = dino.seen, dino.asked
        self.held = tuple(
            f"head.prototypes.{n}" for n, _ in self.head.prototypes.named_parameters()
        )
        self.noted: Tensor | None = None  # (K,): the sum of the follower's outputs
        self.count = 0

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world = rank, world
        self.centre = torch.zeros(self.dino.outputs, device=device)

    def kept(self) -> Iterable[Kept]:
        yield Kept("centre", tuple(self.centre.shape), 0, self.centre, self.rank == 0)

    def fresh(self, name: str, start: int, stop: int) -> Tensor:
        assert name == "centre"
        return torch.zeros(stop - start)

    def draws(self, name: str, seed: int, number: int, span: tuple[int, int]) -> tuple[Tensor, ...]:
        """The follower's temperature (1,), which the epoch decides: nothing random."""
        return (torch.tensor([self.dino.temperature(number // self.updates_per_epoch)]),)

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        dino, (temperature,) = self.dino, draws
        groups = (*dino.large, *dino.small)
        crops = [output.cls[:, None] if group == 0 else output.views[group] for group in groups]
        student = self.head(torch.cat([upcast(crop) for crop in crops], dim=1))
        teacher = torch.cat([output.followed[group] for group in dino.large], dim=1)
        summed = teacher.detach().float().sum(dim=(0, 1))
        self.noted = summed if self.noted is None else self.noted + summed
        self.count += teacher.shape[0] * teacher.shape[1]
        return cross_entropy(student, teacher, self.centre, dino.student_temperature, temperature)

    def applied(self) -> None:
        """centre <- m centre + (1 - m) mean of the batch's outputs (equation 4), over all ranks and
        micro-batches. Collective."""
        assert self.noted is not None, "no forward pass"
        if self.world > 1:
            dist.all_reduce(self.noted)
        mean, m = self.noted / (self.count * self.world), self.dino.centre_momentum
        self.centre.mul_(m).add_(mean, alpha=1 - m)
        self.forget()

    def forget(self) -> None:
        self.noted, self.count = None, 0


def cross_entropy(
    student: Tensor,
    teacher: Tensor,
    centre: Tensor,
    student_temperature: float,
    teacher_temperature: Tensor,
) -> Tensor:
    """The mean over images and pairs of different crops, a scalar (equation 3).

    Args:
        student: logits (B, V, K), those of the follower's crops first.
        teacher: logits (B, L, K) of the follower.
        centre: (K,).
        teacher_temperature: (1,).
    """
    log_p = (student / student_temperature).log_softmax(dim=2)
    q = ((teacher - centre) / teacher_temperature).softmax(dim=2).detach()
    large, crops = q.shape[1], log_p.shape[1]
    # to each of the follower's crops: all others of the student, in one sum
    others = log_p.sum(dim=1, keepdim=True) - log_p[:, :large]
    return -(q * others).sum(dim=(1, 2)).mean() / (large * (crops - 1))
