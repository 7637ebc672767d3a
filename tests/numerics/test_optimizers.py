"""LAMB is timm's and the paper's; groups hold the right parameters; state can be made early."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from timm.optim.lamb import Lamb as TimmLamb
from torch import Tensor, nn

from bigvit import optim
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.optim import LAMB
from bigvit.optim.groups import parameter_groups
from bigvit.optim.state import MOMENTS, fresh_state, set_steps, steps
from bigvit.recipe import AdamW, Lamb, Recipe
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.05
OPTIMS = [
    AdamW(lr=4e-3, betas=BETAS, eps=EPS, weight_decay=DECAY, weight_decay_end=None),
    Lamb(lr=4e-3, betas=BETAS, eps=EPS, weight_decay=DECAY),
]


@pytest.fixture
def task(tiny: Recipe) -> Task:
    made = Task(tiny)
    made.init_weights()
    return made


def groups_of(task: Task, weight_decay: float = DECAY, layer_decay: float = 1) -> list[Any]:
    optim = replace(task.recipe.optim, weight_decay=weight_decay)
    recipe = replace(task.recipe, optim=optim, layer_decay=layer_decay)
    named = dict(task.named_parameters())
    trained = {name for name, p in named.items() if p.requires_grad}
    return parameter_groups(named, trained, task, recipe)


@pytest.fixture
def gradients(tiny: Recipe, batches: Batches, task: Task) -> Iterator[list[Tensor]]:
    """The gradients of a task that a plain optimizer trains, batch after batch."""

    def make() -> Iterator[list[Tensor]]:
        trained = copy.deepcopy(task)
        prepare = Prepare(tiny)
        plain = torch.optim.SGD(trained.parameters(), lr=0.1)
        for (batch,) in batches(tiny, 1):
            plain.zero_grad()
            torch.stack(list(trained(prepare(batch)).values())).sum().backward()
            yield [p.grad.clone() for p in trained.parameters() if p.grad is not None]
            plain.step()

    return make()


def step(optimizer: torch.optim.Optimizer, task: Task, gradients: list[Tensor], lr: float) -> None:
    for parameter, gradient in zip(task.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def flat(task: Task) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in task.parameters()])


@pytest.mark.parametrize("eps", [1e-8, 1e-6])
def test_lamb_equals_timms(task: Task, gradients: Iterator[list[Tensor]], eps: float):
    start, other = flat(task), copy.deepcopy(task)
    ours = LAMB(groups_of(task), lr=0.0, betas=BETAS, eps=eps)
    settings: dict[str, Any] = {"decoupled_decay": False, "always_adapt": False}
    theirs = TimmLamb(
        groups_of(other), lr=0.0, betas=BETAS, eps=eps, max_grad_norm=None, **settings
    )
    for i in range(20):
        gradient = next(gradients)
        for optimizer, trained in ((ours, task), (theirs, other)):
            step(optimizer, trained, gradient, lr=4e-3 * (i + 1) / 20)
    moved = (flat(task) - start).norm()
    assert moved > 0.02 * start.norm()
    assert (flat(task) - flat(other)).norm() <= 1e-6 * flat(other).norm()


@pytest.mark.slow  # half a minute of compiling
def test_lamb_compiled_equals_eager(task: Task, gradients: Iterator[list[Tensor]]):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    start, other = flat(task), copy.deepcopy(task)
    eager = LAMB(groups_of(task), lr=0.0, betas=BETAS, eps=EPS)
    compiled = LAMB(groups_of(other), lr=0.0, betas=BETAS, eps=EPS, compiled=True)
    for i in range(5):
        gradient = next(gradients)
        for optimizer, trained in ((eager, task), (compiled, other)):
            step(optimizer, trained, gradient, lr=4e-3 * (i + 1) / 5)
        for p, q in zip(task.parameters(), other.parameters(), strict=True):
            for one, two in ((p, q), *((eager.state[p][m], compiled.state[q][m]) for m in MOMENTS)):
                assert (one - two).double().norm() <= 1e-6 * one.double().norm()
    assert (flat(task) - start).norm() > 0.005 * start.norm()
    # one for each number of dimensions, with decay and without; none given up
    graphs = torch._dynamo.utils.counters
    assert 2 <= graphs["stats"]["unique_graphs"] <= 8
    assert not graphs["graph_break"] and not graphs["unimplemented"]


def literal_lamb(w: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """arXiv:1904.00962, algorithm 2, with phi the identity, in the precision of `w`. As in apex,
    a parameter without decay, or of norm 0, has a ratio of 1."""
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g**2
        m_hat, v_hat = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        update = m_hat / (v_hat.sqrt() + EPS) + decay * w
        adapt = decay > 0 and w.norm() > 0 and update.norm() > 0
        w = w - lr * (w.norm() / update.norm() if adapt else 1.0) * update
    return w


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_lamb_is_the_papers_algorithm(decay: float):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, 5, generator=generator)
    drawn = [torch.randn(7, 5, generator=generator) for _ in range(20)]
    parameter = nn.Parameter(start.clone())
    optimizer = LAMB([{"params": [parameter], "weight_decay": decay}], 0.01, BETAS, EPS)
    for gradient in drawn:
        parameter.grad = gradient.clone()
        optimizer.step()
    expected = literal_lamb(start.double(), [g.double() for g in drawn], 0.01, decay)
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-6, atol=1e-7)
    assert (expected - start).norm() > 0.04 * start.norm()


@pytest.mark.parametrize(
    ("start", "gradient", "expected"),
    [
        (0.0, 2.0, -0.1),  # ratio 1: against the gradient's sign, by the rate
        (0.0, 0.0, 0.0),  # ratio 1: nothing to move, and nothing is divided by 0
        (3.0, 0.0, 2.7),  # decay alone, whose ratio makes it a step of the rate
    ],
)
def test_lamb_without_weights_or_gradient(start: float, gradient: float, expected: float):
    parameter = nn.Parameter(torch.full((4, 4), start))
    optimizer = LAMB([{"params": [parameter], "weight_decay": DECAY}], 0.1, BETAS, EPS)
    parameter.grad = torch.full((4, 4), gradient)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((4, 4), expected), rtol=1e-6, atol=0)


def test_lamb_stands_still_where_decay_and_gradient_cancel():
    parameter = nn.Parameter(torch.full((4, 4), 2.0))
    optimizer = LAMB([{"params": [parameter], "weight_decay": 0.5}], 0.1, (0.0, 0.0), EPS)
    parameter.grad = torch.full((4, 4), -1.0)
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.full((4, 4), 2.0))


def test_lamb_skips_a_parameter_without_gradient():
    parameter = nn.Parameter(torch.ones(4, 4))
    optimizer = LAMB([{"params": [parameter], "weight_decay": DECAY}], 0.1, BETAS, EPS)
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones(4, 4)) and not optimizer.state


def names_by_group(task: Task) -> list[set[str]]:
    names = {p: name for name, p in task.named_parameters()}
    return [{names[p] for p in group["params"]} for group in groups_of(task)]


def test_matrices_are_decayed_and_nothing_else(task: Task):
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    matrices = {f"model.blocks.{i}.{part}.weight" for i in range(2) for part in parts}
    matrices |= {"model.patch_embed.proj.weight", "model.head.weight"}
    decayed, kept = names_by_group(task)
    assert decayed == matrices
    assert kept == {name for name, _ in task.named_parameters()} - matrices
    assert {"model.cls_token", "model.pos_embed", "model.blocks.0.ls1.gamma"} <= kept
    assert {"model.norm.weight", "model.head.bias", "model.patch_embed.proj.bias"} <= kept
    assert [group["weight_decay"] for group in groups_of(task)] == [DECAY, 0.0]
    assert [group["lr_scale"] for group in groups_of(task)] == [1.0, 1.0]


def test_frozen_parameters_are_in_no_group(task: Task):
    task.model.patch_embed.requires_grad_(False)
    everything = set().union(*names_by_group(task))
    assert {name for name, _ in task.named_parameters()} - everything == {
        "model.patch_embed.proj.weight",
        "model.patch_embed.proj.bias",
    }


def test_an_empty_group_is_left_out(task: Task):
    for parameter in task.parameters():
        parameter.requires_grad_(parameter.ndim < 2)
    assert [group["weight_decay"] for group in groups_of(task)] == [0.0]


@pytest.mark.parametrize("config", OPTIMS, ids=["AdamW", "Lamb"])
def test_the_recipes_values_reach_the_optimizer(task: Task, config: AdamW | Lamb):
    built = optim.build(config, None, groups_of(task, config.weight_decay))
    for group, decay in zip(built.param_groups, (DECAY, 0.0), strict=True):
        assert (group["betas"], group["eps"], group["weight_decay"]) == (BETAS, EPS, decay)
        assert group["lr"] == 0


@pytest.mark.parametrize("config", OPTIMS, ids=["AdamW", "Lamb"])
def test_state_made_early_changes_no_bit(
    task: Task, gradients: Iterator[list[Tensor]], config: AdamW | Lamb
):
    other = copy.deepcopy(task)
    lazy, early = (optim.build(config, None, groups_of(each)) for each in (task, other))
    for parameter in other.parameters():
        state = fresh_state(early, parameter)
        assert all(torch.count_nonzero(state[kind]) == 0 for kind in ("step", *MOMENTS))
        assert fresh_state(early, parameter) is state
    for _ in range(3):
        gradient = next(gradients)
        step(lazy, task, gradient, config.lr)
        step(early, other, gradient, config.lr)
    for one, two in zip(task.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert lazy.state[one].keys() == early.state[two].keys()
        for kind, value in lazy.state[one].items():
            assert torch.equal(value, early.state[two][kind]), kind
            assert value.dtype == early.state[two][kind].dtype


@pytest.mark.parametrize("config", OPTIMS, ids=["AdamW", "Lamb"])
def test_steps_are_counted_and_set(
    task: Task, gradients: Iterator[list[Tensor]], config: AdamW | Lamb
):
    optimizer = optim.build(config, None, groups_of(task))
    assert steps(optimizer) == 0
    for parameter in task.parameters():
        fresh_state(optimizer, parameter)
    assert steps(optimizer) == 0
    for done in (1, 2):
        step(optimizer, task, next(gradients), config.lr)
        assert steps(optimizer) == done
    set_steps(optimizer, 41)
    assert steps(optimizer) == 41
    step(optimizer, task, next(gradients), config.lr)
    assert steps(optimizer) == 42


@pytest.mark.parametrize("config", OPTIMS, ids=["AdamW", "Lamb"])
def test_moments_and_steps_are_all_there_is_to_resume(
    task: Task, gradients: Iterator[list[Tensor]], config: AdamW | Lamb
):
    first = optim.build(config, None, groups_of(task))
    for _ in range(3):
        step(first, task, next(gradients), config.lr)
    other = copy.deepcopy(task)
    second = optim.build(config, None, groups_of(other))
    for one, two in zip(task.parameters(), other.parameters(), strict=True):
        for kind in MOMENTS:
            fresh_state(second, two)[kind].copy_(first.state[one][kind])
    set_steps(second, 3)
    for _ in range(2):
        gradient = next(gradients)
        step(first, task, gradient, config.lr)
        step(second, other, gradient, config.lr)
    for one, two in zip(task.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_layer_decay_shrinks_the_learning_rate_towards_the_input(task: Task):
    scales = {
        id(p): group["lr_scale"]
        for group in groups_of(task, layer_decay=0.5)
        for p in group["params"]
    }
    model = task.model
    assert scales[id(model.head.weight)] == scales[id(model.norm.bias)] == 1
    first, last = model.blocks[0], model.blocks[-1]
    assert {scales[id(p)] for p in last.parameters()} == {0.5}
    assert {scales[id(p)] for p in first.parameters()} == {0.5 ** len(model.blocks)}
    assert scales[id(model.pos_embed)] == 0.5 ** (len(model.blocks) + 1)
