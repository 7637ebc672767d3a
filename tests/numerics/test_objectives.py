"""Classification losses are those of timm and torch; a task names and weights them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from timm.loss.binary_cross_entropy import BinaryCrossEntropy as TimmBinaryCrossEntropy
from timm.loss.cross_entropy import SoftTargetCrossEntropy
from torch import Tensor

from bigvit import objectives
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare, Targets
from bigvit.models import Output
from bigvit.objectives.classification import binary_cross_entropy, cross_entropy
from bigvit.recipe import BinaryCrossEntropy, CrossEntropy, Objective, Recipe
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

B, K = 16, 10


@pytest.fixture
def logits() -> Tensor:
    return 4 * torch.randn(B, K, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def numbers() -> Tensor:
    return torch.randint(K, (B,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def soft() -> Tensor:
    """Two classes an image, as mixing makes them."""
    first, second = torch.randint(K, (2, B), generator=torch.Generator().manual_seed(2))
    share = torch.rand(B, 1, generator=torch.Generator().manual_seed(3))
    return share * F.one_hot(first, K) + (1 - share) * F.one_hot(second, K)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-6, atol=0, check_dtype=False)


def test_binary_cross_entropy_of_soft_targets_is_timms(logits: Tensor, soft: Tensor):
    # timm, too, averages over batch and classes unless told to sum the classes
    theirs = TimmBinaryCrossEntropy(smoothing=0.0, target_threshold=0.0)
    close(binary_cross_entropy(logits, soft, 0.0), theirs(logits, soft))


@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_binary_cross_entropy_is_its_formula(logits: Tensor, soft: Tensor, threshold: float):
    x, y = logits.double(), (soft > threshold).double()
    assert 0 < y.mean() < 0.25
    p = 1 / (1 + (-x).exp())
    literal = -(y * p.log() + (1 - y) * (1 - p).log()).sum() / (B * K)
    close(binary_cross_entropy(logits, soft, threshold), literal)


def test_a_target_at_the_threshold_is_not_above_it(logits: Tensor):
    half = torch.full((B, K), 0.5)
    none, every = torch.zeros(B, K), torch.ones(B, K)
    close(binary_cross_entropy(logits, half, 0.5), binary_cross_entropy(logits, none, 0.0))
    close(binary_cross_entropy(logits, half, 0.4), binary_cross_entropy(logits, every, 0.0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_of_class_numbers_is_torchs(
    logits: Tensor, numbers: Tensor, smoothing: float
):
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    one_hot = F.one_hot(numbers, K).float()
    close(cross_entropy(logits, one_hot, smoothing), theirs(logits, numbers))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_of_soft_targets_is_torchs(logits: Tensor, soft: Tensor, smoothing: float):
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    close(cross_entropy(logits, soft, smoothing), theirs(logits, soft))


def test_cross_entropy_of_soft_targets_is_timms(logits: Tensor, soft: Tensor):
    close(cross_entropy(logits, soft, 0.0), SoftTargetCrossEntropy()(logits, soft))


def test_cross_entropy_is_its_formula(logits: Tensor, soft: Tensor):
    x, y = logits.double(), 0.9 * soft.double() + 0.1 / K
    probability = x.exp() / x.exp().sum(dim=1, keepdim=True)
    close(cross_entropy(logits, soft, 0.1), -(y * probability.log()).sum() / B)


EVERY = [
    BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None),
    CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
]


def loss(objective: Objective, logits: Tensor, targets: Tensor) -> Tensor:
    built = objectives.build(objective, digits_vit)
    dense = F.one_hot(targets, logits.shape[1]).float()
    value = built(Output(logits, logits[:, None], (1, 1), logits, {}), Targets(targets, dense), ())
    return built.weighted(value, 0, 1)


@pytest.mark.parametrize("objective", EVERY, ids=lambda each: type(each).__name__)
def test_losses_are_float32_whatever_the_logits(
    objective: Objective, logits: Tensor, numbers: Tensor
):
    rounded = logits.bfloat16()
    found = loss(objective, rounded, numbers)
    assert found.dtype == torch.float32 and found.shape == ()
    assert torch.equal(found, loss(objective, rounded.float(), numbers))


@pytest.mark.parametrize("objective", EVERY, ids=lambda each: type(each).__name__)
def test_weight_multiplies(objective: Objective, logits: Tensor, numbers: Tensor):
    whole = loss(objective, logits, numbers)
    assert torch.equal(loss(replace(objective, weight=0.25), logits, numbers), 0.25 * whole)


@pytest.mark.parametrize("objective", EVERY, ids=lambda each: type(each).__name__)
def test_a_confident_mistake_keeps_loss_and_gradient_finite(objective: Objective):
    logits = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    value = loss(objective, logits, torch.tensor([0]))
    value.backward()
    assert value.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


def test_objectives_of_a_kind_get_names_of_their_own(tiny: Recipe):
    binary, cross = EVERY
    assert Task(replace(tiny, objectives=(cross, binary))).names == [
        "cross_entropy",
        "binary_cross_entropy",
    ]
    assert Task(replace(tiny, objectives=(cross, binary, cross))).names == [
        "cross_entropy_0",
        "binary_cross_entropy",
        "cross_entropy_1",
    ]


def test_a_task_gives_each_weighted_loss_by_name(tiny: Recipe, batches: Batches):
    items = (
        CrossEntropy(weight=0.5, smoothing=0.1, class_weights=None),
        BinaryCrossEntropy(weight=2.0, threshold=0.0, smoothing=0.0, class_weights=None),
        CrossEntropy(weight=0.25, smoothing=0.0, class_weights=None),
    )
    recipe = replace(tiny, objectives=items)
    task = Task(recipe)
    task.init_weights()
    torch.nn.init.normal_(task.model.head.weight)
    (batch,) = next(batches(recipe, 1))
    inputs = Prepare(recipe)(batch)
    found = task(inputs)
    pixels = (batch.images.float() / 255 - recipe.data.mean[0]) / recipe.data.std[0]
    logits = task.model(pixels, inputs.draws.model).logits
    expected = {
        "cross_entropy_0": 0.5 * F.cross_entropy(logits, batch.targets, label_smoothing=0.1),
        "binary_cross_entropy": 2.0
        * F.binary_cross_entropy_with_logits(logits, F.one_hot(batch.targets, K).float()),
        "cross_entropy_1": 0.25 * F.cross_entropy(logits, batch.targets),
    }
    assert list(found) == list(expected) == task.names
    for name, value in expected.items():
        close(found[name], value)
    # stochastic depth has its part in the losses, and none in predictions
    undropped = task(inputs._replace(draws=inputs.draws._replace(model=None)))
    assert found["cross_entropy_1"] != undropped["cross_entropy_1"]
    logits = task.predict(pixels)
    close(0.25 * F.cross_entropy(logits, batch.targets), undropped["cross_entropy_1"])
