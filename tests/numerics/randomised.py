"""Models of which every parameter shows in the logits."""

import torch
from torch import nn

TOKENS = ("cls_token", "dist_token", "pos_embed", ".beta")


@torch.no_grad()
def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter random, LayerScale and biases too, and large enough to show in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith((".ls1", ".ls2")):  # without LayerNorm a deep stream would grow
            nn.init.uniform_(parameter, 0.1, 0.5, generator=generator)
        elif "gamma" in name or "norm" in name and name.endswith(("weight", "alpha")):
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
        elif parameter.ndim < 2 or name.endswith(TOKENS):
            nn.init.normal_(parameter, std=0.5, generator=generator)
        else:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=generator)
    return model.eval()
