"""What models have in common whose blocks are all of one width. No torch here."""

from collections.abc import Iterator
from typing import Any

from bigvit.recipe.bounds import allow
from bigvit.recipe.depth import ImageSize, sides
from bigvit.recipe.models.description import Description, Grid
from bigvit.recipe.models.ops import Op, conv, embedding, linear, norm


class Uniform(Description):
    """Blocks of one width and number of heads."""

    embed_dim: int
    depth: int
    num_heads: int
    mlp_ratio: float
    num_classes: int

    @property
    def hidden_dim(self) -> int:
        """Hidden width of an MLP."""
        return int(self.embed_dim * self.mlp_ratio)

    @property
    def branches(self) -> int:
        return 2 * self.depth

    @property
    def summary(self) -> str:
        return f"{self.embed_dim}/{self.depth}/{self.num_heads}"

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        allow("model.mlp_ratio", self.mlp_ratio, self.hidden_dim >= 1, "1/embed_dim or more")
        fits = self.embed_dim % self.num_heads == 0
        heads = f"a multiple of model.num_heads ({self.num_heads})"
        allow("model.embed_dim", self.embed_dim, fits, heads)

    def head_ops(self, tokens: int, read: int | None = None) -> Iterator[Op]:
        """The last norm, and the head on one vector, with which so many tokens are kept: all of
        them, where it is one of theirs."""
        d, one = self.embed_dim, linear("head", 1, self.embed_dim, self.num_classes)
        yield norm("norm", tokens, d)
        yield one._replace(kept=(tokens if read is None else read) * d)


class TokenLabeled(Uniform):
    """Patches that can be labelled one by one, by a second head (arXiv:2104.10858), and mixed once
    they are embedded."""

    dense_head: bool

    @property
    def summary(self) -> str:
        return super().summary + ", dense head" * self.dense_head

    def dense_ops(self, image_size: ImageSize) -> Iterator[Op]:
        """The head on every patch, if there is one."""
        if self.dense_head:
            h, w = self.grid(image_size)
            yield linear("aux_head", h * w, self.embed_dim, self.num_classes)


class OfPatches(Uniform):
    """Tokens that are square patches, with learned positions."""

    patch_size: int
    in_chans: int

    @property
    def summary(self) -> str:
        return f"{super().summary}, patch {self.patch_size}"

    def grid(self, image_size: ImageSize) -> Grid:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        check_patches(self.patch_size, image_size)

    def patch_ops(self, image_size: ImageSize, others: int = 0) -> Iterator[Op]:
        """Patches and positions: theirs, and those of so many other tokens."""
        yield patch_conv(self.grid(image_size), self.patch_size, self.in_chans, self.embed_dim)
        h, w = self.grid(image_size)
        yield embedding("pos_embed", (h * w + others) * self.embed_dim)

    def timm_as(self, architecture: str, image_size: ImageSize, **own: Any) -> dict[str, Any]:
        """What `timm` returns, by timm's entry point and the arguments that only it takes."""
        return {
            "architecture": architecture,
            "num_features": self.embed_dim,
            "global_pool": "token",
            "model_args": {
                "img_size": list(sides(image_size)),
                "patch_size": self.patch_size,
                "in_chans": self.in_chans,
                "embed_dim": self.embed_dim,
                "depth": self.depth,
                "num_heads": self.num_heads,
                "mlp_ratio": self.mlp_ratio,
                **own,
            },
            "pretrained_cfg": {"first_conv": "patch_embed.proj", "classifier": "head"},
        }


def check_patches(patch_size: int, image_size: ImageSize) -> None:
    """Raise ValueError where an image is not made of whole patches."""
    fits = all(side % patch_size == 0 for side in sides(image_size))
    allow("data.image_size", image_size, fits, f"a multiple of model.patch_size ({patch_size})")


def patch_conv(grid: Grid, patch_size: int, in_chans: int, dim: int) -> Op:
    """A linear layer on the pixels of each patch of a grid."""
    cells = grid[0] * grid[1]
    kept = cells * patch_size**2 * in_chans
    return conv("patch_embed.proj", cells, in_chans, dim, patch_size, kept, bias=True)
