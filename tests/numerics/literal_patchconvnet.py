"""PatchConvNet's forward pass, written out from what its authors' code computes
(facebookresearch/deit, patchconvnet_models.py), in float64, on weights by their names there."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def logits(w: Weights, images: Tensor, heads: int) -> Tensor:
    """Images (B, C, H, W) -> logits (B, K); a class token a class, where heads are numbered."""
    x = images
    for i in (0, 2, 4, 6):
        x = F.conv2d(gelu(x) if i else x, w[f"patch_embed.proj.{i}.0.weight"], None, 2, 1)
    count, _, rows, columns = x.shape
    x = torch.stack([x[:, :, r, c] for r in range(rows) for c in range(columns)], dim=1)
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for i in range(depth):
        own = within(w, f"blocks.{i}.")
        y = norm(own, "norm1", x).transpose(1, 2).reshape(count, -1, rows, columns)
        y = column(within(own, "attn.qkv_pos."), y).flatten(2).transpose(1, 2)
        x = x + own["gamma_1"] * y
    cls = w["cls_token"].expand(count, -1, -1)
    each = "head.0.weight" in w
    pooled = norm(w, "norm", pool(within(w, "blocks_token_only.0."), cls, x, heads, not each))
    if not each:
        return pooled[:, 0] @ w["head.weight"].T + w["head.bias"]
    made = [
        pooled[:, k] @ w[f"head.{k}.weight"][0] + w[f"head.{k}.bias"] for k in range(cls.shape[1])
    ]
    return torch.stack(made, dim=1)


def pool(w: Weights, cls: Tensor, x: Tensor, heads: int, to_itself: bool) -> Tensor:
    """Class tokens (B, C, D) and patches (B, N, D) -> class tokens (B, C, D)."""
    seen = norm(w, "norm1", torch.cat([cls, x], dim=1))
    queries, keys = seen[:, : cls.shape[1]], seen if to_itself else seen[:, cls.shape[1] :]
    attn = within(w, "attn.")
    q, k, v = (
        z @ attn[f"{n}.weight"].T + attn[f"{n}.bias"]
        for n, z in (("q", queries), ("k", keys), ("v", keys))
    )
    width, made = q.shape[2] // heads, list[Tensor]()
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        scores = torch.exp(q[..., own] @ k[..., own].transpose(1, 2) / math.sqrt(width))
        made.append(scores / scores.sum(dim=2, keepdim=True) @ v[..., own])
    attended = torch.cat(made, dim=2) @ attn["proj.weight"].T + attn["proj.bias"]
    cls = cls + w["gamma_1"] * attended
    y = gelu(norm(w, "norm2", cls) @ w["mlp.fc1.weight"].T + w["mlp.fc1.bias"])
    return cls + w["gamma_2"] * (y @ w["mlp.fc2.weight"].T + w["mlp.fc2.bias"])


def column(w: Weights, x: Tensor) -> Tensor:
    """What a block of the column adds, (B, D, h, w) -> (B, D, h, w)."""
    x = gelu(F.conv2d(x, w["0.weight"], w["0.bias"]))
    x = gelu(F.conv2d(x, w["2.weight"], w["2.bias"], padding=1, groups=x.shape[1]))
    means = x.flatten(2).mean(dim=2)
    low = means @ w["4.conv_reduce.weight"].flatten(1).T + w["4.conv_reduce.bias"]
    high = low.clamp(min=0) @ w["4.conv_expand.weight"].flatten(1).T + w["4.conv_expand.bias"]
    x = x / (1 + torch.exp(-high))[:, :, None, None]
    return F.conv2d(x, w["5.weight"], w["5.bias"])


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def within(w: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights of a module, by their names in it."""
    return {n.removeprefix(prefix): weight for n, weight in w.items() if n.startswith(prefix)}
