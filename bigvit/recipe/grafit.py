"""Grafit (thesis section 2.3): labels for neighbours, and instances for what labels do not tell. No
torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, Temperature, Weight, Width
from bigvit.recipe.models.ops import Op, batch_norm, linear

__all__ = ["Grafit", "Predictor", "Projector"]

Norm = Literal["batch", "none"]


@dataclass(frozen=True)
class Projector:
    """What makes an embedding of the trunk's features: a linear layer, or two with a norm and ReLU
    between (BYOL, arXiv:2006.07733, appendix A)."""

    hidden_dim: Width[int | None]  # None: one linear layer ("FC")
    norm: Norm  # before the ReLU
    dim: Width[int]  # numbers of an embedding


@dataclass(frozen=True)
class Predictor:
    """What makes of a projected view a guess of another view's projection: as a projector of two
    layers (BYOL, arXiv:2006.07733, appendix A)."""

    hidden_dim: Width[int]
    norm: Norm  # before the ReLU


@dataclass(frozen=True)
class Grafit:
    """The kNN loss on a memory of all training images (equations 2.2, 2.3) and the instance loss on
    views of one image (2.1), behind one projector; their sum (2.4) where both factors are 1. SNCA+
    has no instance loss; "L_CE + L_inst" of table 2.7 has no kNN loss, and a `CrossEntropy`
    beside."""

    weight: Weight  # factor of both together
    knn: Weight  # factor of the kNN loss; 0: there is no memory
    instance: Weight  # factor of the instance loss (lambda of table 2.11); 0: nothing follows
    sigma: Temperature[float]  # that cosines are divided by (2.2)
    projector: Projector | None  # P; None: the features are the embedding
    predictor: Predictor | None  # q; None: projections themselves are compared
    views: Annotated[int, Bound(1, 64)]  # the group of views that the instance loss compares (T)

    @property
    def seen(self) -> tuple[int, ...]:
        """Groups of views that it wants of the model."""
        return (self.views,) if self.instance else ()

    @property
    def asked(self) -> tuple[int, ...]:
        """Groups of views that it wants of the follower."""
        return self.seen

    def embedding(self, width: int) -> int:
        """Numbers of an embedding, where features have `width`."""
        return self.projector.dim if self.projector else width

    def ops(self, width: int, count: int, images: int) -> Iterator[Op]:
        """What is computed of an image, in float32, beside the trunk.

        Args:
            width: of the trunk's features.
            count: views in the group (T).
            images: in the memory.
        """
        rows = (1 if self.knn else 0) + (count if self.instance else 0)
        dim = self.embedding(width)
        if projector := self.projector:
            yield from _mlp("projector", rows, width, projector.hidden_dim, projector.norm, dim)
        if self.instance and (predictor := self.predictor):
            yield from _mlp("predictor", count, dim, predictor.hidden_dim, predictor.norm, dim)
        # cosines with the memory, and what it weighs in the gradient
        products = 2 * images * dim if self.knn else 0
        yield Op("", "activation", 0, products, 0, wide=3 * rows * dim)


def _mlp(
    name: str, rows: int, inputs: int, hidden: int | None, norm: Norm, outputs: int
) -> Iterator[Op]:
    if hidden is not None:
        yield _wide(linear(f"{name}.hidden.0.linear", rows, inputs, hidden))
        if norm == "batch":
            yield _wide(batch_norm(f"{name}.hidden.0.norm", rows, hidden))
        yield Op("", "activation", 0, 0, 0, wide=rows * hidden)
        inputs = hidden
    yield _wide(linear(f"{name}.last", rows, inputs, outputs))


def _wide(op: Op) -> Op:
    """What is kept, in float32."""
    return op._replace(kept=0, wide=op.kept + op.wide)
