"""UperNet (arXiv:1807.10221): logits of each pixel from a trunk's maps. Weights have
mmsegmentation's names and shapes; a trunk of one stride has the neck of BEiT's and XCiT's code.

Shapes: B images, D width of a map, C channels, K classes; maps h x w, finest first.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.conv_norm import ConvNorm, LogitConv, Norm, norm_of
from bigvit.layers.precision import upcast

Size = tuple[int, int]


class Averages(nn.Module):
    """Means over so many by so many cells that cover a map, as torch's adaptive pooling divides it;
    as products of matrices, whose gradient is the same every time."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, cells, cells)."""
        y = upcast(x)
        down, across = (self._shares(side, y) for side in x.shape[2:])
        return (down @ y @ across.T).to(x.dtype)

    def _shares(self, side: int, like: Tensor) -> Tensor:
        """(cells, side): what each of a row's positions counts in each mean."""
        at, cell = (torch.arange(n, device=like.device) for n in (side, self.cells))
        first, past = cell * side // self.cells, -(-(cell + 1) * side // self.cells)
        inside = (at >= first[:, None]) & (at < past[:, None])
        return inside.to(like.dtype) / (past - first)[:, None]


class Neck(nn.Module):
    """Maps of one stride s -> strides s / 4, s / 2, s and 2 s."""

    def __init__(self, dim: int, norm: Norm) -> None:
        super().__init__()

        def doubled() -> nn.Module:
            return nn.ConvTranspose2d(dim, dim, 2, stride=2)

        self.fpn1 = nn.Sequential(doubled(), norm_of(dim, norm), nn.GELU(), doubled())
        self.fpn2 = nn.Sequential(doubled())
        self.fpn3 = nn.Identity()
        self.fpn4 = nn.MaxPool2d(2)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Four maps (B, D, h, w) -> four, finest first."""
        each = self.fpn1, self.fpn2, self.fpn3, self.fpn4
        return [step(x) for step, x in zip(each, maps, strict=True)]


class UperHead(nn.Module):
    """Averages of the coarsest map (PSPNet's, arXiv:1612.01105), a pyramid from above, and all of
    it fused at the finest."""

    def __init__(
        self, dims: Sequence[int], channels: int, scales: Sequence[int], classes: int, norm: Norm
    ) -> None:
        """Args: dims: widths of the maps, finest first."""
        super().__init__()
        *finer, last = dims
        self.psp_modules = nn.ModuleList(
            nn.Sequential(Averages(scale), ConvNorm(last, channels, 1, norm)) for scale in scales
        )
        self.bottleneck = ConvNorm(last + len(scales) * channels, channels, 3, norm)
        self.lateral_convs = nn.ModuleList(ConvNorm(dim, channels, 1, norm) for dim in finer)
        self.fpn_convs = nn.ModuleList(ConvNorm(channels, channels, 3, norm) for _ in finer)
        self.fpn_bottleneck = ConvNorm(len(dims) * channels, channels, 3, norm)
        self.conv_seg = LogitConv(channels, classes)

    def forward(self, maps: Sequence[Tensor], kept: Tensor | None) -> Tensor:
        """Maps (B, D, h, w), and factors of channels (B, C) where some are dropped -> logits
        (B, K, h, w) at the finest map's cells."""
        *finer, last = maps
        pooled = [resized(module(last), last.shape[2:]) for module in self.psp_modules]
        x = self.bottleneck(torch.cat([last, *pooled], dim=1))
        levels = [x]
        laterals = [conv(of) for conv, of in zip(self.lateral_convs, finer, strict=True)]
        for own in reversed(laterals):
            levels.insert(0, own + resized(levels[0], own.shape[2:]))
        *merged, top = levels
        each = [conv(of) for conv, of in zip(self.fpn_convs, merged, strict=True)]
        size = each[0].shape[2:]
        x = self.fpn_bottleneck(torch.cat([resized(of, size) for of in (*each, top)], dim=1))
        return self.conv_seg(scaled(x, kept))


class FcnHead(nn.Module):
    """A convolution, and logits (arXiv:1411.4038): the auxiliary head."""

    def __init__(self, dim: int, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.convs = nn.ModuleList([ConvNorm(dim, channels, 3, norm)])
        self.conv_seg = LogitConv(channels, classes)

    def forward(self, x: Tensor, kept: Tensor | None) -> Tensor:
        """(B, D, h, w), and factors of channels (B, C) where some are dropped -> (B, K, h, w)."""
        for conv in self.convs:
            x = conv(x)
        return self.conv_seg(scaled(x, kept))


def scaled(x: Tensor, kept: Tensor | None) -> Tensor:
    """x (B, C, h, w) with its channels times factors (B, C), if there are some."""
    return x if kept is None else x * kept.to(x.dtype)[:, :, None, None]


def resized(x: Tensor, size: Sequence[int]) -> Tensor:
    """x (B, C, h, w) at another size, by bilinear interpolation between the cells' centres. In
    float32 or wider, as torch's autocast has it: the gradient of a cell is a sum over all that is
    made of it."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    found = F.interpolate(upcast(x), size=tuple(size), mode="bilinear", align_corners=False)
    return found.to(x.dtype)
