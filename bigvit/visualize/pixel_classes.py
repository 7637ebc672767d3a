"""Pictures of test images, the classes of their pixels, and those that a model predicts."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from bigvit.data.pixel_labels import WholeScene
from bigvit.data.sources import Source
from bigvit.dense.of_checkpoint import evaluate_scenes, spread
from bigvit.visualize.samples import Line, Panel, of_pixels

SIDE = 256  # pixels of the longer side of an image in the picture
TOGETHER = 3  # image, classes, prediction


class Kept:
    """Some of the images that are evaluated, evenly over the test set; an evaluation's `seen`."""

    def __init__(self, count: int) -> None:
        self.count, self.panels = count, list[Panel]()  # three of each

    def __call__(self, source: Source, scene: WholeScene, classes: Tensor) -> None:
        """An image, and the classes that are predicted of its pixels."""
        if scene.id not in spread(len(source), self.count):
            return
        own, predicted = torch.from_numpy(scene.labels), classes.to(torch.uint8).cpu()
        image = source.read(scene.id)
        factor = min(1.0, SIDE / max(image.size))
        across, down = (max(1, round(side * factor)) for side in image.size)
        pixels = torch.frombuffer(
            bytearray(image.resize((across, down), Image.Resampling.BILINEAR).tobytes()),
            dtype=torch.uint8,
        )
        pixels = pixels.view(down, across, 3).permute(2, 0, 1)
        own, predicted = (_nearest(each, down, across) for each in (own, predicted))
        self.panels += [
            Panel(pixels, [Line(Path(source.name(scene.id)).name)]),
            of_pixels(pixels, own, source.classes, "its classes:"),
            of_pixels(pixels, predicted, source.classes, "as predicted:"),
        ]


def _nearest(labels: Tensor, down: int, across: int) -> Tensor:
    rows = torch.arange(down) * labels.shape[0] // down
    columns = torch.arange(across) * labels.shape[1] // across
    return labels[rows[:, None], columns]


def predicted_panels(
    path: Path, data_root: Path | None, count: int, workers: int | None
) -> list[Panel]:
    """Those of a run's newest checkpoint, of a few images; no others are predicted."""
    kept = Kept(count)
    evaluate_scenes(path, 4, data_root, workers, most=count, seen=kept)
    return kept.panels
