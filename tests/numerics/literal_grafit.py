"""Grafit's equations as the thesis writes them (2.1 to 2.4): float64, a loop over images and
views. Every vector is a row."""

import torch
from torch import Tensor


def cos(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def instance(q: Tensor, xi: Tensor) -> Tensor:
    """Equation 2.1, averaged over images. q, xi (B, T, E): q o g_theta, and g_xi, of each view."""
    images, views, _ = q.shape
    total = torch.zeros((), dtype=torch.float64)
    for x in range(images):
        for i in range(views):
            for j in range(views):
                if i != j:
                    total = total - cos(q[x, i], xi[x, j]) / (views * (views - 1))
    return total / images


def knn(g: Tensor, ids: list[int], memory: Tensor, classes: list[int], sigma: float) -> Tensor:
    """Equations 2.2 and 2.3, averaged over images; an image whose class nobody else has adds 0.

    Args:
        g: (B, E), of the images `ids`.
        memory: (N, E).
        classes: of all images.
    """
    total = torch.zeros((), dtype=torch.float64)
    for x, i in enumerate(ids):
        others = [j for j in range(len(memory)) if j != i]
        weights = {j: (cos(g[x], memory[j]) / sigma).exp() for j in others}
        whole = torch.stack(list(weights.values())).sum()
        same = [weights[j] / whole for j in others if classes[j] == classes[i]]
        if same:
            total = total - torch.stack(same).sum().log()
    return total / len(ids)


def updated(memory: Tensor, ids: list[int], g: Tensor) -> Tensor:
    """m_i <- (m_i + g) / 2, g l2-normalised, for images that are there once."""
    found = memory.clone()
    for i, row in zip(ids, g, strict=True):
        found[i] = (memory[i] + row / row.square().sum().sqrt()) / 2
    return found


def mlp(x: Tensor, weights: dict[str, Tensor], batch_norm: bool) -> Tensor:
    """BYOL's projector or predictor of (R, D): linear, BatchNorm of the rows, ReLU, linear."""
    x = x @ weights["hidden.0.linear.weight"].T + weights["hidden.0.linear.bias"]
    if batch_norm:
        mean = x.mean(dim=0)
        var = (x - mean).square().mean(dim=0)
        x = (x - mean) / (var + 1e-5).sqrt()
        x = x * weights["hidden.0.norm.weight"] + weights["hidden.0.norm.bias"]
    x = x * (x > 0)
    return x @ weights["last.weight"].T + weights["last.bias"]
