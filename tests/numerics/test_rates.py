"""What an update is told: half cosines by literal transcriptions of the papers, in float64."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
import tiny  # noqa: E402

from bigvit import optim  # noqa: E402
from bigvit.engines.build import fill, outline  # noqa: E402
from bigvit.engines.single import SingleEngine  # noqa: E402
from bigvit.optim.groups import parameter_groups  # noqa: E402
from bigvit.ranks.joining import alone  # noqa: E402
from bigvit.recipe import Rates, Recipe  # noqa: E402
from bigvit.task import Task  # noqa: E402

BOTH = replace(
    tiny.adamw,
    optim=replace(tiny.adamw.optim, weight_decay=0.04, weight_decay_end=0.4),
    ema=0.996,
    ema_end=1.0,
)


def byol(base: float, k: int, of: int) -> float:
    """BYOL, section 3.2: tau = 1 - (1 - tau_base) (cos(pi k / K) + 1) / 2."""
    return 1 - (1 - base) * (np.cos(np.pi * k / of) + 1) / 2


def dino(base: float, final: float, of: int) -> np.ndarray:
    """DINO's schedules: one value an iteration, of an array of them."""
    iterations = np.arange(of)
    return final + 0.5 * (base - final) * (1 + np.cos(np.pi * iterations / of))


def test_the_average_and_the_decay_go_by_half_a_cosine():
    momentum = dino(0.996, 1.0, BOTH.updates)
    decay = dino(0.04, 0.4, BOTH.updates)
    for update in range(BOTH.updates):
        rates = BOTH.rates(update)
        assert rates.lr == BOTH.lr(update) and not rates.held
        assert rates.ema == pytest.approx(momentum[update], rel=1e-15)
        assert rates.ema == pytest.approx(byol(0.996, update, BOTH.updates), rel=1e-15)
        assert rates.weight_decay == pytest.approx(decay[update], rel=1e-15)


def test_what_stays_is_not_told():
    assert tiny.lamb.rates(3) == Rates(tiny.lamb.lr(3), None, None, False)


def engine_of(recipe: Recipe) -> SingleEngine:
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    fill(engine, outline(recipe).initial_weight)
    return engine


@pytest.mark.parametrize("kind", ["adamw", "lamb", "muon"])
def test_the_average_takes_each_updates_decay(kind):
    """By a float64 average of the weights after each update."""
    recipe: Recipe = replace(getattr(tiny, kind), ema=0.5, ema_end=0.9)
    engine = engine_of(recipe)
    optimizer = engine.masters.optimizer
    held = [p for group in optimizer.param_groups for p in group["params"]]
    wanted = [p.detach().double() for p in held]
    for update in range(4):
        rates = recipe.rates(5 * update)
        optim.set_rates(optimizer, rates)
        for p in held:
            p.grad = torch.ones_like(p) * (update + 1) * 1e-2
        optimizer.step()
        assert rates.ema is not None
        wanted = [
            rates.ema * w + (1 - rates.ema) * p.double() for w, p in zip(wanted, held, strict=True)
        ]
    found = [optimizer.state[p]["ema"] for p in held]
    for each, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.double(), w, rtol=0, atol=1e-6)


def test_groups_take_the_decay_and_what_is_held_stands_still():
    task = Task(BOTH)
    task.init_weights()
    named = dict(task.named_parameters())
    # as an objective would hold back its last layer
    last = "model.head.weight"
    type(task).held, before = property(lambda _: {last}), type(task).held  # pyright: ignore
    try:
        groups = parameter_groups(named, set(named), task, BOTH)
    finally:
        type(task).held = before  # pyright: ignore
    built = optim.build(BOTH.optim, None, groups)
    optim.set_rates(built, Rates(0.1, 0.3, None, True))
    for group in built.param_groups:
        names = {name for name, p in named.items() if any(p is each for each in group["params"])}
        assert group["lr"] == (0.0 if last in names else 0.1)
        assert group["weight_decay"] == (0.3 if group["decayed"] else 0.0)
        assert last not in names or len(names) == 1
    kept = named[last].detach().clone()
    for p in named.values():
        p.grad = torch.ones_like(p)
    built.step()
    assert torch.equal(named[last], kept)
    assert not torch.equal(named["model.head.bias"], torch.zeros_like(named["model.head.bias"]))
