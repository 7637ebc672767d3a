"""torch's own sharding and fairscale: the same weights as `single`, on 1, 2 and 4 ranks; resumed
exactly, also where another engine wrote the checkpoint."""

import json
from pathlib import Path

import guards
import others
import pytest
import test_lamb
import tiny
import torch
from reference import Weights, distance, train_single, trained
from test_equality import YARDSTICK
from test_resume import assert_equal
from timm import create_model

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.checkpoint.model import read_checkpoint
from bigvit.evaluate import evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.task import Task

RANKS = Path(__file__).with_name("ranks.py")
YARDSTICKS = {"adamw": YARDSTICK, "lamb": test_lamb.YARDSTICK}
ALLOWED = 10


@pytest.fixture(scope="module")
def reference() -> dict[str, Weights]:
    return {name: train_single(recipe)[0] for name, recipe in others.RECIPES.items()}


@pytest.fixture(scope="module")
def on_two(warm, tmp_path_factory) -> Path:
    """Folder of what two ranks show in the ordinary tests."""
    folder = tmp_path_factory.mktemp("others")
    names = [scenario.__name__ for scenario in others.ORDINARY]
    done = warm(2, RANKS, folder, *names, timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def more_on_two(warm, on_two) -> Path:
    """The same folder, after two ranks showed the rest: by what `single` has in common with these
    engines, or DeepSpeed's tests, the ordinary ones have most of it."""
    names = [scenario.__name__ for scenario in others.MORE]
    done = warm(2, RANKS, on_two, *names, "others_ranks", timeout=600)
    assert done.code == 0, done.output
    return on_two


@pytest.fixture(scope="module")
def on_four(warm, on_two) -> Path:
    """The same folder, after four ranks."""
    done = warm(4, RANKS, on_two, "others", timeout=600)
    assert done.code == 0, done.output
    return on_two


@pytest.fixture(scope="module")
def on_one(warm, on_two) -> Path:
    """The same folder, after one rank."""
    done = warm(1, RANKS, on_two, "others", timeout=600)
    assert done.code == 0, done.output
    return on_two


def assert_near(run: Path, reference: dict[str, Weights], name: str) -> None:
    """Weights and their average, those of `single`."""
    for kind, prefix in (("weight", ""), ("ema", "ema ")):
        found = trained(run, tiny.UPDATES, kind)
        apart = distance(found, {key: reference[name][prefix + key] for key in found})
        print(f"{run.name}, {kind}: {apart / YARDSTICKS[name]:.2f} yardsticks")
        assert apart <= ALLOWED * YARDSTICKS[name]


ALL = [(name, way) for name in others.RECIPES for way in others.WAYS]


@pytest.mark.parametrize(
    ("name", "way", "where"),
    [
        (name, way, "on_two")
        if way in others.ON_TWO[name]
        else pytest.param(name, way, "more_on_two", marks=pytest.mark.slow)
        for name, way in ALL
    ],
)
def test_two_ranks_equal_single(name, way, where, request, reference):
    assert_near(request.getfixturevalue(where) / f"{name} {way} 2", reference, name)


@pytest.mark.slow
@pytest.mark.parametrize("way", others.ON_FOUR)
@pytest.mark.parametrize("name", others.RECIPES)
def test_four_ranks_equal_single(name, way, on_four, reference):
    assert_near(on_four / f"{name} {way} 4", reference, name)


@pytest.mark.slow
@pytest.mark.parametrize("way", others.EACH)
@pytest.mark.parametrize("name", others.RECIPES)
def test_one_rank_is_single(name, way, on_one, reference):
    run = on_one / f"{name} {way} 1"
    assert_near(run, reference, name)
    found = trained(run)
    assert distance(found, {key: reference[name][key] for key in found}) == 0


@pytest.mark.parametrize("name", others.RECIPES)
def test_a_run_goes_from_engine_to_engine(name, on_two, reference):
    assert_near(on_two / f"chain {name}", reference, name)


@pytest.mark.slow
@pytest.mark.parametrize("option", others.OPTIONS)
def test_what_else_torch_shards_equals_single(option, more_on_two, reference):
    assert_near(more_on_two / f"fsdp2 {option}", reference, "lamb")


@pytest.mark.slow
@pytest.mark.parametrize("way", others.WAYS)
def test_stopped_in_mid_epoch_and_resumed(way, more_on_two):
    assert_equal(more_on_two / f"halves {way}", more_on_two / f"lamb {way} 2")
    assert_equal(more_on_two / f"bf16 halves {way}", more_on_two / f"bf16 {way}", tiny.SHORT)


@pytest.mark.parametrize("way", others.EACH)
def test_an_fp16_overflow_skips_one_update_and_a_resumed_run_has_its_bits(way, on_two):
    updates = tiny.SHORT
    run = on_two / f"fp16_{way}"
    manifest = read_manifest(run / "checkpoints" / step_name(updates))
    assert (manifest.batch, manifest.update) == (updates, updates - 1)
    assert manifest.scalars["optimizer_steps"] == updates - 1
    assert manifest.scalars["loss_scale"] == 2**15
    assert_equal(on_two / f"fp16_halves_{way}", run, updates)


@pytest.mark.slow
def test_engines_are_close_in_half_precision(more_on_two):
    for kind in ("bf16 ", "fp16_"):
        one, other = (trained(more_on_two / f"{kind}{way}", tiny.SHORT) for way in others.EACH)
        assert 0 < distance(one, other) < 2e-2


@pytest.mark.slow
def test_statistics_are_those_of_deepspeed(more_on_two):
    first, *rest = (trained(more_on_two / f"cvt {way}", tiny.SHORT) for way in (2, *others.EACH))
    for found in rest:
        assert distance(found, first) <= ALLOWED * YARDSTICK


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_every_engine_starts_from_the_same_weights(more_on_two):
    found = read(more_on_two, "initial_weights_2.json")
    for which in ("", "working "):
        for kind in guards.PRECISIONS:
            digests = [found[f"{which}{kind} {way}"] for way in others.WAYS]
            assert digests == [digests[0]] * len(digests)
    given = read(more_on_two, "given_weights.json")
    assert all(given[way] == given["given"] for way in others.EACH)


@pytest.mark.slow
def test_what_stops_a_run_leaves_every_weight_as_it_was(more_on_two):
    for key, (outcome, everywhere, unchanged) in read(more_on_two, "jumped.json").items():
        assert outcome.startswith("LossJumped" if "jump" in key else "NotFinite"), key
        assert everywhere and unchanged, key
    for key, (outcome, unchanged) in read(more_on_two, "not_finite.json").items():
        assert "the gradient norm is not finite; the update was not applied" in outcome, key
        assert unchanged, key


@pytest.mark.slow
@pytest.mark.parametrize("way", others.WAYS)
def test_the_average_takes_the_weights_place_and_gives_it_back(way, more_on_two):
    wrong = read(more_on_two, "averages.json")[way]
    assert wrong == dict.fromkeys(wrong, 0)


@pytest.mark.slow
def test_evaluation_counts_every_image_once(more_on_two):
    counts = read(more_on_two, "counts_2.json")
    assert counts["fsdp2 full"] == counts["fairscale sdp"]
    assert counts["fsdp2 full"]["images"] == 103


@pytest.mark.parametrize("way", others.EACH)
def test_a_run_is_evaluated_and_exported_as_any_other(way, on_two, tmp_path):
    run = on_two / f"adamw {way} 2"
    folder = run / "checkpoints" / step_name(tiny.UPDATES)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if "top1" in line][-1]
    assert evaluate_checkpoint(folder, 60)["top1_correct"] == logged["top1_correct"]
    export(folder, tmp_path / "export")
    theirs = create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True).eval()
    task = Task(others.adamw)
    task.model.load_state_dict(read_checkpoint(folder).model)
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(images), task.model(images).logits, rtol=1e-5, atol=1e-5)
