"""MixToken and token labelling are what literal float64 transcriptions compute.

Shapes: B images, N patches of a grid h x w, K classes.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import literal_token_labels as literal
import numpy as np
import pytest
import torch
from each import each_of
from randomised import randomised
from test_label_map_crops import literal as literal_crop
from torch import Tensor, nn

from bigvit import models, objectives
from bigvit.data.batch import Batch
from bigvit.data.label_maps.cropping import SparseMaps
from bigvit.data.mix import MixDraws, draw, mix_images, patch_sources
from bigvit.data.prepare import Prepare, Targets
from bigvit.models import Output
from bigvit.recipe import (
    CaiT,
    ClassAttention,
    ClassToken,
    LayerScale,
    LinearStochasticDepth,
    LVViT,
    Mix,
    MixToken,
    ParallelViT,
    Recipe,
    ReLabel,
    StochasticDepth,
    TokenLabeling,
    ViT,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipes.photos import photos_vit_64
from bigvit.task import Task

SIZE, CELL, GROUP = (32, 48), 8, 4
MIX = MixToken(alpha=1.0, cell=CELL, group=GROUP)
MODEL = LVViT(
    (3, 3, 8), (1, 1, 8), 6, 24, 2, 2, 3.0, 2.0, True, LinearStochasticDepth(0.0, 4), 3, 7
)
DROP, SECOND = StochasticDepth(0.0, 4), ClassAttention(2, "class and patches")
MODELS: dict[str, Any] = {
    "lv_vit": MODEL,
    "vit": ViT(CELL, 24, 2, 2, 3.0, 0.5, ClassToken(0), True, DROP, 3, 7),
    "cait": CaiT(CELL, 24, 2, 2, 3.0, True, LayerScale(0.5), SECOND, None, True, DROP, 3, 7),
}


def recipe_of(mix: Mix | MixToken | None = MIX, model: Any = MODEL) -> Recipe:
    data = replace(photos_vit_64.data, image_size=SIZE, classes=7, mix=mix)
    labelled = (TokenLabeling(1.0, 0.1, "image"),) if getattr(model, "dense_head", False) else ()
    given = (*photos_vit_64.objectives, *labelled)
    return replace(photos_vit_64, model=model, data=data, objectives=given, batch_size=48)


def drawn(recipe: Recipe, span: tuple[int, int] = (0, 8), number: int = 3) -> MixDraws:
    found = draw(recipe.data, recipe.seed, number, span)
    assert found is not None
    return found


def images(count: int = 8) -> Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def test_boxes_are_cutmixs_on_the_grid_of_patches():
    """The same draws, whose box is of whole patches, and whose labels are mixed by its area."""
    recipe = recipe_of()
    on_grid = replace(recipe.data, image_size=(4, 6), mix=Mix(0.0, 1.0, 0.5, GROUP))
    found, cut = drawn(recipe, (0, 4000)), draw(on_grid, recipe.seed, 3, (0, 4000))
    assert cut is not None
    assert torch.equal(found.box, CELL * cut.box) and torch.equal(found.target, cut.target)
    assert (found.blend == 1).all() and 0.1 < found.target.std() < 0.5
    top, bottom, left, right = (found.box // CELL).unbind(1)
    torch.testing.assert_close(found.target, 1 - ((bottom - top) * (right - left)).float() / 24)
    parts = [drawn(recipe, (start, start + 4)) for start in (0, 4, 8)]
    assert torch.equal(torch.cat([part.box for part in parts]), found.box[:12])


@each_of("name", MODELS)
@torch.no_grad()
def test_tokens_are_mixed_after_the_patch_embedding(name: str):
    recipe = recipe_of()
    ours: Any = randomised(models.build(MODELS[name], SIZE))
    x = images()
    draws = drawn(recipe)
    mix = patch_sources(MIX, SIZE, draws)
    made, _ = ours.patch_embed(x)
    expected = made.clone()
    for i, (top, bottom, left, right) in enumerate((draws.box // CELL).tolist()):
        partner = i // GROUP * GROUP + GROUP - 1 - i % GROUP
        for row in range(top, bottom):
            for column in range(left, right):
                expected[i, 6 * row + column] = made[partner, 6 * row + column]
    assert 0 < (expected != made).any(dim=2).sum() < expected[..., 0].numel()
    output = ours(x, mix=mix)

    class Made(nn.Module):
        def forward(self, images: Tensor):
            return expected, (4, 6)

    ours.patch_embed = Made()
    assert torch.equal(output.dense, ours(x).dense)
    assert torch.equal(output.logits, ours(x).logits)


@each_of("name", MODELS)
@torch.no_grad()
def test_where_a_patch_is_embedded_alone_it_is_cutmix(name: str):
    alone = {"kernels": (CELL,), "strides": (CELL,)} if name == "lv_vit" else {}
    model = replace(MODELS[name], **alone)
    ours: Any = randomised(models.build(model, SIZE))
    x, draws = images(), drawn(recipe_of())
    of_images = ours(mix_images(x, draws, GROUP))
    of_tokens = ours(x, mix=patch_sources(MIX, SIZE, draws))
    torch.testing.assert_close(of_tokens.dense, of_images.dense, rtol=0, atol=1e-5)
    assert (ours(x).dense - of_images.dense).abs().max() > 0.1


@each_of("name", MODELS)
def test_a_batch_is_prepared_with_images_as_they_are_and_mixed_targets(name: str):
    recipe = recipe_of(model=MODELS[name])
    task, numbers = Task(recipe), torch.arange(8) % 7
    pixels = torch.randint(256, (8, 3, *SIZE), dtype=torch.uint8)
    draws, real = drawn(recipe), torch.ones(8, dtype=torch.bool)
    batch = Batch(pixels, numbers, numbers, numbers, 3, 0, real, numbers[:0], draws)
    batch = batch._replace(draws=task.draws(3, (0, 8)))
    plain = Prepare(recipe_of(None, MODELS[name]))(batch._replace(mix=None))
    inputs = Prepare(recipe)(batch)
    assert plain.mix is None and inputs.mix is not None and inputs.targets.map is not None
    assert torch.equal(inputs.images, plain.images)
    for i, own in enumerate(draws.target.tolist()):
        partner = i // GROUP * GROUP + GROUP - 1 - i % GROUP
        wanted = own * plain.targets.dense[i] + (1 - own) * plain.targets.dense[partner]
        torch.testing.assert_close(inputs.targets.dense[i], wanted)
        top, bottom, left, right = (draws.box[i] // CELL).tolist()
        for row, column in product(range(4), range(6)):
            other = top <= row < bottom and left <= column < right
            label = plain.targets.dense[partner if other else i]
            assert torch.equal(inputs.targets.map[i, row, column], label)
    # and the model mixes what it is told to
    task.init_weights()
    randomised(task.model)
    mixed, alone = task(inputs), task(inputs._replace(mix=None))
    assert len(mixed) == 2
    for objective, loss in mixed.items():
        assert (loss - alone[objective]).abs() > 1e-6, objective


@each_of("classes", [7, 21_841])
def test_the_loss_is_the_literal_one(classes: int):
    grid, count, group = (2, 3), 4, 2
    generator = torch.Generator().manual_seed(5)
    scores = 4 * torch.randn(count, *grid, classes, generator=generator)
    scores[..., -1] += 5  # of the last class, too
    maps = scores.softmax(dim=-1)
    dense = torch.randn(count, 6, classes, generator=generator)
    boxes = torch.tensor([[0, 1, 1, 3], [0, 1, 1, 3], [0, 2, 0, 2], [0, 2, 0, 2]])
    mix = patch_sources(MixToken(1.0, 1, group), grid, MixDraws(scores, boxes, scores))
    mixed = maps.flatten(1, 2)[mix, torch.arange(6)].unflatten(1, grid)
    logits = dense[:, 0]
    output = Output(logits, dense, grid, logits, {}, dense=dense)
    loss = objectives.build(TokenLabeling(1.0, 0.1, "image"), recipe_of(None))
    found = loss(output, Targets(boxes[:, 0], logits, map=mixed), ())
    given = [tuple(box) for box in boxes.tolist()]
    expected = literal.token_labeling(dense.tolist(), maps.tolist(), given, group, 0.1)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, rel=1e-6)


@each_of("classes", [7, 21_841])
def test_what_maps_say_is_learned_as_it_is_written_out(classes: int):
    """From class numbers and scores, through crop, flip, softmax and MixToken, to both losses."""
    recipe = recipe_of(model=replace(MODEL, num_classes=classes))
    objectives_ = (ReLabel(1.0, 0.1), TokenLabeling(1.0, 0.1, "map"))
    recipe = replace(recipe, data=replace(recipe.data, classes=classes), objectives=objectives_)
    check_recipe(recipe)
    count, cells, top = 8, (3, 5), 4
    generator = torch.Generator().manual_seed(7)
    scores = 5 * torch.randn(count, *cells, top, generator=generator).half()
    numbers = torch.stack([torch.randperm(classes, generator=generator)[:top] for _ in range(120)])
    numbers = numbers.view(count, *cells, top).int()
    numbers[3, 1, 2, 0], numbers[3, 1, 2, 1:] = classes - 1, torch.tensor([0, 1, 2])
    where = torch.tensor([[0.1, 0.2, 0.7, 0.9, i % 2] for i in range(count)]).double()
    dense = np.zeros((count, classes, *cells))
    for b, r, c, k in np.ndindex(count, *cells, top):
        dense[b, int(numbers[b, r, c, k]), r, c] = float(scores[b, r, c, k])

    def shares(b: int, grid: tuple[int, int]) -> np.ndarray:
        cut = literal_crop(dense[b], where[b, :4].tolist(), grid, b % 2 == 1)
        raised = np.exp(cut - cut.max(axis=0))
        return (raised / raised.sum(axis=0)).transpose(1, 2, 0)

    draws, real = drawn(recipe), torch.ones(count, dtype=torch.bool)
    pixels, ids = torch.zeros(count, 3, *SIZE, dtype=torch.uint8), torch.arange(count)
    batch = Batch(pixels, ids, ids, ids, 3, 0, real, ids[:0], draws)
    targets = Prepare(recipe)(batch._replace(maps=SparseMaps(where, numbers, scores))).targets
    logits = torch.randn(count, classes, generator=generator)
    patches = torch.randn(count, 24, classes, generator=generator)
    output = Output(logits, patches, (4, 6), logits, {}, dense=patches)
    boxes = [tuple(box) for box in (draws.box // CELL).tolist()]
    crops = [shares(b, (1, 1))[0, 0].tolist() for b in range(count)]
    maps = [shares(b, (4, 6)).tolist() for b in range(count)]
    expected = (
        literal.relabel(logits.tolist(), crops, boxes, 24, GROUP, 0.1),
        literal.token_labeling(patches.tolist(), maps, boxes, GROUP, 0.1),
    )
    for objective, wanted in zip(objectives_, expected, strict=True):
        found = objectives.build(objective, recipe)(output, targets, ())
        # scores of up to 25 in float32 are exact to 3e-6, and so are the shares
        assert found.item() == pytest.approx(wanted, rel=5e-6)


@each_of("name", MODELS)
def test_a_head_on_patches_and_its_objective_come_together(name: str):
    recipe = recipe_of(model=MODELS[name])
    check_recipe(recipe)
    plain = replace(recipe, model=replace(MODELS[name], dense_head=False))
    with pytest.raises(ValueError, match="objectives.1: TokenLabeling.*no head on patches"):
        check_recipe(plain)
    check_recipe(replace(plain, objectives=photos_vit_64.objectives))
    with pytest.raises(ValueError, match="model.dense_head: no objective"):
        check_recipe(replace(recipe, objectives=photos_vit_64.objectives))


def test_a_model_that_cannot_have_such_a_head_is_refused_its_objective():
    recipe = recipe_of(None, ParallelViT(CELL, 24, 2, 2, 2, 3.0, 0.5, DROP, 3, 7))
    labelled = (*recipe.objectives, TokenLabeling(1.0, 0.1, "image"))
    with pytest.raises(ValueError, match="objectives.1: TokenLabeling.*ParallelViT has no head"):
        check_recipe(replace(recipe, objectives=labelled))


def test_what_cannot_be_mixed_after_the_embedding_is_refused():
    parallel = ParallelViT(CELL, 24, 2, 2, 2, 3.0, 0.5, DROP, 3, 7)
    with pytest.raises(ValueError, match="data.mix: MixToken is not allowed; ParallelViT cannot"):
        check_recipe(recipe_of(model=parallel))
    with pytest.raises(ValueError, match="data.mix.cell: 16 is not allowed; it must be 8"):
        check_recipe(recipe_of(replace(MIX, cell=16)))
