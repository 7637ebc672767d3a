"""Dense relative localization under ZeRO: head and backbone equal `single`, and resume exactly."""

import json
from dataclasses import replace
from pathlib import Path

import localization
import pytest
import tiny
import torch
from reference import distance, train_single, trained
from test_equality import ALLOWED, YARDSTICK
from test_resume import assert_equal
from timm import create_model

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.checkpoint.model import read_checkpoint
from bigvit.evaluate import evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.task import Task

RANKS = Path(__file__).with_name("ranks.py")
UPDATES = {"drloc": tiny.SHORT, "cvt": localization.cvt.updates}
# largest of five orders of summation, torch 2.14.1 on an x86-64 CPU, where BatchNorm stands still
OF_FROZEN = 6.0e-8
FIRST = "model.conv1.", "model.bn1."


@pytest.fixture(scope="session")
def reference():
    return train_single(localization.vit)[0]


def of_head(weights):
    return {name: weight for name, weight in weights.items() if name.startswith("heads.")}


@pytest.mark.parametrize("stage", localization.STAGES)
@pytest.mark.parametrize("kind", ["weight", "ema"])
def test_backbone_and_head_equal_single(stage, kind, drloc_ranks, reference):
    found = trained(drloc_ranks / f"drloc_{stage}", UPDATES["drloc"], kind)
    prefix = "ema " if kind == "ema" else ""
    wanted = {name: reference[prefix + name] for name in found}
    for what, one, other in (("all", found, wanted), ("head", of_head(found), of_head(wanted))):
        print(f"stage {stage}, {what}: {distance(one, other) / YARDSTICK:.2f} yardsticks")
        assert distance(one, other) <= ALLOWED * YARDSTICK
    assert len(of_head(found)) == 6
    fresh = Task(localization.vit)
    fresh.init_weights()
    assert all(not torch.equal(p, found[n]) for n, p in fresh.named_parameters())


def test_a_wrong_weight_of_the_loss_lies_far_away(reference):
    cross, drloc = localization.vit.objectives
    heavier = replace(localization.vit, objectives=(cross, replace(drloc, weight=0.55)))
    found = distance(train_single(heavier)[0], reference)
    print(f"a tenth more: {found / YARDSTICK:.0f} yardsticks")
    assert found > 10 * ALLOWED * YARDSTICK


@pytest.mark.parametrize(("model", "stage"), localization.HALVES.items())
def test_stopped_in_mid_epoch_and_resumed(model, stage, drloc_ranks):
    halves, whole = drloc_ranks / f"{model}_halves_{stage}", drloc_ranks / f"{model}_{stage}"
    assert_equal(halves, whole, updates=UPDATES[model])


@pytest.mark.slow
def test_stopped_in_mid_epoch_and_resumed_at_the_other_stages(drloc_ranks, warm):
    """test_resume.py has every stage, and above are both models: this is the rest of the square."""
    done = warm(2, RANKS, drloc_ranks, "other_halves")
    assert done.code == 0, done.output
    for model, stage in (("drloc", 2), ("cvt", 3)):
        halves, whole = drloc_ranks / f"{model}_halves_{stage}", drloc_ranks / f"{model}_{stage}"
        assert_equal(halves, whole, updates=UPDATES[model])


def test_resnet_is_trained_and_saved_with_its_statistics_at_stage_3(drloc_ranks):
    found, fresh = trained(drloc_ranks / "resnet", 3), Task(localization.BACKBONES["resnet"])
    assert found.keys() == dict(fresh.named_parameters()).keys() | fresh.statistics().keys()
    assert all(not torch.equal(found[name], fresh.initial_weight(name)) for name in found)


@pytest.mark.parametrize("name", ["swin", "t2t"])  # ResNet sees other batches on two ranks
def test_other_backbones_and_their_heads_equal_single_at_stage_3(name, drloc_ranks):
    single = train_single(localization.BACKBONES[name])[0]
    found = trained(drloc_ranks / name, tiny.SHORT)
    print(f"{name}: {distance(found, single) / YARDSTICK:.2f} yardsticks")
    assert distance(found, single) <= ALLOWED * YARDSTICK


@pytest.fixture(scope="module")
def of_frozen():
    return single_of_frozen(localization.frozen)


def single_of_frozen(recipe, order=None):
    updates, micro_batch = localization.FROZEN_UPDATES, localization.FROZEN_MICRO_BATCH
    return train_single(recipe, order, updates=updates, micro_batch=micro_batch)[0]


def assert_frozen(run, of_frozen):
    """Two ranks as one; statistics, stem and first stage have their bits."""
    found = trained(run, localization.FROZEN_UPDATES)
    task, statistics = Task(localization.frozen), dict(Task(localization.frozen).statistics())
    assert len(statistics) == 18 and not task.gathered()
    still = {n for n, p in task.named_parameters() if not p.requires_grad}
    assert still == {n for n in of_frozen if ".layer1." in n or n.startswith(FIRST)}
    for name in found:
        changed = not torch.equal(found[name], task.initial_weight(name))
        assert changed == (name not in still | statistics.keys()), name
    apart = distance({name: found[name] for name in of_frozen}, of_frozen)
    print(f"{run.name}: {apart:.1e}, {apart / OF_FROZEN:.2f} yardsticks")
    assert apart <= ALLOWED * OF_FROZEN


@pytest.mark.parametrize("way", localization.FROZEN_WAYS)
def test_with_frozen_statistics_two_ranks_equal_one(way, drloc_ranks, of_frozen):
    assert_frozen(drloc_ranks / f"frozen {way}", of_frozen)


@pytest.mark.slow
def test_with_frozen_statistics_the_other_ways_equal_one(drloc_ranks, of_frozen, warm):
    done = warm(2, RANKS, drloc_ranks, "frozen_statistics_too", timeout=600)
    assert done.code == 0, done.output
    for way in localization.FROZEN_TOO:
        assert_frozen(drloc_ranks / f"frozen {way}", of_frozen)


@pytest.mark.slow
def test_with_frozen_statistics_orders_lie_near_and_gathering_far(of_frozen):
    recipe = localization.frozen
    seen = [distance(single_of_frozen(recipe, order), of_frozen) for order in (0, 1, 2)]
    gathering = replace(recipe, model=replace(recipe.model, frozen_statistics=False))
    apart = distance(single_of_frozen(gathering), of_frozen)
    print(seen, f"gathering: {apart / OF_FROZEN:.0f} yardsticks")
    assert 0 < max(seen) <= 2 * OF_FROZEN
    assert apart > 100 * OF_FROZEN


@pytest.mark.parametrize("stage", localization.STAGES)
def test_statistics_are_saved_whole_once_and_averaged_over_ranks(stage, drloc_ranks):
    folder = drloc_ranks / f"cvt_{stage}" / "checkpoints" / step_name(UPDATES["cvt"])
    saved = [row for row in read_manifest(folder).tensors if "buffer" in row.kinds]
    task = Task(localization.cvt)
    assert [row.name for row in saved] == list(task.statistics()) != []
    assert all(row.kinds == {"buffer": "F32"} for row in saved)
    assert {row.cuts for row in saved} == {((0, 1, row.size),) for row in saved}
    _, weights = read_weights(folder)
    assert all(not torch.equal(weights[row.name], task.initial_weight(row.name)) for row in saved)
    found = evaluate_checkpoint(folder, 60)
    lines = (drloc_ranks / f"cvt_{stage}" / "metrics.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if "top1" in line][-1]
    assert (found["top1_correct"], found["images"]) == (logged["top1_correct"], logged["images"])


def test_statistics_are_the_same_at_every_stage(drloc_ranks):
    one, other = (trained(drloc_ranks / f"cvt_{s}", UPDATES["cvt"]) for s in localization.STAGES)
    assert distance(other, one) <= ALLOWED * YARDSTICK


def test_statistics_stay_float32_in_bf16(drloc_ranks):
    weights = trained(drloc_ranks / "cvt_bf16", 2)
    for name in Task(localization.cvt_bf16).statistics():
        assert not torch.equal(weights[name], weights[name].bfloat16().float()), name


def test_a_checkpoint_is_exported_without_the_head(drloc_ranks, tmp_path):
    run = drloc_ranks / "drloc_3"
    checkpoint = run / "checkpoints" / step_name(UPDATES["drloc"])
    model = read_checkpoint(checkpoint).model
    export(checkpoint, tmp_path / "export")
    theirs = create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True).eval()
    assert theirs.state_dict().keys() == model.keys()
    task = Task(localization.vit)
    task.model.load_state_dict(model)
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(images), task.model(images).logits, rtol=1e-5, atol=1e-5)
