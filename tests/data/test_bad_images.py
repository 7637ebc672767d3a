"""A folder of 60 images of which 12 are bad in 12 ways: trained and evaluated on the good ones, the
bad listed; or stopped. The same for any number of workers and ranks, and after a resume."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import DATA, RECIPE, jpegs, write_folders, write_sixty
from torch import Tensor

from bigvit.data import augment, loader
from bigvit.data.bad import BadImages, TooManyBad, gather
from bigvit.data.batch import Batch
from bigvit.data.decode import BadImage
from bigvit.data.sampler import Sampler
from bigvit.data.sources import Source, open_source
from bigvit.evaluate import evaluate
from bigvit.ranks.joining import alone
from bigvit.recipe import batch_layout
from bigvit.task import Task
from bigvit.train import main

OVERSUBSCRIBED = pytest.mark.filterwarnings("ignore:This DataLoader will create")
FIELDS = ("images", "targets", "ids", "slots", "valid", "bad")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of 60."""
    root = tmp_path_factory.mktemp("sixty")
    write_sixty(root)
    return root


@pytest.fixture(scope="module")
def bad_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return {f"train/{name}" for name in write_sixty(tmp_path_factory.mktemp("names"))}


@pytest.fixture(scope="module")
def bad_ids(root: Path, bad_names: set[str]) -> set[int]:
    source = open_source(DATA, "train", root)
    found = {index for index in range(60) if source.name(index) in bad_names}
    assert len(source) == 60 and len(found) == 12
    return found


def batches(
    root: Path, world: int = 1, rank: int = 0, workers: int = 0, first: int = 0
) -> list[list[Batch]]:
    source, layout = open_source(DATA, "train", root), batch_layout(RECIPE, world, 4)
    draws = Task(RECIPE).draws
    return list(loader.train_batches(source, RECIPE, layout, rank, workers, first, draws))


def same(a: list[list[Batch]], b: list[list[Batch]]) -> bool:
    """Whether two streams of micro-batches hold the same."""
    pairs = [pair for ones in zip(a, b, strict=True) for pair in zip(*ones, strict=True)]
    return all(
        one.number == other.number
        and all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
        for one, other in pairs
    )


@pytest.fixture(scope="module")
def straight(root: Path) -> list[list[Batch]]:
    """The whole training of one rank, without workers."""
    return batches(root)


def test_a_bad_image_is_replaced_by_a_good_one_and_nothing_else_changes(
    root: Path, bad_ids: set[int], straight: list[list[Batch]]
) -> None:
    source = open_source(DATA, "train", root)
    sampler, seen, used = Sampler(60, 1, 16, RECIPE.seed), set[int](), list[int]()
    for number, micro in enumerate(straight):
        epoch, _, wanted = sampler.batch(number)
        ids = torch.cat([batch.ids for batch in micro]).tolist()
        good = [id not in bad_ids for id in wanted]
        assert [id for id, ok in zip(ids, good, strict=True) if ok] == list(wanted[good])
        assert all(id not in bad_ids for id in ids)
        reported = {id for batch in micro for id in batch.bad.tolist()}
        assert set(wanted) & bad_ids <= reported <= bad_ids
        used.extend(id for id, ok in zip(ids, good, strict=True) if not ok)
        seen |= reported
        for batch in micro:
            assert bool(batch.valid.all()) and batch.bad.tolist() == sorted(set(batch.bad.tolist()))
            for image, target, id, slot in zip(
                batch.images, batch.targets, batch.ids.tolist(), batch.slots.tolist(), strict=True
            ):
                photo = source.read(id)
                drawn = augment.draw(DATA, RECIPE.seed, epoch, slot, photo.size)
                assert np.array_equal(image.numpy(), augment.apply(photo, drawn))
                assert target == source.targets[id]
    assert len(straight) == 9 and seen == bad_ids
    assert len(set(used)) > 10  # not one image in the place of all


@OVERSUBSCRIBED
@pytest.mark.parametrize("workers", [1, 3])
def test_replacements_do_not_depend_on_workers(
    root: Path, straight: list[list[Batch]], workers: int
) -> None:
    assert same(batches(root, workers=workers), straight)


@pytest.mark.parametrize("world", [2, 4])
def test_replacements_do_not_depend_on_ranks(
    root: Path, straight: list[list[Batch]], world: int
) -> None:
    """A rank's micro-batches are of the same size here, so they are one rank's, dealt out."""
    ranks = [batches(root, world, rank) for rank in range(world)]
    pieces = [[piece for rank in ranks for piece in rank[n]] for n in range(9)]
    assert same(pieces, straight)


@OVERSUBSCRIBED
@pytest.mark.parametrize(("first", "workers"), [(4, 0), (5, 1)])
def test_replacements_are_the_same_after_a_resume(
    root: Path, straight: list[list[Batch]], first: int, workers: int
) -> None:
    assert same(batches(root, first=first, workers=workers), straight[first:])


def first_pixels(images: Tensor) -> Tensor:
    """A stand-in for a model, whose logits (B, 2) depend on the image."""
    return images.flatten(1)[:, :2]


@OVERSUBSCRIBED
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_evaluation_counts_the_good_ones_alone(root: Path, bad_ids: set[int], workers: int) -> None:
    source = open_source(DATA, "test", root)
    right = 0
    for id in set(range(60)) - bad_ids:
        pixels = augment.test_image(source.read(id), DATA).reshape(-1)
        right += int(pixels[1] > pixels[0]) == source.targets[id]
    counts = evaluate(first_pixels, source, DATA, 7, alone(), workers)
    shown = counts.as_json()
    assert shown.pop("test_loss") > 0
    assert shown == {
        "images": 48,
        "bad_images": 12,
        "top1_correct": right,
        "top5_correct": 48,
        "top1": 100 * right / 48,
        "top5": 100,
    }
    assert set(counts.bad) == {source.name(id) for id in bad_ids}


def test_evaluation_on_ranks_shares_out_bad_images_too(root: Path, bad_ids: set[int]) -> None:
    source = open_source(DATA, "test", root)
    for world in (2, 3):
        parts = [
            batch
            for rank in range(world)
            for batch in loader.test_batches(source, DATA, 7, rank, world, 0)
        ]
        valid = torch.cat([batch.ids[batch.valid] for batch in parts]).tolist()
        assert sorted(valid) == sorted(set(range(60)) - bad_ids)
        assert {id for batch in parts for id in batch.bad.tolist()} == bad_ids


class Threads:
    """Ranks that are threads."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier = world, threading.Barrier(world)
        self.values: list[Any] = [None] * world
        self.collectives = 0

    def rank(self, rank: int) -> "Thread":
        return Thread(self, rank)

    def run(self, body: Any) -> list[Any]:
        """What body(rank) returns or raises on every rank."""
        results: list[Any] = [None] * self.world

        def one(rank: int) -> None:
            try:
                results[rank] = body(Thread(self, rank))
            except TooManyBad as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


class Thread:
    def __init__(self, all: Threads, rank: int) -> None:
        self.all, self.rank, self.world = all, rank, all.world

    def _exchange(self, value: Any) -> list[Any]:
        self.all.values[self.rank] = value
        self.all.barrier.wait(20)
        values = list(self.all.values)
        self.all.collectives += self.rank == 0
        self.all.barrier.wait(20)
        return values

    def agree(self, flag: int) -> int:
        return max(self._exchange(flag))

    def sum(self, values: Tensor) -> Tensor:
        return torch.stack(self._exchange(values)).sum(dim=0)


def saw(*ids: int, valid: bool = True) -> list[Batch]:
    """A micro-batch in which these were bad."""
    empty = torch.zeros(1, dtype=torch.int64)
    return [
        Batch(empty, empty, empty, empty, 0, 0, torch.tensor([valid]), torch.tensor(ids).long())
    ]


def note(bad: BadImages, micro: list[Batch]) -> None:
    """Agree on a batch's flag, and take note of it."""
    ranks: Any = bad.ranks
    bad.saw(micro, ranks.agree(bad.flag(micro)))


def test_numbers_are_gathered_from_all_ranks() -> None:
    parts = [[5, 3], [], [3, 9, 0]]
    ranks = Threads(3)
    found = ranks.run(lambda rank: gather(torch.tensor(parts[rank.rank]).long(), rank).tolist())
    assert found == [[0, 3, 5, 9]] * 3
    assert Threads(2).run(lambda r: gather(torch.zeros(0).long(), r).tolist()) == [[], []]


def test_every_rank_knows_the_bad_images_of_all_and_stops_at_the_same_update(root: Path) -> None:
    source = open_source(DATA, "train", root)
    steps = [  # what two ranks meet: 60 images, of which 5 % are 3
        (saw(4), saw()),
        (saw(), saw()),
        (saw(4), saw(4, 30)),
        (saw(), saw(30)),
        (saw(17), saw(30)),
        (saw(8), saw()),
    ]
    ranks = Threads(2)

    def body(rank: Any) -> object:
        bad, told = BadImages(source, 0.05, rank), []
        for number, step in enumerate(steps):
            before = ranks.collectives
            try:
                note(bad, step[rank.rank])
            except TooManyBad as error:
                return [*told, bad.new_names(), sorted(bad.ids), str(error)]
            told.append(bad.new_names())
            if number in (1, 3) and rank.rank == 0:
                assert ranks.collectives - before == 1, "nothing new costs one flag"
        return "went on"

    one, other = ranks.run(body)
    name = source.name
    assert one == other
    assert one[:-2] == [[name(4)], [], [name(30)], [], [name(17)], [name(8)]]
    assert one[-2] == [4, 8, 17, 30]
    assert one[-1].startswith("4 of 60 training images cannot be read, more than the share of 0.05")
    assert name(4) in one[-1] and one[-1].endswith("--bad-images")


def test_a_share_that_is_reached_exactly_is_allowed(root: Path) -> None:
    bad = BadImages(open_source(DATA, "train", root), 0.05, alone())
    note(bad, saw(0, 1, 2))
    with pytest.raises(TooManyBad):
        note(bad, saw(3))


def test_images_without_a_replacement_stop_every_rank_whatever_the_share(tmp_path: Path) -> None:
    write_folders(tmp_path, "train", [(f"{n}.jpg", n % 2, b"nothing") for n in range(60)])
    (micro,) = batches(tmp_path, first=8)
    assert not any(bool(batch.valid.any()) for batch in micro)
    source = open_source(DATA, "train", tmp_path)
    found = Threads(2).run(lambda r: note(BadImages(source, 1.0, r), micro if r.rank else saw()))
    assert len(found) == 2
    assert all(isinstance(error, TooManyBad) and "--data-root" in str(error) for error in found)


def test_only_bad_images_are_skipped_and_other_faults_are_not_hidden(root: Path) -> None:
    class Faulty:
        def open(self, index: int) -> object:
            raise RuntimeError("a fault of the program")

        def __len__(self) -> int:
            return 60

    source: Any = Faulty()
    with pytest.raises(RuntimeError, match="a fault of the program"):
        next(loader.test_batches(source, DATA, 4, 0, 1, 0))


def command(root: Path, folder: Path, *args: object) -> list[str]:
    """Arguments of training by a recipe file of one's own."""
    path = folder / "own.py"
    path.write_text(f"from bigvit.recipe import *\nphotos = {RECIPE!r}\n")
    options = ("--data-root", root, "--run-dir", folder / "run", "--micro-batch", 8, *args)
    return [f"{path}:photos", *map(str, options)]


def train(root: Path, folder: Path, *args: object) -> int:
    return main(command(root, folder, "--engine", "single", *args))


@OVERSUBSCRIBED
@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_run_lists_what_was_bad(
    root: Path, bad_names: set[str], workers: int, tmp_path: Path
) -> None:
    assert train(root, tmp_path, "--bad-images", 0.2, "--workers", workers) == 0
    assert_trained_on_the_good(tmp_path / "run", bad_names)


def assert_trained_on_the_good(run: Path, bad_names: set[str]) -> None:
    listed = (run / "bad_images.txt").read_text().splitlines()
    tested = {name.replace("train/", "val/", 1) for name in bad_names}
    assert sorted(listed) == sorted(bad_names | tested)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["images"] for line in lines if "images" in line] == [48] * 3
    assert [line["bad_images"] for line in lines if "bad_images" in line] == [12] * 3


@OVERSUBSCRIBED
@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_run_stops_by_itself_at_too_many(
    root: Path, bad_names: set[str], workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(root, tmp_path, "--workers", workers) == 3
    assert_stopped_by_itself(tmp_path / "run", bad_names, capfd.readouterr().err)


def assert_stopped_by_itself(run: Path, bad_names: set[str], said: str) -> None:
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["update"]) == ("error", 3, 0)
    assert "of 60 training images cannot be read" in status["reason"]
    assert status["reason"] in said
    listed = (run / "bad_images.txt").read_text().splitlines()
    assert listed and set(listed) <= bad_names


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_through_deepspeed_a_run_lists_them_or_stops(
    root: Path, bad_names: set[str], workers: int, tmp_path: Path, launch: Any
) -> None:
    args = command(root, tmp_path, "--workers", workers)
    done = launch(2, "scripts/train.py", *args, "--bad-images", 0.2)
    assert done.code == 0, done.output
    assert_trained_on_the_good(tmp_path / "run", bad_names)
    (tmp_path / "run").rename(tmp_path / "first")
    done = launch(2, "scripts/train.py", *args)
    assert done.code == 3, done.output
    assert_stopped_by_itself(tmp_path / "run", bad_names, done.output)


@pytest.mark.usefixtures("own_signals")
def test_a_resumed_run_lists_nothing_twice(root: Path, bad_names: set[str], tmp_path: Path) -> None:
    args = ("--bad-images", 0.2, "--workers", 0)
    assert train(root, tmp_path, *args, "--stop-after", 5) == 85
    assert train(root, tmp_path, *args, "--resume", "auto") == 0
    listed = (tmp_path / "run" / "bad_images.txt").read_text().splitlines()
    assert len(listed) == len(set(listed)) == 24


def test_a_good_data_set_reports_nothing(tmp_path: Path) -> None:
    write_folders(tmp_path, "train", jpegs(60))
    assert all(len(batch.bad) == 0 for micro in batches(tmp_path) for batch in micro)


def test_a_bad_image_is_said_by_its_source(root: Path, bad_ids: set[int]) -> None:
    source: Source = open_source(replace(DATA), "train", root)
    for id in bad_ids:
        with pytest.raises(BadImage) as caught:
            source.read(id)
        assert caught.value.name == source.name(id)
