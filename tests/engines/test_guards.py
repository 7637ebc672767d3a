"""What stops a run before an update spoils it, and what a run tells of its weights."""

import json
import re
from itertools import islice

import guards
import pytest
import tiny
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.run import checkpoints_of
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sampler import Sampler
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import build_engine
from bigvit.ranks.joining import alone
from bigvit.recipe import Run
from bigvit.recipes.digits import digits_vit

RELATIVE = 1e-5


def test_a_jump_or_an_infinite_loss_on_one_rank_stops_all_with_no_weight_changed(guard_ranks):
    found = json.loads((guard_ranks / "jumped.json").read_text())
    assert len(found) == 2 * len(guards.PRECISIONS) * len(guards.STAGES)
    for where, (message, on_all, unchanged) in found.items():
        jump = where.startswith("jump")
        said = "LossJumped: the loss is 24" if jump else "NotFinite: the loss is not finite"
        assert message.startswith(said), where
        assert on_all and unchanged, where


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("jump", r"the loss is 24\.\d+, more than 3 times the mean of the last 11, 2\.\d+ "),
        ("infinite", r"the loss is not finite \(cross_entropy inf\); "),
    ],
)
def test_a_run_that_stops_itself_names_the_update_its_images_and_what_is_good(
    run, said, guard_ranks
):
    folder = guard_ranks / run
    update = guards.BAD + 1
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["update"], status["exit_code"]) == ("error", update - 1, 3)
    reason = status["reason"]
    assert re.match(f"update {update}: {said}", reason), reason
    assert "the update was not applied" in reason
    *_, last = checkpoints_of(folder)
    assert last.name == f"step_{update - 1:08d}"
    assert reason.endswith(f"the last good checkpoint is {last}")
    read_weights(last)  # verifies every file
    source = DigitsSource("train")
    sampler = Sampler(len(source), 1, digits_vit.batch_size, digits_vit.seed)
    ids = sampler.batch(guards.BAD)[2].tolist()
    listed = (folder / "stopped_images.txt").read_text().splitlines()
    assert sorted(listed) == sorted(source.name(id) for id in ids)
    assert len(listed) == 64
    assert f"its 64 images are listed in {folder / 'stopped_images.txt'}" in reason
    output = (guard_ranks / f"{run}.txt").read_text()
    assert output.count(f"error: {reason}\n") == 1 and "Traceback" not in output


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator has fp16")
def test_fp16_on_a_cpu_is_refused_on_every_rank_with_one_message(warm, tmp_path):
    args = (*guards.ARGS, *guards.OPTIONS, "--run-dir", tmp_path / "run", "--precision", "fp16")
    done = warm(2, "scripts/train.py", *args)
    message = "error: --precision fp16: DeepSpeed has it on a GPU only; use bf16 or fp32 here\n"
    assert (done.code, done.output) == (2, message)
    assert not (tmp_path / "run").exists()


# norms by block -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single():
    """Norms of `single`, and the same computed plainly before each update."""
    recipe = tiny.lamb
    engine = build_engine(recipe, Run(engine="single"), tiny.cut(recipe, 1), alone())
    source = DigitsSource("train")
    layout = tiny.cut(recipe, 1)
    batches = train_batches(source, recipe, layout, 0, 0, 0, engine.task.draws)
    found, plain, prepare = [], [], Prepare(recipe, engine.ranks.device)
    for i, batch in enumerate(islice(batches, guards.NORMED_UPDATES)):
        micro = prepare.later(batch)
        losses = [torch.stack(list(engine.task(inputs()).values())).sum() for inputs in micro]
        named = dict(engine.task.named_parameters())
        mean = torch.stack(losses).mean()
        gradients = torch.autograd.grad(mean, list(named.values()))
        plain.append(_plainly(named, dict(zip(named, gradients, strict=True))))
        found.append(engine.update(micro, recipe.rates(i), None, True).norms)
    return found, plain


def _plainly(weights, gradients):
    """Norms of concatenated tensors."""
    parts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for name, weight in weights.items():
        words = name.split(".")
        block = parts.setdefault(".".join(words[1:3]) if words[1] == "blocks" else words[1], {})
        block.setdefault("gradient", []).append(gradients[name].flatten())
        block.setdefault("weight", []).append(weight.detach().flatten())
        if words[-2] in ("ls1", "ls2"):
            block.setdefault("layer_scale", []).append(weight.detach().flatten())
    return {
        block: {kind: torch.cat(tensors).double().norm().item() for kind, tensors in kinds.items()}
        for block, kinds in parts.items()
    }


def _flat(norms):
    return {
        f"{block}/{kind}": value
        for block, kinds in norms.items()
        for kind, value in kinds.items()
        if value
    }


def test_single_tells_the_norms_that_a_plain_computation_gives(single):
    found, plain = single
    for ours, theirs in zip(found, plain, strict=True):
        assert _flat(ours) == pytest.approx(_flat(theirs), rel=RELATIVE)
        assert list(ours) == [
            "blocks.0",
            "blocks.1",
            "blocks.2",
            "cls_token",
            "head",
            "norm",
            "patch_embed",
            "pos_embed",
        ]
        assert [block for block, kinds in ours.items() if "layer_scale" in kinds] == list(ours)[:3]
    total = sum(kinds["gradient"] ** 2 for kinds in found[0].values()) ** 0.5
    assert tiny.lamb.clip_norm == 0.5 and total > 0.75, "the norm before clipping is told"


@pytest.mark.parametrize("name", guards.NORMED)
def test_a_sharded_run_logs_the_norms_of_single(name, guard_ranks, single):
    run = guard_ranks / f"norms {name}"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines] == [1, 2, 3]
    board = EventAccumulator(str(run / "tensorboard" / "train"))
    board.Reload()
    for line, expected in zip(lines, single[0], strict=True):
        assert _flat(line["norms"]) == pytest.approx(_flat(expected), rel=RELATIVE)
        squares = sum(kinds["gradient"] ** 2 for kinds in line["norms"].values())
        assert line["grad_norm"] == pytest.approx(squares**0.5, rel=RELATIVE)
        for path, value in _flat(line["norms"]).items():
            drawn = {event.step: event.value for event in board.Scalars(f"norms/{path}")}
            assert drawn[line["batch"]] == pytest.approx(value, rel=1e-6)


# the average --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", guards.STAGES)
def test_the_average_takes_the_weights_place_and_gives_it_back(stage, guard_ranks):
    found = json.loads((guard_ranks / "averages.json").read_text())[str(stage)]
    assert found == dict.fromkeys(found, 0) and len(found) == 6
