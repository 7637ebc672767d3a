"""Maps of labels beside the images: at each position of each global batch the same for any number
of workers and ranks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from mapped import map_of, write_maps
from torch import Tensor

from bigvit.data.augment import draw
from bigvit.data.augment.rand_augment import STILL
from bigvit.data.batch import Batch
from bigvit.data.decode import Unread
from bigvit.data.label_maps.cropping import cropped
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_source
from bigvit.recipe import RandAugment, ReLabel, TokenLabeling, batch_layout
from bigvit.task import Task

DATA = replace(
    pictures.DATA,
    train_images=48,
    image_size=(16, 32),
    augment=RandAugment(operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True),
)
RECIPE = replace(
    pictures.RECIPE,
    data=DATA,
    objectives=(ReLabel(1.0, 0.1), TokenLabeling(1.0, 0.1, "map")),
    schedule=replace(pictures.RECIPE.schedule, epochs=1),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("photographs")
    pictures.write_folders(root, "train", pictures.jpegs(48))
    return open_source(DATA, "train", root)


@pytest.fixture(scope="module")
def maps(source: Source, tmp_path_factory: pytest.TempPathFactory) -> LabelMaps:
    return write_maps(source, tmp_path_factory.mktemp("maps"))


def stream(
    source: Source, maps: LabelMaps | None, world: int, workers: int, micro: int
) -> Iterator[list[Batch]]:
    """The micro-batches of all ranks, in the order of positions."""
    layout, task = batch_layout(RECIPE, world, micro), Task(RECIPE)
    ranks = [
        train_batches(source, RECIPE, layout, rank, workers, 0, task.draws, maps=maps)
        for rank in range(world)
    ]
    for parts in zip(*ranks, strict=True):
        yield [batch for part in parts for batch in part]


def whole(parts: list[Batch]) -> dict[str, Tensor]:
    fields = ("images", "ids", "slots")
    found = {name: torch.cat([getattr(part, name) for part in parts]) for name in fields}
    for name in ("where", "classes", "scores"):
        found[name] = torch.cat([getattr(part.maps, name) for part in parts])
    targets = [Prepare(RECIPE)(part).targets for part in parts]
    found["map"] = torch.cat([each.map for each in targets if each.map is not None])
    found["crop"] = torch.cat([each.crop for each in targets if each.crop is not None])
    return found


def test_maps_are_those_of_the_images_and_their_crops(source: Source, maps: LabelMaps) -> None:
    maps.check(source)
    plain, turned = stream(source, None, 1, 0, 16), 0
    for [batch], [bare] in zip(stream(source, maps, 1, 0, 16), plain, strict=True):
        assert torch.equal(batch.images, bare.images) and bare.maps is None
        assert batch.maps is not None and batch.maps.classes.dtype == torch.int32
        for i, (id, slot) in enumerate(zip(batch.ids.tolist(), batch.slots.tolist(), strict=True)):
            classes, scores = map_of(source.name(id))
            assert np.array_equal(batch.maps.classes[i], classes)
            assert np.array_equal(batch.maps.scores[i], scores)
            size = source.open(id).size
            drawn = draw(DATA, RECIPE.seed, 0, slot, size)
            where = [*drawn.box(size), drawn.flip, *drawn.affines(DATA)]
            assert batch.maps.where[i].tolist() == where and len(where) == 17
            turned += where[5:] != [*STILL, *STILL]
        inputs = Prepare(RECIPE)(batch)
        shares = inputs.targets.map
        assert shares is not None and shares.shape == (16, 2, 4, 2)
        assert torch.equal(shares, cropped(batch.maps, (2, 4), 2))
        assert Prepare(RECIPE)(bare).targets.map is None
        flips = batch.maps.where[:, 4]
        assert 0 < flips.sum() < 16
    assert turned > 5


@pytest.mark.parametrize(("world", "workers", "micro"), [(1, 2, 8), (2, 1, 4)])
def test_they_are_the_same_for_any_number_of_workers_and_ranks(
    source: Source, maps: LabelMaps, world: int, workers: int, micro: int
) -> None:
    pairs = zip(
        stream(source, maps, 1, 0, 16), stream(source, maps, world, workers, micro), strict=True
    )
    for one, other in pairs:
        found, wanted = whole(other), whole(one)
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name


def test_a_map_that_is_damaged_or_missing_stops_the_reading(
    source: Source, maps: LabelMaps, tmp_path: Path
) -> None:
    for path in maps.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "maps_00001.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    with pytest.raises(Unread, match=r"maps_00001.bin holds no sound map of .*china"):
        list(stream(source, LabelMaps(tmp_path), 1, 0, 16))
