"""LV-ViT's forward pass of an evaluation, written out from what its authors' code computes
(zihangJiang/TokenLabeling, tlt/models), in float64, on weights by their names."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def logits(weights: Mapping[str, Tensor], images: Tensor, heads: int, divisor: float) -> Tensor:
    """Images (B, C, H, W) -> logits (B, K): the class token's, and half the largest of patches'."""
    w, x = {name: weight.double() for name, weight in weights.items()}, images.double()
    for i, (stride, padding) in enumerate(((2, 3), (1, 1), (1, 1)), 1):
        x = F.conv2d(x, w[f"patch_embed.conv{i}.weight"], None, stride, padding)
        mean, var, scale, shift = (
            w[f"patch_embed.bn{i}.{name}"][None, :, None, None]
            for name in ("running_mean", "running_var", "weight", "bias")
        )
        x = ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)
    x = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=8)
    count, dim, rows, columns = x.shape
    tokens = [w["cls_token"].expand(count, 1, dim)]
    tokens += [x[:, :, r, c][:, None] for r in range(rows) for c in range(columns)]
    x = torch.cat(tokens, dim=1) + w["pos_embed"]
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for i in range(depth):
        own = {n.removeprefix(f"blocks.{i}."): v for n, v in w.items()}
        x = x + _attention(own, _norm(own, "norm1", x), heads) / divisor
        y = _norm(own, "norm2", x) @ own["mlp.fc1.weight"].T + own["mlp.fc1.bias"]
        y = y * (1 + torch.erf(y / math.sqrt(2))) / 2
        x = x + (y @ own["mlp.fc2.weight"].T + own["mlp.fc2.bias"]) / divisor
    x = _norm(w, "norm", x)
    of_class = x[:, 0] @ w["head.weight"].T + w["head.bias"]
    of_patches = x[:, 1:] @ w["aux_head.weight"].T + w["aux_head.bias"]
    return of_class + 0.5 * of_patches.max(dim=1).values


def _norm(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def _attention(w: Mapping[str, Tensor], x: Tensor, heads: int) -> Tensor:
    q, k, v = (x @ w["attn.qkv.weight"].T).chunk(3, dim=-1)  # no bias
    width = q.shape[-1] // heads
    made: list[Tensor] = []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        shares = (q[..., own] @ k[..., own].transpose(1, 2) / math.sqrt(width)).softmax(dim=-1)
        made.append(shares @ v[..., own])
    return torch.cat(made, dim=-1) @ w["attn.proj.weight"].T + w["attn.proj.bias"]
