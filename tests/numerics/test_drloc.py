"""Dense relative localization is its equations, written out in literal_drloc.py."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from each import each_of
from literal_drloc import ABSOLUTE, VARIANTS, literal
from torch import Tensor

from bigvit import models
from bigvit.data.batch import Batch
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.layers.stochastic_depth import Order
from bigvit.models import TokenMap
from bigvit.objectives import DenseRelativeLocalization
from bigvit.objectives.drloc import draw, guessed, loss, offsets, pool
from bigvit.recipe import CrossEntropy, DRLoc, Ramp, Recipe, batch_layout
from bigvit.task import DTYPES, Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

GRIDS = {"square": (6, 6), "wide": (4, 6), "tall": (6, 2), "one cell": (1, 1)}
POOLED = {"not pooled": (None, "mean"), "pooled": (2, "mean"), "overlapping": (2, "overlapping")}
B, D, SEED = 3, 5, 4


def a_head(drloc: DRLoc, maps: list[TokenMap]) -> DenseRelativeLocalization:
    head = DenseRelativeLocalization(drloc, [(m.tokens.shape[2], m.grid) for m in maps])
    for name, p in head.named_parameters():
        p.data = models.initial_weight(head, name, SEED) * 10
        if p.ndim == 1:
            torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(SEED))
    return head


def some_maps(grids: list[tuple[int, int]]) -> list[TokenMap]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        TokenMap(torch.randn(B, h * w, D + i, generator=generator, dtype=torch.float64), (h, w))
        for i, (h, w) in enumerate(grids)
    ]


def some_pairs(drloc: DRLoc, maps: list[TokenMap]) -> tuple[Tensor, ...]:
    return draw(drloc, [m.grid for m in maps], "drloc", SEED, 0, (0, B))


@each_of("pooled", POOLED)
@each_of("grid", GRIDS)
@each_of("variant", VARIANTS)
def test_a_variant_is_its_equation(variant: str, grid: str, pooled: str):
    side, pooling = POOLED[pooled]
    drloc = replace(VARIANTS[variant], grid=side, pooling=pooling)
    grids = [(4, 4), GRIDS[grid]] if drloc.blocks == "all" else [GRIDS[grid]]
    maps = some_maps(grids)
    head, pairs = a_head(drloc, maps).double(), some_pairs(drloc, maps)
    inputs = [m.tokens.requires_grad_() for m in maps] + list(head.parameters())
    found, wanted = head.of_maps(maps, pairs), literal(drloc, head, maps, pairs)
    assert wanted != 0
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    gradients = torch.autograd.grad(found, inputs, materialize_grads=True)
    expected = torch.autograd.grad(wanted, inputs, materialize_grads=True)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_perfect_guess_gives_the_least_value(variant: str):
    drloc, grid = VARIANTS[variant], (4, 6)
    pairs = draw(drloc, [grid], "drloc", SEED, 0, (0, B))[0]
    wanted = offsets(pairs, grid)

    def guess(shift: int, sure: float = 50.0) -> Tensor:
        """What is wanted, each moved by some cells."""
        if drloc.offsets in ("absolute", "signed"):
            exact = wanted.abs() if drloc.offsets == "absolute" else wanted
            return (exact + shift) / torch.tensor(grid if drloc.unit == "grid" else (1, 1))
        logits = [
            sure
            * torch.nn.functional.one_hot((wanted[..., i] + shift + k) % (2 * k + 1), 2 * k + 1)
            for i, k in enumerate(grid)
        ]
        return torch.cat(logits, dim=-1)

    least = loss(drloc, guess(0), pairs, grid)
    assert least.isfinite() and least < 1e-6
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(guess(0).shape, generator=generator)
    others = [guess(1), guess(-2), guess(0, sure=2.0) + noise, noise]
    assert all(loss(drloc, other, pairs, grid) > least + 1e-4 for other in others)
    in_cells = wanted.abs() if drloc.offsets == "absolute" else wanted
    torch.testing.assert_close(guessed(drloc, guess(0), grid), in_cells.float())


def test_a_sure_guess_keeps_the_gaussian_loss_and_its_gradient_finite():
    drloc, grid = VARIANTS["gaussian"], (4, 6)
    pairs = draw(drloc, [grid], "drloc", SEED, 0, (0, B))[0]
    for sure in (0.0, 30.0, 1e4):
        logits = torch.zeros(B, drloc.pairs_of(grid), sum(drloc.outputs(grid)))
        logits[..., 0], logits[..., -1] = sure, sure  # certain of the most distant offsets
        value = loss(drloc, logits.requires_grad_(), pairs, grid)
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.isfinite() and gradient.isfinite().all()


def test_swapping_the_tokens_keeps_absolute_targets_and_negates_signed_ones():
    grid = (4, 6)
    pairs = draw(ABSOLUTE, [grid], "drloc", SEED, 0, (0, 200))[0]
    straight, swapped = offsets(pairs, grid), offsets(pairs.flip(-1), grid)
    assert torch.equal(swapped, -straight) and torch.equal(swapped.abs(), straight.abs())
    assert straight.amin(dim=(0, 1)).tolist() == [-3, -5]
    assert straight.amax(dim=(0, 1)).tolist() == [3, 5]
    predicted = torch.randn(200, ABSOLUTE.pairs_of(grid), 2)
    signed = VARIANTS["signed"]
    for drloc, sign in ((ABSOLUTE, 1), (signed, -1)):
        one = loss(drloc, predicted, pairs, grid)
        assert torch.equal(one, loss(drloc, sign * predicted, pairs.flip(-1), grid))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_one_image_and_more_pairs_than_there_are(variant: str, precision: str):
    drloc = replace(VARIANTS[variant], grid=2)
    drloc = replace(drloc, pairs=drloc.pairs and 100)
    maps = [TokenMap(m.tokens[:1].to(DTYPES[precision]), m.grid) for m in some_maps([(4, 4)])]
    head = a_head(drloc, maps).to(DTYPES[precision])
    pairs = draw(drloc, [(4, 4)], "drloc", SEED, 0, (7, 8))
    value = head.of_maps(maps, pairs)
    value.backward()
    assert value.dtype == torch.float32 and value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    # nothing but the weights and tokens themselves is rounded
    whole = a_head(drloc, maps)
    for name, p in head.named_parameters():
        whole.get_parameter(name).data = p.detach().float()
    maps = [TokenMap(m.tokens.float(), m.grid) for m in maps]
    assert torch.equal(value, whole.of_maps(maps, pairs))


def test_pooling_averages_what_lies_below_a_cell():
    tokens = torch.arange(32.0)[None, :, None]  # 4 x 8 cells
    pooled, grid = pool(replace(ABSOLUTE, grid=4), tokens, (4, 8))
    assert grid == (4, 4)
    assert torch.equal(pooled.flatten(), torch.arange(32.0).view(16, 2).mean(dim=1))
    same, grid = pool(replace(ABSOLUTE, grid=8), tokens, (4, 8))
    assert grid == (4, 8) and torch.equal(same, tokens)


# the draws ---------------------------------------------------------------------------------------


def test_pairs_are_uniform_and_exhaustive_ones_take_every_token_once():
    grid, count = (3, 4), 12 * 2 * 500
    pairs = draw(ABSOLUTE, [grid], "drloc", SEED, 0, (0, 500))[0]
    seen = pairs.flatten().bincount(minlength=12)
    expected = count / 12
    chi2 = float(((seen - expected) ** 2 / expected).sum())
    assert pairs.shape == (500, 12, 2) and chi2 < 31.3  # a thousandth of draws lie above, 11 d.f.
    exhaustive = draw(VARIANTS["exhaustive"], [grid], "drloc", SEED, 0, (0, 500))[0]
    assert (exhaustive[:, :, 0] == torch.arange(12)).all()
    assert exhaustive[:, :, 1].flatten().bincount(minlength=12).min() > 400


def with_drloc(tiny: Recipe, *drlocs: DRLoc) -> Recipe:
    return replace(tiny, objectives=(*tiny.objectives, *drlocs))


def pairs_of(batch: Batch) -> tuple[Tensor, ...]:
    """Those of the second objective."""
    return batch.draws.objectives[1]


def test_pairs_depend_on_the_position_alone_not_on_ranks_or_micro_batches(tiny: Recipe):
    recipe = with_drloc(tiny, ABSOLUTE)
    task, source = Task(recipe), open_source(recipe.data, "train")
    whole = next(train_batches(source, recipe, batch_layout(recipe, 1, 24), 0, 0, 5, task.draws))[0]
    (wanted,) = pairs_of(whole)
    assert wanted.shape == (24, 12, 2) and len(wanted.unique(dim=0)) == 24
    for world in (1, 2, 3):
        layout = batch_layout(recipe, world, 4)
        parts = [
            pairs_of(batch)[0]
            for rank in range(world)
            for batch in next(train_batches(source, recipe, layout, rank, 0, 5, task.draws))
        ]
        assert torch.equal(torch.cat(parts), wanted)
    ((other,),) = task.draws(6, (0, 24)).objectives[1:]
    assert not torch.equal(other, wanted)


# the task ----------------------------------------------------------------------------------------


def test_a_task_adds_the_weighted_loss_and_trains_its_head(tiny: Recipe, batches: Batches):
    recipe = with_drloc(tiny, ABSOLUTE, replace(ABSOLUTE, weight=0.25, blocks="all", grid=2))
    task = Task(recipe)
    task.init_weights()
    assert task.names == ["cross_entropy", "drloc_0", "drloc_1"]
    (batch,) = next(batches(recipe, 1))
    inputs = Prepare(recipe)(batch)
    losses, (_, first, every) = task(inputs), inputs.draws.objectives
    output = task.model(inputs.images, inputs.draws.model, range(tiny.model.depth))
    heads = [o for o in task.objectives.values() if isinstance(o, DenseRelativeLocalization)]
    one = heads[0].of_maps([TokenMap(output.tokens, output.grid)], first)
    assert torch.equal(losses["drloc_0"], 0.5 * one)
    assert len(every) == tiny.model.depth
    assert torch.equal(
        losses["drloc_1"], 0.25 * heads[1].of_maps(list(output.blocks.values()), every)
    )
    torch.stack(list(losses.values())).sum().backward()
    for name, p in task.named_parameters():
        assert p.grad is not None and p.grad.any(), name


def test_the_loss_does_not_change_what_the_model_predicts(tiny: Recipe, batches: Batches):
    with_loss, without = Task(with_drloc(tiny, ABSOLUTE)), Task(tiny)
    with_loss.init_weights()
    without.init_weights()
    (batch,), (drawn,) = (
        Prepare(tiny).later(next(batches(task.recipe, 1))) for task in (without, with_loss)
    )
    assert torch.equal(with_loss.predict(batch().images), without.predict(batch().images))
    assert torch.equal(with_loss(drawn())["cross_entropy"], without(batch())["cross_entropy"])


def test_each_blocks_tokens_are_the_blocks_own_though_blocks_change_the_stream(tiny: Recipe):
    model = models.build(tiny.model, 8)
    model.init_weights(0)
    draws = model.draws(0, 0, (0, 8))
    assert isinstance(draws, Order)  # branches are added in place
    images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    taken: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, _i, x: taken.append(x[:, 1:].detach().clone()))
    output = model(images, draws, range(2))
    assert len(output.blocks) == len(taken) == 2
    for (tokens, grid), wanted in zip(output.blocks.values(), taken, strict=True):
        assert torch.equal(tokens, wanted) and grid == (4, 4)
    assert not torch.equal(taken[0], taken[1])
    assert torch.equal(model(images, draws).logits, output.logits)
    assert model(images, draws).blocks == {}


def test_a_ramp_rises_and_falls_with_the_global_batch(tiny: Recipe, batches: Batches):
    ramp = Ramp(warmup_epochs=2, last=0.5)
    assert [ramp.factor(epoch, 10) for epoch in (0, 1, 2, 6, 10)] == [0, 0.5, 1, 0.75, 0.5]
    assert Ramp(warmup_epochs=0, last=1.0).factor(0, 10) == 1
    recipe = with_drloc(tiny, replace(ABSOLUTE, ramp=ramp))
    task, constant = Task(recipe), Task(with_drloc(tiny, ABSOLUTE))
    task.init_weights()
    constant.init_weights()
    prepare = Prepare(recipe)
    (batch,) = next(batches(recipe, 1))
    for number in (0, recipe.updates_per_epoch, 2 * recipe.updates_per_epoch):
        here = prepare(batch._replace(number=number))
        share = ramp.factor(number / recipe.updates_per_epoch, recipe.epochs)
        assert torch.equal(task(here)["drloc"], share * constant(here)["drloc"])
        assert torch.equal(task(here)["cross_entropy"], constant(here)["cross_entropy"])


def test_it_learns_where_tokens_lie_on_real_digits(tiny: Recipe, batches: Batches):
    objectives = (
        CrossEntropy(weight=0.0, smoothing=0.0, class_weights=None),
        replace(ABSOLUTE, weight=1.0, pairs=32),
    )
    recipe = replace(tiny, objectives=objectives)
    task = Task(recipe)
    task.init_weights()
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-2)
    losses, prepare = list[float](), Prepare(recipe)
    stream = batches(recipe, 1)
    for _ in range(250):
        (batch,) = next(stream)
        loss = task(prepare(batch))["drloc"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    print(f"{first:.3f} -> {last:.3f}")
    # always guessing the mean absolute offset of a 4 x 4 grid, 0.3125, would give 0.21
    assert last < 0.15 < 0.25 < first
