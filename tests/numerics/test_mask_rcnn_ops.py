"""What Mask R-CNN is said to compute against the module: parameters, products, what is kept."""

from dataclasses import replace

import pytest
import torch
from test_mask_rcnn import RECIPE, some_objects
from torch.utils.flop_counter import FlopCounterMode

from bigvit.data.objects import Objects
from bigvit.data.prepare import Inputs, Targets
from bigvit.plan.activations import kept_bytes as said_bytes
from bigvit.plan.weights import heads, weights_of
from bigvit.recipe import StochasticDepth
from bigvit.recipes.patchconvnet import of_size
from bigvit.task import Task

NONE = StochasticDepth(rate=0.0, group=4)
COLUMN = replace(of_size("s20"), embed_dim=32, depth=2, drop_path=NONE, num_classes=4)
RECIPES = {"swin": RECIPE, "one stride": replace(RECIPE, model=COLUMN)}
BATCH = 4
every = pytest.mark.parametrize("name", RECIPES)


def inputs_of(task: Task) -> Inputs:
    objects: Objects = some_objects(0, [(128, 128)] * BATCH)
    nothing = torch.zeros(BATCH, 4)
    targets = Targets(
        torch.zeros(BATCH, dtype=torch.int64),
        nothing,
        objects=objects,
        sizes=torch.full((BATCH, 2), 128),
    )
    return Inputs(torch.randn(BATCH, 3, 128, 128), targets, task.draws(0, (0, BATCH)), 0)


@every
def test_parameters_and_products_are_those_of_the_module(name):
    recipe = RECIPES[name]
    task = Task(recipe)
    task.init_weights()
    (head,), (module,) = recipe.objectives, task.objectives.values()
    said = {op.module: op.parameters for op in heads(head, recipe) if op.parameters}
    found = {of: sum(p.numel() for p in module.get_submodule(of).parameters()) for of in said}
    assert found == said
    own = sorted((p.numel(), p.shape[0]) for p in module.parameters())
    assert sum(said.values()) == sum(count for count, _ in own)
    behind = weights_of(recipe).all[-len(own) :]
    assert sorted((w.size, w.rows) for w in behind) == own
    inputs = inputs_of(task)
    with torch.no_grad():
        output = task.model(inputs.images, None, task.wanted)
        with FlopCounterMode(display=False) as counter:
            module(output, inputs.targets, inputs.draws.objectives[0])
    macs = sum(op.macs * op.times for op in heads(head, recipe))
    assert counter.get_total_flops() / 2 / BATCH == pytest.approx(macs, rel=2e-3)


@every
def test_backward_keeps_about_what_is_said(name):
    """What boxes choose is ragged, so this is no equality."""
    recipe = RECIPES[name]
    task = Task(recipe).train()
    task.init_weights()
    inputs, kept = inputs_of(task), dict[int, int]()
    own = {p.untyped_storage().data_ptr() for p in task.parameters()}

    def pack(x):
        if (place := x.untyped_storage().data_ptr()) not in own:
            kept[place] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        losses = task(inputs)
    found = sum(kept.values())
    del losses
    said = said_bytes(recipe, BATCH, 0.0)
    print(f"{name}: {said / 1e6:.1f} MB said, {found / 1e6:.1f} MB found, {said / found:.2f}")
    assert 0.75 < said / found < 1.25
