"""What is kept for backward, and what checkpointing costs.

    python -m benchmarks.activations [--small] [--check]

Row 8 of docs/performance.md. Shapes: B images, T tokens, D width.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch
from timm.models.cait import Cait
from torch import Tensor, nn

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from benchmarks.stochastic_depth import ours, timms
from bigvit import models
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import CaiT, ClassAttention, LayerScale, StochasticDepth


def kept_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps after a forward pass, without what the model holds anyway; a
    storage counts once."""
    held = (*model.parameters(), *model.buffers())
    own = {tensor.untyped_storage().data_ptr() for tensor in held}
    kept: dict[int, int] = {}
    tensors: list[Tensor] = []  # holds them, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def a_block(run: Callable[[int], tuple[nn.Module, Callable[[], Tensor], int]]) -> float:
    """What one block more keeps, in units of D numbers a token (float32)."""
    shallow, deep = (kept_bytes(model, forward) for model, forward, _ in map(run, (4, 8)))
    _, _, numbers = run(4)
    return (deep - shallow) / 4 / (4 * numbers)


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    width, image, batch = (64, 32, 8) if options.small else (384, 160, 32)
    images = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(0))
    numbers = batch * ((image // 16) ** 2 + 1) * width

    def skipping(depth: int, rate: float, share: float):
        model = ours(width, depth, image, rate)
        model.recompute(share)
        draws = model.draws(0, 0, (0, batch))
        return model, lambda: model(images, draws).logits, numbers

    def masking(depth: int):
        model = timms(ours(width, depth, image), image)
        return model, lambda: model(images), numbers

    patches = batch * (image // 16) ** 2 * width

    def class_attention(depth: int, share: float = 0):
        model = models.build(_cait(width, depth), image)
        model.init_weights(0)
        model.recompute(share)
        return model, lambda: model(images).logits, patches

    def timms_cait(depth: int):
        theirs = Cait(image, embed_dim=width, depth=depth, num_heads=width // 48 or 1)
        return theirs, lambda: theirs(images), patches

    rows: list[Row] = []
    for what, run, goal in (
        ("nothing dropped", lambda depth: skipping(depth, 0.0, 0), None),
        ("timm's DropPath at 0.5", masking, None),
        ("0.5 skipped", lambda depth: skipping(depth, 0.5, 0), 10.0),
        ("nothing dropped, half the blocks recomputed", lambda d: skipping(d, 0.0, 0.5), None),
        ("nothing dropped, every block recomputed", lambda d: skipping(d, 0.0, 1), None),
        ("0.5 skipped, half the blocks recomputed", lambda d: skipping(d, 0.5, 0.5), None),
        ("0.5 skipped, every block recomputed", lambda d: skipping(d, 0.5, 1), None),
        ("CaiT with talking heads", class_attention, None),
        ("timm's CaiT", timms_cait, None),
        ("CaiT, every block recomputed", lambda d: class_attention(d, 1), None),
    ):
        units = a_block(run)
        ok = None if goal is None else units <= goal
        rows.append(
            Row(f"kept: {what}", f"{units:.2f} D", "", f"<= {goal:g} D" if goal else "", ok)
        )
    rows.append(checkpointing_time(options.small, width, image, images))
    return report("A block and token: what is kept for backward, fp32", rows, options.check)


def _cait(width: int, depth: int) -> CaiT:
    """One of 48 channels a head, nothing dropped."""
    drop, second = StochasticDepth(0.0, 8), ClassAttention(2, "class and patches")
    heads = width // 48 or 1
    return CaiT(
        16, width, depth, heads, 4.0, True, LayerScale(1e-5), second, None, False, drop, 3, 1000
    )


def checkpointing_time(small: bool, width: int, image: int, images: Tensor) -> Row:
    """Forward and backward with every block recomputed, over without."""
    built: dict[str, ClassTokenTransformer] = {}
    for name, share in (("plain", 0.0), ("recomputed", 1.0)):
        built[name] = ours(width, 2 if small else 6, image, 0.0)
        built[name].recompute(share)

    def step(model: ClassTokenTransformer) -> None:
        model.zero_grad(set_to_none=True)
        model(images).logits.square().mean().backward()

    seconds = interleaved(
        {name: lambda model=model: step(model) for name, model in built.items()},
        3 if small else 15,
    )
    for name, values in seconds.items():
        print(f"{name}: median {np.median(values):.3f} s of {len(values)}")
    found = ratio(seconds["recomputed"], seconds["plain"])
    return Row(
        "time of recomputing every block over none",
        f"{found.value:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        "<= 1.34",
        found.value <= 1.34,
    )


if __name__ == "__main__":
    sys.exit(main())
