"""What a student learns of its teacher (thesis section 3.3), computed in float32.

Shapes: B images, K classes.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.objectives.objective import Objective


class Distilled(Objective):
    """A loss of one head's logits (B, K) and the teacher's (B, K)."""

    def __init__(
        self, name: str, weight: float, head: str, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__(name, weight)
        self.head, self.loss = head, loss

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        student = output.logits if self.head == "class" else output.distillation
        assert student is not None and targets.teacher is not None, "the recipe was checked"
        return self.loss(student, targets.teacher)


def hard(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy with the teacher's arg-max, not smoothed, averaged over the batch: the second
    term of equation 3.3 without its factor. It is not finite where the teacher's logits are not,
    whose arg-max would be a class like any other.

    Args:
        student, teacher: logits (B, K).
    """
    return F.cross_entropy(student.float(), teacher.argmax(dim=1)) + 0 * teacher.float().sum()


def soft(student: Tensor, teacher: Tensor, tau: float, mean: str) -> Tensor:
    """tau^2 KL of the student's softmax from the teacher's at temperature tau: the second term of
    equation 3.2 without its factor. It is the sum of p_t (log p_t - log p_s), as in Hinton's
    distillation, whose gradient is that of a cross-entropy with the teacher's softmax.

    Args:
        student, teacher: logits (B, K).
        mean: what the sum is divided by, "images" (B) or "images and classes" (B K).
    """
    log_student = (student.float() / tau).log_softmax(dim=1)
    log_teacher = (teacher.float() / tau).log_softmax(dim=1)
    divergence = F.kl_div(log_student, log_teacher, reduction="sum", log_target=True)
    count = len(student) if mean == "images" else student.numel()
    return tau**2 / count * divergence
