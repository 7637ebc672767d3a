"""Average precision of boxes and masks, as COCO measures it: by pycocotools, over all ranks'
predictions, in the images' own sizes."""

import contextlib
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.bad import gather
from bigvit.data.batch import Batch
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source
from bigvit.data.sources.coco import CocoSource
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Data

KINDS = {"box": "bbox", "mask": "segm"}
"""Of precision, and as pycocotools calls them."""
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""The first of pycocotools' statistics."""
Seen = Callable[[CocoSource, int, list[dict[str, Any]]], object]
"""(the test images, the number of one of them, what is predicted in it, in COCO's words)."""
CUT = 0.5  # how likely a pixel has to be of an object


@dataclass(frozen=True)
class Precision:
    """Average precision of predictions of test images."""

    images: int  # that could be read
    bad: tuple[str, ...]  # names of those that could not be
    objects: int  # predicted
    values: Mapping[str, float]  # percent by name (box_ap, mask_ap50, ...); of what there is, alone
    seconds: float = field(compare=False)  # that it took

    def as_json(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "bad_images": len(self.bad),
            "predicted_objects": self.objects,
            **self.values,
        }

    def said(self, averaged: Mapping[str, Any] | None) -> str:
        words = list[str]()
        for kind in KINDS:
            own = [self.values.get(f"{kind}_{name}", 0.0) for name in NAMES[:3]]
            ema = "" if averaged is None else f" (average {averaged[f'{kind}_ap']:.2f})"
            words.append(f"{kind} AP {own[0]:.2f}{ema}  50 {own[1]:.2f}  75 {own[2]:.2f}")
        return "  ".join(words)


def average_precision(
    predict: Callable[[Tensor], Mapping[str, Tensor]],
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
    agreed: Callable[[Callable[[], Batch | None]], Batch | None] = lambda fetch: fetch(),
    seen: Callable[[int, list[dict[str, Any]]], object] | None = None,
) -> Precision:
    """Collective: every rank predicts equally often, and knows the same in the end.

    Args:
        predict: normalised images (B, C, H, W) -> `boxes`, `scores`, `classes` and `masks`, as
            Mask R-CNN answers.
        seen: is told of each image that this rank looks at, and of what is predicted in it.
    """
    began, found = time.perf_counter(), list[dict[str, Any]]()
    listed = cast(CocoSource, source)
    bad = torch.zeros(0, dtype=torch.int64)
    normalise = Normalise(data, ranks.device)
    batches = test_batches(source, data, batch_size, ranks.rank, ranks.world, workers)
    while (batch := agreed(partial(next, batches, None))) is not None:
        assert batch.sizes is not None
        answers = predict(normalise(batch.images, batch.sizes))
        said = {name: x.float().cpu() for name, x in answers.items()}
        for i in batch.valid.nonzero()[:, 0].tolist():
            own = {name: x[i].numpy() for name, x in said.items()}
            shown = cast(tuple[int, int], tuple(batch.sizes[i].tolist()))
            id = int(batch.ids[i])
            here = predicted(own, id, shown, listed.size(id))
            found += here
            if seen is not None:
                seen(id, here)
        bad = torch.cat([bad, batch.bad])
    bad = gather(bad.unique(), ranks)
    every = _gathered(found, ranks)
    values = dict[str, float]()
    if ranks.rank == 0:
        unread = set(bad.tolist())
        values = measured(listed, [i for i in range(len(source)) if i not in unread], every)
    values = json.loads(ranks.handed(json.dumps(values)))
    names = tuple(source.name(id) for id in bad.tolist())
    seconds = time.perf_counter() - began
    return Precision(len(source) - len(names), names, len(every), values, seconds)


def predicted(
    said: Mapping[str, NDArray[Any]], id: int, seen: tuple[int, int], size: tuple[int, int]
) -> list[dict[str, Any]]:
    """What is predicted of an image, in COCO's words, and in the image's own size.

    Args:
        said: boxes (R, 4), scores (R,), classes (R,) and masks (R, m, m) as it was seen.
        seen, size: height and width as it was seen, and its own, pixels.
    """
    from pycocotools import mask

    count = int((said["scores"] > 0).sum())
    factors = np.array([size[1] / seen[1], size[0] / seen[0]] * 2)
    boxes = said["boxes"][:count].astype(np.float64) * factors
    boxes = boxes.clip(0, [size[1], size[0], size[1], size[0]])
    pixels = pasted(said["masks"][:count], boxes, size)
    found = list[dict[str, Any]]()
    for i in range(count):
        left, top, right, bottom = boxes[i].tolist()
        if right <= left or bottom <= top:
            continue  # all of it lies beside the image
        encoded: Any = mask.encode(np.asfortranarray(pixels[i]))
        found.append(
            {
                "image_id": id,
                "category_id": int(said["classes"][i]),
                "bbox": [left, top, right - left, bottom - top],
                "score": float(said["scores"][i]),
                "segmentation": {"size": list(size), "counts": encoded["counts"].decode()},
            }
        )
    return found


def pasted(masks: NDArray[Any], boxes: NDArray[Any], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Masks (R, m, m), which cover boxes (R, 4), as pixels of an image (R, H, W)."""
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    given = torch.from_numpy(masks)[:, None], torch.from_numpy(boxes).to(torch.float32)
    return (paste_masks_in_image(*given, size) > CUT)[:, 0].numpy().astype(np.uint8)


def measured(source: CocoSource, ids: list[int], found: list[dict[str, Any]]) -> dict[str, float]:
    """Percentages by name.

    Args:
        ids: of the images that count.
        found: as `predicted` makes it, of any images.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    values = dict[str, float]()
    with contextlib.redirect_stdout(io.StringIO()):  # it tells how far it is
        truth: Any = COCO()
        truth.dataset = {
            "images": [{"id": id, **_sides(source.size(id))} for id in ids],
            "annotations": [each for id in ids for each in source.truth(id)],
            "categories": [{"id": i, "name": name} for i, name in enumerate(source.classes)],
        }
        truth.createIndex()
        counted = set(ids)
        # in the images' order, however they were shared among ranks
        own = sorted((each for each in found if each["image_id"] in counted), key=_image)
        for kind, name in KINDS.items():
            if not own:
                values |= {f"{kind}_{each}": 0.0 for each in NAMES[:3]}
                continue
            results = truth.loadRes(_of_kind(own, kind))
            evaluation: Any = COCOeval(truth, results, cast(Any, name))
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            for each, value in zip(NAMES, evaluation.stats.tolist(), strict=False):
                if value >= 0 or each in NAMES[:3]:  # -1: there are none of that size
                    values[f"{kind}_{each}"] = 100 * max(0.0, value)
    return values


def _of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Predictions by what their area is of: pycocotools takes boxes' where it sees some."""
    other = "segmentation" if kind == "box" else "bbox"
    return [{name: value for name, value in each.items() if name != other} for each in found]


def _image(each: dict[str, Any]) -> int:
    return each["image_id"]


def _sides(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


def _gathered(found: list[dict[str, Any]], ranks: Ranks) -> list[dict[str, Any]]:
    """What all ranks have, rank by rank. Collective."""
    own = json.dumps(found).encode()
    counts = torch.zeros(ranks.world, dtype=torch.int64)
    counts[ranks.rank] = len(own)
    counts = ranks.sum(counts).tolist()
    start, each = sum(counts[: ranks.rank]), list[dict[str, Any]]()
    whole = torch.zeros(sum(counts), dtype=torch.uint8)
    whole[start : start + len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    content = ranks.sum(whole).numpy().tobytes()
    for count in counts:
        each += json.loads(content[:count])
        content = content[count:]
    return each
