"""What a model makes of every image of a data set before its head, kept beside the run.

RUN/embeddings/test-DIGEST.safetensors holds `embeddings` (N, D) float32 and `ids` (N,) int64 of the
images that could be read, in the data set's order. The digest is of the weights, of what images are
fed to them how, and of the data set; whatever changes one of these makes another file.

Shapes: N images, D width.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bigvit.checkpoint.asked import Model
from bigvit.data.index import describe
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source
from bigvit.labelling.dense import digest_of
from bigvit.ranks.joining import alone
from bigvit.recipe.store import to_json

log = logging.getLogger(__name__)
FOLDER = "embeddings"


@dataclass(frozen=True)
class Embedded:
    """Images that could be read, in the order of their numbers."""

    vectors: Tensor  # (N, D) float32 on the device, as the model made them
    ids: Tensor  # (N,) int64: their numbers in the source
    source: Source

    @property
    def unit(self) -> Tensor:
        """(N, D), each of length 1: the products of two such are cosines."""
        return unit(self.vectors)

    @property
    def classes(self) -> Tensor:
        """(N,) int64: their classes by the source's numbers, on the device."""
        numbers = torch.as_tensor(self.source.targets, dtype=torch.int64)
        return numbers[self.ids].to(self.vectors.device)

    @property
    def bad(self) -> int:
        """How many images could not be read."""
        return len(self.source) - len(self.ids)


def unit(vectors: Tensor) -> Tensor:
    """Vectors (N, D) of length 1; one of length 0 stays 0."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)


def embedded(
    model: Model, source: Source, split: str, batch_size: int, workers: int, folder: Path | None
) -> Embedded:
    """The embeddings of every image as a test image: read, if a folder has them, or made and kept.

    Args:
        split: the beginning of the file's name.
        folder: where they are kept; None: nowhere.

    Raises:
        ValueError: the model has none, or they are not finite.
    """
    if folder is None:
        return computed(model, source, batch_size, workers)
    path = folder / f"{split}-{_digest(model, source)}.safetensors"
    if (kept := _read(path, source)) is not None:
        return kept
    made = computed(model, source, batch_size, workers)
    try:
        _write(path, made)
    except OSError as error:
        log.warning("%s: embeddings cannot be kept there (%s)", folder, error.strerror or error)
    return made


@torch.no_grad()
def computed(model: Model, source: Source, batch_size: int, workers: int) -> Embedded:
    """The same, made. Each batch is written in its place.

    Raises:
        ValueError: the model has none, or they are not finite.
    """
    device = alone().device
    normalise, done = Normalise(model.data, device), 0
    ids = torch.empty(len(source), dtype=torch.int64)
    vectors = torch.empty(0)
    for batch in test_batches(source, model.data, batch_size, 0, 1, workers):
        found = model.embed(normalise(batch.images))
        if not done:
            vectors = torch.empty(len(source), found.shape[1], device=device)
        taken = ids[done : done + int(batch.valid.sum())]
        torch.masked_select(batch.ids, batch.valid, out=taken)
        vectors[done : done + len(taken)] = found[batch.valid.to(device)]
        done += len(taken)
    if not done:
        raise ValueError("no image could be read")
    if not vectors[:done].isfinite().all():
        raise ValueError(f"{model.name}: its features are not finite; choose another checkpoint")
    return Embedded(vectors[:done], ids[:done], source)


def _digest(model: Model, source: Source) -> str:
    """Of all that embeddings are made of."""
    kind = str(next(model.module.parameters()).dtype)
    said = [digest_of(model.module), kind, to_json(model.data), describe(source)]
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True, default=str).encode())


def _read(path: Path, source: Source) -> Embedded | None:
    """What a file holds; None where there is none, or it is damaged."""
    if not path.exists():
        return None
    device = alone().device
    try:
        with safe_open(path, "pt") as file:
            vectors, ids = file.get_tensor("embeddings"), file.get_tensor("ids")
    except (OSError, SafetensorError) as error:
        log.warning("%s is damaged (%s); it is made anew", path, error)
        return None
    return Embedded(vectors.to(device), ids, source)


def _write(path: Path, made: Embedded) -> None:
    """Aside, and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        save_file({"embeddings": made.vectors.cpu().contiguous(), "ids": made.ids}, aside)
        os.replace(aside, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    finally:
        aside.unlink(missing_ok=True)
