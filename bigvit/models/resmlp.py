"""ResMLP (arXiv:2105.03404; thesis chapter 4), with the names and shapes of timm's `resmlp_*`: in
each block a linear layer across patches, then an MLP on each patch, both between affine maps. And
what the thesis compares it with (table 4.3).

Initial weights are those of the authors' code. timm's own differ: a head of zeros, and Xavier's.

Shapes: B images, N patches on a grid of h x w, D width, K classes.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.affine import Affine
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.patch_embed import PatchEmbed
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Backbone, Grid, Walk
from bigvit.models.output import Features
from bigvit.recipe import ClassMlp, ImageSize, ResMLP


class ConvTokens(nn.Conv2d):
    """A 3 x 3 convolution of tokens on their grid, with zeros around it."""

    def __init__(self, dim: int, grid: Grid, groups: int = 1) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=groups)
        self.grid = grid

    def forward(self, input: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x_BDhw = input.transpose(1, 2).unflatten(2, self.grid)
        return super().forward(x_BDhw).flatten(2).transpose(1, 2)


class SeparableTokens(nn.Module):
    """The same depth-wise, and a 1 x 1 convolution behind it."""

    def __init__(self, dim: int, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.depthwise = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.pointwise = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x_BDhw = self.depthwise(x.transpose(1, 2).unflatten(2, self.grid))
        return self.pointwise(x_BDhw).flatten(2).transpose(1, 2)


class Layer(nn.Module):
    """What blocks and class-MLP layers have in common: two branches, each between a norm and an
    affine map, the second of which is an MLP on every token."""

    def __init__(self, model: ResMLP, across: bool = True) -> None:
        super().__init__()
        self.recompute = False
        dim, norm = model.embed_dim, Affine if model.norm == "affine" else LayerNorm
        if across:
            self.norm1 = norm(dim)
        self.norm2 = norm(dim)
        self.mlp_channels = Mlp(dim, model.hidden_dim)
        numbers = (1, 2) if across else (2,)
        for number in numbers:
            self.register_parameter(f"ls{number}", nn.Parameter(torch.empty(dim)))
            shift = nn.Parameter(torch.empty(dim)) if model.shift else None
            self.register_parameter(f"shift{number}", shift)

    def _channels(self, x: Tensor) -> Tensor:
        return self._ended(self.mlp_channels(self.norm2(x)), 2)

    def _ended(self, x: Tensor, number: int) -> Tensor:
        """A branch (B, T, D), in the weights' type, as its affine map leaves it: float32 or wider,
        as the residual stream is, for 1e-6 of a branch is below bf16's steps."""
        ended = x * upcast(getattr(self, f"ls{number}"))  # keeps x in its own type for backward
        shift = getattr(self, f"shift{number}")
        return ended if shift is None else ended + upcast(shift)


class Block(Layer):
    """Equations 4.2 and 4.3: D = X + Aff((A Aff(X)^T)^T), Y = D + Aff(C GELU(B Aff(D)))."""

    def __init__(self, model: ResMLP, grid: Grid, hidden_patches: int) -> None:
        super().__init__(model, across=model.communication != "none")
        dim, patches = model.embed_dim, grid[0] * grid[1]
        self.communication = model.communication
        match model.communication:
            case "linear":
                self.linear_tokens = nn.Linear(patches, patches)
            case "mlp":
                self.mlp_tokens = Mlp(patches, hidden_patches)
            case "conv":
                self.conv_tokens = ConvTokens(dim, grid)
            case "depthwise":
                self.conv_tokens = ConvTokens(dim, grid, groups=dim)
            case "separable":
                self.conv_tokens = SeparableTokens(dim, grid)
            case "none":
                pass

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, N, D), what the branches drop -> (B, N, D)."""
        if self.communication != "none":
            x = add_branches(x, [self._patches], drop[:1], self.recompute)
        return add_branches(x, [self._channels], drop[-1:], self.recompute)

    def _patches(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        match self.communication:
            case "linear":
                y = self.linear_tokens(y.transpose(1, 2)).transpose(1, 2)
            case "mlp":
                y = self.mlp_tokens(y.transpose(1, 2)).transpose(1, 2)
            case _:
                y = self.conv_tokens(y)
        return self._ended(y, 1)


class ClassLayer(Layer):
    """The same of a class token alone, to which a linear layer over it and the patches adds: class
    attention whose attention became that layer (section 4.2)."""

    def __init__(self, model: ResMLP, patches: int) -> None:
        super().__init__(model)
        self.linear_tokens = nn.Linear(patches + 1, 1)

    def forward(self, cls: Tensor, x: Tensor) -> Tensor:
        """cls (B, 1, D), patches (B, N, D) -> cls (B, 1, D)."""
        cls = add_branches(cls, [partial(self._reading, x)], [None], self.recompute)
        return add_branches(cls, [self._channels], [None], self.recompute)

    def _reading(self, x: Tensor, cls: Tensor) -> Tensor:
        y_BDN = self.norm1(torch.cat([cls, x], dim=1)).transpose(1, 2)
        return self._ended(self.linear_tokens(y_BDN).transpose(1, 2), 1)


class ResidualMlp(Backbone):
    """ResMLP, or one of its ablations."""

    def __init__(self, model: ResMLP, image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        grid, dim = model.grid(image_size), model.embed_dim
        self.stem = PatchEmbed(model.patch_size, model.in_chans, dim)
        hidden = model.hidden_patches(image_size)
        self.blocks = nn.ModuleList(Block(model, grid, hidden) for _ in range(model.depth))
        if isinstance(model.pooling, ClassMlp):
            layers = (ClassLayer(model, grid[0] * grid[1]) for _ in range(model.pooling.depth))
            self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
            self.blocks_token_only = nn.ModuleList(layers)
        self.norm = Affine(dim) if model.norm == "affine" else LayerNorm(dim)
        self.head = self.head_on(dim)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.stem(images)
        return self.normalised(walk(self.blocks, upcast(x_BND), grid), grid, walk)

    def pool(self, features: Features) -> Sequence[Tensor]:
        """The vectors (B, D) that are classified: the mean of the patches, the class token, or what
        attention pools."""
        if not isinstance(self.config.pooling, ClassMlp):
            return super().pool(features)
        cls = upcast(self.cls_token).expand(len(features.stream), -1, -1)
        for layer in self.blocks_token_only:
            cls = layer(cls, features.stream)
        return self.norm(cls).unbind(dim=1)

    def all_blocks(self) -> list[Any]:
        """The blocks, then the class-MLP layers, or the block of attention pooling."""
        layers: Iterable[Any] = self.pooling_blocks()
        if isinstance(self.config.pooling, ClassMlp):
            layers = self.blocks_token_only
        return [*self.blocks, *layers]

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """The affine maps': 1 and 0 where a branch begins, a small factor and 0 where it ends."""
        match name.rpartition(".")[2]:
            case "alpha":
                return value.fill_(1)
            case "ls1" | "ls2":
                return value.fill_(self.config.layer_scale)
            case "beta" | "shift1" | "shift2":
                return value
            case _:
                return None

    def neutral(self) -> set[str]:
        """Names of weights that change nothing as zeros, which others' files leave out."""
        return {name for name, _ in self.named_parameters() if ".shift" in name}

    def no_weight_decay(self) -> set[str]:
        """Names of what is no matrix, but has a matrix's dimensions: affine maps, class token."""
        names = (name for name, _ in self.named_parameters())
        return {n for n in names if n.endswith((".alpha", ".beta")) or n == "cls_token"}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block or class-MLP layer, then what
        pools by attention, and the head."""
        part, _, rest = name.partition(".")
        match part:
            case "blocks":
                return int(rest.partition(".")[0]) + 1
            case "blocks_token_only":
                return len(self.blocks) + int(rest.partition(".")[0]) + 1
            case "cls_token" if self.attends:
                return len(self.blocks) + 1
            case "stem" | "cls_token":
                return 0
            case _:
                return len(self.all_blocks()) + 1
