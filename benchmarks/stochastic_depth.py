"""Stochastic depth that skips: step time beside timm's DropPath, and how exact it is.

    python -m benchmarks.stochastic_depth [--small] [--check]

Rows 1 and 2 of docs/performance.md. Shapes: B images, T tokens, D width.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import DropPath  # pyright: ignore[reportPrivateImportUsage]
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit import models
from bigvit.layers.stochastic_depth import Dropped, Factors
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import ClassToken, StochasticDepth, ViT

RATE, GROUP = 0.5, 8
CLASSES = 1000


def ours(width: int, depth: int, image: int, rate: float = RATE) -> ClassTokenTransformer:
    """Our ViT of 16-pixel patches, with initial weights."""
    drop = StochasticDepth(rate, GROUP)
    model = models.build(
        ViT(16, width, depth, width // 64, 4.0, 1e-4, ClassToken(0), False, drop, 3, CLASSES), image
    )
    model.init_weights(0)
    return model


def timms(model: ClassTokenTransformer, image: int) -> VisionTransformer:
    """timm's, with the same weights, and its DropPath uniform over depth."""
    config = model.config
    assert isinstance(config, ViT)
    theirs = VisionTransformer(
        img_size=image,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        init_values=config.layer_scale,
        no_embed_class=True,
    )
    theirs.load_state_dict(model.state_dict())
    for block in theirs.blocks.children():
        block.drop_path1 = DropPath(config.drop_path.rate)
        block.drop_path2 = DropPath(config.drop_path.rate)
    return theirs.train()


class PlainGather(nn.Module):
    """A block of timm's whose branches see a random half, as DINOv2's do: added out of place."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        x = self._add(x, lambda y: self.block.ls1(self.block.attn(self.block.norm1(y))))  # type: ignore
        return self._add(x, lambda y: self.block.ls2(self.block.mlp(self.block.norm2(y))))  # type: ignore

    def _add(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        kept = max(int(len(x) * (1 - RATE)), 1)
        samples = torch.randperm(len(x))[:kept]
        return torch.index_add(x, 0, samples, branch(x[samples]), alpha=len(x) / kept)


def step_times(small: bool) -> list[Row]:
    """Forward and backward of 12 blocks x 384 on 101 tokens of 32 images."""
    width, depth, image, batch = (64, 2, 32, 16) if small else (384, 12, 160, 32)
    rounds = 3 if small else 41
    skips = ours(width, depth, image)
    drops, gathers = timms(skips, image), timms(skips, image)
    gathers.blocks = nn.Sequential(*(PlainGather(block) for block in gathers.blocks.children()))
    images = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(batch)
    number = 0

    def step(model: nn.Module, logits: Callable[[], Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(logits(), targets).backward()

    def skipped() -> Tensor:
        nonlocal number
        number += 1
        return skips(images, skips.draws(0, number, (0, batch))).logits

    seconds = interleaved(
        {
            "ours": lambda: step(skips, skipped),
            "timm's DropPath": lambda: step(drops, lambda: drops(images)),
            "a plain subset gather": lambda: step(gathers, lambda: gathers(images)),
        },
        rounds,
    )
    for name, values in seconds.items():
        print(f"{name}: median {np.median(values):.3f} s of {len(values)}")
    rows: list[Row] = []
    for name in ("timm's DropPath", "a plain subset gather"):
        found = ratio(seconds[name], seconds["ours"])
        peer = name == "timm's DropPath"
        rows.append(
            Row(
                f"step time of {name} over ours",
                f"{found.value:.3f}",
                f"{found.low:.3f} to {found.high:.3f}",
                ">= 1.85, its lower end" if peer else "",
                found.low >= 1.85 if peer else None,
            )
        )
    return rows


def exactness(small: bool) -> list[Row]:
    """Gradients of a tiny model over many draws, where branches keep 4 or 5 of 8.

    A sample's gradient depends on its own masks alone, and those of different branches are
    independent: so the expected gradient of a batch is a sum over the 2^L ways of dropping L
    branches. Keeping a fixed number of a group takes away variance where the group's gradients
    point the same way, and adds up to 1 / (group - 1) where they cancel: so there are several
    batches, of random labels.
    """
    batches, draws = (2, 50) if small else (20, 300)
    size, rate = 16, 0.45
    model = models.build(
        ViT(4, 16, 3, 2, 2.0, 0.5, ClassToken(0), False, StochasticDepth(rate, GROUP), 3, 100), 8
    ).double()
    model.init_weights(0)
    branches = model.config.branches
    share_L = torch.tensor(model.config.drop_path.kept(branches)).double() / GROUP
    generator = torch.Generator().manual_seed(0)
    grouped, apart = Deviations(), Deviations()
    for batch in range(batches):
        images = torch.randn(size, 3, 8, 8, generator=generator).double()
        targets = torch.randint(100, (size,), generator=generator)
        gradient = partial(_gradient, model, images, targets)
        expected = _expected(gradient, share_L, size)
        keys = range(batch * draws, (batch + 1) * draws)
        skipped = [gradient(model.draws(0, number, (0, size))) for number in keys]
        grouped.add(torch.stack(skipped) - expected)
        masks = torch.rand(draws, branches, size, generator=generator) < share_L[:, None]
        alone = [gradient(Factors(mask / share_L[:, None])) for mask in masks]
        apart.add(torch.stack(alone) - expected)
    z, excess = grouped.z(), float(grouped.variance.sum() / apart.variance.sum())
    return [
        Row(f"mean gradient of {batches * draws} draws, z rms", f"{z:.3f}", "", "< 1.1", z < 1.1),
        Row("the same, each sample dropped by itself", f"{apart.z():.3f}"),
        Row("variance over that of each by itself", f"{excess:.3f}", "", "<= 1.02", excess <= 1.02),
    ]


def _gradient(
    model: ClassTokenTransformer, images: Tensor, targets: Tensor, draws: Dropped
) -> Tensor:
    """Of all parameters, as one vector."""
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(images, draws).logits, targets).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _expected(gradient: Callable[[Dropped], Tensor], share_L: Tensor, size: int) -> Tensor:
    """The mean gradient over all masks, each sample kept with the chance that its branch gives."""
    total = torch.zeros(())
    for kept in product([0.0, 1.0], repeat=len(share_L)):
        kept_L = torch.tensor(kept).double()
        chance = torch.where(kept_L > 0, share_L, 1 - share_L).prod()
        factors_LB = (kept_L / share_L)[:, None].expand(-1, size)
        total = total + chance * gradient(Factors(factors_LB))
    return total


class Deviations:
    """Of gradients from the expected ones, over several batches."""

    def __init__(self) -> None:
        self.sum, self.variance, self.of_sum = torch.zeros(()), torch.zeros(()), torch.zeros(())

    def add(self, deviations: Tensor) -> None:
        """Those of a batch (draws, parameters)."""
        variance = deviations.square().mean(dim=0)
        self.sum = self.sum + deviations.sum(dim=0)
        self.variance = self.variance + variance
        self.of_sum = self.of_sum + variance * len(deviations)

    def z(self) -> float:
        """Root mean square of the sum's deviation over its standard error."""
        moves = self.variance > 1e-12 * self.variance.max()  # the keys' biases are rounding
        return float((self.sum[moves].square() / self.of_sum[moves]).mean().sqrt())


def rates() -> Row:
    """The mean rate over the blocks, of every rate in percent, for models of 12 to 52 blocks."""
    worst = 0.0
    for blocks, group, percent in product((12, 32, 40, 52), (8, 16), range(13, 88)):
        kept = StochasticDepth(percent / 100, group).kept(2 * blocks)
        error = abs(1 - sum(kept) / (2 * blocks * group) - percent / 100)
        worst = max(worst, error * 2 * group * blocks)
    return Row("mean rate's error, in 1/(2 group blocks)", f"{worst:.3f}", "", "<= 1", worst <= 1)


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    rows = [*step_times(options.small), *exactness(options.small), rates()]
    title = "Stochastic depth 0.5: forward and backward, fp32, one thread"
    return report(title, rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
