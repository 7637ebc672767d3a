"""DINO's loss, centre and head are the paper's (arXiv:2104.14294, algorithm 1), written out in
float64; initial weights and head are what the authors' code makes of torch's own parts."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from each import each_of
from self_supervised import DIM, DINO, B, built, output, recipe_of, targets
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bigvit.models.init import initial_weight
from bigvit.recipe import ImageSize, Mix, RandomResizedCrop, Recipe, Views
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.recipes.digits import digits_vit
from bigvit.recipes.fashion import fashion_resnet
from bigvit.recipes.fashion_resmlp import fashion_resmlp
from bigvit.task import Task

K = DINO.outputs
VIEWS, SAID = {1: 1, 2: 3}, {0: (1, K), 1: (1, K)}
IDS = list(range(B))


def literal(student: Tensor, teacher: Tensor, centre: Tensor, tau_s: float, tau_t: float) -> Tensor:
    """Equation 3: -sum p_t log p_s over pairs of other crops, their mean, and the images'. Student
    (B, V, K), those of the teacher first; teacher (B, L, K)."""
    terms: list[Tensor] = []
    for image in range(len(student)):
        for i in range(teacher.shape[1]):
            shares = ((teacher[image, i] - centre) / tau_t).exp()
            for v in range(student.shape[1]):
                if v != i:
                    own = (student[image, v] / tau_s).exp()
                    terms.append(-(shares / shares.sum() * (own / own.sum()).log()).sum())
    return torch.stack(terms).mean()


def head_of(made: Any, x: Tensor) -> Tensor:
    """The head in float64 by torch's own parts, as the authors' code puts them together."""
    w = {name: p.detach().double() for name, p in made.head.named_parameters()}
    for i in range(made.dino.hidden_layers):
        x = x @ w[f"hidden.{i}.linear.weight"].T + w[f"hidden.{i}.linear.bias"]
        x = x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    x = x @ w["last.weight"].T + w["last.bias"]
    x = x / x.square().sum(dim=-1, keepdim=True).sqrt()
    last: Any = weight_norm(nn.Linear(x.shape[-1], K, bias=False).double())
    gain, rows = last.parametrizations.weight.parameters()
    with torch.no_grad():
        rows.copy_(w["prototypes.weight"])
        gain.fill_(1)
    return last(x)


def step(made: Any, seed: int, number: int) -> tuple[Any, ...]:
    """Our loss of a batch, its gradients by the images and the small crops, and the batch."""
    out = output(seed, VIEWS, SAID)
    cls, small = out.cls.clone().requires_grad_(), out.views[2].clone().requires_grad_()
    given = out._replace(cls=cls, views={**out.views, 2: small})
    loss = made(given, targets(IDS), made.draws("dino", 0, number, (0, B)))
    gradients = torch.autograd.grad(loss, (cls, small), retain_graph=True)
    return loss, *gradients, out


def wanted_of(made: Any, out: Any, centre: Tensor, tau_t: float) -> tuple[Tensor, ...]:
    cls, small = out.cls.double().requires_grad_(), out.views[2].double().requires_grad_()
    crops = torch.cat([cls[:, None], out.views[1].double(), small], dim=1)
    said = torch.cat([out.followed[0], out.followed[1]], dim=1).double()
    loss = literal(head_of(made, crops), said, centre, 0.1, tau_t)
    return loss.detach(), *torch.autograd.grad(loss, (cls, small))


def test_loss_and_centre_are_the_papers_update_after_update():
    made = built(DINO)
    centre = torch.zeros(K, dtype=torch.float64)
    each = made.updates_per_epoch
    # the follower's temperature in epochs 0 to 5, as the authors' np.linspace has it
    for update, tau in enumerate([0.04, 0.05, 0.06, 0.07, 0.07, 0.07]):
        loss, *gradients, out = step(made, 100 * update, update * each + 3)
        wanted, *theirs = wanted_of(made, out, centre, tau)
        torch.testing.assert_close(loss.detach().double(), wanted, rtol=1e-5, atol=1e-6)
        for a, b in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)
        before = made.centre.clone()
        made.applied()
        assert not torch.equal(before, made.centre)
        said = torch.cat([out.followed[0], out.followed[1]], dim=1).double()
        centre = 0.9 * centre + 0.1 * said.mean(dim=(0, 1))
        torch.testing.assert_close(made.centre.double(), centre, rtol=1e-5, atol=1e-7)


WRONG = {
    "student's temperature": {"student_temperature": 0.11},
    "follower's temperature": {"teacher_temperature": (0.05, 0.07)},
    "one crop less": {"large": (0,)},
}


@each_of("name", WRONG)
def test_wrong_variants_are_far_off(name: str):
    made = built(replace(DINO, **WRONG[name]))
    loss, *_, out = step(made, 0, 0)
    wanted = wanted_of(made, out, torch.zeros(K).double(), 0.04)[0]
    assert abs(loss.double() - wanted) > 5e-4 * wanted


def test_without_centre_or_with_the_same_crop_it_is_far_off():
    made = built(DINO)
    _, *_, out = step(made, 0, 0)
    made.applied()
    loss, *_, out = step(made, 100, 0)
    right = wanted_of(made, out, made.centre.double(), 0.04)[0]
    torch.testing.assert_close(loss.detach().double(), right, rtol=1e-5, atol=1e-6)
    none = wanted_of(made, out, torch.zeros(K).double(), 0.04)[0]
    assert abs(none - right) > 1e-3 * right
    student = head_of(made, torch.cat([out.cls[:, None], out.views[1]], dim=1).double())
    said = torch.cat([out.followed[0], out.followed[1]], dim=1).double()
    own = literal(student, said, made.centre.double(), 0.1, 0.04)
    swapped = literal(student.flip(1), said, made.centre.double(), 0.1, 0.04)
    assert abs(own - swapped) > 1e-3 * own


def test_micro_batches_make_one_centre_and_a_refused_update_none():
    made, whole = built(DINO), built(DINO)
    out = output(0, VIEWS, SAID)
    told, draws = targets(IDS), made.draws("", 0, 0, (0, B))
    whole(out, told, draws)
    whole.applied()
    for half in (slice(0, B // 2), slice(B // 2, B)):
        views = {g: x[half] for g, x in out.views.items()}
        said = {g: x[half] for g, x in out.followed.items()}
        made(out._replace(cls=out.cls[half], views=views, followed=said), told, draws)
    made.applied()
    torch.testing.assert_close(made.centre, whole.centre)
    before = made.centre.clone()
    made(out, told, draws)
    made.forget()
    assert torch.equal(made.centre, before) and made.noted is None


def test_the_last_layer_is_what_is_held_in_the_first_epoch():
    recipe = replace(recipe_of(replace(DINO, gain="trained")), model=digits_vit.model)
    assert Task(recipe).held == {f"heads.dino.head.prototypes.{n}" for n in ("weight", "gain")}
    each = recipe.updates_per_epoch
    assert [recipe.rates(n).held for n in (0, each - 1, each)] == [True, True, False]


def test_the_head_is_the_authors():
    """Whose hidden weights are normal of 0.02, and whose last layer begins as torch's does."""
    made = built(replace(DINO, hidden_dim=512, bottleneck_dim=256))
    x = torch.randn(64, DIM, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(
        made.head(x).double(), head_of(made, x.double()), rtol=1e-4, atol=1e-5
    )
    rows = {n: initial_weight(made, n, 0) for n, _ in made.named_parameters()}
    hidden = rows["head.hidden.1.linear.weight"]
    assert abs(float(hidden.std()) - 0.02) < 1e-4 and hidden.abs().max() > 0.08
    assert not rows["head.hidden.1.linear.bias"].any()
    last = rows["head.prototypes.weight"]
    bound = 1 / math.sqrt(256)  # torch's kaiming_uniform of a = sqrt(5)
    assert 0.98 * bound < last.abs().max() <= bound
    assert abs(float(last.std()) - bound / math.sqrt(3)) < 1e-3
    again = built(replace(DINO, hidden_dim=512, bottleneck_dim=256))
    assert torch.equal(initial_weight(again, "head.prototypes.weight", 0), last)
    assert not torch.equal(initial_weight(again, "head.prototypes.weight", 1), last)


def test_a_head_without_hidden_layers_and_one_with_batch_norm():
    for layers, norm, names in ((0, "none", 3), (1, "batch", 7)):
        made = built(replace(DINO, hidden_layers=layers, norm=norm))
        assert len(list(made.parameters())) == names
        assert step(made, 0, 0)[0].isfinite()


LARGE = RandomResizedCrop(scale=(0.4, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")


def recipe(side: ImageSize = 14, **changes: Any) -> Recipe:
    views = (
        Views(1, 28, LARGE, flip=0.5, augment=None, erasing=0.0),
        Views(6, side, LARGE, flip=0.5, augment=None, erasing=0.0),
    )
    data = replace(fashion_resnet.data, mix=None, views=views)
    objective = replace(DINO, **{"warmup_epochs": 2, **changes})
    return replace(fashion_resnet, data=data, objectives=(objective,), ema=0.99)


def test_a_recipe_is_checked_and_stored():
    check_recipe(recipe())
    assert recipe_from_json(to_json(recipe())) == recipe()
    assert not recipe().classifies


RESMLP = fashion_resmlp.model
REFUSED = {
    "no average": (lambda: replace(recipe(), ema=None), "objectives.0: .*ema is None"),
    "nothing seen": (lambda: recipe(large=()), "objectives.0.large: none"),
    "twice": (lambda: recipe(large=(0, 1), small=(1,)), "each group once"),
    "no such group": (lambda: recipe(small=(3,)), "objectives.0.small: 3 .* 1 to 2"),
    "one crop": (lambda: recipe(large=(0,), small=()), "one crop"),
    "a long warm-up": (lambda: recipe(warmup_epochs=4), "objectives.0.warmup_epochs: 4"),
    "temperature": (lambda: recipe(student_temperature=0.0), "student_temperature"),
    "mixing": (
        lambda: replace(recipe(), data=replace(recipe().data, mix=Mix(0.2, 1.0, 0.5, 8))),
        "data.mix: not allowed",
    ),
    "another size": (lambda: replace(recipe(), model=RESMLP), "data.views.1.image_size: 14"),
}


@each_of("name", REFUSED)
def test_what_cannot_be_is_refused(name: str):
    make, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        check_recipe(make())


def test_a_head_that_nothing_trains_is_frozen():
    task = Task(replace(recipe_of(DINO), model=digits_vit.model))
    frozen = {n for n, p in task.own_parameters().items() if not p.requires_grad}
    assert frozen == {"model.head.weight", "model.head.bias"}
