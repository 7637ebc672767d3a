"""Talking-heads attention, of which no attention map is kept for backward."""

from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.attention import Attention


class HeadMixing(nn.Module):
    """A linear map from heads to heads. It hands its weights out, as it is applied elsewhere:
    copies, for a sharded engine takes the weights themselves away again after the call."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, num_heads))
        self.bias = nn.Parameter(torch.empty(num_heads))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Weight (H, H) and bias (H,)."""
        return self.weight.clone(), self.bias.clone()


class TalkingHeads(Attention):
    """Multi-head self-attention whose heads are mixed linearly before and after the softmax
    (arXiv:2003.02436)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.proj_l = HeadMixing(num_heads)  # of the logits
        self.proj_w = HeadMixing(num_heads)  # of the weights

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        out_BHNd: Any = _Attention.apply(*self._heads(x), *self.proj_l(), *self.proj_w())
        return self.proj(out_BHNd.transpose(1, 2).flatten(2))

    def maps(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> what each token attends to (B, H, N, N), after the second mixing: shares
        that may be negative, and need not sum to 1."""
        q, k, _ = self._heads(x)
        return _mix(_mix(_logits(q, k), *self.proj_l()).softmax(dim=-1), *self.proj_w())


class _Attention(torch.autograd.Function):
    """Keeps q, k and v alone, where autograd would keep four maps (B, H, N, N), and computes the
    maps once more in backward: a softmax and a mixing beyond the products needed there anyway."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """q, k, v (B, H, N, d), weight and bias of the mixing before the softmax, and of the one
        after it -> (B, H, N, d)."""
        ctx.save_for_backward(*inputs)
        q, k, v, before, before_bias, after, after_bias = inputs
        weights = _mix(_logits(q, k), before, before_bias).softmax(dim=-1)
        return _mix(weights, after, after_bias) @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (d_out,), (q, k, v, before, before_bias, after, after_bias) = gradients, ctx.saved_tensors
        logits = _logits(q, k)
        weights = _mix(logits, before, before_bias).softmax(dim=-1)
        d_v = _mix(weights, after, after_bias).transpose(-2, -1) @ d_out
        d_mixed = d_out @ v.transpose(-2, -1)
        d_after, d_after_bias = _products(d_mixed, weights), d_mixed.sum(dim=(0, 2, 3))
        d_weights = _mix(d_mixed, after.T)
        d_mixed = weights * (d_weights - (d_weights * weights).sum(dim=-1, keepdim=True))
        d_before = _products(d_mixed, logits)
        d_logits = _mix(d_mixed, before.T) * q.shape[-1] ** -0.5
        d_q, d_k = d_logits @ k, d_logits.transpose(-2, -1) @ q
        # the first bias moves a head's logits all alike, which no softmax sees
        return d_q, d_k, d_v, d_before, torch.zeros_like(before_bias), d_after, d_after_bias


def _logits(q: Tensor, k: Tensor) -> Tensor:
    """(B, H, N, d) both -> (B, H, N, N)."""
    return (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)


def _mix(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Maps (B, H, N, N), linear over the heads."""
    weight = weight.expand(len(maps), -1, -1)
    flat = maps.flatten(2)
    if bias is None:
        return torch.bmm(weight, flat).unflatten(2, maps.shape[2:])
    return torch.baddbmm(bias[:, None], weight, flat).unflatten(2, maps.shape[2:])


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Sum of the products of two heads' maps (H, H), over images and pairs of tokens."""
    return torch.bmm(a.flatten(2), b.flatten(2).transpose(1, 2)).sum(dim=0)
