"""Muon's step is torch.optim.Muon's on whole matrices, bit for bit with its precision; AdamW's is
torch's. Which weights are matrices, and who works on which."""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from bigvit import optim
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.engines.build import outline
from bigvit.engines.masters import Master, Masters
from bigvit.optim import MUON
from bigvit.optim.groups import matrices, parameter_groups
from bigvit.optim.muon import newton_schulz
from bigvit.optim.state import fresh_state
from bigvit.ranks.joining import alone
from bigvit.recipe import Muon, Recipe
from bigvit.recipe.find import find_recipe
from bigvit.recipe.muon import owners
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

JORDAN = (3.4445, -4.7750, 2.0315)
MUON_RECIPE = Muon(
    lr=4e-3,
    momentum=0.95,
    nesterov=True,
    ns_steps=5,
    coefficients=JORDAN,
    ns_precision="bf16",
    adjust_lr="original",
    qkv="whole",
    weight_decay=0.1,
    adamw_lr_ratio=0.25,
    betas=(0.9, 0.95),
    eps=1e-8,
)


def masters_of(task: Task, muon: Muon) -> Masters:
    task.recipe = replace(task.recipe, optim=muon)
    held = [Master(name, tuple(p.shape), 0, p) for name, p in task.named_parameters()]
    return Masters(held, task, task.recipe, alone())


def step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    optimizer.step()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"adjust_lr": "match_rms_adamw", "qkv": "split"},
        {"nesterov": False, "ns_steps": 3, "coefficients": (2.0, -1.5, 0.5)},
    ],
)
def test_updates_equal_those_of_torchs_muon_and_adamw(
    changes: dict[str, Any], tiny: Recipe, batches: Batches
):
    muon = replace(MUON_RECIPE, **changes)
    task = Task(replace(tiny, optim=muon))
    task.init_weights()
    start = copy.deepcopy(task)
    ours = masters_of(task, muon).optimizer
    # torch's has a matrix by itself for each that is split
    hidden = {n: p for n, p in task.named_parameters() if ".blocks." in n and p.ndim == 2}
    split = {n: 3 if muon.qkv == "split" and ".qkv." in n else 1 for n in hidden}
    theirs = {
        n: [nn.Parameter(c) for c in hidden[n].detach().clone().chunk(split[n])] for n in hidden
    }
    rest = {
        n: nn.Parameter(p.detach().clone()) for n, p in task.named_parameters() if n not in hidden
    }
    kept = {"model.cls_token", "model.pos_embed"}
    decayed = [p for n, p in rest.items() if p.ndim > 1 and n not in kept]
    plain = [p for n, p in rest.items() if not (p.ndim > 1 and n not in kept)]
    torchs = torch.optim.Muon(
        [p for parts in theirs.values() for p in parts],
        weight_decay=muon.weight_decay,
        momentum=muon.momentum,
        nesterov=muon.nesterov,
        ns_coefficients=muon.coefficients,
        ns_steps=muon.ns_steps,
        adjust_lr_fn=muon.adjust_lr,
    )
    adamw = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": muon.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        betas=muon.betas,
        eps=muon.eps,
    )
    prepare = Prepare(tiny)
    for i, (batch,) in zip(range(6), batches(tiny, 1), strict=False):
        task.zero_grad()
        torch.stack(list(task(prepare(batch)).values())).sum().backward()
        for name, p in task.named_parameters():
            assert p.grad is not None
            for own, part in zip(
                theirs.get(name) or [rest[name]],
                p.grad.chunk(split.get(name, 1)),
                strict=True,
            ):
                own.grad = part.clone()
        rate = 4e-3 * (i + 1) / 6
        step(ours, rate)
        step(torchs, rate)
        step(adamw, muon.adamw_lr_ratio * rate)
    for name, p in task.named_parameters():
        found = torch.cat([*theirs[name]]) if name in theirs else rest[name]
        assert torch.equal(p, found), name
        if name not in kept:
            first = start.get_parameter(name)
            assert (p - first).norm() > 1e-3 * first.norm(), name


def test_a_convolution_is_a_matrix_of_its_outputs(tiny: Recipe):
    _, resnet = find_recipe("photos_resnet_64")
    task = Task(replace(resnet, optim=MUON_RECIPE))
    task.init_weights()
    name = "model.layer2.0.conv2.weight"
    p = task.get_parameter(name)
    theirs = nn.Parameter(p.detach().flatten(1).clone())
    torchs = torch.optim.Muon([theirs], momentum=0.95, weight_decay=0.1)
    ours = masters_of(task, MUON_RECIPE).optimizer
    generator = torch.Generator().manual_seed(0)
    for each in task.parameters():
        each.grad = torch.randn(each.shape, generator=generator)
    assert p.grad is not None and p.ndim == 4
    theirs.grad = p.grad.flatten(1).clone()
    step(ours, 4e-3)
    step(torchs, 4e-3)
    assert torch.equal(p.flatten(1), theirs)


HIDDEN = {
    "deit3_s16_in1k_224": (r"model\.blocks\.\d+\.(attn\.(qkv|proj)|mlp\.fc[12])\.weight", 48, 12),
    "photos_cait_64": (
        r"model\.blocks(_token_only)?\.\d+\.(attn\.(q|k|v|qkv|proj|proj_l|proj_w)|mlp\.fc[12])\.weight",
        4 * 6 + 2 * 6,
        4,
    ),
    "photos_resnet_64": (r"model\.layer\d\.0\.(conv\d|downsample\.0)\.weight", 8, 0),
}
"""By recipe: what its hidden matrices are called, how many there are, and how many of them are
fused."""


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_weights_are_matrices_and_nothing_else_is(name: str):
    pattern, count, fused = HIDDEN[name]
    _, recipe = find_recipe(name)
    for qkv in ("split", "whole"):
        made = replace(recipe, optim=replace(MUON_RECIPE, qkv=qkv))
        task = outline(made)
        shapes = {n: p.shape for n, p in task.named_parameters()}
        found = matrices(task, made, shapes)
        assert [n for n in found if not re.fullmatch(pattern, n)] == []
        assert len(found) == count
        assert sum(parts == 3 for parts in found.values()) == (fused if qkv == "split" else 0)
        assert set(found.values()) <= {1, 3}
    assert matrices(outline(recipe), recipe, shapes) == {}


def test_depth_and_adamws_share_both_count_in_a_learning_rate(tiny: Recipe):
    task = Task(replace(tiny, optim=MUON_RECIPE, layer_decay=0.5))
    named = dict(task.named_parameters())
    found = {
        name: (group["matrices"], group["lr_scale"], group["weight_decay"])
        for group in parameter_groups(named, set(named), task, task.recipe)
        for p in group["params"]
        for name, other in named.items()
        if other is p
    }
    depth = task.layers - 1
    assert found["model.blocks.0.mlp.fc1.weight"] == (True, 0.5**depth, 0.1)
    assert found["model.blocks.0.mlp.fc1.bias"] == (False, 0.25 * 0.5**depth, 0.0)
    assert found["model.patch_embed.proj.weight"] == (False, 0.25 * 0.5 ** (depth + 1), 0.1)
    assert found["model.head.weight"] == (False, 0.25, 0.1)
    assert found["model.pos_embed"] == (False, 0.25 * 0.5 ** (depth + 1), 0.0)


def test_singular_values_come_near_1_in_float32():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 96, 40, generator=generator)
    made = newton_schulz(drawn, 5, JORDAN)
    values = torch.linalg.svdvals(made)
    assert 0.6 < values.min() and values.max() < 1.25  # as Jordan's post plots it
    u, _, v = torch.linalg.svd(drawn, full_matrices=False)
    cosine = (made * (u @ v)).sum() / (made.norm() * (u @ v).norm())
    assert cosine > 0.98
    assert newton_schulz(torch.zeros(1, 4, 3), 5, JORDAN).abs().max() == 0


def test_until_it_is_told_what_tensors_hold_a_step_changes_nothing():
    p = nn.Parameter(torch.ones(6))
    made = optim.build(MUON_RECIPE, None, [{"params": [p], "weight_decay": 0.1, "matrices": True}])
    assert isinstance(made, MUON)
    p.grad = torch.ones(6)
    step(made, 1.0)
    assert torch.equal(p, torch.ones(6)) and not made.state
    made.attach(())
    assert "exp_avg_sq" in fresh_state(made, p)


VIT_B = 12 * [(768, 768)] * 4 + 12 * [(3072, 768), (768, 3072)]  # qkv in three, proj, fc1, fc2


@pytest.mark.parametrize(("world", "most"), [(2, 1.0), (8, 1.02), (16, 1.15), (36, 1.35)])
def test_work_is_spread_over_the_ranks_where_matrices_are_cut_evenly(world: int, most: float):
    held = [[rows * columns // world] * world for rows, columns in VIT_B]
    load = [0] * world
    for (rows, columns), owner in zip(VIT_B, owners(VIT_B, held), strict=True):
        load[owner] += MUON_RECIPE.flops(rows, columns)
    print(max(load) * world / sum(load))
    assert max(load) * world <= most * sum(load)
    assert sum(load) == 5 * 12 * (4 * 6 + 2 * 18) * 768**3  # 2 (2 N + M) M^2 each iteration


def test_a_matrix_is_worked_on_where_most_of_it_lies():
    assert owners([(4, 4)] * 3, [[16, 0, 0], [3, 13, 0], [0, 1, 15]]) == [0, 1, 2]
    assert owners([(4, 4)] * 2, [[8, 8, 0], [0, 8, 8]]) == [0, 1]
