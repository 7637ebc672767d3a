"""T2T-ViT as its authors' repository (yitu-opensource/T2T-ViT) has it, with its names: written down
from there, shorter. Shapes: B images, N tokens, D width."""

import math
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn


class Token_performer(nn.Module):
    """token_performer.py."""

    def __init__(self, dim: int, in_dim: int) -> None:
        super().__init__()
        self.emb, self.m = in_dim, in_dim // 2
        self.kqv = nn.Linear(dim, 3 * self.emb)
        self.proj = nn.Linear(self.emb, self.emb)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(self.emb)
        layers = (nn.Linear(self.emb, self.emb), nn.GELU(), nn.Linear(self.emb, self.emb))
        self.mlp = nn.Sequential(*layers, nn.Dropout(0.1))
        w = nn.init.orthogonal_(torch.randn(self.m, self.emb)) * math.sqrt(self.m)
        self.w = nn.Parameter(w, requires_grad=False)

    def prm_exp(self, x: Tensor) -> Tensor:
        xd = (x * x).sum(dim=-1, keepdim=True).repeat(1, 1, self.m) / 2
        return torch.exp(torch.einsum("bti,mi->btm", x, self.w) - xd) / math.sqrt(self.m)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = torch.split(self.kqv(self.norm1(x)), self.emb, dim=-1)
        kp, qp = self.prm_exp(k), self.prm_exp(q)
        total = torch.einsum("bti,bi->bt", qp, kp.sum(dim=1)).unsqueeze(dim=2)
        kptv = torch.einsum("bin,bim->bnm", v, kp)
        y = torch.einsum("bti,bni->btn", qp, kptv) / (total.repeat(1, 1, self.emb) + 1e-8)
        y = v + self.proj(y)
        return y + self.mlp(self.norm2(y))


class T2T_module(nn.Module):
    """t2t_vit.py, tokens_type "performer"."""

    def __init__(self, embed_dim: int, token_dim: int) -> None:
        super().__init__()
        self.soft_split0 = nn.Unfold(kernel_size=(7, 7), stride=(4, 4), padding=(2, 2))
        self.soft_split1 = nn.Unfold(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
        self.soft_split2 = nn.Unfold(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
        self.attention1 = Token_performer(3 * 7 * 7, token_dim)
        self.attention2 = Token_performer(token_dim * 3 * 3, token_dim)
        self.project = nn.Linear(token_dim * 3 * 3, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.soft_split0(x).transpose(1, 2)
        for attention, split in (
            (self.attention1, self.soft_split1),
            (self.attention2, self.soft_split2),
        ):
            x = attention(x)
            side = int(np.sqrt(x.shape[1]))
            x = split(x.transpose(1, 2).reshape(len(x), -1, side, side)).transpose(1, 2)
        return self.project(x)


class T2T_ViT(nn.Module):
    """t2t_vit.py."""

    def __init__(
        self, image: int, embed_dim: int, depth: int, heads: int, token_dim: int, classes: int
    ) -> None:
        super().__init__()
        self.tokens_to_token = T2T_module(embed_dim, token_dim)
        count = (image // 16) ** 2 + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sinusoids(count, embed_dim), requires_grad=False)
        options: Any = {"mlp_ratio": 3.0, "qkv_bias": False, "norm_layer": nn.LayerNorm}
        self.blocks = nn.ModuleList(Block(embed_dim, heads, **options) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens_to_token(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def sinusoids(count: int, dim: int) -> Tensor:
    """transformer_block.py, get_sinusoid_encoding."""
    angles = [[p / np.power(10000, 2 * (j // 2) / dim) for j in range(dim)] for p in range(count)]
    table = np.array(angles)
    table[:, 0::2], table[:, 1::2] = np.sin(table[:, 0::2]), np.cos(table[:, 1::2])
    return torch.tensor(table, dtype=torch.float32).unsqueeze(0)
