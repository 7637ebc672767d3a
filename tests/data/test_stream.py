"""What a training sees at each position of each global batch: the same for any number of workers
and ranks, any micro-batch, and from any batch on. DeiT III's own pipeline, on small photographs.

Shapes: S positions of a global batch.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from forms import members, write_shard
from torch import Tensor

from bigvit.data.augment import apply, draw
from bigvit.data.batch import Batch
from bigvit.data.loader import train_batches
from bigvit.data.mix import MixDraws
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_source
from bigvit.recipe import Images, Mix, StochasticDepth, ThreeAugment, batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

PUBLISHED = find_recipe("deit3_b16_in1k_224")[1]
assert isinstance(PUBLISHED.data, Images)
RECIPE = replace(
    PUBLISHED,
    model=replace(
        pictures.RECIPE.model, depth=2, drop_path=StochasticDepth(rate=0.5, group=8), num_classes=2
    ),
    data=replace(PUBLISHED.data, train_images=100, classes=2, image_size=32),
    schedule=replace(PUBLISHED.schedule, epochs=2, warmup_epochs=0),
    batch_size=32,
)
"""Three updates an epoch, six in all; crop, 3-Augment, three repeats and mixing as published."""

Stream = list[dict[str, Tensor]]  # for each global batch: what stands at its positions, (S, ...)
LAYOUTS = [(1, 32), (1, 8), (2, 16), (4, 8)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("photographs")
    pictures.write_folders(root, "train", pictures.jpegs(100))
    return open_source(RECIPE.data, "train", root)


def at_positions(parts: list[Batch]) -> dict[str, Tensor]:
    """All that the micro-batches of all ranks say, in the order of positions."""
    fields = ("images", "targets", "ids", "slots", "valid")
    found = {name: torch.cat([getattr(part, name) for part in parts]) for name in fields}
    for name in MixDraws._fields:
        found[f"mix_{name}"] = torch.cat([getattr(part.mix, name) for part in parts])
    found["kept"] = torch.cat([kept_of(part.draws.model.kept) for part in parts])
    mixed = [Prepare(RECIPE)(part) for part in parts]
    found["mixed_images"] = torch.cat([each.images for each in mixed])
    found["mixed_targets"] = torch.cat([each.targets.dense for each in mixed])
    return found


def kept_of(kept_LS: Tensor) -> Tensor:
    """Positions kept first (L, S), as draws have them -> which are kept (S, L)."""
    model, samples = RECIPE.model, kept_LS.shape[1]
    found = torch.zeros(samples, model.branches, dtype=torch.bool)
    for branch, k in enumerate(model.drop_path.kept(model.branches)):
        found[kept_LS[branch, : k * samples // model.drop_path.group], branch] = True
    return found


def stream(
    source: Source,
    world: int = 1,
    micro: int = 32,
    workers: int = 0,
    first: int = 0,
    on_device: bool = False,
) -> Stream:
    draws, layout = Task(RECIPE).draws, batch_layout(RECIPE, world, micro)
    ranks = [
        list(train_batches(source, RECIPE, layout, rank, workers, first, draws, on_device))
        for rank in range(world)
    ]
    return [at_positions(sum(pieces, [])) for pieces in zip(*ranks, strict=True)]


@pytest.fixture(scope="module")
def straight(source: Source) -> Stream:
    """Of one rank, in one piece, without workers."""
    return stream(source)


def test_the_stream_holds_every_kind_of_choice(straight: Stream) -> None:
    """Or the comparisons below would compare nothing."""
    assert len(straight) == RECIPE.updates == 6 and RECIPE.updates_per_epoch == 3
    assert isinstance(RECIPE.data, Images) and isinstance(RECIPE.data.augment, ThreeAugment)
    assert RECIPE.data.mix == Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8)
    whole = {name: torch.cat([batch[name] for batch in straight]) for name in straight[0]}
    blended, cut = whole["mix_blend"] < 1, whole["mix_box"].any(dim=1)
    assert blended.any() and cut.any() and not (blended & cut).any()
    assert len(whole["mix_target"].unique()) > 20  # of 24 groups
    assert len(whole["kept"].unique(dim=0)) > 4
    assert all(np.bincount(batch["ids"]).max() == 3 for batch in straight)
    images = {image.numpy().tobytes() for image in whole["images"]}
    assert len(images) > 185  # of 192: copies of an image are varied differently


def test_each_image_is_its_places_crop_and_operations(source: Source, straight: Stream) -> None:
    drawn = set[object]()
    for number, batch in enumerate(straight):
        epoch = number // RECIPE.updates_per_epoch
        for image, id, slot in zip(batch["images"], batch["ids"], batch["slots"], strict=True):
            original = source.read(int(id))
            choice = draw(RECIPE.data, RECIPE.seed, epoch, int(slot), original.size)
            drawn.add(repr(choice))
            assert pictures.equal(image, apply(original, choice))
    assert len(drawn) == 192


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("world", "micro"), LAYOUTS)
def test_the_stream_is_the_same_however_it_is_made(
    source: Source, straight: Stream, world: int, micro: int, workers: int
) -> None:
    for first in (0, 1, 5):  # 1 and 5: resumed in the middle of the first and second epoch
        found = stream(source, world, micro, workers, first)
        assert len(found) == len(straight[first:])
        for batch, wanted in zip(found, straight[first:], strict=True):
            assert batch.keys() == wanted.keys()
            assert [name for name in wanted if not torch.equal(batch[name], wanted[name])] == []


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "first"), [(0, 0), (3, 1)])
def test_a_device_varies_images_to_the_same_bytes(
    source: Source, straight: Stream, workers: int, first: int
) -> None:
    found, bare = stream(source, 2, 16, workers, first, on_device=True), set[bool]()
    for batch, wanted in zip(found, straight[first:], strict=True):
        differing = {name for name in wanted if not torch.equal(batch[name], wanted[name])}
        assert differing == {"images"}  # as the data processes leave them
        bare.update((batch["images"] == wanted["images"]).flatten(1).all(dim=1).tolist())
    assert bare == {False}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("world", "micro", "workers", "first"), [(1, 32, 0, 0), (2, 16, 3, 1), (4, 8, 1, 5)]
)
def test_shards_give_the_stream_of_class_folders(
    tmp_path: Path, straight: Stream, world: int, micro: int, workers: int, first: int
) -> None:
    images = members(pictures.jpegs(100))
    for number, start in enumerate(range(0, 200, 34)):
        write_shard(tmp_path / f"train/{number}.tar", images[start : start + 34])
    found = stream(open_source(RECIPE.data, "train", tmp_path), world, micro, workers, first)
    for batch, wanted in zip(found, straight[first:], strict=True):
        assert [name for name in wanted if not torch.equal(batch[name], wanted[name])] == []
