"""What must be the same on every host, compared before the first update.

Each host has packages of its own, and its own copy of the data or a shared one. Where these differ
a run would go on, and some ranks would train on something else.
"""

import json
import secrets
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bigvit.data.decode import BadImage
from bigvit.data.index import describe
from bigvit.data.sampler import Sampler
from bigvit.data.sources import Source
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Recipe
from bigvit.recipe.store import digest
from bigvit.training.run_folder import PACKAGES
from bigvit.training.start import Refused

DECODED = 8  # images of the first batch that every host decodes
SEEN = 10.0  # seconds in which a new file must be seen on every host


def compare_hosts(
    recipe: Recipe, train: Source, test: Source | None, batch: int, ranks: Ranks
) -> dict[str, Any]:
    """On rank 0 what the data are. Collective.

    Args:
        batch: global batches consumed before the first one.

    Raises:
        Refused: on every rank; how a host differs from rank 0's.
    """
    index: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    if ranks.first_on_host:
        index = {"train": describe(train)}
        index |= {"test": describe(test)} if test is not None else {}
        facts = {name: version(name) for name in PACKAGES}
        facts["recipe"] = digest(recipe)
        for split, values in index.items():
            facts |= {f"index.{split}.{key}": value for key, value in values.items()}
        facts["pixels of the first batch"] = _pixels(recipe, train, batch)
    answers = ranks.texts(json.dumps(facts))
    zeros = json.loads(answers[0])
    for rank, text in enumerate(answers):
        theirs = json.loads(text)
        differing = [key for key in theirs if theirs[key] != zeros[key]]
        if differing:
            what = ", ".join(f"{key} is {theirs[key]}, not {zeros[key]}" for key in differing)
            raise Refused(
                f"{ranks.name(rank)} differs from {ranks.name(0)}: {what}; every host needs the "
                "same packages, recipe and data"
            )
    return index


def _pixels(recipe: Recipe, source: Source, batch: int) -> str:
    """A digest of the first images of a global batch, as they are before they are varied."""
    hasher = xxhash.xxh3_64()
    for id in Sampler.of(recipe, source).batch(batch)[2][:DECODED].tolist():
        try:
            hasher.update(np.asarray(source.read(id)).tobytes())
        except BadImage:
            hasher.update(b"unreadable")
    return hasher.hexdigest()


def check_seen_by_all(folder: Path, ranks: Ranks) -> None:
    """Write into a run folder, and look whether all ranks see it. Collective.

    Raises:
        Refused: on every rank; rank 0 cannot write there, or another does not see what it writes.
    """
    name = ranks.first_text(f".seen_by_all_{secrets.token_hex(4)}" if ranks.rank == 0 else "")
    file, here = folder / name, f"--run-dir {folder}:"
    unwritable = f"{here} it cannot be written to"
    with ranks.agree_on_error(OSError, raised=lambda why: Refused(f"{unwritable}: {why}")):
        if ranks.rank == 0:
            file.touch()
    deadline = time.monotonic() + SEEN
    while not (seen := file.exists()) and time.monotonic() < deadline:
        time.sleep(0.5)  # a network's file system may take a moment
    blind = ranks.first_text("" if seen else ranks.name(ranks.rank))
    if ranks.rank == 0:
        file.unlink()
    if blind:
        raise Refused(
            f"{here} {blind} does not see there what {ranks.name(0)} writes; checkpoints need a "
            "folder that all hosts share"
        )
