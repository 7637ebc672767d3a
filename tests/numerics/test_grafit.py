"""Grafit's losses and memory are the thesis's equations (2.1 to 2.4), written out in float64, and
do not depend on how many ranks hold the memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import literal_grafit as literal
import pytest
import torch
from each import each_of
from self_supervised import CLASSES, DIM, GRAFIT, IMAGES, B, T, built, drawn, output, targets
from torch import Tensor

from bigvit import keyed_random
from bigvit.recipe import (
    CrossEntropy,
    Mix,
    Predictor,
    Projector,
    RandomResizedCrop,
    Recipe,
    Views,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.recipes.fashion import fashion_resnet

FOLLOWED = {1: (T, 12)}
IDS = [3, 29, 7, 11, 0, 28, 16, 5]  # 29 is alone in its class
FC = replace(GRAFIT, projector=Projector(None, "none", 12))
VARIANTS = {
    "grafit": GRAFIT,
    "batch norm": replace(
        GRAFIT, projector=Projector(20, "batch", 12), predictor=Predictor(24, "batch")
    ),
    "fc": FC,
    "snca+": replace(GRAFIT, instance=0.0, predictor=None),
    "instances": replace(GRAFIT, knn=0.0),
    "no projector": replace(GRAFIT, projector=None, predictor=Predictor(24, "none")),
    "no predictor": replace(FC, predictor=None),
    "weighted": replace(GRAFIT, knn=0.5, instance=2.0, sigma=0.3),
}


def literally(made: Any, out: Any, ids: list[int], memory: Tensor) -> tuple[Tensor, ...]:
    """The total in float64 (equation 2.4), and its gradients by the features of images and views.

    Also: what the memory becomes is `literal.updated` of it."""
    grafit = made.grafit
    weights = {n: p.detach().double() for n, p in made.named_parameters()}

    def behind(head: str, x: Tensor) -> Tensor:
        own = {n.removeprefix(f"{head}."): w for n, w in weights.items() if n.startswith(head)}
        if not own:
            return x
        if "hidden.0.linear.weight" not in own:
            return x @ own["last.weight"].T + own["last.bias"]
        flat = literal.mlp(x.flatten(0, -2), own, "hidden.0.norm.weight" in own)
        return flat.unflatten(0, x.shape[:-1])

    cls = out.cls.double().requires_grad_()
    total = 0 * cls.sum()
    if grafit.knn:
        g = behind("projector", cls)
        total = total + grafit.knn * literal.knn(
            g, ids, memory.double(), CLASSES.tolist(), grafit.sigma
        )
    views = out.views[1].double().requires_grad_()
    if grafit.instance:
        q = behind("predictor", behind("projector", views))
        total = total + grafit.instance * literal.instance(q, out.followed[1].double())
    gradients = torch.autograd.grad(total, (cls, views), materialize_grads=True)
    return total.detach(), *gradients


def ours(made: Any, out: Any, ids: list[int]) -> tuple[Tensor, ...]:
    cls, views = out.cls.clone().requires_grad_(), out.views[1].clone().requires_grad_()
    loss = made(out._replace(cls=cls, views={1: views}), targets(ids), ())
    assert loss.dtype == torch.float32
    gradients = torch.autograd.grad(loss, (cls, views), materialize_grads=True)
    return loss.detach(), *gradients


@each_of("name", VARIANTS)
def test_the_losses_are_the_equations(name: str):
    grafit = VARIANTS[name]
    made = built(grafit)
    dim = {"no projector": DIM}.get(name, 12)
    out = output(1, {1: T}, {1: (T, dim)})
    memory = made.memory.rows.clone() if made.memory else torch.zeros(0)
    for found, wanted in zip(ours(made, out, IDS), literally(made, out, IDS, memory), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=1e-6)


WRONG = {
    "another sigma": {"sigma": 0.055},
    "neighbours count half": {"knn": 0.5},
    "instances count half": {"instance": 0.5},
}


@each_of("name", WRONG)
def test_wrong_variants_are_far_off(name: str):
    made, wrong = built(GRAFIT), built(replace(GRAFIT, **WRONG[name]))
    out = output(1, {1: T}, FOLLOWED)
    right = literally(made, out, IDS, made.memory.rows)[0]
    assert abs(ours(wrong, out, IDS)[0].double() - right) > 5e-3 * abs(right)


def test_what_is_left_out_and_what_the_views_are_told_matters():
    """The query's own row, counted, and a view compared with itself, are far off."""
    made, out = built(GRAFIT), output(1, {1: T}, FOLLOWED)
    grafit = replace(GRAFIT, instance=0.0, predictor=None)
    alone = built(grafit)
    alone.memory.room[: len(alone.memory.rows)] = drawn(9, IMAGES, 12)
    g = alone.project(out.cls).detach().double()
    memory = alone.memory.rows.double()
    memory[IDS] = g  # rows as they are late in a training
    alone.memory.room[:-1] = memory.float()
    right = ours(alone, out, IDS)[0]
    own = [
        -torch.stack(
            [
                (literal.cos(g[x], memory[j]) / 0.05).exp()
                for j in range(IMAGES)
                if CLASSES[j] == CLASSES[i]
            ]
        )
        .sum()
        .log()
        + torch.stack([(literal.cos(g[x], m) / 0.05).exp() for m in memory]).sum().log()
        for x, i in enumerate(IDS)
    ]
    wanted = literal.knn(g, IDS, memory, CLASSES.tolist(), 0.05)
    torch.testing.assert_close(right.double(), wanted, rtol=2e-5, atol=1e-6)
    assert abs(torch.stack(own).mean() - wanted) > 0.1 * wanted
    q = made.predictor(made.project(out.views[1])).detach().double()
    xi = out.followed[1].double()
    itself = sum(literal.cos(q[x, i], xi[x, i]) for x in range(B) for i in range(T))
    assert abs(float(itself)) / (B * T * (T - 1)) > 1e-2


def test_the_memory_takes_each_image_over_once():
    made, out = built(GRAFIT), output(1, {1: T}, FOLLOWED)
    before = made.memory.rows.clone()
    g = made.project(out.cls).detach()
    ours(made, out, IDS)
    assert torch.equal(made.memory.rows, before), "before the update is applied"
    made.applied()
    wanted = literal.updated(before.double(), IDS, g.double())
    torch.testing.assert_close(made.memory.rows.double(), wanted, rtol=1e-6, atol=1e-7)
    after = made.memory.rows.clone()
    made.applied()
    assert torch.equal(made.memory.rows, after), "nothing was noted since"
    ours(made, out, IDS)
    made.forget()
    made.applied()
    assert torch.equal(made.memory.rows, after), "an update was refused"


def test_copies_of_an_image_in_a_batch_update_it_once():
    made, out = built(GRAFIT), output(1, {1: T}, FOLLOWED)
    before, g = made.memory.rows.clone(), made.project(out.cls).detach()
    g = g / g.norm(dim=1, keepdim=True)
    ours(made, out, [4, 4, 4, 7, 8, 7, 1, 2])
    made.applied()
    for image, copies in ((4, [0, 1, 2]), (7, [3, 5]), (8, [4])):
        wanted = (before[image] + g[copies].mean(dim=0)) / 2
        torch.testing.assert_close(made.memory.rows[image], wanted)
    torch.testing.assert_close(made.memory.rows[9:], before[9:], rtol=0, atol=0)


def test_an_image_alone_in_its_class_adds_nothing_and_all_is_finite():
    made = built(replace(GRAFIT, instance=0.0, predictor=None))
    out = output(1, {1: T}, FOLLOWED)
    loss, gradient, _ = ours(made, out, [29] * B)
    assert loss == 0 and not gradient.any()
    _, gradient, _ = ours(made, out, IDS)
    assert not gradient[1].any() and gradient[0].any() and gradient.isfinite().all()


def test_a_small_sigma_is_finite():
    made = built(replace(GRAFIT, sigma=1e-3))
    assert all(x.isfinite().all() for x in ours(made, output(1, {1: T}, FOLLOWED), IDS))


def test_cosines_are_never_all_in_memory_at_once(monkeypatch):
    made, out = built(GRAFIT), output(1, {1: T}, FOLLOWED)
    whole = ours(made, out, IDS)
    monkeypatch.setattr("bigvit.objectives.memory.AT_ONCE", 7 * B)
    assert [len(rows) for _, rows in made.memory.chunks(B)] == [7, 7, 7, 7, 2]
    for a, b in zip(ours(made, out, IDS), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_first_values_are_of_seed_and_image_alone():
    made = built(GRAFIT)
    size = 12 * IMAGES
    whole = made.fresh("memory", 0, size)
    for start, stop in ((0, 5), (5, 40), (36, 48), (100, size), (7, 7)):
        assert torch.equal(made.fresh("memory", start, stop), whole[start:stop])
    u = keyed_random.uniform(12, "grafit memory", 0, 3)
    torch.testing.assert_close(
        whole[36:48].double(), torch.from_numpy((2 * u - 1) * (3 / 12) ** 0.5), rtol=1e-6, atol=1e-7
    )
    norms = made.memory.fresh(0, 96_000).view(-1, 12).square().sum(dim=1)
    assert abs(float(norms.mean()) - 1) < 0.02


@pytest.fixture(scope="module")
def ranks(warm, tmp_path_factory) -> dict[int, list[dict[str, Any]]]:
    """What 1, 2 and 4 ranks had after three updates of two micro-batches."""
    found: dict[int, list[dict[str, Any]]] = {}
    script = Path(__file__).with_name("grafit_ranks.py")
    for world in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"ranks_{world}")
        done = warm(world, script, folder)
        assert done.code == 0, done.output
        found[world] = [json.loads((folder / f"{r}.json").read_text()) for r in range(world)]
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("what", ["losses", "gradients", "centre", "dino"])
def test_any_number_of_ranks_are_one(what: str, world: int, ranks):
    (one,) = ranks[1]
    each = [torch.tensor(part[what]) for part in ranks[world]]
    if what == "gradients":  # of each rank's own images, in each micro-batch
        found = torch.cat(each, dim=2) / world
    else:
        found = each[0] if what == "centre" else torch.stack(each).mean(dim=0)
    wanted = torch.tensor(one[what])
    torch.testing.assert_close(found.flatten(), wanted.flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world", [2, 4])
def test_rows_of_the_memory_lie_in_blocks_and_are_the_same(world: int, ranks):
    (one,) = ranks[1]
    each = ranks[world]
    starts = [part["start"] for part in each]
    assert starts == [12 * (r * IMAGES // world) for r in range(world)]
    found = torch.tensor([number for part in each for number in part["memory"]])
    torch.testing.assert_close(found, torch.tensor(one["memory"]), rtol=1e-6, atol=1e-7)
    assert not torch.equal(found, built(GRAFIT).fresh("memory", 0, 12 * IMAGES))


def recipe(**changes: Any) -> Recipe:
    data = replace(fashion_resnet.data, mix=None, views=(VIEWS,))
    grafit = replace(GRAFIT, **changes)
    return replace(fashion_resnet, data=data, objectives=(grafit,), ema=0.99)


VIEWS = Views(
    count=4,
    image_size=28,
    crop=RandomResizedCrop(scale=(0.5, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bilinear"),
    flip=0.5,
    augment=None,
    erasing=0.0,
)


def test_a_recipe_is_checked_and_stored():
    check_recipe(recipe())
    assert recipe_from_json(to_json(recipe())) == recipe()
    check_recipe(recipe(instance=0.0, predictor=None))


REFUSED = {
    "no average": (lambda: replace(recipe(), ema=None), "objectives.0: .*ema is None"),
    "no loss": (lambda: recipe(knn=0.0, instance=0.0), "both 0"),
    "a predictor for nothing": (lambda: recipe(instance=0.0), "objectives.0.predictor"),
    "no such group": (lambda: recipe(views=2), "objectives.0.views: 2 .* 1 to 1"),
    "sigma": (lambda: recipe(sigma=0.0), "objectives.0.sigma"),
    "one view": (
        lambda: replace(recipe(), data=replace(recipe().data, views=(replace(VIEWS, count=1),))),
        "one view",
    ),
    "mixing": (
        lambda: replace(recipe(), data=replace(recipe().data, mix=Mix(0.2, 1.0, 0.5, 8))),
        "objectives.0.knn: .*data.mix",
    ),
}


@each_of("name", REFUSED)
def test_what_cannot_be_is_refused(name: str):
    make, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        check_recipe(make())


def test_a_head_is_trained_where_an_objective_classifies():
    assert not recipe().classifies
    both = replace(recipe(), objectives=(*recipe().objectives, CrossEntropy(1.0, 0.0, None)))
    assert both.classifies
