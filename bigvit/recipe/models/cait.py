"""CaiT with its ablations, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth
from bigvit.recipe.models.description import unknown
from bigvit.recipe.models.ops import (
    Op,
    attention,
    attention_branch,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    norm,
    repeat,
    scale,
    stream,
)
from bigvit.recipe.models.uniform import OfPatches
from bigvit.recipe.residual import (
    FixedLayerScale,
    LayerScale,
    Residual,
    UniformLayerScale,
    Unscaled,
)

__all__ = [
    "CAIT_SIZES",
    "AveragePooling",
    "CaiT",
    "ClassAttention",
    "ClassToken",
    "Pooling",
    "cait",
]

Layer = Annotated[int, bounds.Bound(0, 10_000)]


@dataclass(frozen=True)
class ClassAttention:
    """CaiT's second stage (arXiv:2103.17239, section 3): blocks in which the class token alone is
    updated, by attention to the patches. Nothing is dropped there."""

    depth: bounds.Depth[int]  # class-attention blocks
    keys: Literal["class and patches", "patches"]  # what the class token attends to


@dataclass(frozen=True)
class ClassToken:
    """A class token joins the patches on the way (thesis table 3.13); 0 is where ViT has it."""

    layer: Layer  # the first self-attention block, counted from 0, that sees it


@dataclass(frozen=True)
class AveragePooling:
    """The mean of the patches, without a class token (thesis table 3.13)."""


Pooling = ClassAttention | ClassToken | AveragePooling


@dataclass(frozen=True)
class CaiT(OfPatches):
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
    drop_path: StochasticDepth  # of the self-attention blocks
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (h, w) = self.embed_dim, self.grid(image_size)
        patches, pooling = h * w, self.pooling
        yield from self.patch_ops(image_size)
        if not isinstance(pooling, AveragePooling):
            yield embedding("cls_token", d)
        alone = pooling.layer if isinstance(pooling, ClassToken) else self.depth
        yield from repeat(alone, self._block(patches))
        yield from repeat(self.depth - alone, self._block(patches + 1), first=alone)
        match pooling:
            case ClassAttention(depth=depth):
                yield from repeat(depth, self._class_block(patches, pooling), first=self.depth)
                yield from self.head_ops(patches + 1, read=1)
            case ClassToken():
                yield from self.head_ops(patches + 1)
            case AveragePooling():
                yield from self.head_ops(patches, read=1)

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
        d, block = self.embed_dim, "blocks_token_only.*"
        keys = patches + (pooling.keys == "class and patches")
        all_tokens = linear(f"{block}.attn.k", keys, d, d)._replace(kept=(patches + 1) * d)
        attending = [
            stream(f"{block}.norm1", 1, d),
            norm(f"{block}.norm1", patches + 1, d),
            linear(f"{block}.attn.q", 1, d, d, keeps=False),
            all_tokens,
            linear(f"{block}.attn.v", keys, d, d, keeps=False),
            attention(f"{block}.attn", 1, keys, d, self.num_heads),
            linear(f"{block}.attn.proj", 1, d, d),
        ]
        yield from in_branch(0, attending, self._factors(f"{block}.gamma_1", 1))
        mlp = mlp_branch(f"{block}.norm2", f"{block}.mlp", 1, d, self.hidden_dim)
        yield from in_branch(1, mlp, self._factors(f"{block}.gamma_2", 1))

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

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        match self:
            case CaiT(
                talking_heads=True,
                pooling=ClassAttention(depth=depth, keys="class and patches"),
                residual=LayerScale() | UniformLayerScale() | FixedLayerScale(),
            ):
                own = {"depth_token_only": depth, "mlp_ratio_token_only": self.mlp_ratio}
                return self.timm_as("cait_s24_224", image_size, **own)
            case _:
                kind = "CaiT but with talking heads, LayerScale and class attention to all tokens"
                raise unknown(kind)


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
    section 3.7), its MLPs four times as wide as its tokens.

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
        drop_path=StochasticDepth(rate=drop_path, group=group),
        in_chans=in_chans,
        num_classes=num_classes,
    )
