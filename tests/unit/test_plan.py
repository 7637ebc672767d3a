"""`bigvit plan`: figures worked out by hand, what is chosen and what is refused. Without torch."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bigvit.cli import main
from bigvit.engines import check
from bigvit.plan.calibration import measured, write_calibration
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.clock import LATENCY, LINKED, network_seconds, speed
from bigvit.plan.devices import DEVICES, Device, find_device, known_as
from bigvit.plan.make import make_plan
from bigvit.plan.report import Plan, as_json, command, details
from bigvit.plan.traffic import Collective
from bigvit.recipe import Detection, Run, Segmentation, SoftDistillation, Teacher, batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.recipe.models.ops import linear, norm
from bigvit.recipe.parse import parse

H = "deit3_h14_in1k_126"
KINDS = (
    *(H, "cait_s24_in1k_224", "drloc_swin_t_in100", "digits_vit", "drloc_resnet50_infograph_300e"),
    *("patchconvnet_s60_in1k_224_classes", "photos_cait_64_ft64x96"),
)
MORE = ("deit3_h26x2_14_in1k_126", "drloc_t2t_vit_14_cifar10", "drloc_cvt_13_cifar100")
"""Kinds of models, with and without localization, oblong, and a batch that eight do not share."""


def plan(*words: str, gpus: int | None = None, **more) -> Plan:
    given = {"per_node": None, "device": None, "network": 400.0, "per_gpu_hour": None, **more}
    return make_plan(words, gpus, **given)


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", [*KINDS, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_every_kind_of_model_has_a_plan_that_can_be_started(name: str):
    found = plan(name)
    assert found.choices
    for choice in found.choices:
        assert choice.fits and choice.clock.update > 0
        words = shlex.split(command(found, choice))
        started = parse(words[words.index("scripts/train.py") + 1 :])
        layout = batch_layout(started.recipe, choice.machines.gpus, started.run.micro_batch)
        check.check(started.recipe, layout, started.run)
        assert (started.run.engine, started.run.arrangement) == (
            choice.run.engine,
            choice.run.arrangement,
        )
        assert layout == choice.layout
    seconds = [choice.clock.update for choice in found.choices]
    assert all(later >= 0.99 * seconds[0] for later in seconds[1:])


def test_a_product_takes_its_arithmetic_or_its_traffic():
    device = Device(2**30, 1e12, {"bf16": 1e14}, 1e11, "made up", products=0.5, copies=0.5)
    at = speed(device, "bf16", compiled=False)
    square, thin = linear("", 1024, 1024, 1024), linear("", 1024, 1024, 1)
    once = at.forward(square, 8, skips=False)
    assert once == pytest.approx((2 * 8 * 1024**3 / 0.5e14, 0, 1))
    assert at.backward(square, 8, False, 2)[0] == pytest.approx(2 * once[0])
    bytes_ = 2 * (8 * 1024 * 1024 + 8 * 1024 + 1024)
    assert at.forward(thin, 8, skips=False) == pytest.approx((0, bytes_ / 0.5e12, 1))
    # read and written in float32, read again and written in bf16; a mean and a deviation a token
    elements = 4 * 10 * (64 + 2)
    assert at.forward(norm("", 10, 64), 4, False).memory == pytest.approx(elements * 14 / 0.5e12)


@pytest.mark.parametrize(
    ("kind", "ranks", "through", "seconds"),
    [
        ("all-reduce", 8, 0, 2 * 7 / 8 * 1e9 / (LINKED * 100e9)),
        ("all-gather", 8, 0, 7 / 8 * 1e9 / (LINKED * 100e9)),
        ("all-reduce", 32, 1, 2 * 31 / 32 * 1e9 / (LINKED * 25e9)),
        ("all-reduce", 4, 8, 2 * 3 / 4 * 1e9 / (LINKED * 25e9 / 8)),
    ],
)
def test_a_ring_is_as_fast_as_its_slowest_link(kind, ranks, through, seconds):
    each = Collective(kind, "gradients", 10**9, 1, ranks, False, 10**9, through, 1)
    assert network_seconds([each], 100e9, 25e9, 0.0) == pytest.approx(seconds + LATENCY)
    hidden = each._replace(overlaps=True)
    assert network_seconds([hidden], 100e9, 25e9, seconds) == pytest.approx(LATENCY)
    # a quarter of it in each of four micro-batches; another, of the last alone, is in its way
    quarters = hidden._replace(spread=4, times=0)
    assert network_seconds([quarters], 100e9, 25e9, seconds / 4) == pytest.approx(0)
    assert network_seconds([quarters], 100e9, 25e9, seconds / 5) == pytest.approx(seconds / 5)
    both = [quarters, hidden._replace(times=0)]
    assert network_seconds(both, 100e9, 25e9, seconds / 4) == pytest.approx(seconds)


def test_more_images_at_once_and_less_recomputed_take_more_memory():
    recipe = find_recipe(H)[1]
    machines = Machines(DEVICES["h100-80gb"], 8, 8, 50e9)

    def peak(size: int, share: float, sharding: str) -> int:
        run = Run(sharding=sharding, checkpoint_activations=share)
        return Choice(recipe, run, batch_layout(recipe, 8, size), machines).peak

    for share in (0.0, 0.5, 1.0):
        assert peak(32, share, "zero1") < peak(64, share, "zero1") < peak(128, share, "zero1")
    assert peak(64, 1.0, "zero1") < peak(64, 0.5, "zero1") < peak(64, 0.0, "zero1")
    assert peak(64, 0.0, "zero3") < peak(64, 0.0, "zero2") < peak(64, 0.0, "zero0")


def test_skipping_and_recomputing_cost_what_they_say():
    recipe = find_recipe(H)[1]
    dense = replace(
        recipe, model=replace(recipe.model, drop_path=replace(recipe.model.drop_path, rate=0.0))
    )
    machines = Machines(DEVICES["h100-80gb"], 8, 8, 50e9)

    def arithmetic(recipe, share: float) -> float:
        run = Run(sharding="zero1", checkpoint_activations=share)
        return Choice(recipe, run, batch_layout(recipe, 8, 256), machines).clock.arithmetic

    assert arithmetic(recipe, 0.0) == pytest.approx(arithmetic(dense, 0.0) / 2, rel=5e-3)
    assert arithmetic(dense, 1.0) == pytest.approx(4 / 3 * arithmetic(dense, 0.0), rel=5e-3)


def test_what_is_given_stays():
    found = plan(H, "--sharding", "zero2", "--micro-batch=16", "--checkpoint-activations", "0.25")
    (choice,) = found.choices
    assert choice.run.arrangement == "zero2" and choice.layout.micro_batch == 16
    assert choice.run.checkpoint_activations == 0.25
    assert command(found, choice).count("--micro-batch") == 1


def test_what_one_sharding_cannot_do_leaves_the_others():
    """DeepSpeed refuses --compile at stage 3."""
    found = plan(H, "--engine", "deepspeed", "--compile")
    assert {choice.run.arrangement for choice in found.choices} == {"zero0", "zero1", "zero2"}
    with pytest.raises(ValueError, match="--compile with --sharding zero3"):
        plan(H, "--sharding", "zero3", "--compile")


def test_more_nodes_can_be_slower():
    """docs and performance goals say so of ViT-H at a batch of 2048 on 200 Gb/s a node."""
    found = plan(H, "--sharding", "zero1", gpus=32, network=200.0)
    assert any("more nodes are slower: 1 node of 8" in line for line in details(found))
    fast = plan(H, "--sharding", "zero1", gpus=32, network=12_800.0)
    assert any(line.startswith("scaling: ") for line in details(fast))


def test_where_nothing_fits_it_says_what_would(capsys):
    assert main(["plan", "deit3_h52_14_in1k_126", "--model.depth", "2000", "--gpus", "8"]) == 1
    said = capsys.readouterr().out
    assert "nothing fits: the least is" in said and "start it" not in said
    assert "would fit on 16 devices" in said or "would fit on h200-141gb" in said
    assert "would fit with moments and masters on the host" in said


def test_json_says_the_same(capsys):
    assert main(["plan", H, "--json", "--per-gpu-hour", "2.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(as_json(plan(H, per_gpu_hour=2.5))))
    assert found["parameters"] == 631_902_440
    first = found["choices"][0]
    assert first["price"] == pytest.approx(2.5 * first["gpu_hours"])
    assert first["bytes"]["peak"] <= first["memory"]


def test_an_epoch_has_the_windows_of_its_evaluation():
    """A photograph of 512 x 682 pixels through windows of 512 at a stride of 341: two."""
    ade20k, coco = (find_recipe(name)[1].data for name in ("ade20k_swin_t_512", "mask_rcnn_swin_t"))
    assert isinstance(ade20k, Segmentation) and isinstance(coco, Detection)
    assert (ade20k.windows, coco.windows) == (2, 1)
    epochs = [
        as_json(plan("ade20k_swin_t_512", *more))["choices"][0]["epoch_seconds"]
        for more in ((), ("--data.test-images", "0"))
    ]
    # a forward pass is a third of a training image's work
    assert epochs[0] / epochs[1] == pytest.approx(1 + 2 * 2_000 / 20_210 / 3, rel=0.02)


def test_devices_are_what_their_makers_say():
    for device in DEVICES.values():
        assert device.source and device.peaks["fp32"] and device.peaks["fp16"]
        assert 0 < device.products <= 1 and 0 < device.copies <= 1
    assert known_as("NVIDIA H100 80GB HBM3", 84_974_239_744) == "h100-80gb"
    assert known_as("NVIDIA H100 PCIe", 84_974_239_744) == "h100-pcie-80gb"
    assert known_as("NVIDIA A100-SXM4-40GB", 42_298_834_944) == "a100-40gb"
    assert known_as("Tesla V100-SXM2-32GB", 34_072_559_616) == "v100-32gb"
    assert known_as("NVIDIA H200", 150_040_346_624) == "h200-141gb"
    assert known_as("NVIDIA GeForce RTX 4090", 25_386_352_640) == "rtx4090-24gb"
    assert known_as("NVIDIA A10G", 23_609_475_072) is None


def test_what_was_measured_is_taken(capsys):
    slow = replace(find_device("h100-80gb"), products=0.07)
    write_calibration("h100-80gb", slow, 0.5)
    before = plan(H, gpus=8)
    assert measured("h100-80gb") == (replace(slow, measured=True), 0.5)
    assert main(["plan", H]) == 0
    assert "measured on this device" in capsys.readouterr().out
    assert before.choices[0].clock.arithmetic > 0 and before.measured


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([H, "--gpu", "h1000"], "no such device; the nearest are h100-80gb"),
        ([H, "--gpu", "here"], "nothing was measured on this machine"),
        ([H, "--gpu", "v100-32gb"], "it has no bf16.*add --precision fp16"),
        ([H, "--gpus", "12"], "not a multiple of the 8 devices of a node"),
        ([H, "--gpus", "4", "--per-node", "8"], "not a multiple of the 8"),
        ([H, "--gpus", "0"], "--gpus: 0 is not allowed; it must be 1 to"),
        ([H, "--network", "0"], "--network: 0.0 is not allowed"),
        ([H, "--network", "infiniband"], "invalid float value: 'infiniband'"),
        ([H, "--network", "nan"], "--network"),
        ([H, "--gpus", "24"], "does not divide over 24 ranks"),
        ([H, "--micro-batch", "7", "--gpus", "8"], "--micro-batch 7 does not work"),
        ([H, "--engine", "fsdp2", "--sharding", "zero1"], "zero1 with --engine fsdp2"),
        ([H, "--per-gpu-hour", "-1"], "--per-gpu-hour: -1.0 is not allowed"),
        (["deit3_h14_in1k_125"], "the nearest are .*deit3_h14_in1k_126"),
        (["timm:resnet50"], "no recipe is named"),
        ([H, "--optim.lr", "fast"], "fast"),
    ],
)
def test_bad_input_is_one_clear_error(words, said, capsys):
    try:
        code = main(["plan", *words])
    except SystemExit as refused:  # argparse and tyro
        code = refused.code
    out, error = capsys.readouterr()
    assert code == 2 and not out.strip()
    assert re.search(said, " ".join(error.split()))


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit) as done:
        main(["plan", "--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    for option in ("--gpus", "--per-node", "--gpu", "--network", "--calibrate", "--json"):
        assert option in said


def test_a_command_that_takes_no_overrides_refuses_them(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["list", "--optim.lr", "1"])
    assert refused.value.code == 2 and "--optim.lr" in capsys.readouterr().err


def test_a_teacher_costs_its_weights_and_a_forward_pass():
    name, recipe = find_recipe("deit3_b16_in1k_224_300e")
    large = find_recipe("deit3_l16_in1k_224_300e")[1].model
    data, soft = recipe.data, SoftDistillation(0.1, 3.0, "images", "class")
    teacher = Teacher(large, 224, data.mean, data.std, "bf16")
    taught = replace(recipe, objectives=(*recipe.objectives, soft), teacher=teacher)
    machines = Machines(find_device("h100-80gb"), 8, 8, 5e10)
    run, layout = Run(sharding="zero1"), batch_layout(recipe, 8, 64)
    without, whole = (Choice(each, run, layout, machines) for each in (recipe, taught))
    cut = Choice(taught, replace(run, teacher_sharding="host"), layout, machines)
    assert whole.states == without.states and whole.saved == without.saved
    assert (without.teacher, whole.teacher) == (0, 2 * large.parameters(224))
    assert 1 / 8 < cut.teacher / whole.teacher < 0.126
    assert whole.peak - without.peak == pytest.approx(1.03 * whole.teacher, rel=1e-6)
    seconds, forward = whole.clock.teacher, 2 * large.macs(224) * recipe.batch_size / 8
    assert whole.clock.update - without.clock.update == pytest.approx(seconds)
    assert 1 < seconds / (forward / machines.device.peaks["bf16"]) < 4
    assert without.clock.teacher == 0


def test_a_file_of_ones_own_is_started_by_its_path(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "own.py"
    path.write_text("from bigvit.recipes.digits import digits_vit as own\n")
    assert main(["plan", str(path), "--gpus", "1", "--gpu", "h100-80gb"]) == 0
    assert f"scripts/train.py {path}" in capsys.readouterr().out


def test_no_more_devices_are_proposed_than_make_it_faster(capsys):
    assert main(["plan", "digits_vit"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("digits_vit on 1 x h100-80gb") and "--num_accelerators" not in said
    assert "devices: 1, as an update is at most a tenth faster on up to 8; --gpus N" in said
    assert main(["plan", "digits_vit", "--gpus", "8"]) == 0
    asked = capsys.readouterr().out
    assert asked.startswith("digits_vit on 8 x") and "devices: " not in asked
    assert main(["plan", "drloc_swin_t_in100"]) == 0
    assert capsys.readouterr().out.startswith("drloc_swin_t_in100 on 8 x")
