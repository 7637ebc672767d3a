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
from bigvit.data.class_weights import weights_for
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import fill, outline
from bigvit.engines.ema import averaged
from bigvit.engines.engine import NotFinite, Pending
from bigvit.engines.single import SingleEngine
from bigvit.models import build
from bigvit.models.follower import Follower
from bigvit.ranks.joining import alone
from bigvit.recipe import AveragePooling, Recipe, ResNet
from bigvit.task import Task

RANKS = Path(__file__).with_name("ranks.py")
KINDS = ("weight", "ema", "kept")
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    with followed.known():
        yield


@pytest.fixture(scope="module")
def runs(warm, tmp_path_factory) -> Path:
    """Runs on two ranks; the stopped ones, resumed on one. Of Grafit and DINO, ordinary tests have
    the same."""
    return made(warm, tmp_path_factory.mktemp("followed"), "followed", "followed_halves")


def made(warm, folder: Path, on_two: str, on_one: str) -> Path:
    for world, name in ((2, on_two), (1, on_one)):
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("way", followed.HALVES)
def test_resumed_on_another_number_of_ranks(way, runs):
    found, whole = (held(runs / f"followed {each}{way}") for each in ("halves ", ""))
    apart = distance(found, whole)
    print(f"{way}: {apart:.2e}, {apart / YARDSTICK:.2f} yardsticks")
    assert apart <= ALLOWED * YARDSTICK


@pytest.mark.slow
def test_four_ranks_equal_single(warm, runs, reference):
    done = warm(4, RANKS, runs, "followed_elsewhere", timeout=600)
    assert done.code == 0, done.output
    for way in followed.HALVES:
        for name in (f"followed {way} of 4", f"followed elsewhere {way}"):
            apart = distance(held(runs / name), reference)
            print(f"{name}: {apart:.2e}, {apart / YARDSTICK:.2f} yardsticks")
            assert apart <= ALLOWED * YARDSTICK


@pytest.mark.slow
@pytest.mark.parametrize("way", followed.HALVES)
def test_resumed_on_as_many_ranks_bit_for_bit(way, runs):
    found, whole = held(runs / f"followed again {way}"), held(runs / f"followed {way}")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_bf16_follows_too(runs, reference):
    """Weights round to bf16 for each forward pass: close to what float32 gives, and no nearer."""
    found = held(runs / "followed bf16")
    apart = distance(found, reference)
    print(f"bf16: {apart:.2e}")
    assert 1e-5 < apart < 0.05


def engine_of(recipe: Recipe) -> SingleEngine:
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    fill(engine, outline(recipe).initial_weight)
    return engine


def batches_of(engine: SingleEngine, recipe: Recipe) -> Iterator[list[Pending]]:
    source, draws = DigitsSource("train"), engine.task.draws
    prepare = Prepare(recipe, engine.ranks.device, None, weights_for(recipe, source))
    for micro in train_batches(source, recipe, tiny.cut(recipe, 1), 0, 0, 0, draws):
        yield prepare.later(micro)


def averages(engine: SingleEngine) -> Weights:
    return {p.name: p.view.view(p.shape) for p in engine.slices() if p.kind == "ema"}


@pytest.mark.parametrize("recipe", [followed.recipe, followed.half], ids=["fp32", "bf16"])
def test_a_follower_is_the_average_in_the_models_type(recipe):
    engine = engine_of(recipe)
    batches = batches_of(engine, recipe)
    for _ in range(2):
        follower = engine.task.following()
        assert follower.keys() < engine.task.own_parameters().keys()
        assert not any("last" in name for name in follower)  # only what is followed
        for name, average in averages(engine).items():
            if name in follower:
                assert torch.equal(follower[name], average.to(follower[name].dtype))
        engine.update(next(batches), recipe.rates(3))
    before = {name: p.clone() for name, p in engine.task.following().items()}
    with averaged(engine):
        pass
    assert all(torch.equal(p, before[name]) for name, p in engine.task.following().items())


@pytest.mark.parametrize("how", ["not finite", "refused"])
def test_a_refused_update_leaves_nothing(how):
    """Neither of what forward passes noted, nor of the follower."""
    recipe = followed.recipe
    engine, again = engine_of(recipe), engine_of(recipe)
    given, same = batches_of(engine, recipe), batches_of(again, recipe)
    for each, from_ in ((engine, given), (again, same)):
        each.update(next(from_), recipe.rates(0))
    before = [part.view.clone() for part in engine.slices()]
    spoiled = engine.task.objectives["followed"]

    def refuse(loss: float) -> None:
        raise ValueError(loss)

    hook = spoiled.register_forward_hook(lambda *_: torch.tensor(float("nan")) * _[2])
    if how == "refused":
        hook.remove()
    with pytest.raises(NotFinite if how == "not finite" else ValueError):
        engine.update(next(given), recipe.rates(1), refuse if how == "refused" else None)
    hook.remove()
    assert spoiled.noted == []
    after = [part.view for part in engine.slices()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    next(same)
    for each, from_ in ((engine, given), (again, same)):
        each.update(next(from_), recipe.rates(2))
    assert all(
        torch.equal(a.view, b.view) for a, b in zip(engine.slices(), again.slices(), strict=True)
    )


def test_batch_norm_of_a_follower_goes_by_its_batch_and_keeps_nothing():
    model = ResNet((1, 1), AveragePooling(), None, False, 3, 10)
    follower = Follower(build(model, 32), {})
    torch.manual_seed(0)
    for p in follower.parameters():
        p.copy_(torch.randn_like(p) * 0.05) if p.requires_grad else p.data.normal_(0, 0.05)
    assert not list(follower.named_buffers())
    images = torch.randn(2, 3, 3, 32, 32)
    own = build(model, 32)
    own.load_state_dict(follower.model.state_dict(), strict=False)
    wanted = own(images.flatten(0, 1)).cls.unflatten(0, (2, 3))  # in training: the batch's
    found = follower({1: images})[""][1]
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-5)
    follower.eval()
    torch.testing.assert_close(follower({1: images})[""][1], found, rtol=0, atol=0)
