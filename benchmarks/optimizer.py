"""LAMB with an average of the weights, beside timm's and beside AdamW, in units of one copy; then
Muon beside torch's (benchmarks/muon.py).

    python -m benchmarks.optimizer [--small] [--check]

Row 6 of docs/performance.md: a copy of the weights reads 4 bytes a parameter and writes 4.
"""

import sys

import torch
from timm.optim.lamb import Lamb as TimmLamb
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from benchmarks import muon
from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit import models
from bigvit.optim.lamb import LAMB
from bigvit.optim.state import fresh_state
from bigvit.recipe import ClassToken, StochasticDepth, ViT

DECAY, EMA = 0.02, 0.9999
GOAL = 5.0


def model(small: bool) -> nn.Module:
    """ViT-S/16 at 224 px, 22 M parameters."""
    width, depth = (64, 2) if small else (384, 12)
    drop = StochasticDepth(0.0, 8)
    built = models.build(
        ViT(16, width, depth, width // 64, 4.0, 1e-4, ClassToken(0), False, drop, 3, 1000), 224
    )
    built.init_weights(0)
    for p in built.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    return built


def groups(of: nn.Module) -> list[dict[str, object]]:
    """Matrices decayed, vectors not."""
    parameters = list(of.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def lamb(of: nn.Module, compiled: bool, ema: float | None) -> LAMB:
    """Ours."""
    values = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
    made = LAMB(groups(of), **values, ema=ema, compiled=compiled)
    for p in of.parameters():
        fresh_state(made, p)
    return made


def main() -> int:
    options = arguments(__doc__ or "")
    of = [model(options.small) for _ in range(6)]
    source = torch.cat([p.detach().flatten() for p in of[0].parameters()])
    target = torch.empty_like(source)
    theirs = TimmLamb(groups(of[3]), lr=1e-3, max_grad_norm=None)
    average = ModelEmaV3(of[4], decay=EMA)
    adamw = torch.optim.AdamW(groups(of[5]), lr=1e-3, fused=True)
    runs = {
        "copy": lambda: target.copy_(source),
        "ours, compiled": lamb(of[0], True, EMA).step,
        "ours, compiled, without an average": lamb(of[1], True, None).step,
        "ours, not compiled": lamb(of[2], False, EMA).step,
        "timm's LAMB": theirs.step,
        "timm's average": lambda: average.update(of[4]),
        "torch's fused AdamW": adamw.step,
    }
    seconds = interleaved(runs, rounds=3 if options.small else 21, warmup=2)
    rows: list[Row] = []
    for name in list(runs)[1:]:
        found = ratio(seconds[name], seconds["copy"])
        ours = name == "ours, compiled"
        rows.append(
            Row(
                f"{name}, copies",
                f"{found.value:.2f}",
                f"{found.low:.2f} to {found.high:.2f}",
                f"<= {GOAL:g}" if ours else "",
                found.value <= GOAL if ours else None,
            )
        )
    count = len(source)
    title = f"An optimizer step on {count:,} parameters, one thread"
    return report(title, [*rows, *muon.rows(options.small)], options.check)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
