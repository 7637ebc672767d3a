"""`bigvit neighbours`: a weighted kNN classifier on a model's features (thesis section 2.3.3)."""

from typing import Any

import torch

from bigvit.neighbours.given import Given, refuse_too_many
from bigvit.neighbours.nearest import QUERIES, nearest, votes


def neighbours(
    given: Given, k: int, temperature: float, batch_size: int, workers: int | None
) -> dict[str, Any]:
    """Count the test images whose class most of what their k nearest training images say is.

    Raises:
        ValueError: there are fewer training images, or the model does not fit.
    """
    refuse_too_many(k, len(given.train), "--neighbours")
    model = given.model()
    train = given.embedded(model, "train", batch_size, workers)
    test = given.embedded(model, "test", batch_size, workers)
    refuse_too_many(k, len(train.ids), "--neighbours")
    level = torch.tensor(given.level.of, device=train.vectors.device)
    found = nearest(test.unit, train.unit, k)
    near, truth = level[train.classes[found.places]], level[test.classes]
    right, count = 0, len(given.level.classes)
    pieces = zip(*(each.split(QUERIES) for each in (found.cosines, near, truth)), strict=True)
    for cosines, classes, own in pieces:  # (Q, C) of all would be gigabytes
        said = votes(cosines, classes, count, temperature)
        right += int((said.argmax(dim=1) == own).sum())
    return {
        "model": model.name,
        "classes": len(given.level.classes),
        "neighbours": k,
        "temperature": temperature,
        "training_images": len(train.ids),
        "images": len(test.ids),
        "bad_images": train.bad + test.bad,
        "top1_correct": right,
        "top1": 100 * right / len(test.ids),
    }
