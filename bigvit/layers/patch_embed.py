"""Patch embedding."""

from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """Cut an image into square patches and project each one linearly (arXiv:2010.11929, eq. 1)."""

    def __init__(self, patch_size: int, in_chans: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """images (B, C, H, W) -> tokens (B, N, D) row by row, and their grid (h, w)."""
        x_BDhw = self.proj(images)
        h, w = x_BDhw.shape[2:]
        return x_BDhw.flatten(2).transpose(1, 2), (h, w)
