"""Batches over the real digits: the same for any number of workers and ranks, from any number."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch

from bigvit.data import loader
from bigvit.data.augment import apply, draw
from bigvit.data.batch import Batch, Draws
from bigvit.data.mix import MixDraws
from bigvit.data.sources import DigitsSource, open_source
from bigvit.data.workers import workers_for
from bigvit.layers.stochastic_depth import Kept, Order, drops
from bigvit.recipe import Digits, Recipe, Shift, StochasticDepth, batch_layout
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

assert isinstance(digits_vit.data, Digits)
RECIPE = replace(
    digits_vit,
    model=replace(
        digits_vit.model,
        embed_dim=16,
        depth=1,
        num_heads=2,
        drop_path=StochasticDepth(rate=0.5, group=8),
    ),
    data=replace(digits_vit.data, augment=Shift(pixels=1), repeats=3),
    schedule=replace(digits_vit.schedule, epochs=2),
    batch_size=480,
)
"""Three updates an epoch, six in all."""

OVERSUBSCRIBED = pytest.mark.filterwarnings("ignore:This DataLoader will create")
FIELDS = ("images", "targets", "ids", "slots", "valid", "bad")


def batches(
    recipe: Recipe = RECIPE,
    world: int = 1,
    rank: int = 0,
    micro: int | None = 40,
    workers: int = 0,
    first: int = 0,
) -> list[list[Batch]]:
    source, layout = open_source(recipe.data, "train"), batch_layout(recipe, world, micro)
    draws = Task(recipe).draws
    return list(loader.train_batches(source, recipe, layout, rank, workers, first, draws))


@pytest.fixture(scope="module")
def straight() -> list[list[Batch]]:
    """The whole training of one rank, without workers."""
    return batches()


def joined(parts: list[Batch]) -> dict[str, torch.Tensor]:
    """Micro-batches as one: their tensors one behind the other."""
    whole = {name: torch.cat([getattr(part, name) for part in parts]) for name in FIELDS}
    return whole | {"kept": torch.cat([kept(part) for part in parts], dim=1)}


def kept(batch: Batch) -> torch.Tensor:
    """Which samples each branch keeps (L, B), bool."""
    depth, branches = RECIPE.model.drop_path, RECIPE.model.branches
    found = torch.zeros(branches, len(batch.images), dtype=torch.bool)
    for row, drop in zip(found, drops(depth, branches, drawn(batch)), strict=True):
        assert isinstance(drop, Kept)
        row[drop.samples] = True
    return found


def drawn(batch: Batch) -> Order:
    """What the model drew."""
    assert isinstance(batch.draws.model, Order)
    return batch.draws.model


def same(a: list[list[Batch]], b: list[list[Batch]]) -> bool:
    """Whether two streams of micro-batches hold the same."""
    if [len(micro) for micro in a] != [len(micro) for micro in b]:
        return False
    pairs = [pair for pairs in zip(a, b, strict=True) for pair in zip(*pairs, strict=True)]
    return all(
        (one.number, one.micro) == (other.number, other.micro)
        and all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
        and torch.equal(drawn(one).kept, drawn(other).kept)
        for one, other in pairs
    )


@OVERSUBSCRIBED
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_do_not_depend_on_the_number_of_workers(
    straight: list[list[Batch]], workers: int
) -> None:
    assert len(straight) == RECIPE.updates == 6
    assert same(batches(workers=workers), straight)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("micro", [8, None])
def test_the_ranks_pieces_make_up_the_same_global_batch(
    straight: list[list[Batch]], world: int, micro: int | None
) -> None:
    ranks = [batches(world=world, rank=rank, micro=micro) for rank in range(world)]
    for number in range(RECIPE.updates):
        pieces = [piece for rank in ranks for piece in rank[number]]
        assert {piece.number for piece in pieces} == {number}
        wanted, found = joined(straight[number]), joined(pieces)
        assert set(found) == {*FIELDS, "kept"}
        assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_micro_batches_are_counted_on_every_rank() -> None:
    for rank in (0, 1):
        for number, micro in enumerate(batches(world=2, rank=rank)):
            assert [(b.number, b.micro) for b in micro] == [(number, m) for m in range(6)]


@OVERSUBSCRIBED
@pytest.mark.parametrize(("first", "workers"), [(1, 0), (3, 0), (5, 1), (6, 0)])
def test_starting_at_a_later_batch_equals_skipping(
    straight: list[list[Batch]], first: int, workers: int
) -> None:
    assert same(batches(first=first, workers=workers), straight[first:])


def test_every_image_is_the_sources_varied_as_its_place_says() -> None:
    source, recipe = open_source(RECIPE.data, "train"), replace(RECIPE, seed=5)
    changed = 0
    for number, (batch,) in enumerate(batches(recipe, micro=None)[2:5], start=2):
        epoch = number // recipe.updates_per_epoch
        for image, target, id, slot in zip(
            batch.images, batch.targets, batch.ids.tolist(), batch.slots.tolist(), strict=True
        ):
            drawn = draw(recipe.data, recipe.seed, epoch, slot, (8, 8))
            assert np.array_equal(image.numpy(), apply(source.read(id), drawn))
            assert target == source.targets[id]
            changed += not pictures.equal(image.numpy()[0], source.read(id))
    assert changed > 1000  # 8 of 9 shifts move something


def test_copies_of_an_image_are_varied_differently(straight: list[list[Batch]]) -> None:
    copies: dict[int, list[bytes]] = {}
    for batch in straight[0]:
        for image, id in zip(batch.images, batch.ids.tolist(), strict=True):
            copies.setdefault(id, []).append(image.numpy().tobytes())
    assert max(map(len, copies.values())) == 3
    assert sum(len(set(images)) > 1 for images in copies.values()) > 100


def test_without_augmentation_images_are_the_sources() -> None:
    source = open_source(digits_vit.data, "train")
    recipe = replace(RECIPE, data=digits_vit.data)
    for (batch,) in batches(recipe, micro=None)[::2]:
        for image, id in zip(batch.images, batch.ids.tolist(), strict=True):
            assert pictures.equal(image.numpy()[0], source.read(id))


def test_training_batches_have_the_types_that_a_task_takes(
    straight: list[list[Batch]],
) -> None:
    batch = straight[0][0]
    assert (batch.images.dtype, batch.images.shape) == (torch.uint8, (40, 1, 8, 8))
    assert {batch.targets.dtype, batch.ids.dtype, batch.slots.dtype} == {torch.int64}
    assert batch.valid.dtype == torch.bool and bool(batch.valid.all())
    kept = drawn(batch).kept
    assert (kept.dtype, kept.shape) == (torch.int64, (2, 40))
    assert (batch.bad.dtype, batch.bad.shape) == (torch.int64, (0,))


def test_a_batch_moves_with_all_that_was_drawn_but_what_is_bad(
    straight: list[list[Batch]],
) -> None:
    weights = torch.ones(40)
    mix = MixDraws(weights, torch.zeros(40, 4, dtype=torch.int64), weights)
    pairs = ((), (weights, weights))
    one = straight[0][0]
    draws = Draws(Order(weights), pairs)
    moved = one._replace(mix=mix, draws=draws).to(torch.device("meta"))
    assert moved.mix is not None
    (nothing, both), kept = moved.draws.objectives, drawn(moved).kept
    assert nothing == () and isinstance(moved.mix, MixDraws)
    assert all(each.is_meta for each in (moved.images, moved.targets, *moved.mix, kept, *both))
    assert not moved.bad.is_meta and moved.number == one.number


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 64, 300, 512])
def test_evaluation_covers_every_image_once_in_as_many_steps_on_every_rank(
    world: int, size: int
) -> None:
    source = open_source(digits_vit.data, "test")
    ranks = [
        list(loader.test_batches(source, digits_vit.data, size, rank, world, 0))
        for rank in range(world)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    seen: list[int] = []
    for rank in ranks:
        for batch in rank:
            assert len(batch.images) == len(batch.targets) == len(batch.valid) == size
            seen.extend(batch.ids[batch.valid].tolist())
            for image, target, id in zip(batch.images, batch.targets, batch.ids, strict=True):
                assert pictures.equal(image.numpy()[0], source.read(int(id)))
                assert target == source.targets[id]
    assert sorted(seen) == list(range(len(source)))
    assert batch_order_is_ascending(ranks)


def batch_order_is_ascending(ranks: list[list[Batch]]) -> bool:
    """Whether the real images of all ranks stand in the source's order."""
    ids = [id for rank in ranks for batch in rank for id in batch.ids[batch.valid].tolist()]
    return all(a < b for a, b in pairwise(ids))


def test_the_digits_are_split_as_their_docstring_says() -> None:
    from sklearn.datasets import load_digits

    scans = load_digits()  # pyright: ignore[reportUnknownVariableType]
    images, targets = np.asarray(scans.images), np.asarray(scans.target)  # pyright: ignore
    train, test = DigitsSource("train"), DigitsSource("test")
    assert (len(train), len(test)) == (1497, 300)
    assert len(train) == digits_vit.data.train_images
    assert train.classes == test.classes == [str(n) for n in range(10)]
    places = {"train": [i for i in range(1797) if i % 6], "test": list(range(0, 1797, 6))}
    assert sorted(places["train"] + places["test"]) == list(range(1797))
    for source, split in ((train, "train"), (test, "test")):
        for index, place in enumerate(places[split]):
            image = source.read(index)
            assert (image.size, image.mode) == ((8, 8), "L")
            pixels = np.asarray(image)
            assert np.array_equal(np.round(pixels * (16 / 255)), images[place])
            assert np.array_equal(pixels, np.round(images[place] * (255 / 16)))
            assert source.targets[index] == targets[place]
    assert train.images.max() == test.images.max() == 255


@OVERSUBSCRIBED
def test_a_data_set_gives_the_same_stream_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import ClassLabel, Dataset, Features, Image

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    pictures.write_folders(tmp_path / "folders", "train", pictures.jpegs(60))
    rows = [
        {"image": {"bytes": content, "path": name}, "label": target}
        for name, target, content in pictures.jpegs(60)
    ]
    kinds = Features({"image": Image(), "label": ClassLabel(names=pictures.CLASSES)})
    (tmp_path / "parquet").mkdir()
    Dataset.from_list(rows, features=kinds).to_parquet(tmp_path / "parquet/train.parquet")

    def stream(form: str, workers: int) -> list[list[Batch]]:
        recipe = pictures.RECIPE
        source, layout = (
            open_source(recipe.data, "train", tmp_path / form),
            batch_layout(recipe, 1, 8),
        )
        return list(loader.train_batches(source, recipe, layout, 0, workers, 0, Task(recipe).draws))

    wanted = stream("folders", 0)
    assert wanted[0][0].images.float().std() > 10
    assert same(stream("parquet", 0), wanted)
    assert same(stream("parquet", 2), wanted)


@pytest.mark.parametrize(
    ("asked", "ranks_here", "wanted"), [(0, "1", 0), (5, "1", 5), (None, "64", 0)]
)
def test_workers_are_as_asked_or_what_the_cores_allow(
    asked: int | None, ranks_here: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
    assert workers_for(asked) == wanted
