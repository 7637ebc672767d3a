"""DINO (arXiv:2104.14294): a network that learns what its own average says of other crops. No torch
here."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, LengthFrom0, Share, Temperature, Weight, Width
from bigvit.recipe.models.ops import Op, batch_norm, linear

__all__ = ["Dino"]

Groups = Annotated[tuple[int, ...], Bound(0, 64)]


@dataclass(frozen=True)
class Dino:
    """Cross-entropy of the student's softmax over one crop with the follower's, centred and
    sharpened, over another, averaged over all pairs of a large crop of the follower with another
    crop of the student. Its head: an MLP with GELU, l2-normalised, and a last layer whose rows are
    of norm 1 (or the trained gain)."""

    weight: Weight  # factor of this loss in the sum
    outputs: Width[int]  # of the last layer (K)
    hidden_dim: Width[int]  # width of the MLP's hidden layers
    hidden_layers: Annotated[int, Bound(0, 1000)]  # of the MLP
    bottleneck_dim: Width[int]  # of what is normalised
    norm: Literal["batch", "none"]  # before each GELU
    gain: Literal["one", "trained"]  # norm of the last layer's rows
    student_temperature: Temperature[float]
    # the follower's: in the first epoch, and after the warm-up, linearly by epochs between
    teacher_temperature: Temperature[tuple[float, float]]
    warmup_epochs: LengthFrom0[int]  # of the follower's temperature
    centre_momentum: Share[float]  # share of the centre that stays from update to update
    held_epochs: LengthFrom0[int]  # in which the last layer stands still
    large: Groups  # groups of views that the follower sees, and the student; 0 the images
    small: Groups  # groups of views that the student alone sees

    @property
    def seen(self) -> tuple[int, ...]:
        """Groups of views that it wants of the model beside the images, group 0."""
        return tuple(group for group in (*self.large, *self.small) if group)

    @property
    def asked(self) -> tuple[int, ...]:
        """Groups of views that it wants of the follower; 0 too."""
        return self.large

    def temperature(self, epoch: int) -> float:
        """The follower's in an epoch, counted from 0."""
        first, last = self.teacher_temperature
        if epoch >= self.warmup_epochs:
            return last
        return first + (last - first) * epoch / max(self.warmup_epochs - 1, 1)

    def ops(self, width: int, crops: int, followed: int) -> Iterator[Op]:
        """What is computed of an image by the student's head, in float32.

        Args:
            width: of the trunk's features.
            crops: of an image.
            followed: those of them that the follower sees.
        """
        widths = [width, *[self.hidden_dim] * self.hidden_layers]
        for i, (inputs, made) in enumerate(pairwise(widths)):
            yield _wide(linear(f"head.hidden.{i}.linear", crops, inputs, made))
            if self.norm == "batch":
                yield _wide(batch_norm(f"head.hidden.{i}.norm", crops, made))
            yield Op("", "activation", 0, 0, 0, wide=crops * made)
        yield _wide(linear("head.last", crops, widths[-1], self.bottleneck_dim))
        prototypes = linear("head.prototypes", crops, self.bottleneck_dim, self.outputs, bias=False)
        yield _wide(prototypes)
        if self.gain == "trained":
            shape = (0, 1, self.outputs)
            yield Op("head.prototypes.gain", "embedding", self.outputs, 0, 0, shape=shape)
        # log-softmax of each crop, softmax of the follower's
        yield Op("", "activation", 0, 0, 0, wide=(crops + followed) * self.outputs)


def _wide(op: Op) -> Op:
    """What is kept, in float32."""
    return op._replace(kept=0, wide=op.kept + op.wide)
