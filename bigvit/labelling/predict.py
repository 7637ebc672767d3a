"""`bigvit predict`: what a trained model takes images for, a line each."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bigvit.checkpoint.asked import Model, from_run, from_timm, refuse_untrained
from bigvit.checkpoint.of_timm import TIMM
from bigvit.data.decode import Photo, content_of
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source
from bigvit.data.sources.look import ENDINGS
from bigvit.data.workers import workers_for
from bigvit.labelling.whole import WHOLE
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Images
from bigvit.task import PREDICTION


class Prediction(NamedTuple):
    """Of one image."""

    image: str
    best: list[tuple[int, str, float]]  # number, name and probability, the most probable first
    # empty where it cannot be read


class Files:
    """Images in files, without classes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.classes: list[str] = []
        self.targets: NDArray[Any] = np.zeros(len(paths), np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def all_names(self) -> Iterator[bytes]:
        yield b"".join(os.fsencode(path) + b"\0" for path in self.paths)

    def contents(self) -> NDArray[Any]:
        return np.array([path.stat().st_size for path in self.paths])

    def open(self, index: int) -> Photo:
        name = self.name(index)
        return Photo(content_of(name, name), name)

    def read(self, index: int) -> Image.Image:
        return self.open(index).image()


def found(paths: Sequence[Path]) -> Files:
    """The files that are named, and the images below the folders that are, in order.

    Raises:
        ValueError: one is not there, or holds no images.
    """
    files = list[Path]()
    for path in paths:
        if path.is_dir():
            below = sorted(each for each in path.rglob("*") if _is_image(each))
            if not below:
                raise ValueError(f"{path}: there are no images in it")
            files += below
        elif path.exists():
            files.append(path)
        else:
            raise ValueError(f"{path}: there is no such file or folder")
    return Files(files)


def _is_image(path: Path) -> bool:
    return os.fsencode(path.suffix.lower()) in ENDINGS and path.is_file()


def asked(given: str, ema: bool, ranks: Ranks, trunk: bool = False) -> Model:
    """The model that is named: a run, a checkpoint, an export's folder, or timm:NAME.

    Args:
        trunk: as `from_run` has it.
    """
    if not given.startswith(TIMM) and (Path(given) / "model.safetensors").is_file():
        given = f"{TIMM}local-dir:{given}"
    if given.startswith(TIMM):
        return from_timm(given, WHOLE, ranks)
    return from_run(given, ema, ranks, trunk)


def test_images(model: Model, root: Path) -> Source:
    """The test images at a root, of the kind that a model takes.

    Raises:
        ValueError: there are none, or it takes digits.
    """
    if not isinstance(model.data, Images):
        raise ValueError(f"{model.name}: it takes the bundled digits; name image files instead")
    return open_source(model.data, "test", root, model.classes_map)


@torch.no_grad()
def predict(
    model: Model, source: Source, top: int, batch_size: int, workers: int | None = None
) -> Iterator[Prediction]:
    """Ask a model about every image of a source, in its order.

    Raises:
        ValueError: the model has fewer classes, or was not trained to tell them, or its logits are
            not finite.
    """
    refuse_untrained(model.name, model.classifies)
    if top > model.outputs:
        raise ValueError(f"--top {top}: the model has {model.outputs} classes; choose no more")
    names = model.classes or []
    names = [*names, *map(str, range(len(names), model.outputs))]
    normalise = Normalise(model.data, alone().device)
    batches = test_batches(source, model.data, batch_size, 0, 1, workers_for(workers))
    for batch in batches:
        shares = model.predict(normalise(batch.images))[PREDICTION].float().softmax(dim=1)
        best = shares.topk(top, dim=1)
        both = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        bad = set(batch.bad.tolist())
        for id, valid, (numbers, values) in zip(
            batch.ids.tolist(), batch.valid.tolist(), both, strict=True
        ):
            if valid and not all(value == value for value in values):
                raise ValueError(
                    f"{model.name}: its logits are not finite; choose another checkpoint"
                )
            if valid:
                each = zip(numbers, values, strict=True)
                yield Prediction(source.name(id), [(n, names[n], p) for n, p in each])
            elif id in bad:
                bad.discard(id)
                yield Prediction(source.name(id), [])


def write(predictions: Iterator[Prediction], top: int, as_csv: bool, file: TextIO) -> list[str]:
    """Write them as JSON lines, or as CSV.

    Returns:
        The images that cannot be read.
    """
    bad = list[str]()
    table = csv.writer(file)
    heads = list[str]()
    if as_csv:
        heads = [f"{what}{i}" for i in range(1, top + 1) for what in ("class", "probability")]
        table.writerow(["image", *heads, "error"])
    for image, best in predictions:
        if not best:
            bad.append(image)
        if as_csv:
            cells = [cell for _, name, p in best for cell in (name, f"{p:.6f}")]
            cells = [*cells, ""] if best else [*[""] * len(heads), "cannot be read"]
            table.writerow([image, *cells])
            continue
        classes = [{"number": n, "class": name, "probability": p} for n, name, p in best]
        said = {"classes": classes} if best else {"error": "cannot be read"}
        file.write(json.dumps({"image": image, **said}, ensure_ascii=False) + "\n")
    return bad
