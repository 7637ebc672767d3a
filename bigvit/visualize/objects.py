"""Pictures of images with the objects in them: frames, masks and names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from bigvit.data.sources.coco import CocoSource
from bigvit.dense.objects import evaluate_objects
from bigvit.visualize.frames import Drawn
from bigvit.visualize.samples import Panel, of_objects

SIDE = 256  # pixels of the longer side of an image in the picture
SURE = 0.5  # score from which a prediction is drawn
TOGETHER = 2  # what is there, what is predicted


class Kept:
    """The first of the images that are evaluated; an evaluation's `seen`."""

    def __init__(self, count: int) -> None:
        self.count, self.panels = count, list[Panel]()  # two of each

    def __call__(self, source: CocoSource, id: int, found: list[dict[str, Any]]) -> None:
        """An image, and what is predicted in it, in COCO's words."""
        if len(self.panels) >= TOGETHER * self.count:
            return
        sure = [each for each in found if each["score"] >= SURE]
        there = [each for each in source.truth(id) if not each["iscrowd"]]
        image, name = source.read(id), Path(source.name(id)).name
        panel = _panel(image, there, source.classes, name)
        self.panels += [panel, _panel(image, sure, source.classes, "as predicted:")]


def _panel(
    image: Image.Image, listed: Sequence[dict[str, Any]], classes: list[str], title: str
) -> Panel:
    from pycocotools import mask as coder

    factor = SIDE / max(image.size)
    across, down = (max(1, round(side * factor)) for side in image.size)
    drawn = list[Drawn]()
    for each in listed:
        whole = Image.fromarray(cast(Any, coder).decode(each["segmentation"]) * 255)
        mask = np.asarray(whole.resize((across, down), Image.Resampling.NEAREST)) > 0
        left, top, width, height = (side * factor for side in each["bbox"])
        score = f" {100 * each['score']:.0f} %" if "score" in each else ""
        of = each["category_id"]
        drawn.append(Drawn((left, top, left + width, top + height), of, mask, classes[of] + score))
    resized = np.asarray(image.resize((across, down), Image.Resampling.BILINEAR))
    return of_objects(torch.from_numpy(resized.copy()).permute(2, 0, 1), drawn, title)


def predicted_objects(
    path: Path, data_root: Path | None, count: int, workers: int | None
) -> list[Panel]:
    """Those of a run's newest checkpoint, of a few images; no others are predicted."""
    kept = Kept(count)
    evaluate_objects(path, 4, data_root, workers, most=count, seen=kept)
    return kept.panels
