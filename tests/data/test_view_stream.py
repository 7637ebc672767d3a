"""Views in the stream of batches: the same on any ranks, and what they lie beside."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pictures
import pytest
import torch
from viewed import DATA, DIGITS, RECIPE, Counting, photographs

from bigvit.data import augment, loader
from bigvit.data.batch import Batch
from bigvit.data.decode import Photo
from bigvit.data.loader import as_seen, train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_source
from bigvit.data.workers import shape_of, slot_bytes, view_shapes
from bigvit.recipe import (
    Mix,
    ViewGroup,
    batch_layout,
)
from bigvit.task import Task


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return photographs(tmp_path_factory.mktemp("photographs"))


def stream(
    source: Source, recipe: Any, world: int = 1, micro: int = 32, workers: int = 0, first: int = 0
) -> list[list[torch.Tensor]]:
    """Of each global batch what all ranks see: images, and each group's views."""
    layout, draws = batch_layout(recipe, world, micro), Task(recipe).draws
    ranks = [
        list(train_batches(source, recipe, layout, rank, workers, first, draws))
        for rank in range(world)
    ]
    found = list[list[torch.Tensor]]()
    for pieces in zip(*ranks, strict=True):
        parts: list[Batch] = sum(pieces, [])
        each = [(part.images, *part.views) for part in parts]
        found.append([torch.cat(same) for same in zip(*each, strict=True)])
    return found


def assert_same(found: list[list[torch.Tensor]], wanted: list[list[torch.Tensor]]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", ["images", "digits"])
def test_views_are_the_same_on_any_ranks_workers_and_from_any_batch_on(
    kind: str, source: Source
) -> None:
    recipe = RECIPE
    if kind == "digits":
        recipe = DIGITS
        source = open_source(recipe.data, "train")
    straight = stream(source, recipe)
    sizes = [each.shape[1:] for each in straight[0]]
    assert sizes == [shape_of(recipe.data), *view_shapes(recipe.data)]
    for world, micro, workers, first in ((4, 8, 0, 0), (1, 8, 3, 1), (2, 16, 3, 4)):
        assert_same(stream(source, recipe, world, micro, workers, first), straight[first:])
    every = torch.cat([each[1].flatten(0, 1) for each in straight[:2]])
    assert len({view.numpy().tobytes() for view in every}) > 0.9 * len(every)


def test_the_images_are_those_of_a_recipe_without_views(source: Source) -> None:
    bare = replace(RECIPE, data=replace(DATA, views=()))
    with_views = [each[:1] for each in stream(source, RECIPE)]
    assert_same(with_views, stream(source, bare))


def test_each_view_is_its_places_crop_and_operations(source: Source) -> None:
    layout = batch_layout(RECIPE, 1, 32)
    batches = train_batches(source, RECIPE, layout, 0, 0, 3, Task(RECIPE).draws)
    for micro in islice(batches, 2):
        (batch,) = micro
        for i, (id, slot) in enumerate(zip(batch.ids.tolist(), batch.slots.tolist(), strict=True)):
            image = source.read(id)
            views = [view for group in batch.views for view in group[i]]
            for number, view in enumerate(views, start=1):
                own = as_seen(DATA)[number]
                choice = augment.draw(own, RECIPE.seed, 1, slot, image.size, number)
                assert pictures.equal(view, augment.apply(image, choice))


def test_where_the_device_varies_images_views_come_whole(source: Source) -> None:
    data = replace(DATA, erasing=0.0)
    assert data.augment_on_device
    recipe, layout = replace(RECIPE, data=data), batch_layout(RECIPE, 1, 32)
    draws, prepare = Task(recipe).draws, Prepare(recipe)
    both = [
        prepare(next(train_batches(source, recipe, layout, 0, 0, 0, draws, on_device))[0])
        for on_device in (False, True)
    ]
    assert torch.equal(both[0].images, both[1].images)
    assert all(torch.equal(*pair) for pair in zip(both[0].views, both[1].views, strict=True))


def test_views_of_a_bad_images_place_are_its_substitutes_and_of_none_empty(tmp_path: Path) -> None:
    pictures.write_sixty(tmp_path)
    data = replace(DATA, train_images=60)
    recipe = replace(RECIPE, data=data, batch_size=20)
    source, layout = open_source(data, "train", tmp_path), batch_layout(recipe, 1, 20)
    bad = 0
    for micro in train_batches(source, recipe, layout, 0, 0, 0, Task(recipe).draws):
        (batch,) = micro
        bad += len(batch.bad)
        assert batch.valid.all() and all(view.flatten(2).any(2).all() for view in batch.views)
        epoch = batch.number // recipe.updates_per_epoch
        for i, (id, slot) in enumerate(zip(batch.ids.tolist(), batch.slots.tolist(), strict=True)):
            image = source.read(id)
            choice = augment.draw(data.group(2), 0, epoch, slot, image.size, 3)
            assert pictures.equal(batch.views[1][i, 0], augment.apply(image, choice))
    assert bad >= 12
    broken: Any = Counting(source)
    broken.open = lambda index: Photo(b"nothing", "it")
    (batch,) = next(train_batches(broken, recipe, layout, 0, 0, 0, Task(recipe).draws))
    assert not batch.valid.any() and not any(view.any() for view in batch.views)


def test_views_are_normalised_and_never_mixed(source: Source) -> None:
    mixed = replace(DATA, mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=4))
    recipe, layout = replace(RECIPE, data=mixed), batch_layout(RECIPE, 1, 32)
    (batch,) = next(train_batches(source, recipe, layout, 0, 0, 0, Task(recipe).draws))
    inputs = Prepare(recipe)(batch)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (DATA.mean, DATA.std))
    for views, pixels in zip(inputs.views, batch.views, strict=True):
        assert views.dtype == torch.float32 and views.shape == pixels.shape
        assert torch.equal(views, (pixels.float() / 255 - mean) / std)
    assert not torch.equal(inputs.images, (batch.images.float() / 255 - mean) / std)


def test_test_images_have_no_views_and_what_a_slot_holds_is_known(source: Source) -> None:
    batch = next(loader.test_batches(source, DATA, 8, 0, 1, 0))
    assert batch.views == ()
    assert DATA.groups == (ViewGroup(2, 24), ViewGroup(3, (8, 16)))
    shapes = [(2, 3, 24, 24), (3, 3, 8, 16)]
    assert view_shapes(DATA) == shapes
    pixels = 3 * (24 * 24 + 2 * 24 * 24 + 3 * 8 * 16)
    assert slot_bytes(shape_of(DATA), 5, shapes) == 5 * (25 + pixels)
