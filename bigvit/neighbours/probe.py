"""`bigvit probe`: a linear classifier on a model's features, at many learning rates at once.

Shapes: L learning rates, B images of a batch, D width, C classes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bigvit import keyed_random
from bigvit.neighbours.given import Given

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Of a batch of 256, of features that vary by 1."""
MOMENTUM = 0.9
SEED = 0
HELD_OUT = 10  # one of so many training images chooses the rate


class Probes:
    """A linear classifier a learning rate, all trained on the same batches."""

    def __init__(self, features: Tensor, classes: int) -> None:
        """Args: features: (N, D), whose mean and deviation become 0 and 1 for each dimension."""
        self.mean = features.mean(dim=0)
        self.scale = features.std(dim=0, correction=0).clamp(min=1e-6)
        shape = (len(RATES), features.shape[1], classes)
        self.weight = torch.zeros(shape, device=features.device)
        self.bias = torch.zeros(len(RATES), 1, classes, device=features.device)

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> logits (L, B, C)."""
        x = (features - self.mean) / self.scale
        return torch.baddbmm(self.bias, x.expand(len(RATES), -1, -1), self.weight)

    def train(self, features: Tensor, classes: Tensor, epochs: int, batch_size: int) -> None:
        """SGD with momentum, and half a cosine from each rate to 0; no decay."""
        for each in (self.weight, self.bias):
            each.requires_grad_()
        size = min(batch_size, len(features))
        updates = len(features) // size  # of an epoch; what is left over is another's each time
        rates = torch.tensor(RATES, device=features.device)[:, None, None] * size / 256
        moments = [torch.zeros_like(each) for each in (self.weight, self.bias)]
        for epoch in range(epochs):
            order = torch.from_numpy(keyed_random.permutation(len(features), "probe", SEED, epoch))
            for update, places in enumerate(order.to(features.device).split(size)[:updates]):
                logits = self(features[places])
                own = classes[places].expand(len(RATES), -1)
                # a sum over rates, whose gradients do not meet
                loss = cross_entropy(logits.flatten(0, 1), own.flatten()) * len(RATES)
                gradients = torch.autograd.grad(loss, (self.weight, self.bias))
                share = (epoch + update / updates) / epochs
                rate = rates * (0.5 + 0.5 * math.cos(math.pi * share))
                with torch.no_grad():
                    for p, moment, g in zip(
                        (self.weight, self.bias), moments, gradients, strict=True
                    ):
                        p -= rate * moment.mul_(MOMENTUM).add_(g)

    @torch.no_grad()
    def right(self, features: Tensor, classes: Tensor) -> list[int]:
        """How many of some images each classifier gets right."""
        counts = torch.zeros(len(RATES), dtype=torch.int64, device=features.device)
        for x, own in zip(features.split(4096), classes.split(4096), strict=True):
            counts += (self(x).argmax(dim=2) == own).sum(dim=1)
        return counts.tolist()


def chosen(counts: Sequence[int]) -> int:
    """The place of the largest; of equals the first, the smallest rate."""
    return max(range(len(counts)), key=lambda i: (counts[i], -i))


def probe(
    given: Given, epochs: int, train_batch: int, batch_size: int, workers: int | None
) -> dict[str, Any]:
    """Train linear classifiers on the training images' features, as test images are seen, and count
    what each gets right of the test images. The rate is chosen by a tenth of the training images,
    which are not trained on.

    Raises:
        ValueError: there are too few images, or the model does not fit.
    """
    if len(given.train) < 2 * HELD_OUT:
        raise ValueError(
            f"--data-root: there are {len(given.train)} training images; a probe needs "
            f"{2 * HELD_OUT} or more"
        )
    model = given.model()
    train = given.embedded(model, "train", batch_size, workers)
    test = given.embedded(model, "test", batch_size, workers)
    level = torch.tensor(given.level.of, device=train.vectors.device)
    classes, truth = level[train.classes], level[test.classes]
    order = torch.from_numpy(keyed_random.permutation(len(classes), "probe", SEED))
    held, rest = order.split([len(order) // HELD_OUT, len(order) - len(order) // HELD_OUT])
    probes = Probes(train.vectors[rest], len(given.level.classes))
    probes.train(train.vectors[rest], classes[rest], epochs, train_batch)
    best = chosen(probes.right(train.vectors[held], classes[held]))
    counts = probes.right(test.vectors, truth)
    percent = [100 * count / len(truth) for count in counts]
    on_test = chosen(counts)
    return {
        "model": model.name,
        "classes": len(given.level.classes),
        "epochs": epochs,
        "training_images": len(rest),
        "held_out_images": len(held),
        "images": len(truth),
        "bad_images": train.bad + test.bad,
        "lr": RATES[best],
        "top1_correct": counts[best],
        "top1": percent[best],
        "best_on_test": {"lr": RATES[on_test], "top1": percent[on_test]},
        "by_lr": {f"{rate:g}": top1 for rate, top1 in zip(RATES, percent, strict=True)},
    }
