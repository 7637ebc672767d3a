"""Random choices by key: the streams are pinned, as runs of the past must go on unchanged."""

from itertools import permutations

import numpy as np

from bigvit import keyed_random


def test_the_streams_of_a_key_are_pinned() -> None:
    assert keyed_random.bits(4, "test", 0, 1).tolist() == [
        3951112991089759388,
        2545999588656154466,
        4813297367760031212,
        17734292149265722446,
    ]
    assert (keyed_random.uniform(4, "test", 0, 1) * 2.0**53).astype(np.int64).tolist() == [
        1929254390180546,
        1243163861648512,
        2350242855351577,
        8659322338508653,
    ]
    assert keyed_random.permutation(10, "test", 0, 1).tolist() == [5, 6, 1, 9, 0, 2, 8, 4, 7, 3]
    assert keyed_random.seed("test", 0, 1) == 1975556495544879694


def test_a_shorter_draw_is_the_beginning_of_a_longer_one() -> None:
    assert keyed_random.bits(3, "test").tolist() == keyed_random.bits(10, "test").tolist()[:3]


def test_the_same_key_gives_the_same_numbers_whatever_was_drawn_between() -> None:
    first = keyed_random.bits(8, "test", 3)
    keyed_random.bits(5, "other", 4)
    np.random.seed(0)
    assert np.array_equal(keyed_random.bits(8, "test", 3), first)


def test_every_part_of_a_key_and_its_place_count() -> None:
    keys = [
        *permutations(("test", 0, 1)),
        ("test", 0),
        ("test", 1, 1),
        ("test", 10, 1),
        ("test", 1, 0, 1),
        ("test", "0", 1),
        ("test", 0, "1"),
        ("test01",),
        ("other", 0, 1),
    ]
    assert len({keyed_random.seed(*key) for key in keys}) == len(keys)


def test_streams_of_neighbouring_keys_are_independent() -> None:
    a, b = keyed_random.uniform(20_000, "test", 0), keyed_random.uniform(20_000, "test", 1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / 20_000**0.5
    firsts = np.array([keyed_random.uniform(1, "test", i)[0] for i in range(5_000)])
    assert abs(firsts.mean() - 0.5) < 4 / (12 * 5_000) ** 0.5
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 4 / 5_000**0.5


def test_uniform_numbers_fill_zero_to_one() -> None:
    u = keyed_random.uniform(100_000, "test")
    assert u.dtype == np.float64
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, bins=10, range=(0, 1))[0]
    assert (abs(counts - 10_000) < 4 * (100_000 * 0.1 * 0.9) ** 0.5).all()


def test_a_permutation_holds_every_number_once() -> None:
    for n in (0, 1, 2, 1000):
        assert sorted(keyed_random.permutation(n, "test", n).tolist()) == list(range(n))


def test_every_order_of_three_is_equally_likely() -> None:
    count = 6_000
    orders = [tuple(keyed_random.permutation(3, "test", i).tolist()) for i in range(count)]
    for order in permutations(range(3)):
        assert abs(orders.count(order) - count / 6) < 4 * (count * 5 / 36) ** 0.5


def test_a_seed_fits_a_signed_64_bit_number() -> None:
    seeds = [keyed_random.seed("test", i) for i in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    assert all(type(seed) is int for seed in seeds)
