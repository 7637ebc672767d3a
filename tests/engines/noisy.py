"""`scripts/train.py`, in which some global batches are pixels of noise with wrong labels.

    deepspeed ... noisy.py BATCHES DIE RECIPE ...

BATCHES: their numbers, 1 for the first, as 31,44-45; or "none". DIE: where a rank is killed in a
rollback: "record" (rank 0, before what is skipped is written down), "reload" (the last rank, after
that), "fill" (the last rank, when its weights are read and nothing else is done), or "never".
"""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from bigvit import keyed_random
from bigvit.checkpoint.skipped import parse_batches
from bigvit.data.batch import Batch
from bigvit.data.prepare import Inputs, Prepare


@contextmanager
def noise(batches: str) -> Generator[None]:
    """Each image's noise is a function of its place, as ranks cut batches differently."""
    numbers = {n - 1 for n in parse_batches(batches)} if batches != "none" else set[int]()
    made = Prepare.__call__

    def noisy(self: Prepare, batch: Batch) -> Inputs:
        if batch.number in numbers:
            images, targets = batch.images.clone(), batch.targets + 3
            for i, slot in enumerate(batch.slots.tolist()):
                pixels = keyed_random.uniform(images[i].numel(), "noise", batch.number, slot)
                images[i] = torch.from_numpy(pixels * 256).reshape(images[i].shape)
            batch = batch._replace(images=images, targets=targets % 10)
        return made(self, batch)

    Prepare.__call__ = noisy
    try:
        yield
    finally:
        Prepare.__call__ = made


def die_before(owner: Any, name: str, who: int) -> None:
    """A rank is killed where it calls a function."""
    function: Callable[..., Any] = getattr(owner, name)

    def killed(*args: Any, **kwargs: Any) -> Any:
        if int(os.environ["RANK"]) == who:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, killed)


def die(where: str) -> None:
    """Be killed there."""
    from bigvit.training import rollback

    last = int(os.environ["WORLD_SIZE"]) - 1
    match where:
        case "record":
            die_before(rollback, "write_skipped", 0)
        case "reload":
            die_before(rollback, "fill", last)
        case "fill":
            fill = rollback.fill

            def half(engine: Any, *args: Any) -> None:
                die_before(engine, "loaded", last)
                fill(engine, *args)

            rollback.fill = half
        case _:
            assert where == "never"


if __name__ == "__main__":
    from bigvit import train

    batches, where, *rest = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    sys.argv[1:] = rest
    die(where)
    with noise(batches):
        train.run_and_end()
