"""ResMLP written down from the thesis's equations 4.1 to 4.3 and its section 4.2, for one image, in
the type of the weights, which are told by their names.

Shapes: N patches, D width; X is D x N, as in the thesis.
"""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def aff(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Equation 4.1, of each column of x (D, N)."""
    return torch.diag(scale.flatten()) @ x + shift.flatten()[:, None]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def patches(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Image (C, H, W) -> X (D, N): each square patch by a linear layer, row by row."""
    side = weight.shape[2]
    rows, columns = image.shape[1] // side, image.shape[2] // side
    found = [
        image[:, side * i : side * (i + 1), side * j : side * (j + 1)].flatten()
        for i in range(rows)
        for j in range(columns)
    ]
    return weight.flatten(1) @ torch.stack(found, dim=1) + bias[:, None]


def layer(x: Tensor, of: State) -> Tensor:
    """Equations 4.2 and 4.3 with the layers' biases: X (D, N) -> Y (D, N)."""
    none = torch.zeros(len(x), dtype=x.dtype)
    a = aff(x, of["norm1.alpha"], of["norm1.beta"])
    crossed = (of["linear_tokens.weight"] @ a.T + of["linear_tokens.bias"][:, None]).T
    d = x + aff(crossed, of["ls1"], of.get("shift1", none))
    return d + mlp(d, of)


def mlp(d: Tensor, of: State) -> Tensor:
    """What equation 4.3 adds to D."""
    none = torch.zeros(len(d), dtype=d.dtype)
    b = aff(d, of["norm2.alpha"], of["norm2.beta"])
    hidden = gelu(of["mlp_channels.fc1.weight"] @ b + of["mlp_channels.fc1.bias"][:, None])
    c = of["mlp_channels.fc2.weight"] @ hidden + of["mlp_channels.fc2.bias"][:, None]
    return aff(c, of["ls2"], of.get("shift2", none))


def class_layer(cls: Tensor, x: Tensor, of: State) -> Tensor:
    """Section 4.2: the class token (D, 1) alone is updated, by a linear layer over it and the
    patches (D, N) in the place of class attention, then by the MLP."""
    none = torch.zeros(len(x), dtype=x.dtype)
    every = aff(torch.cat([cls, x], dim=1), of["norm1.alpha"], of["norm1.beta"])
    one = every @ of["linear_tokens.weight"][0] + of["linear_tokens.bias"]
    cls = cls + aff(one[:, None], of["ls1"], of.get("shift1", none))
    return cls + mlp(cls, of)


def logits(state: State, image: Tensor) -> Tensor:
    """(C, H, W) -> (K,), in the state's own type."""
    x = patches(image, state["stem.proj.weight"], state["stem.proj.bias"])
    for of in numbered(state, "blocks"):
        x = layer(x, of)
    if "cls_token" in state:
        cls = state["cls_token"][0].T
        for of in numbered(state, "blocks_token_only"):
            cls = class_layer(cls, x, of)
        x = cls
    x = aff(x, state["norm.alpha"], state["norm.beta"])
    return state["head.weight"] @ x.mean(dim=1) + state["head.bias"]


def convolved(x: Tensor, grid: tuple[int, int], weight: Tensor, bias: Tensor) -> Tensor:
    """A 3 x 3 convolution of patches (D, N) on their grid, with zeros around it: each output
    channel reads all channels, or its own where the weight (D, 1 or D, 3, 3) has one."""
    h, w = grid
    maps, found = x.unflatten(1, grid), torch.zeros(len(weight), h, w, dtype=x.dtype)
    for i in range(h):
        for j in range(w):
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    if 0 <= i + di < h and 0 <= j + dj < w:
                        cell, of = maps[:, i + di, j + dj], weight[:, :, 1 + di, 1 + dj]
                        found[:, i, j] += of[:, 0] * cell if of.shape[1] == 1 else of @ cell
    return found.flatten(1) + bias[:, None]


def numbered(state: State, name: str) -> list[dict[str, Tensor]]:
    """The weights of each of some modules, by their names within it."""
    found: dict[int, dict[str, Tensor]] = {}
    for key, weight in state.items():
        if match := re.fullmatch(rf"{name}\.(\d+)\.(.+)", key):
            found.setdefault(int(match[1]), {})[match[2]] = weight
    return [found[number] for number in sorted(found)]
