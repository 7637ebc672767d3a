"""Class weights are scikit-learn's and Cui et al.'s, and weigh losses as torch's own do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.class_weights import class_weights, weights_for
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.objectives.classification import binary_cross_entropy, cross_entropy
from bigvit.recipe import BinaryCrossEntropy, CrossEntropy, Recipe
from bigvit.recipe.check import check_recipe
from bigvit.recipe.parse import parse
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

COUNTS = np.array([1, 20, 400, 79, 5])
LABELS = np.repeat(np.arange(5), COUNTS)
B, K = 24, 5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def soft() -> Tensor:
    """Two classes an image, as mixing makes them."""
    first, second = torch.randint(K, (2, B), generator=torch.Generator().manual_seed(2))
    return 0.7 * F.one_hot(first, K) + 0.3 * F.one_hot(second, K)


def test_inverse_weights_are_scikit_learns_balanced():
    theirs = compute_class_weight("balanced", classes=np.arange(5), y=LABELS)
    np.testing.assert_allclose(class_weights("inverse", COUNTS), theirs, rtol=1e-6)


def test_inverse_root_weights_by_hand():
    found = class_weights("inverse sqrt", np.array([1, 4, 25]))
    roots = np.array([1, 1 / 2, 1 / 5])  # over the images: 1 + 2 + 5 of 30
    np.testing.assert_allclose(found, roots * 30 / 8, rtol=1e-6)


@pytest.mark.parametrize("beta", ["0.9", "0.99", "0.999", "0.9999"])
def test_weights_by_the_effective_number_are_cuis_up_to_their_scale(beta: str):
    found: Any = class_weights(cast(Any, f"effective {beta}"), COUNTS)
    # as their repository (vandit15/Class-balanced-loss-pytorch) and equation 2 have it
    effective = (1.0 - np.power(float(beta), COUNTS)) / (1.0 - float(beta))
    theirs = 1 / effective
    theirs = theirs / theirs.sum() * K
    np.testing.assert_allclose(found / found.sum() * K, theirs, rtol=1e-5)
    assert (found * COUNTS).sum() == pytest.approx(COUNTS.sum(), rel=1e-6)


def test_numbers_are_taken_as_they_are_and_a_class_without_images_is_refused():
    assert class_weights((2.0, 0.0, 1.0), np.array([0, 1, 2])).tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="^class_weights: inverse .* class 1 has no training"):
        class_weights("inverse", np.array([3, 0, 2]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_weighted_as_torchs(soft: Tensor, smoothing: float):
    logits, weights = 3 * drawn(0, B, K), drawn(1, K).abs()
    theirs = F.cross_entropy(logits, soft, weight=weights, label_smoothing=smoothing)
    found = cross_entropy(logits, soft, smoothing, weights)
    torch.testing.assert_close(found, theirs, rtol=1e-6, atol=0)
    assert (found - cross_entropy(logits, soft, smoothing)).abs() > 0.01


def test_of_class_numbers_torch_divides_by_the_weights_of_the_batch_and_we_by_its_images():
    logits, weights = 3 * drawn(0, B, K), drawn(1, K).abs()
    numbers = torch.randint(K, (B,), generator=torch.Generator().manual_seed(3))
    theirs = F.cross_entropy(logits, numbers, weight=weights)
    found = cross_entropy(logits, F.one_hot(numbers, K).float(), 0.0, weights)
    torch.testing.assert_close(found, theirs * weights[numbers].sum() / B, rtol=1e-6, atol=0)


def test_binary_cross_entropy_is_weighted_by_torchs_pos_weight(soft: Tensor):
    logits, weights = 3 * drawn(0, B, K), drawn(1, K).abs()
    positive = (soft > 0).float()
    theirs = F.binary_cross_entropy_with_logits(logits, positive, pos_weight=weights)
    assert torch.equal(binary_cross_entropy(logits, soft, 0.0, weights), theirs)
    x, y = logits.double(), positive.double()
    p = 1 / (1 + (-x).exp())
    literal = -(weights * y * p.log() + (1 - y) * (1 - p).log()).sum() / (B * K)
    torch.testing.assert_close(theirs.double(), literal, rtol=1e-6, atol=0)


def test_a_task_weighs_by_its_training_images(tiny: Recipe, batches: Batches):
    source = DigitsSource("train")
    theirs = compute_class_weight("balanced", classes=np.arange(10), y=source.targets)
    given = tuple(float(w) for w in theirs)
    losses: dict[Any, float] = {}
    for asked in ("inverse", given, None):
        each = CrossEntropy(weight=1.0, smoothing=0.1, class_weights=asked)
        recipe = replace(tiny, objectives=(each,))
        task, weights = Task(recipe), weights_for(recipe, source)
        task.init_weights()
        ((batch,), *_) = batches(recipe, 1)
        (loss,) = task(Prepare(recipe, weights=weights)(batch)).values()
        losses[asked] = loss.item()
    assert losses["inverse"] == pytest.approx(losses[given], rel=1e-6)
    assert losses["inverse"] != pytest.approx(losses[None], rel=1e-5)


def test_they_are_written_read_and_given_on_the_command_line(tiny: Recipe):
    for asked in ("effective 0.99", (1.0,) * 10, None):
        each = BinaryCrossEntropy(1.0, 0.0, 0.0, class_weights=asked)
        recipe = replace(tiny, objectives=(each,))
        check_recipe(recipe)
        assert recipe_from_json(to_json(recipe)) == recipe
    words = ["digits_vit", "--objectives.0.class-weights"]
    objectives = parse([*words, "inverse sqrt"]).recipe.objectives[0]
    assert isinstance(objectives, CrossEntropy) and objectives.class_weights == "inverse sqrt"
    with pytest.raises(ValueError, match="objectives.0.class_weights: .*10 numbers, one for each"):
        parse([*words, "0.5", "2.0"])
    value = to_json(tiny)
    del value["objectives"][0]["class_weights"]
    assert recipe_from_json(value) == tiny
