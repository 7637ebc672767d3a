"""CaiT with its ablations, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth
from bigvit.recipe.models.description import unknown
from bigvit.recipe.models.distillation import DistillationToken, Fusion
from bigvit.recipe.models.ops import (
    Op,
    attention_branch,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    repeat,
    scale,
)
from bigvit.recipe.models.pooling import AveragePooling, ClassToken, class_block
from bigvit.recipe.models.uniform import OfPatches, TokenLabeled
from bigvit.recipe.residual import (
    FixedLayerScale,
    LayerScale,
    Residual,
    UniformLayerScale,
    Unscaled,
)

__all__ = [
    "CAIT_SIZES",
    "CaiT",
    "ClassAttention",
    "Pooling",
    "cait",
]


@dataclass(frozen=True)
class ClassAttention:
    """CaiT's second stage (arXiv:2103.17239, section 3): blocks in which the class token alone is
    updated, by attention to the patches. Nothing is dropped there."""

    depth: bounds.Depth[int]  # class-attention blocks
    keys: Literal["class and patches", "patches"]  # what the class token attends to


Pooling = ClassAttention | ClassToken | AveragePooling


@dataclass(frozen=True)
class CaiT(TokenLabeled, OfPatches):
    """CaiT (arXiv:2103.17239; thesis sections 3.5 to 3.7): self-attention between patches, then
    class attention, with a small factor on every residual branch; and what it is compared with."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of self-attention blocks
    num_heads: bounds.Heads[int]  # attention heads; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of D
    talking_heads: bool  # whether self-attention mixes its heads (arXiv:2003.02436)
    residual: Residual  # what multiplies the residual branches of both stages
    pooling: Pooling  # how the patches become the one vector that is classified
    distillation: DistillationToken | None  # beside the class token; None: the class token alone
    dense_head: bool  # whether a head on every patch predicts with the class token's
    drop_path: StochasticDepth  # of the self-attention blocks
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of a head

    @property
    def fusion(self) -> Fusion | None:
        return self.distillation and self.distillation.prediction

    @property
    def _class_tokens(self) -> int:
        return 1 if self.distillation is None else 2

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (h, w), token = self.embed_dim, self.grid(image_size), self.distillation
        patches, pooling = h * w, self.pooling
        tokens = patches + self._class_tokens
        yield from self.patch_ops(image_size)
        if not isinstance(pooling, AveragePooling):
            yield embedding("cls_token", d)
        if token is not None:
            yield embedding("dist_token", d, decayed=token.decayed)
        alone = pooling.layer if isinstance(pooling, ClassToken) else self.depth
        yield from repeat(alone, self._block(patches))
        yield from repeat(self.depth - alone, self._block(tokens), first=alone)
        match pooling:
            case ClassAttention(depth=depth):
                yield from repeat(depth, self._class_block(patches, pooling), first=self.depth)
                yield from self.head_ops(tokens, read=self._class_tokens)
            case ClassToken():
                yield from self.head_ops(tokens)
            case AveragePooling():
                yield from self.head_ops(patches, read=1)
        if token is not None:
            yield linear("head_dist", 1, d, self.num_classes, keeps=False)
        yield from self.dense_ops(image_size)

    def _block(self, tokens: int) -> Iterator[Op]:
        d, heads, attn = self.embed_dim, self.num_heads, "blocks.*.attn"
        *attending, last = attention_branch("blocks.*.norm1", attn, tokens, d, heads)
        factors = self._factors("blocks.*.gamma_1", tokens)
        yield from in_branch(0, attending, self._mixing(attn, tokens), [last], factors)
        mlp = mlp_branch("blocks.*.norm2", "blocks.*.mlp", tokens, d, self.hidden_dim)
        yield from in_branch(1, mlp, self._factors("blocks.*.gamma_2", tokens))

    def _mixing(self, attn: str, tokens: int) -> Iterator[Op]:
        """Of the heads' maps, none of which is kept."""
        for module in (f"{attn}.proj_l", f"{attn}.proj_w") if self.talking_heads else ():
            mixing = linear(module, tokens**2, self.num_heads, self.num_heads, keeps=False)
            yield mixing._replace(kind="attention")

    def _class_block(self, patches: int, pooling: ClassAttention) -> Iterator[Op]:
        d, own = self.embed_dim, self._class_tokens
        keys = patches + own * (pooling.keys == "class and patches")
        hidden = self.hidden_dim
        return class_block(own, patches, keys, d, self.num_heads, hidden, self._factors)

    def _factors(self, parameter: str, tokens: int) -> Iterator[Op]:
        match self.residual:
            case Unscaled():
                return
            case FixedLayerScale():
                yield scale(parameter, 0, 0)
            case LayerScale() | UniformLayerScale():
                yield scale(parameter, self.embed_dim, tokens * self.embed_dim)
            case _:
                yield scale(parameter, 1, tokens * self.embed_dim)

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        if isinstance(self.pooling, ClassToken):
            layer, last = self.pooling.layer, self.depth - 1
            bounds.allow("model.pooling.layer", layer, layer <= last, f"0 to {last}")
        if isinstance(self.residual, FixedLayerScale):
            allowed = "the recipe whose run the fixed factors are taken from"
            bounds.allow("starts_from", starts_from, starts_from is not None, allowed)
        if self.distillation and isinstance(self.pooling, AveragePooling):
            raise ValueError(
                "model.distillation: a token beside the class token, and average pooling has none; "
                "choose another model.pooling, or no token"
            )
        if self.distillation and self.dense_head:
            raise ValueError(
                "model.dense_head: a head on patches predicts with the class token's alone, and "
                "here is a distillation token; choose one of the two"
            )

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        match self:
            case CaiT(
                talking_heads=True,
                pooling=ClassAttention(depth=depth, keys="class and patches"),
                residual=LayerScale() | UniformLayerScale() | FixedLayerScale(),
                distillation=None,
                dense_head=False,
            ):
                own = {"depth_token_only": depth, "mlp_ratio_token_only": self.mlp_ratio}
                return self.timm_as("cait_s24_224", image_size, **own)
            case _:
                raise unknown(
                    "CaiT but with talking heads, LayerScale, class attention to all tokens, no "
                    "distillation token and no head on patches"
                )


CAIT_SIZES = {
    # name: embed_dim, depth, LayerScale, drop-path (thesis tables 3.15, 3.16)
    "xxs24": (192, 24, 1e-5, 0.05),
    "xxs36": (192, 36, 1e-6, 0.1),
    "xs24": (288, 24, 1e-5, 0.05),
    "xs36": (288, 36, 1e-6, 0.1),
    "s24": (384, 24, 1e-5, 0.1),
    "s36": (384, 36, 1e-6, 0.2),
    "s48": (384, 48, 1e-6, 0.3),
    "m24": (768, 24, 1e-5, 0.2),
    "m36": (768, 36, 1e-6, 0.3),
    "m48": (768, 48, 1e-6, 0.4),
}
"""The ten models of CaiT."""


def cait(size: str, *, group: int, num_classes: int, in_chans: int) -> CaiT:
    """A CaiT of one of `CAIT_SIZES`: 48 channels a head, two class-attention blocks (thesis
    section 3.7), its MLPs four times as wide as its tokens, and no head on its patches.

    Args:
        group: of its stochastic depth, consecutive samples.
    """
    embed_dim, depth, layer_scale, drop_path = CAIT_SIZES[size]
    return CaiT(
        patch_size=16,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=embed_dim // 48,
        mlp_ratio=4.0,
        talking_heads=True,
        residual=LayerScale(init=layer_scale),
        pooling=ClassAttention(depth=2, keys="class and patches"),
        distillation=None,
        dense_head=False,
        drop_path=StochasticDepth(rate=drop_path, group=group),
        in_chans=in_chans,
        num_classes=num_classes,
    )
