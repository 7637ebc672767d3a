"""Distillation's losses and their gradients: equations 3.2 and 3.3 of the thesis written down in
float64, and the authors' arithmetic.

Shapes: B images, K classes.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from each import each_of
from torch import Tensor

from bigvit import objectives
from bigvit.data.prepare import Targets
from bigvit.models import Output
from bigvit.recipe import (
    CrossEntropy,
    DistillationToken,
    HardDistillation,
    LinearStochasticDepth,
    Objective,
    Recipe,
    SoftDistillation,
    deit,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import all_recipes
from bigvit.recipes.digits import digits_vit

B, K, SMOOTHING = 12, 10, 0.1
TEACHERS = all_recipes()["deit_b16_in1k_224_hard"]
PLAIN = deit(
    "ti16", distillation=None, drop_path=LinearStochasticDepth(0.0, 8), num_classes=K, in_chans=3
)
DISTILLED = replace(PLAIN, distillation=DistillationToken("softmax", decayed=False))


class Made(NamedTuple):
    """What a step of training has."""

    student: Tensor  # (B, K), of the class head
    second: Tensor  # (B, K), of the distillation head
    teacher: Tensor  # (B, K)
    labels: Tensor  # (B, K), two classes an image, as mixing makes them


@pytest.fixture
def made() -> Made:
    generator = torch.Generator().manual_seed(0)
    student, second, teacher = 4 * torch.randn(3, B, K, generator=generator)
    first, other = torch.randint(K, (2, B), generator=generator)
    share = torch.rand(B, 1, generator=generator)
    labels = share * F.one_hot(first, K) + (1 - share) * F.one_hot(other, K)
    return Made(student, second, teacher, labels)


def ours(made: Made, *wanted: Objective) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of weighted losses, and its gradient by the logits of each head."""
    student, second = (x.detach().requires_grad_() for x in (made.student, made.second))
    output = Output(student, student[:, None], (1, 1), student, {}, second)
    targets = Targets(made.labels.argmax(dim=1), made.labels, made.teacher)
    built = [objectives.build(each, replace(TEACHERS, model=DISTILLED)) for each in wanted]
    losses = [each.weighted(each(output, targets, ()), 0, 1) for each in built]
    assert {loss.dtype for loss in losses} == {torch.float32}
    total = torch.stack(losses).sum()
    gradients = torch.autograd.grad(total, (student, second), materialize_grads=True)
    return total.detach(), gradients[0], gradients[1]


def softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(dim=1, keepdim=True)


def cross_entropy(p: Tensor, y: Tensor) -> Tensor:
    return -(y * p.log()).sum() / B


def equation_3_2(z_s: Tensor, z_t: Tensor, y: Tensor, tau: float, share: float) -> Tensor:
    """(1 - lambda) CE(softmax(Z_s), y) + lambda tau^2 KL(softmax(Z_s / tau), softmax(Z_t / tau)),
    where what is to be reached stands second, as in CE."""
    p_s, p_t = softmax(z_s / tau), softmax(z_t / tau)
    divergence = (p_t * (p_t / p_s).log()).sum() / B
    return (1 - share) * cross_entropy(softmax(z_s), y) + share * tau**2 * divergence


def equation_3_3(z_s: Tensor, z_t: Tensor, y: Tensor) -> Tensor:
    """1/2 CE(softmax(Z_s), y) + 1/2 CE(softmax(Z_s), y_t), y_t the arg-max of Z_t."""
    y_t = torch.zeros_like(z_t)
    for image, best in enumerate(z_t.tolist()):
        y_t[image, best.index(max(best))] = 1
    return cross_entropy(softmax(z_s), y) / 2 + cross_entropy(softmax(z_s), y_t) / 2


def smoothed(y: Tensor) -> Tensor:
    return (1 - SMOOTHING) * y + SMOOTHING / K


@each_of(("tau", "share"), [(3.0, 0.1), (1.0, 0.5), (0.5, 0.9), (10.0, 1.0), (2.0, 0.0)])
def test_soft_distillation_is_equation_3_2(tau: float, share: float, made: Made):
    label = CrossEntropy(weight=1 - share, smoothing=SMOOTHING, class_weights=None)
    soft = SoftDistillation(weight=share, tau=tau, mean="images", head="class")
    z_s = made.student.double().requires_grad_()
    expected = equation_3_2(z_s, made.teacher.double(), smoothed(made.labels.double()), tau, share)
    expected.backward()
    loss, gradient, other = ours(made, label, soft)
    close(loss, expected)
    close(gradient, z_s.grad)
    assert not other.any()


def test_hard_distillation_is_equation_3_3(made: Made):
    label = CrossEntropy(weight=0.5, smoothing=SMOOTHING, class_weights=None)
    z_s = made.student.double().requires_grad_()
    expected = equation_3_3(z_s, made.teacher.double(), smoothed(made.labels.double()))
    expected.backward()
    loss, gradient, other = ours(made, label, HardDistillation(weight=0.5, head="class"))
    close(loss, expected)
    close(gradient, z_s.grad)
    assert not other.any()


def test_a_token_splits_equation_3_3_between_the_heads(made: Made):
    """The label's half goes to the class head alone, the teacher's to the other."""
    label = CrossEntropy(weight=0.5, smoothing=SMOOTHING, class_weights=None)
    loss, of_class, of_token = ours(made, label, HardDistillation(0.5, "distillation"))
    first, second = (x.double().requires_grad_() for x in (made.student, made.second))
    decision = F.one_hot(made.teacher.argmax(dim=1), K).double()
    expected = cross_entropy(softmax(first), smoothed(made.labels.double())) / 2
    expected = expected + cross_entropy(softmax(second), decision) / 2
    expected.backward()
    close(loss, expected)
    close(of_class, first.grad)
    close(of_token, second.grad)


def authors(made: Made, kind: str, alpha: float, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """The authors' loss of both heads, in their arithmetic: mixed and smoothed labels as timm's
    Mixup makes them, a divergence summed over all elements and divided by their number."""
    first, second = (x.detach().requires_grad_() for x in (made.student, made.second))
    label = (-smoothed(made.labels) * F.log_softmax(first, dim=-1)).sum(dim=-1).mean()
    if kind == "soft":
        wanted = F.log_softmax(made.teacher / tau, dim=1)
        found = F.log_softmax(second / tau, dim=1)
        taught = F.kl_div(found, wanted, reduction="sum", log_target=True)
        taught = taught * (tau * tau) / second.numel()
    else:
        taught = F.cross_entropy(second, made.teacher.argmax(dim=1))
    loss = (1 - alpha) * label + alpha * taught
    gradients = torch.autograd.grad(loss, (first, second))
    return loss.detach(), gradients[0], gradients[1]


SETTINGS = [("hard", 0.5, 1.0), ("hard", 0.3, 1.0)]
SETTINGS += [("soft", 0.5, 1.0), ("soft", 0.1, 3.0), ("soft", 0.9, 0.5)]


@each_of(("kind", "alpha", "tau"), SETTINGS)
def test_the_repositorys_loss_is_the_authors(kind: str, alpha: float, tau: float, made: Made):
    taught: Objective = HardDistillation(weight=alpha, head="distillation")
    if kind == "soft":
        taught = SoftDistillation(alpha, tau, "images and classes", "distillation")
    found = ours(made, CrossEntropy(1 - alpha, SMOOTHING, class_weights=None), taught)
    for one, other in zip(found, authors(made, kind, alpha, tau), strict=True):
        close(one, other)


def close(one: Tensor, other: Tensor | None) -> None:
    assert other is not None
    scale = other.abs().max().item()
    torch.testing.assert_close(one.double(), other.detach().double(), rtol=0, atol=1e-6 * scale)


EVERY = (
    HardDistillation(weight=1.0, head="class"),
    SoftDistillation(weight=1.0, tau=3.0, mean="images", head="class"),
    SoftDistillation(weight=1.0, tau=1.0, mean="images and classes", head="class"),
)


@each_of("objective", EVERY)
def test_logits_in_bf16_lose_nothing_more(objective: Objective, made: Made):
    rounded = made._replace(student=made.student.bfloat16())
    exact = made._replace(student=made.student.bfloat16().float())
    loss, gradient, _ = ours(rounded, objective)
    expected, wide, _ = ours(exact, objective)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, wide.bfloat16())


@each_of("objective", EVERY)
def test_a_confident_mistake_keeps_loss_and_gradient_finite(objective: Objective, made: Made):
    far = made._replace(student=1e4 * made.student, teacher=-1e4 * made.student)
    loss, gradient, _ = ours(far, objective)
    assert loss.isfinite() and loss > 0 and gradient.isfinite().all()
    if isinstance(
        objective, SoftDistillation
    ):  # ... and a student that agrees has nothing to learn
        loss, gradient, _ = ours(far._replace(teacher=far.student), objective)
        assert loss == 0 and gradient.abs().max() < 1e-6


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@each_of("objective", EVERY)
def test_a_teacher_that_answers_nothing_is_no_teacher(objective: Any, value: Any, made: Made):
    """The arg-max of what is not a number is a class; the loss has to say that it is none."""
    teacher = made.teacher.clone()
    teacher[1, 2] = value
    assert not ours(made._replace(teacher=teacher), objective)[0].isfinite()


def with_objectives(recipe: Recipe, *items: Objective) -> Recipe:
    return replace(recipe, objectives=items)


LABEL = CrossEntropy(weight=0.5, smoothing=0.1, class_weights=None)
BY_TOKEN = HardDistillation(weight=0.5, head="distillation")
REFUSED: list[tuple[Recipe, str]] = [
    (
        with_objectives(digits_vit, LABEL, HardDistillation(weight=0.5, head="class")),
        "objectives.1: HardDistillation has no teacher to learn from",
    ),
    (with_objectives(TEACHERS, LABEL), "teacher: no objective learns from it"),
    (
        with_objectives(TEACHERS, LABEL, HardDistillation(weight=0.0, head="class")),
        "teacher: no objective learns from it",
    ),
    (
        with_objectives(TEACHERS, LABEL, BY_TOKEN),
        "objectives.1.head: distillation is not allowed; this DeiT has no distillation token",
    ),
    (
        replace(all_recipes()["deit_b16_in1k_224_token"], objectives=TEACHERS.objectives),
        "model.distillation: no objective trains the distillation token's head",
    ),
    (
        with_objectives(TEACHERS, LABEL, SoftDistillation(0.1, 0.0, "images", "class")),
        "objectives.1.tau: 0.0 is not allowed",
    ),
]


@each_of(("recipe", "said"), REFUSED)
def test_what_does_not_fit_together_is_refused(recipe: Recipe, said: Any):
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        check_recipe(recipe)
