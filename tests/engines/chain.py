"""One run handed on from world size to world size and from stage to stage."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import tiny
import xxhash
from launched import train

from bigvit.data.batch import Batch
from bigvit.data.prepare import Inputs, Prepare
from bigvit.ranks.joining import Ranks

LEGS = (("zero3", 3), ("zero1", 6), ("zero2", 9), ("zero1", 11))  # `single` makes the rest
RECIPES = {"adamw": tiny.adamw, "lamb": tiny.lamb}


def chain(ranks: Ranks, folder: Path) -> None:
    """The next leg, with AdamW and with LAMB, decay groups and accumulation."""
    for name, recipe in RECIPES.items():
        path = folder / f"chain_{name}"
        done = len(list(path.glob("images_*_of_*_0.json")))
        ranks.agree(0)  # all have counted
        sharding, stop = LEGS[done]
        seen: dict[str, str] = {}
        micro = tiny.cut(recipe, ranks.world).micro_batch
        with watched(seen):
            train(
                ranks,
                path,
                recipe,
                sharding=sharding,
                resume="auto",
                stop_after=stop,
                micro_batch=micro,
                workers=done % 2,
            )
        (path / f"images_{done}_of_{ranks.world}_{ranks.rank}.json").write_text(json.dumps(seen))


@contextmanager
def watched(seen: dict[str, str]) -> Generator[None]:
    """Note every image that is trained on, by global batch and slot."""
    prepare = Prepare.__call__

    def watching(self: Prepare, batch: Batch) -> Inputs:
        for i, slot in enumerate(batch.slots.tolist()):
            pixels = xxhash.xxh3_128(batch.images[i].numpy().tobytes()).hexdigest()
            seen[f"{batch.number} {slot}"] = f"{int(batch.ids[i])} {pixels}"
        return prepare(self, batch)

    Prepare.__call__ = watching
    try:
        yield
    finally:
        Prepare.__call__ = prepare


SCENARIOS = (chain,)
