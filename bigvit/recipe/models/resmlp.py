"""ResMLP with its ablations, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Description, Grid, unknown
from bigvit.recipe.models.ops import (
    Op,
    affine,
    conv,
    embedding,
    in_branch,
    linear,
    norm,
    repeat,
    scale,
    stream,
)
from bigvit.recipe.models.pooling import AttentionPooling, AveragePooling, refuse_attention
from bigvit.recipe.models.uniform import check_patches, patch_conv

__all__ = ["RESMLP_SIZES", "ClassMlp", "Communication", "ResMLP", "resmlp"]

Communication = Literal["linear", "none", "mlp", "conv", "depthwise", "separable"]

# timm's entry points, none of which takes another width, depth or patch
ARCHITECTURES = {
    # embed_dim, depth, patch_size
    (384, 12, 16): "resmlp_12_224",
    (384, 24, 16): "resmlp_24_224",
    (384, 36, 16): "resmlp_36_224",
    (768, 24, 8): "resmlp_big_24_224",
}


@dataclass(frozen=True)
class ClassMlp:
    """Layers behind the blocks in which a class token alone is updated (thesis section 4.2): by a
    linear layer over it and the patches, then by an MLP. Nothing is dropped there."""

    depth: bounds.Depth[int]  # layers


@dataclass(frozen=True)
class ResMLP(Description):
    """ResMLP (arXiv:2105.03404; thesis chapter 4): a linear layer across patches, then an MLP on
    each, both between affine maps; and what the thesis compares it with (table 4.3)."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of blocks
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of an MLP, in units of what it works on
    norm: Literal["affine", "layer_norm"]  # what a branch, and the head, begins with
    communication: Communication  # what works across patches; convolutions are 3 x 3
    layer_scale: bounds.Factor[float]  # initial factor of the affine map that ends a branch
    shift: bool  # whether that map has a shift, too: equations 4.2 and 4.3, not the authors' code
    # how the patches become what is classified
    pooling: AveragePooling | ClassMlp | AttentionPooling
    drop_path: StochasticDepth  # of the blocks
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    has_attention = False

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the MLP on a patch."""
        return int(self.embed_dim * self.mlp_ratio)

    @property
    def branches(self) -> int:
        return self.depth * (1 if self.communication == "none" else 2)

    @property
    def summary(self) -> str:
        return f"{self.embed_dim}/{self.depth}, patch {self.patch_size}"

    def grid(self, image_size: ImageSize) -> Grid:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def hidden_patches(self, image_size: ImageSize) -> int:
        """Hidden width of an MLP across patches."""
        return int(prod(self.grid(image_size)) * self.mlp_ratio)

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        check_patches(self.patch_size, image_size)
        least = self.hidden_dim
        if self.communication == "mlp":
            least = min(least, self.hidden_patches(image_size))
        wanted = "large enough for one hidden channel or more"
        bounds.allow("model.mlp_ratio", self.mlp_ratio, least >= 1, wanted)
        if isinstance(self.pooling, AttentionPooling):
            self.pooling.check(self.embed_dim)

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, grid = self.embed_dim, self.grid(image_size)
        patches, one = prod(grid), linear("head", 1, d, self.num_classes)
        class_mlp = isinstance(self.pooling, ClassMlp)
        yield patch_conv(grid, self.patch_size, self.in_chans, d)._replace(module="stem.proj")
        if class_mlp:
            yield embedding("cls_token", d)
        yield from repeat(self.depth, self._block(patches, self.hidden_patches(image_size)))
        if isinstance(self.pooling, AttentionPooling):
            for op in self.pooling.ops(self.depth, patches, d, self.num_classes, "head"):
                own = patches + self.pooling.count(self.num_classes)
                yield self._norm("norm", own) if op.module == "norm" else op
            return
        if isinstance(self.pooling, ClassMlp):
            yield from repeat(self.pooling.depth, self._class_block(patches), first=self.depth)
        yield self._norm("norm", patches + class_mlp)
        yield one._replace(kept=d)

    def _block(self, patches: int, hidden: int) -> Iterator[Op]:
        mixing = list(self._across(patches, hidden))
        if mixing:
            yield from in_branch(
                0,
                self._reads("blocks.*.norm1", patches),
                mixing,
                self._ends("blocks.*", 1, patches),
            )
        yield from in_branch(1 if mixing else 0, self._mlp("blocks.*", patches))

    def _across(self, patches: int, hidden: int) -> Iterator[Op]:
        """What works across patches: of as many rows as channels, where it is a product."""
        d, at = self.embed_dim, "blocks.*"
        kept = patches * d
        match self.communication:
            case "none":
                return
            case "linear":
                yield linear(f"{at}.linear_tokens", d, patches, patches)
            case "mlp":
                yield linear(f"{at}.mlp_tokens.fc1", d, patches, hidden)
                yield Op(f"{at}.mlp_tokens", "activation", 0, 0, d * hidden)
                yield linear(f"{at}.mlp_tokens.fc2", d, hidden, patches)
            case "conv":
                yield conv(f"{at}.conv_tokens", patches, d, d, 3, kept, bias=True)
            case "depthwise":
                yield conv(f"{at}.conv_tokens", patches, 1, d, 3, kept, bias=True)
            case "separable":
                yield conv(f"{at}.conv_tokens.depthwise", patches, 1, d, 3, kept, bias=True)
                yield conv(f"{at}.conv_tokens.pointwise", patches, d, d, 1, kept, bias=True)

    def _class_block(self, patches: int) -> Iterator[Op]:
        d, at = self.embed_dim, "blocks_token_only.*"
        reading = [
            stream(f"{at}.norm1", 1, d),
            self._norm(f"{at}.norm1", patches + 1),
            linear(f"{at}.linear_tokens", d, patches + 1, 1),
        ]
        yield from in_branch(0, reading, self._ends(at, 1, 1))
        last = 0 if self.communication == "none" else 1  # as many branches as a block has
        yield from in_branch(last, self._mlp(at, 1))

    def _mlp(self, at: str, tokens: int) -> Iterator[Op]:
        d, hidden, mlp = self.embed_dim, self.hidden_dim, f"{at}.mlp_channels"
        yield from self._reads(f"{at}.norm2", tokens)
        yield linear(f"{mlp}.fc1", tokens, d, hidden)
        yield Op(mlp, "activation", 0, 0, tokens * hidden)
        yield linear(f"{mlp}.fc2", tokens, hidden, d)
        yield from self._ends(at, 2, tokens)

    def _reads(self, module: str, tokens: int) -> Iterator[Op]:
        """The stream, and the norm that a branch begins with."""
        yield stream(module, tokens, self.embed_dim)
        yield self._norm(module, tokens, keeps=False)

    def _norm(self, module: str, tokens: int, *, keeps: bool = True) -> Op:
        made = affine if self.norm == "affine" else norm
        return made(module, tokens, self.embed_dim, keeps=keeps)

    def _ends(self, at: str, number: int, tokens: int) -> Iterator[Op]:
        """The affine map that ends a branch."""
        yield scale(f"{at}.ls{number}", self.embed_dim, tokens * self.embed_dim)
        if self.shift:
            yield scale(f"{at}.shift{number}", self.embed_dim, 0)

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        refuse_attention(self.pooling, "ResMLP")
        name = ARCHITECTURES.get((self.embed_dim, self.depth, self.patch_size))
        usual = (self.norm, self.communication, self.mlp_ratio) == ("affine", "linear", 4.0)
        if name is None or not usual or isinstance(self.pooling, ClassMlp):
            raise unknown(
                "ResMLP but S12, S24 and S36 in patches of 16 and B24 in patches of 8, with affine "
                "maps, linear layers across patches, MLPs four times as wide and average pooling"
            )
        return {
            "architecture": name,
            "num_features": self.embed_dim,
            "global_pool": "avg",
            "model_args": {"img_size": list(sides(image_size)), "in_chans": self.in_chans},
            "pretrained_cfg": {"first_conv": "stem.proj", "classifier": "head"},
        }


RESMLP_SIZES = {
    # name: embed_dim, depth, initial factor of a branch (thesis table 4.3; section 4.3.1, which
    # takes CaiT's, section 3.5: 0.1 up to depth 18, 1e-5 for 24, 1e-6 for deeper ones)
    "s12": (384, 12, 0.1),
    "s24": (384, 24, 1e-5),
    "s36": (384, 36, 1e-6),
    "b24": (768, 24, 1e-5),
}
"""The sizes of ResMLP."""


def resmlp(
    size: str,
    *,
    patch_size: int,
    shift: bool,
    drop_path: StochasticDepth,
    num_classes: int,
    in_chans: int,
) -> ResMLP:
    """A ResMLP of one of `RESMLP_SIZES`, its MLPs four times as wide as its tokens (thesis section
    4.2), the mean of the patches classified."""
    embed_dim, depth, layer_scale = RESMLP_SIZES[size]
    return ResMLP(
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        mlp_ratio=4.0,
        norm="affine",
        communication="linear",
        layer_scale=layer_scale,
        shift=shift,
        pooling=AveragePooling(),
        drop_path=drop_path,
        in_chans=in_chans,
        num_classes=num_classes,
    )
