"""A follower, further views and what an objective keeps are the same under every engine, and in a
checkpoint that goes on elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import followed
import pytest
import tiny
import torch
from reference import distance, train_single
from test_equality import ALLOWED, YARDSTICK

from bigvit.checkpoint.load import Stored, _read
from bigvit.checkpoint.manifest import read_manifest, step_name

RANKS = Path(__file__).with_name("ranks.py")
KINDS = ("weight", "ema", "kept")
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    with followed.known():
        yield


@pytest.fixture(scope="module")
def runs(warm, tmp_path_factory) -> Path:
    """Runs on two ranks; the stopped ones, resumed on one."""
    folder = tmp_path_factory.mktemp("followed")
    for world, name in ((2, "followed"), (1, "followed_halves")):
        done = warm(world, RANKS, folder, name, timeout=600)
        assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def reference() -> Weights:
    return train_single(followed.recipe, kinds=KINDS)[0]


def held(run: Path, updates: int = tiny.UPDATES) -> Weights:
    """All that a run left, as `train_single` has it."""
    folder = run / "checkpoints" / step_name(updates)
    manifest = read_manifest(folder)
    files, found = Stored(folder, manifest).files, Weights()
    for row in manifest.tensors:
        for kind in set(row.kinds) & set(KINDS):
            tensor = torch.empty(row.size)
            _read(files, row, f"{kind}/{row.name}", 0, tensor)
            name = row.name if kind == "weight" else f"{kind} {row.name}"
            found[name] = tensor.view(row.shape)
    return found


@pytest.mark.parametrize("way", followed.WAYS)
def test_an_engine_equals_single(way, runs, reference):
    found = held(runs / f"followed {way}")
    assert not any("follower" in name for name in found)
    for kind in ("", "ema ", "kept "):
        own, theirs = (
            {n: w for n, w in each.items() if n.startswith(kind) and (kind or " " not in n)}
            for each in (found, reference)
        )
        apart = distance(own, theirs)
        print(f"{way}, {kind or 'weights'}: {apart:.2e}, {apart / YARDSTICK:.2f} yardsticks")
        assert apart <= ALLOWED * YARDSTICK


@pytest.mark.parametrize("way", followed.HALVES)
def test_resumed_on_another_number_of_ranks(way, runs):
    found, whole = held(runs / f"followed halves {way}"), held(runs / f"followed {way}")
    apart = distance(found, whole)
    print(f"{way}: {apart:.2e}, {apart / YARDSTICK:.2f} yardsticks")
    assert apart <= ALLOWED * YARDSTICK


def test_what_changes_lies_far_away(reference):
    """A follower that stood still, views that are swapped, a table that is forgotten."""

    def still(engine):
        engine.masters.optimizer.register_step_post_hook(
            lambda *_: [p.zero_() for p in engine.task.following().values()]
        )

    for name, change in (("a follower of zeros", still),):
        apart = distance(train_single(followed.recipe, change=change, kinds=KINDS)[0], reference)
        print(f"{name}: {apart / YARDSTICK:.0f} yardsticks")
        assert apart > 100 * YARDSTICK
