"""How long training stands still for a checkpoint, beside torch.save and a plain memory copy.

    python -m benchmarks.checkpoint [--small] [--check]

Row 10 of docs/performance.md: ViT-B's weights, moments and average in float32, one process.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.checkpoint.load import fill, verified
from bigvit.checkpoint.save import Saver
from bigvit.engines.build import build_engine
from bigvit.engines.engine import Engine
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe, Run, batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json

GOAL = 1.3


def recipe(small: bool) -> Recipe:
    """DeiT III's ViT-B in float32, with an average of its weights."""
    _, found = find_recipe("deit3_b16_in1k_192")
    model = replace(found.model, embed_dim=64, depth=2, num_heads=2) if small else found.model
    return replace(found, model=model, precision="fp32", ema=0.9999)


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    of = recipe(options.small)
    engine: Engine = build_engine(of, Run(engine="single"), batch_layout(of, 1, None), alone())
    views = [part.view for part in engine.slices()]
    size = sum(view.nbytes for view in views)
    copies = [torch.zeros_like(view) for view in views]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saver = Saver(engine, folder, to_json(of), keep=1)
        stall, whole = list[float](), list[float]()

        def save() -> None:
            began = time.perf_counter()
            saver.save(len(stall) + 1)
            stall.append(time.perf_counter() - began)
            saver.wait()
            whole.append(time.perf_counter() - began)

        def copy() -> None:
            for view, to in zip(views, copies, strict=True):
                to.copy_(view)

        def torch_save() -> None:
            torch.save({str(i): view for i, view in enumerate(views)}, folder / "torch.pt")

        seconds = interleaved(
            {"copy": copy, "ours": save, "torch.save": torch_save},
            rounds=3 if options.small else 7,
            clock=time.perf_counter,
        )
        began = time.perf_counter()
        fill(engine, *verified([folder / f"step_{len(stall):08d}"], engine.ranks))
        loading = time.perf_counter() - began
    found, peer = (
        ratio(stall[1:], seconds["copy"]),  # the first round is not counted
        ratio(seconds["torch.save"], seconds["copy"]),
    )

    def shown(times: list[float]) -> str:
        return f"{np.median(times):.3f} s"

    rows = [
        Row("a copy in memory", shown(seconds["copy"])),
        Row("training stands still", shown(stall[1:])),
        Row(
            "the same, in copies",
            f"{found.value:.2f}",
            f"{found.low:.2f} to {found.high:.2f}",
            f"<= {GOAL:g}",
            found.value <= GOAL,
        ),
        Row("torch.save, in copies", f"{peer.value:.2f}", f"{peer.low:.2f} to {peer.high:.2f}"),
        Row("until the checkpoint is whole", shown(whole[1:])),
        Row("reading it, digests included", f"{loading:.3f} s"),
    ]
    return report(f"A checkpoint of {size / 1e9:.2f} GB, one process", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
