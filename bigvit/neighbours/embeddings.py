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
from bigvit.data.loader import share_of, shared_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source
from bigvit.labelling.dense import digest_of
from bigvit.ranks.gathering import gathered
from bigvit.ranks.joining import Ranks, alone
from bigvit.ranks.stopping import StopRequest
from bigvit.ranks.together import Stopped
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
    model: Model,
    source: Source,
    split: str,
    batch_size: int,
    workers: int,
    folder: Path | None,
    ranks: Ranks | None = None,
    stop: StopRequest | None = None,
) -> Embedded | None:
    """The embeddings of every image as a test image: read, if a folder has them, or made and kept.
    Collective; None on other ranks than the first, which reads and writes.

    Args:
        split: the beginning of the file's name.
        folder: where they are kept; None: nowhere.

    Raises:
        Stopped: `stop` was asked; what is complete stays.
        ValueError: on every rank; the model has none, they are not finite, or the ranks have
            different weights or images.
    """
    ranks = ranks or alone()
    path = None
    if folder is not None or ranks.world > 1:
        name = _digest(model, source)
        if len(set(ranks.texts(name))) > 1:
            raise ValueError(
                f"{model.name}: the ranks read different weights or images; every host needs the "
                "same"
            )
        path = folder and folder / f"{split}-{name}.safetensors"
    kept = _read(path, source) if path is not None and ranks.rank == 0 else None
    if ranks.agree(kept is not None):
        return kept
    made = computed_together(model, source, batch_size, workers, ranks, stop)
    if path is not None and made is not None:
        try:
            _write(path, made)
        except OSError as error:
            log.warning("%s: embeddings cannot be kept there (%s)", folder, error.strerror or error)
    return made


def computed(model: Model, source: Source, batch_size: int, workers: int) -> Embedded:
    """The embeddings of every image as a test image, made by this process alone.

    Raises:
        ValueError: the model has none, or they are not finite.
    """
    made = computed_together(model, source, batch_size, workers, alone())
    assert made is not None, "the first rank"
    return made


@torch.no_grad()
def computed_together(
    model: Model,
    source: Source,
    batch_size: int,
    workers: int,
    ranks: Ranks,
    stop: StopRequest | None = None,
) -> Embedded | None:
    """The same, over ranks: each makes a share, each batch written in its place, and the first has
    them all. What an image is given is the same bit for bit on any number of equal ranks: batches
    are cut alike.

    Raises:
        Stopped: `stop` was asked.
        ValueError: on every rank; the model has none, or they are not finite.
    """
    normalise, done = Normalise(model.data, ranks.device), 0
    batches = -(-len(source) // batch_size)
    most = max(len(share_of(batches, rank, ranks.world)) for rank in range(ranks.world))
    share = share_of(batches, ranks.rank, ranks.world)
    count = max(0, min(len(source), share.stop * batch_size) - share.start * batch_size)
    ids = torch.empty(count, dtype=torch.int64)
    vectors = torch.empty(0, 0, device=ranks.device)
    ranks.at("embedding images")
    with ranks.agree_on_error(ValueError, raised=ValueError):
        own = shared_batches(source, model.data, batch_size, ranks.rank, ranks.world, workers)
        for batch in own:
            if stop is not None and stop.asked():
                raise Stopped(stop.reason)
            found = model.embed(normalise(batch.images))
            if not done:
                vectors = torch.empty(count, found.shape[1], device=ranks.device)
            taken = ids[done : done + int(batch.valid.sum())]
            torch.masked_select(batch.ids, batch.valid, out=taken)
            vectors[done : done + len(taken)] = found[batch.valid.to(ranks.device)]
            done += len(taken)
            ranks.went_on()
        if not vectors[:done].isfinite().all():
            raise ValueError(
                f"{model.name}: its features are not finite; choose another checkpoint"
            )
        for _ in range(most - len(share)):
            ranks.went_on()
    if not ranks.agree(done):
        raise ValueError("no image could be read")
    vectors, ids = vectors[:done], ids[:done]
    if ranks.world > 1:
        vectors, ids = gathered(vectors, ranks), gathered(ids[:, None], ranks)[:, 0]
    return Embedded(vectors, ids, source) if ranks.rank == 0 else None


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
