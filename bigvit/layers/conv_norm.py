"""Convolutions of heads for dense tasks, and the norms behind them.

Shapes: B images, C channels, a map h x w.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.precision import upcast
from bigvit.recipe.segmentation import GROUPS

Norm = Literal["batch", "group"]


class GroupNorm(nn.GroupNorm):
    """GroupNorm (arXiv:1803.08494) of 32 groups, computed in float32: each image by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__(GROUPS, channels)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) -> the same shape, in the weights' type."""
        weight, bias = upcast(self.weight), upcast(self.bias)
        x = F.group_norm(upcast(input), self.num_groups, weight, bias, self.eps)
        return x.to(self.weight.dtype)


class SyncBatchNorm(BatchNorm):
    """BatchNorm whose statistics are of all ranks' micro-batches together. Collective."""

    world = 1  # ranks; each has as many images

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) -> the same shape, in the weights' type.

        Raises:
            ValueError: a channel has one value alone, which is its own mean.
        """
        if not self.training:
            return super().forward(input)
        count = self.world * input[:, 0].numel()
        if count == 1:
            raise ValueError(
                "a norm over the batch sees one value a channel: one image, averaged to one cell; "
                "use two images or more at once, or the norm of groups"
            )
        if self.world == 1:
            return super().forward(input)
        x, mean, var = _Normalised.apply(upcast(input), self.eps, self.world)  # type: ignore[misc]
        with torch.no_grad():
            of_batch = torch.stack([mean, var * (count / (count - 1))])
            for kept, own in zip((self.running_mean, self.running_var), of_batch, strict=True):
                kept.lerp_(own.to(kept.dtype), self.momentum or 0.0)
        weight, bias = (upcast(p)[:, None, None] for p in (self.weight, self.bias))
        return (x * weight + bias).to(self.weight.dtype)


class _Normalised(torch.autograd.Function):
    """x less its mean, over its deviation, both over all ranks' images and cells; and mean and
    variance (C,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, world: int) -> tuple[Tensor, Tensor, Tensor]:
        var, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        own = torch.stack([mean, var])
        each = own.new_empty(world * 2, x.shape[1])
        dist.all_gather_into_tensor(each, own)
        means, variances = each.view(world, 2, -1).unbind(1)
        # each rank has as many values: the variance within them, and that of their means
        mean, var = means.mean(0), variances.mean(0) + means.var(0, correction=0)
        scale = (var + eps).rsqrt()[:, None, None]
        y = (x - mean[:, None, None]) * scale
        ctx.save_for_backward(y, scale)
        ctx.count, ctx.set_materialize_grads = world * x[:, 0].numel(), False
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        y, scale = ctx.saved_tensors
        dy = gradients[0]
        sums = torch.stack([dy.sum(dim=(0, 2, 3)), (dy * y).sum(dim=(0, 2, 3))])
        dist.all_reduce(sums)
        mean, along = (sums / ctx.count)[:, :, None, None].unbind()
        return (dy - mean - y * along) * scale, None, None


class ReluConv(nn.Conv2d):
    """A convolution before a norm and ReLU: without biases, and at first Kaiming's normal of the
    fan out (arXiv:1502.01852)."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2, bias=False)


class LogitConv(nn.Conv2d):
    """Channels -> logits, cell by cell; at first normal of deviation 0.01, biases 0."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)


class ConvNorm(nn.Module):
    """Convolution, norm, ReLU. The norm is `bn` or `gn`, as mmcv calls it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, norm: Norm) -> None:
        super().__init__()
        self.conv = ReluConv(inputs, outputs, kernel)
        self.name = "bn" if norm == "batch" else "gn"
        self.add_module(self.name, norm_of(outputs, norm))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h, w), both in the weights' type."""
        return F.relu(self.get_submodule(self.name)(self.conv(x)), inplace=True)


def norm_of(channels: int, norm: Norm) -> nn.Module:
    """The norm that a recipe names."""
    return SyncBatchNorm(channels) if norm == "batch" else GroupNorm(channels)
