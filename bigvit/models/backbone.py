"""What every model has: a trunk and a head, whose blocks are all gone through in one way."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.class_attention import ClassBlock, OwnLogits
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, Dropped, Span, draw, drops
from bigvit.models.init import initial_weight
from bigvit.models.output import Features, Output, TokenMap
from bigvit.recipe import AttentionPooling, LayerScale
from bigvit.recipe.depth import spread
from bigvit.recipe.models.uniform import TokenLabeled
from bigvit.recipe.read import Read

Grid = tuple[int, int]


class Walk:
    """A way through blocks on one residual stream, each with what it drops; what is asked for is
    copied on the way."""

    def __init__(
        self, drop: list[Drop], each: int, wanted: Collection[int], read: Read | None = None
    ) -> None:
        """Args:
        drop: of all branches.
        each: branches of a block.
        wanted: blocks whose tokens are kept, counted from 0.
        read: what is to be computed; None: all.
        """
        self.drop, self.each, self.wanted = drop, each, wanted
        self.blocks, self.normalises = (read.blocks, read.tokens) if read else (math.inf, True)
        self.mix: Tensor | None = None  # (B, N) int64: of which image each patch is
        self.done = 0
        self.maps: dict[int, TokenMap] = {}

    def mixed(self, x: Tensor) -> Tensor:
        """Embedded patches (B, N, D), without positions -> each of the image that it is to be of:
        MixToken (arXiv:2104.10858)."""
        return x if self.mix is None else x.gather(0, self.mix[:, :, None].expand_as(x))

    def __call__(self, blocks: Iterable[Any], x: Tensor, grid: Grid, *more: Any) -> Tensor:
        """x (B, T, D) through the next blocks, of which each gets `more` too -> (B, T, D)."""
        for block in blocks:
            if self.done >= self.blocks:
                return x
            start = self.each * self.done
            x = block(x, *more, self.drop[start : start + self.each])
            if self.done in self.wanted:  # a copy, as the next block changes x
                self.maps[self.done] = TokenMap(_patches(x, grid).clone(), grid)
            self.done += 1
        return x


class Backbone(nn.Module, ABC):
    """A model made of blocks, each of which can be recomputed or compiled by itself."""

    config: Any  # the recipe's model
    norm: Any
    head: Any
    cls_token: Any  # where there are class tokens
    blocks_token_only: Any  # where class tokens alone are updated in the end
    head_dist: Any  # where there is a distillation token
    aux_head: Any  # where there is a head on patches

    def forward(
        self,
        images: Tensor,
        draws: Dropped = None,
        blocks: Collection[int] = (),
        mix: Tensor | None = None,
        read: Read | None = None,
    ) -> Output:
        """Args:
        images: (B, C, H, W), normalised.
        draws: what `draws` made for them, None to drop nothing.
        blocks: whose tokens are wanted too, counted from 0.
        mix: (B, N) int64, of which image each patch is to be; of `TokenLabeled` models.
        read: what of the model is, None: all of it. The rest is not computed.
        """
        walk = self.walk(draws, blocks, read)
        walk.mix = mix
        features = self.features(images, walk)
        if read is not None and not read.pooled:
            nothing = features.tokens[:, 0, :0]
            return Output(nothing, features.tokens, features.grid, nothing, features.blocks)
        pooled, *second = self.pool(features)
        logits = self.classify(pooled)
        others = [self.head_dist(each) for each in second]
        tokens, grid, _, maps, _ = features
        return Output(logits, tokens, grid, pooled, maps, *others, dense=self.dense(features))

    @abstractmethod
    def features(self, images: Tensor, walk: Walk) -> Features:
        """The trunk: images (B, C, H, W) by way of all blocks. Within a forward pass of this module
        alone: a sharded engine gathers the parameters that are its own there."""

    def pool(self, features: Features) -> Sequence[Tensor]:
        """The vectors (B, D) that are classified: the class token, what attention pools
        ((B, K, D) by a query a class), or the mean of the tokens; and the distillation token, where
        there is one."""
        if self.attends:
            patches = upcast(features.stream)
            queries = upcast(self.cls_token).expand(len(patches), -1, -1)
            pooled = self.norm(self.blocks_token_only[0](queries, patches))
            return [pooled if self.config.pooling.queries == "classes" else pooled[:, 0]]
        return features.cls or [features.tokens.mean(dim=1)]

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), normalised -> what stands before the head (B, D), nothing dropped:
        the mean of what is pooled, where that is several vectors (a distillation token's beside the
        class token's, as in timm; one a class)."""
        pooled = self.pool(self.features(images, self.walk(None, ())))
        return torch.stack([v if v.ndim == 2 else v.mean(dim=1) for v in pooled]).mean(dim=0)

    def maps(self, images: Tensor, blocks: Sequence[int] | None = None) -> list[Tensor]:
        """Features as maps, for segmentation, detection and the like: what blocks leave on the
        residual stream, not normalised, nothing dropped.

        Args:
            images: (B, C, H, W), normalised.
            blocks: counted from 0; left out: the last of each stage, whose strides double; of a
                model without stages four, evenly spread, all of one stride.

        Returns:
            A map (B, D, h, w) of each block, in the order of `blocks`, in the stream's type.

        Raises:
            ValueError: there is no such block.
        """
        asked = self.last_blocks() if blocks is None else list(blocks)
        depth = self.config.depth
        if strange := [block for block in asked if not 0 <= block < depth]:
            raise ValueError(f"blocks: {strange} are not of this model; it has 0 to {depth - 1}")
        found = self.features(images, self.walk(None, set(asked))).blocks
        each = [found[block] for block in asked]
        return [tokens.transpose(1, 2).unflatten(2, grid) for tokens, grid in each]

    def last_blocks(self) -> list[int]:
        """The last block of each stage; of a model without stages four blocks, evenly spread."""
        depth = self.config.depth
        if (depths := getattr(self.config, "depths", None)) is not None:
            return [end - 1 for end in accumulate(depths)]
        return sorted({max(1, round(depth * quarter / 4)) - 1 for quarter in range(1, 5)})

    def classify(self, pooled: Tensor) -> Tensor:
        """(B, D) -> logits (B, K)."""
        return self.head(pooled)

    def dense(self, features: Features) -> Tensor | None:
        """Logits (B, N, K) of a head on patches, where there is one."""
        dense = isinstance(self.config, TokenLabeled) and self.config.dense_head
        return self.aux_head(features.tokens) if dense else None

    @property
    def attends(self) -> bool:
        """Whether the head pools by attention."""
        return isinstance(getattr(self.config, "pooling", None), AttentionPooling)

    def head_on(self, dim: int) -> nn.Linear:
        """The last layer, on what is pooled of patches (B, N, D). Where that is by attention, its
        queries and its block are made, too: it reads `Features.stream`, and `norm` comes behind."""
        model, classes = self.config, self.config.num_classes
        if not self.attends:
            return nn.Linear(dim, classes)
        pooling, one = model.pooling, model.pooling.queries == "one"
        queries, hidden = pooling.count(classes), int(dim * pooling.mlp_ratio)
        scale = LayerScale(pooling.layer_scale)
        self.cls_token = nn.Parameter(torch.empty(1, queries, dim))
        block = ClassBlock(dim, pooling.heads, hidden, scale, one, queries)
        self.blocks_token_only = nn.ModuleList([block])
        return nn.Linear(dim, classes) if one else OwnLogits(dim, classes)

    def pooling_blocks(self) -> list[Any]:
        """The block that pools by attention, if it is so."""
        return list(self.blocks_token_only) if self.attends else []

    def pooling_tokens(self) -> set[str]:
        """Names of its queries."""
        return {"cls_token"} if self.attends else set()

    def behind_pooling(self, name: str, layer: int) -> int:
        """Depth of a parameter where attention pooling stands between the blocks and the head.

        Args:
            layer: the same without it.
        """
        depth = self.config.depth
        if not self.attends:
            return layer
        if name.startswith(("cls_token", "blocks_token_only.")):
            return depth + 1
        return layer + (layer > depth)

    def walk(self, draws: Dropped, blocks: Collection[int], read: Read | None = None) -> Walk:
        """A way through all blocks that are read."""
        drop = drops(self.config.drop_path, self.config.branches, draws)
        return Walk(drop, self.config.branches // self.config.depth, blocks, read)

    def normalised(self, x: Tensor, grid: Grid, walk: Walk) -> Features:
        """The end of a trunk: its last norm. x (B, T, D), class tokens first if there are some."""
        y = self.norm(x) if walk.normalises else x
        tokens = _patches(y, grid)
        cls = y[:, : y.shape[1] - tokens.shape[1]].unbind(dim=1)
        return Features(tokens, grid, cls, walk.maps, x)

    @abstractmethod
    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Initialise in place; the same weights for the same seed, wherever it is built."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_weight(name, seed))

    def initial_weight(self, name: str, seed: int) -> Tensor:
        """What a parameter is at first, or a buffer of those that training changes; float32."""
        return initial_weight(self, name, seed)

    def check(self) -> None:
        """Refuse what cannot be trained exactly: nothing of ours.

        Raises:
            ValueError: says what, and why.
        """

    def takes(self, name: str) -> bool:
        """Whether a parameter starts from given weights, where there are some."""
        return True

    def draws(self, seed: int, number: int, span: Span, views: int = 0) -> Dropped:
        """Everything random of a training forward pass over positions [start, stop) of a batch, or
        of the views of a group of them, which has another number than 0."""
        return draw(self.config.drop_path, self.config.branches, seed, number, span, views)

    def recompute(self, share: float) -> None:
        """Recompute this share of the blocks in backward, spread evenly over the depth."""
        blocks = self.all_blocks()
        again = spread(round(share * len(blocks)), len(blocks))
        for block, once_more in zip(blocks, again, strict=True):
            block.recompute = bool(once_more)

    def compile_blocks(self) -> None:
        """Compile each block in place: names stay, and what blocks share is compiled once."""
        # one for each way of keeping samples, recomputed or not, and evaluation: 8 are too few
        torch._dynamo.config.recompile_limit = max(32, torch._dynamo.config.recompile_limit)
        for block in self.all_blocks():
            block.compile(dynamic=False)

    def block_classes(self) -> list[str]:
        """Names of the classes of all that a residual stream goes through, each on one device."""
        return sorted({type(block).__name__ for block in self.all_blocks()})

    @abstractmethod
    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed."""

    @abstractmethod
    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, depth + 1 norm and head."""


def _patches(x: Tensor, grid: Grid) -> Tensor:
    """x (B, T, D) without what stands before its patches (B, N, D)."""
    return x[:, x.shape[1] - grid[0] * grid[1] :]
