"""Work with the average of the weights in their place."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from bigvit.engines.engine import Engine


@contextmanager
def averaged(engine: Engine) -> Generator[None]:
    """Inside, the engine's weights are their moving average; after it, bit for bit what they were.
    Nothing is gathered but what the working weights always are. Collective."""
    _swap(engine)
    try:
        yield
    finally:
        _swap(engine)


@torch.no_grad()
def _swap(engine: Engine) -> None:
    """Exchange the weights of a rank's slices with their averages, in place."""
    weight = torch.empty(0)
    for part in engine.slices():
        if part.kind == "weight":
            weight = part.view
        elif part.kind == "ema":
            kept = weight.clone()
            weight.copy_(part.view)
            part.view.copy_(kept)
    engine.loaded(engine.scalars())
