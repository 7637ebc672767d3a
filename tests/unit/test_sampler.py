"""The order of images: what an epoch holds, and how far copies of an image stand apart."""

from collections import Counter

import numpy as np
import pytest
from each import each_of

from bigvit.data.sampler import Sampler


def epoch_of(sampler: Sampler, epoch: int) -> tuple[list[int], list[int]]:
    """All (slots, ids) of an epoch, in the order of its batches."""
    slots: list[int] = []
    ids: list[int] = []
    for within in range(sampler.batches_per_epoch):
        said, some_slots, some_ids = sampler.batch(epoch * sampler.batches_per_epoch + within)
        assert said == epoch
        assert len(some_slots) == len(some_ids) == sampler.batch_size
        slots.extend(some_slots.tolist())
        ids.extend(some_ids.tolist())
    return slots, ids


@each_of("batch_size", range(1, 101))
def test_an_epoch_of_100_images_uses_each_slot_once_at_any_batch_size(batch_size: int) -> None:
    sampler = Sampler(100, 1, batch_size, 0)
    used = 100 // batch_size * batch_size
    for epoch in (0, 1):
        slots, ids = epoch_of(sampler, epoch)
        assert sorted(slots) == list(range(used))
        assert len(set(ids)) == used
        assert set(ids) <= set(range(100))


def test_a_whole_epoch_is_a_permutation() -> None:
    slots, ids = epoch_of(Sampler(100, 1, 10, 0), 0)
    assert sorted(ids) == list(range(100))
    assert ids != sorted(ids)
    assert sorted(slots) == list(range(100))


def test_what_is_left_over_differs_between_epochs() -> None:
    sampler = Sampler(100, 1, 64, 0)
    left = [frozenset(range(100)) - set(epoch_of(sampler, epoch)[1]) for epoch in range(4)]
    assert len(set(left)) == 4


@each_of("repeats", [2, 3, 5])
@each_of("batch_size", [1, 7, 30, 32, 64, 99])
def test_with_repeats_a_slot_holds_copy_s_mod_r_of_image_s_div_r(
    repeats: int, batch_size: int
) -> None:
    sampler = Sampler(100, repeats, batch_size, 3)
    plain = dict(zip(*epoch_of(Sampler(100, 1, 100, 3), 1), strict=True))
    slots, ids = epoch_of(sampler, 1)
    assert sorted(slots) == list(range(100 // batch_size * batch_size))
    assert all(id == plain[slot // repeats] for slot, id in zip(slots, ids, strict=True))


@each_of("repeats", [1, 2, 3, 4])
@each_of("batch_size", [8, 9, 10, 11, 25, 31])
def test_a_batch_is_a_run_of_slots_in_the_order_of_copy_and_permutation(
    repeats: int, batch_size: int
) -> None:
    sampler = Sampler(100, repeats, batch_size, 0)
    for number in range(sampler.batches_per_epoch):
        _, slots, ids = sampler.batch(number)
        assert sorted(slots) == list(range(number * batch_size, (number + 1) * batch_size))
        order = [(slot % repeats, slot // repeats) for slot in slots.tolist()]
        assert order == sorted(order)


def test_neighbours_are_not_in_the_order_of_image_numbers() -> None:
    """Class folders number images by class, and neighbours are mixed with each other."""
    _, _, ids = Sampler(10_000, 3, 2048, 0).batch(0)
    steps = np.abs(np.diff(ids[:600]))
    assert 2_000 < steps.mean() < 4_600  # a third of the images, as for independent ones


@pytest.mark.parametrize("repeats", [2, 3, 4, 5])
def test_copies_of_an_image_stand_at_least_batch_div_repeats_apart(repeats: int) -> None:
    """So a group of up to that many consecutive samples never holds two of them."""
    closest = set()
    for batch_size in range(repeats, 34):
        sampler = Sampler(100, repeats, batch_size, 0)
        for number in range(2 * sampler.batches_per_epoch):
            _, _, ids = sampler.batch(number)
            for image in np.unique(ids):
                apart = np.diff(np.flatnonzero(ids == image))
                assert (apart >= batch_size // repeats).all()
                closest.update((apart - batch_size // repeats).tolist())
    assert min(closest) == 0  # no farther: groups of batch // repeats are the largest that work


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    first = Sampler(100, 3, 24, 0)
    orders = [epoch_of(first, epoch) for epoch in (0, 1, 2)]
    again = Sampler(100, 3, 24, 0)
    assert [epoch_of(again, epoch) for epoch in (2, 0, 1)] == [orders[i] for i in (2, 0, 1)]
    other = epoch_of(Sampler(100, 3, 24, 1), 0)
    assert len({tuple(ids) for _, ids in (*orders, other)}) == 4


def test_batches_may_be_asked_for_in_any_order() -> None:
    sampler, straight = Sampler(50, 2, 8, 0), Sampler(50, 2, 8, 0)
    wanted = [straight.batch(number) for number in range(14)]
    for number in (13, 0, 7, 6, 1, 12):
        epoch, slots, ids = sampler.batch(number)
        assert epoch == wanted[number][0]
        assert np.array_equal(slots, wanted[number][1])
        assert np.array_equal(ids, wanted[number][2])


def of_kinds(standing: int, batch_size: int, repeats: int = 1, seed: int = 0) -> Sampler:
    """Of 100 images, of which so many stand, wherever they are listed."""
    kinds = np.random.default_rng(standing).permutation(100) < standing
    return Sampler(100, repeats, batch_size, seed, kinds)


@each_of("standing", [0, 1, 5, 16, 26, 50, 99, 100])
@each_of("batch_size", [1, 8, 16, 30, 64, 100])
@each_of("repeats", [1, 3])
def test_a_batch_is_of_one_kind_and_each_slot_is_used_once(
    repeats: int, batch_size: int, standing: int
) -> None:
    """An epoch is as long as without kinds; one batch at most is filled, by images of its kind."""
    sampler = of_kinds(standing, batch_size, repeats)
    assert sampler.standing is not None
    for epoch in range(4):
        slots, ids = epoch_of(sampler, epoch)
        assert len(slots) == 100 // batch_size * batch_size == len(set(slots))
        starts = range(0, len(slots), batch_size)
        assert sum(max(slots[i : i + batch_size]) >= 100 for i in starts) <= 1
        assert all(len(set(sampler.standing[ids[i : i + batch_size]])) == 1 for i in starts)
        order = sampler._order  # pyright: ignore[reportPrivateUsage]
        own = [id for slot, id in zip(slots, ids, strict=True) if slot < 100]
        assert own == [order[slot // repeats] for slot in slots if slot < 100]
        assert max(Counter(own).values()) <= repeats
        again = [id for slot, id in zip(slots, ids, strict=True) if slot >= 100]
        for kind in set(sampler.standing[again]) if repeats == 1 else ():
            # nothing is filled before all have been seen
            seen = {id for id in ids if sampler.standing[id] == kind}
            assert seen == set(np.flatnonzero(sampler.standing == kind))


def test_images_of_each_kind_are_seen_equally_often_however_few_they_are() -> None:
    epochs = 300
    for standing, batch_size in ((1, 16), (26, 30)):
        sampler, seen = of_kinds(standing, batch_size), np.zeros(100)
        for epoch in range(epochs):
            np.add.at(seen, epoch_of(sampler, epoch)[1], 1)
        assert sampler.standing is not None and seen.min() > 0
        often = [seen[sampler.standing == kind].mean() / epochs for kind in (False, True)]
        assert often == pytest.approx([100 // batch_size * batch_size / 100] * 2, rel=0.25)


def test_all_of_one_kind_come_as_without_kinds() -> None:
    plain = Sampler(100, 3, 24, 0)
    for standing in (0, 100):
        of_one = of_kinds(standing, 24, 3)
        assert [epoch_of(of_one, epoch) for epoch in (0, 1, 2)] == [
            epoch_of(plain, epoch) for epoch in (0, 1, 2)
        ]


def test_batches_of_kinds_may_be_asked_for_in_any_order() -> None:
    sampler, straight = of_kinds(26, 16), of_kinds(26, 16)
    wanted = [straight.batch(number) for number in range(18)]
    for number in (13, 0, 17, 6, 1, 12, 5):
        for found, own in zip(sampler.batch(number), wanted[number], strict=True):
            assert np.array_equal(found, own)


def test_what_a_batch_is_filled_with_is_varied_anew() -> None:
    sampler = of_kinds(10, 16)
    for epoch in range(20):
        slots, ids = epoch_of(sampler, epoch)
        twice = [slot for slot in slots if slot >= 100]
        if len(twice) == 6:
            first = [ids[slots.index(slot - 100)] for slot in twice]
            assert first == [ids[slots.index(slot)] for slot in twice]
            return
    raise AssertionError("no batch was filled")
