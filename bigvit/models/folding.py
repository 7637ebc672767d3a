"""ResMLP with fewer affine maps, and the same logits: what comes before or after a linear layer
goes into it (thesis section 4.2). Computed in float64, and rounded once.

What remains is what no weights of ResMLP can hold. The layer across patches is one matrix A and one
bias b for all channels, and between its affine maps makes, of channel c and patch i,

    lambda_c (sum_j A_ij (alpha_c x_jc + beta_c) + b_i)
        = lambda_c alpha_c (A x)_ic + lambda_c beta_c (A 1)_i + lambda_c b_i.

The last two terms differ by channel and by patch in different ways: a bias of N x D numbers could
hold them, and neither A nor b can. So `norm1` and `ls1` stay as they are. What ends the branch with
the same number for all patches, its shift, moves on: the stream without it is lower by a constant
a channel, which every affine map behind it makes good.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

NORMS = ("norm1", "norm2")


def without_shifts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a model of average pooling without the shifts that end its branches, as timm's and
    the authors' models have none.

    The stream is then lower by c, the sum of the shifts so far, and an affine map makes
    alpha (x - c) + beta' of it with beta' = beta + alpha c.
    """
    found = dict(weights)
    if not any(".shift" in name for name in weights):
        return found
    missing = torch.zeros_like(weights["norm.beta"], dtype=torch.float64)
    for block in range(_depth(weights)):
        for number, norm in enumerate(NORMS, 1):
            _raise(found, f"blocks.{block}.{norm}", missing)
            missing = missing + found.pop(f"blocks.{block}.shift{number}").double()
    _raise(found, "norm", missing)
    return found


def folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with all affine maps gone that a linear layer can take: `norm2` is in `fc1`, `ls2`
    in `fc2` and the last norm in the head. They are 1 and 0 then, so that the names stay."""
    found = without_shifts(weights)
    for block in range(_depth(weights)):
        at = f"blocks.{block}"
        _before(found, f"{at}.norm2", f"{at}.mlp_channels.fc1")
        _after(found, f"{at}.ls2", f"{at}.mlp_channels.fc2")
    _before(found, "norm", "head")
    return found


def _depth(weights: Mapping[str, Tensor]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))


def _raise(weights: dict[str, Tensor], norm: str, missing: Tensor) -> None:
    """Let an affine map make good what the stream is lower by."""
    alpha, beta = weights[f"{norm}.alpha"], weights[f"{norm}.beta"]
    weights[f"{norm}.beta"] = (beta.double() + alpha.double() * missing).to(beta.dtype)


def _before(weights: dict[str, Tensor], norm: str, linear: str) -> None:
    """W (alpha x + beta) + b = (W diag(alpha)) x + (W beta + b)."""
    alpha, beta = weights[f"{norm}.alpha"], weights[f"{norm}.beta"]
    weight, bias = weights[f"{linear}.weight"], weights[f"{linear}.bias"]
    wide, shift = weight.double(), beta.double().flatten()
    weights[f"{linear}.weight"] = (wide * alpha.double().flatten()).to(weight.dtype)
    weights[f"{linear}.bias"] = (bias.double() + wide @ shift).to(bias.dtype)
    weights[f"{norm}.alpha"], weights[f"{norm}.beta"] = (
        torch.ones_like(alpha),
        torch.zeros_like(beta),
    )


def _after(weights: dict[str, Tensor], scale: str, linear: str) -> None:
    """lambda (W x + b) = (diag(lambda) W) x + lambda b."""
    factors, weight = weights[scale], weights[f"{linear}.weight"]
    bias, wide = weights[f"{linear}.bias"], factors.double()
    weights[f"{linear}.weight"] = (wide[:, None] * weight.double()).to(weight.dtype)
    weights[f"{linear}.bias"] = (wide * bias.double()).to(bias.dtype)
    weights[scale] = torch.ones_like(factors)
