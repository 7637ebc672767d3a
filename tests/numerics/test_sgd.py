"""SGD is torch's, bit for bit, whether its momentum is made early or late."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from bigvit import optim
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.engines.build import fill, restart
from bigvit.engines.single import SingleEngine
from bigvit.optim.ema import EMA
from bigvit.optim.groups import parameter_groups
from bigvit.optim.state import fresh_state, kinds, set_steps, steps
from bigvit.ranks.joining import alone
from bigvit.recipe import SGD, Rates, Recipe
from bigvit.recipe.check import check_recipe
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]
VALUES = [(0.9, True, 1e-2), (0.9, False, 1e-2), (0.5, True, 0.0), (0.0, False, 1e-2)]


def recipe_of(tiny: Recipe, momentum: float, nesterov: bool, decay: float) -> Recipe:
    made = SGD(lr=0.2, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    return replace(tiny, optim=made, layer_decay=0.75)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("momentum", "nesterov", "decay"), VALUES)
def test_updates_equal_torchs(
    momentum: float, nesterov: bool, decay: float, early: bool, tiny: Recipe, batches: Batches
):
    recipe = recipe_of(tiny, momentum, nesterov, decay)
    task = Task(recipe)
    task.init_weights()
    other = deepcopy(task)

    def groups(of: Task) -> list[dict[str, object]]:
        named = dict(of.named_parameters())
        return parameter_groups(named, set(named), of, recipe)

    ours = optim.build(recipe.optim, None, groups(task))
    theirs = torch.optim.SGD(groups(other), lr=0.0, momentum=momentum, nesterov=nesterov)
    if early:
        for p in task.parameters():
            fresh_state(ours, p)
    prepare, drawn = Prepare(recipe), batches(recipe, 1)
    for number in range(6):
        (batch,) = next(drawn)
        for optimizer, of in ((ours, task), (theirs, other)):
            torch.stack(list(of(prepare(batch)).values())).sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = number * 0.05 * float(group["lr_scale"])
            optimizer.step()
            optimizer.zero_grad()
        for p, q in zip(task.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
            if momentum:
                assert torch.equal(ours.state[p]["exp_avg"], theirs.state[q]["momentum_buffer"])
    assert steps(ours) == 6
    assert all(set(kinds(ours, p)) == {"weight", "exp_avg"} for p in task.parameters())


def test_what_it_keeps_is_all_there_is_to_resume(tiny: Recipe, batches: Batches):
    recipe = replace(recipe_of(tiny, 0.9, True, 1e-2), ema=0.9)
    first, second = (SingleEngine(lambda: Task(recipe), recipe, alone()) for _ in range(2))
    fill(first, Task(recipe).initial_weight)
    prepare, drawn = Prepare(recipe), batches(recipe, 2)
    for _ in range(3):
        first.update(prepare.later(next(drawn)), Rates(0.2))
    for one, two in zip(first.slices(), second.slices(), strict=True):
        two.view.copy_(one.view)
    set_steps(second.masters.optimizer, 3)
    second.loaded(first.scalars())
    for _ in range(2):
        micro = next(drawn)
        first.update(prepare.later(micro), Rates(0.2))
        second.update(prepare.later(micro), Rates(0.2))
    found = {(s.name, s.kind): s.view for s in second.slices()}
    assert {kind for _, kind in found} == {"weight", "exp_avg", EMA}
    assert all(torch.equal(s.view, found[s.name, s.kind]) for s in first.slices())
    assert any(s.view.any() for s in first.slices() if s.kind == "exp_avg")
    restart(first, recipe)
    assert not any(s.view.any() for s in first.slices() if s.kind == "exp_avg")


def test_looking_ahead_needs_momentum(tiny: Recipe):
    check_recipe(recipe_of(tiny, 0.0, False, 0.0))
    with pytest.raises(ValueError, match=r"optim\.momentum: 0\.0 is not allowed"):
        check_recipe(recipe_of(tiny, 0.0, True, 0.0))
