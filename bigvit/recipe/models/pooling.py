"""How a model's last tokens become what is classified. No torch here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from bigvit.recipe import bounds
from bigvit.recipe.models.description import unknown
from bigvit.recipe.models.ops import (
    Op,
    attention,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    norm,
    repeat,
    scale,
    stream,
)

__all__ = ["AttentionPooling", "AveragePooling", "ClassToken"]

Layer = Annotated[int, bounds.Bound(0, 10_000)]


@dataclass(frozen=True)
class ClassToken:
    """A class token joins the patches on the way (thesis table 3.13); 0 is where ViT has it."""

    layer: Layer  # the first self-attention block, counted from 0, that sees it


@dataclass(frozen=True)
class AveragePooling:
    """The mean of the patches, without a class token (thesis table 3.13)."""


@dataclass(frozen=True)
class AttentionPooling:
    """A block of attention from learned queries to the last patches, and an MLP (arXiv:2112.13692;
    thesis section 5.2.1). As in the authors' code one query attends to itself, too, and a query a
    class to the patches alone."""

    heads: bounds.Heads[int]  # attention heads; the patches' width must be a multiple
    queries: Literal["one", "classes"]  # one for all classes, or one for each, with its own logit
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of the patches'
    layer_scale: bounds.Factor[float]  # initial value of the diagonal on both branches

    def count(self, num_classes: int) -> int:
        """Queries of so many classes."""
        return 1 if self.queries == "one" else num_classes

    def check(self, dim: int) -> None:
        """Check what the fields mean for patches of this width.

        Raises:
            ValueError: names the field, the value given and what is allowed.
        """
        divides = f"a divisor of {dim}, the width of the last patches"
        bounds.allow("model.pooling.heads", self.heads, dim % self.heads == 0, divides)
        wide = int(dim * self.mlp_ratio) >= 1
        bounds.allow("model.pooling.mlp_ratio", self.mlp_ratio, wide, f"1/{dim} or more")

    def ops(
        self,
        first: int,
        patches: int,
        dim: int,
        num_classes: int,
        head: str,
        *,
        normalised: bool = True,
    ) -> Iterator[Op]:
        """From the patches to the logits.

        Args:
            first: blocks before.
            head: name of the last layer.
            normalised: whether the last norm is of the patches, too.
        """
        own, hidden = self.count(num_classes), int(dim * self.mlp_ratio)

        def factors(parameter: str, tokens: int) -> Iterator[Op]:
            yield scale(parameter, dim, tokens * dim)

        keys = patches + own * (self.queries == "one")
        yield embedding("cls_token", own * dim)
        read, *block = class_block(own, patches, keys, dim, self.heads, hidden, factors)
        # the first stream is the queries themselves, which each image shares
        yield from repeat(1, [read._replace(wide=0), *block], first)
        yield norm("norm", own + patches * normalised, dim)
        yield linear(head, 1, dim, num_classes)._replace(kept=own * dim)


def refuse_attention(pooling: object, kind: str) -> None:
    """Raise ValueError where a model that timm knows pools by attention, which timm's does not."""
    if isinstance(pooling, AttentionPooling):
        raise unknown(f"{kind} whose head pools by attention (model.pooling)")


def class_block(
    own: int,
    patches: int,
    keys: int,
    dim: int,
    heads: int,
    hidden: int,
    factors: Callable[[str, int], Iterable[Op]],
) -> Iterator[Op]:
    """A block in which some tokens alone are updated, by attention to patches.

    Args:
        own: those tokens.
        keys: what they attend to: the patches, with or without themselves.
        factors: of a branch, by the parameter's name and the tokens that they multiply.
    """
    block = "blocks_token_only.*"
    # queries, keys and values read one tensor
    all_tokens = linear(f"{block}.attn.k", keys, dim, dim)._replace(kept=(patches + own) * dim)
    attending = [
        stream(f"{block}.norm1", own, dim),
        norm(f"{block}.norm1", patches + own, dim),
        linear(f"{block}.attn.q", own, dim, dim, keeps=False),
        all_tokens,
        linear(f"{block}.attn.v", keys, dim, dim, keeps=False),
        attention(f"{block}.attn", own, keys, dim, heads),
        linear(f"{block}.attn.proj", own, dim, dim),
    ]
    yield from in_branch(0, attending, factors(f"{block}.gamma_1", own))
    mlp = mlp_branch(f"{block}.norm2", f"{block}.mlp", own, dim, hidden)
    yield from in_branch(1, mlp, factors(f"{block}.gamma_2", own))
