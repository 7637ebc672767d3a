"""The reference engine: accumulation, clipping, unused parameters, bad numbers and bf16."""

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from bigvit.data.batch import Batch
from bigvit.data.prepare import Inputs, Normalise, Prepare
from bigvit.engines.engine import NotFinite, StepInfo
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import Ranks
from bigvit.recipe import AdamW, Lamb, Rates, Recipe
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]

LR = 4e-3
ROUNDING = 1e-6
"""Relative L2 difference of the weights after three updates that is rounding alone."""
PREPARE = Prepare(digits_vit)
ALONE = Ranks(0, 1, torch.device("cpu"), None)
LAMB = Lamb(lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
ADAMW = AdamW(lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None)


def unchanged(task: Task) -> None:
    """Leave a task as it is built."""


def engine_for(recipe: Recipe, change: Callable[[Task], None] = unchanged) -> SingleEngine:
    def build() -> Task:
        task = Task(recipe)
        task.init_weights()
        change(task)
        return task

    return SingleEngine(build, recipe, ALONE)


def slices(engine: SingleEngine, kind: str) -> dict[str, Tensor]:
    return {part.name: part.view.clone() for part in engine.slices() if part.kind == kind}


def relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Relative L2 difference of all tensors together."""
    assert one.keys() == other.keys()
    difference = sum((one[name] - other[name]).square().sum().item() for name in one)
    return math.sqrt(difference / sum(w.square().sum().item() for w in other.values()))


def train(engine: SingleEngine, global_batches: Sequence[list[Batch]]) -> list[StepInfo]:
    return [engine.update(PREPARE.later(micro), Rates(LR)) for micro in global_batches]


def gradient_of(task: Task, micro: list[Batch]) -> dict[str, Tensor]:
    """The gradient of the mean loss over a global batch; `task` is left alone."""
    task = copy.deepcopy(task)
    for batch in micro:
        (torch.stack(list(task(PREPARE(batch)).values())).sum() / len(micro)).backward()
    return {name: p.grad for name, p in task.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("config", [ADAMW, LAMB], ids=["AdamW", "Lamb"])
def test_micro_batches_change_nothing_but_rounding(
    tiny: Recipe, batches: Batches, config: AdamW | Lamb
):
    recipe = replace(tiny, optim=config)
    assert recipe.model.drop_path.grouped
    engines = {parts: engine_for(recipe) for parts in (1, 2, 3)}
    infos = {
        parts: train(engine, list(islice(batches(recipe, parts), 3)))
        for parts, engine in engines.items()
    }
    start, whole = slices(engine_for(recipe), "weight"), slices(engines[1], "weight")
    assert relative(whole, start) > 0.01
    for parts in (2, 3):
        assert relative(slices(engines[parts], "weight"), whole) <= ROUNDING
        for one, other in zip(infos[parts], infos[1], strict=True):
            assert one.losses == pytest.approx(other.losses, rel=1e-6)
            assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)


def test_another_batch_is_seen_beyond_rounding(tiny: Recipe, batches: Batches):
    first, second = engine_for(tiny), engine_for(tiny)
    micro = PREPARE.later(next(batches(tiny, 3)))
    first.update(micro, Rates(LR))
    second.update([micro[0], micro[1], micro[1]], Rates(LR))
    assert relative(slices(second, "weight"), slices(first, "weight")) > 100 * ROUNDING


def test_losses_and_norm_are_those_of_the_global_batch(tiny: Recipe, batches: Batches):
    engine, micro = engine_for(tiny), next(batches(tiny, 3))
    expected = gradient_of(engine.task, micro)
    with torch.no_grad():
        losses = [engine.task(PREPARE(batch))["cross_entropy"].item() for batch in micro]
    info = engine.update(PREPARE.later(micro), Rates(LR))
    norm = math.sqrt(sum(g.double().square().sum().item() for g in expected.values()))
    assert info.grad_norm == pytest.approx(norm, rel=1e-6)
    assert info.losses == pytest.approx({"cross_entropy": sum(losses) / 3}, rel=1e-6)
    assert info.loss == info.losses["cross_entropy"]


@pytest.mark.parametrize("share", [0.1, 0.9, 1.1, None])
def test_clipping_is_torchs(tiny: Recipe, batches: Batches, share: float | None):
    micro = next(batches(tiny, 2))
    before = engine_for(tiny).task
    expected = gradient_of(before, micro)
    norm = torch.nn.utils.get_total_norm(expected.values())
    clip_norm = None if share is None else share * norm.item()
    engine = engine_for(replace(tiny, clip_norm=clip_norm))
    info = engine.update(PREPARE.later(micro), Rates(LR))
    assert info.grad_norm == pytest.approx(norm.item(), rel=1e-6)
    # after one update the first moment is a tenth of the clipped gradient
    clipped = {name: moment / (1 - 0.9) for name, moment in slices(engine, "exp_avg").items()}
    divisor = 1.0 if clip_norm is None else max((norm.item() + 1e-6) / clip_norm, 1.0)
    assert (divisor > 1) == (share in (0.1, 0.9))
    formula = {name: g.flatten() / divisor for name, g in expected.items()}
    assert relative(clipped, formula) <= 1e-6
    if clip_norm is not None:
        parameters = [nn.Parameter(torch.empty_like(g)) for g in expected.values()]
        for parameter, gradient in zip(parameters, expected.values(), strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        pairs = zip(expected, parameters, strict=True)
        theirs = {name: p.grad.flatten() for name, p in pairs if p.grad is not None}
        assert relative(clipped, theirs) <= 1e-6


def add_spare(task: Task) -> None:
    """A matrix and a vector that no loss depends on."""
    task.model.register_parameter("spare", nn.Parameter(torch.full((4, 4), 2.0)))
    task.model.register_parameter("spare_bias", nn.Parameter(torch.full((4,), 2.0)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_unused_parameter_has_a_zero_gradient(tiny: Recipe, batches: Batches, precision: str):
    recipe = replace(tiny, optim=ADAMW, precision=precision)
    engine, plain = engine_for(recipe, add_spare), engine_for(recipe)
    global_batches = list(islice(batches(recipe, 1), 3))
    train(engine, global_batches)
    train(plain, global_batches)
    weights = slices(engine, "weight")
    decayed = torch.full((16,), 2.0 * (1 - LR * 0.05) ** 3)
    torch.testing.assert_close(weights.pop("model.spare"), decayed, rtol=1e-6, atol=0)
    assert torch.equal(weights.pop("model.spare_bias"), torch.full((4,), 2.0))
    assert slices(engine, "exp_avg")["model.spare"].count_nonzero() == 0
    # the norm of the gradient is summed in another order, so that clipping differs by rounding
    others = slices(plain, "weight")
    difference = torch.cat([(w - weights[name]).flatten() for name, w in others.items()]).norm()
    assert difference <= 1e-6 * torch.cat([w.flatten() for w in others.values()]).norm()
    assert engine.scalars() == {"optimizer_steps": 3}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_frozen_parameter_stays_and_the_run_can_be_saved(
    tiny: Recipe, batches: Batches, precision: str
):
    def freeze(task: Task) -> None:
        task.model.patch_embed.requires_grad_(False)

    engine = engine_for(replace(tiny, precision=precision), freeze)
    name = "model.patch_embed.proj.weight"
    before = slices(engine, "weight")
    train(engine, list(islice(batches(tiny, 1), 2)))
    after = slices(engine, "weight")
    assert torch.equal(after[name], before[name])
    assert not torch.equal(after["model.head.weight"], before["model.head.weight"])
    assert engine.scalars() == {"optimizer_steps": 2}


def nan_in_a_bias(task: Task) -> None:
    nn.init.constant_(task.model.blocks[0].get_parameter("mlp.fc1.bias"), math.nan)


def huge_head(task: Task) -> None:
    """Losses of about 1e25 are finite, the square of the gradient is not."""
    with torch.no_grad():
        task.model.head.weight.mul_(1e27)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(nan_in_a_bias, r"loss is not finite \(cross_entropy nan\)"), (huge_head, "gradient norm")],
)
def test_numbers_that_are_not_finite_change_no_weight(
    tiny: Recipe,
    batches: Batches,
    damage: Callable[[Task], None],
    message: str,
    precision: str,
):
    engine = engine_for(replace(tiny, precision=precision), damage)
    before = slices(engine, "weight"), slices(engine, "exp_avg"), slices(engine, "exp_avg_sq")
    working = copy.deepcopy(engine.task.state_dict())
    with pytest.raises(NotFinite, match=message):
        engine.update(PREPARE.later(next(batches(tiny, 2))), Rates(LR))
    after = slices(engine, "weight"), slices(engine, "exp_avg"), slices(engine, "exp_avg_sq")
    for one, other in zip(before, after, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=0, equal_nan=True)
    for name, value in engine.task.state_dict().items():
        torch.testing.assert_close(value, working[name], rtol=0, atol=0, equal_nan=True)
    assert engine.scalars() == {"optimizer_steps": 0}


def test_inputs_are_made_one_micro_batch_at_a_time(tiny: Recipe, batches: Batches):
    engine = engine_for(replace(tiny, precision="bf16"))
    made: list[weakref.ref[Tensor]] = []
    left = list[int]()

    def make(batch: Batch) -> Inputs:
        inputs = PREPARE(batch)
        made.append(weakref.ref(inputs.images))
        return inputs

    def count(*_: object) -> None:
        left.append(sum(ref() is not None for ref in made))

    engine.task.model.register_forward_pre_hook(count)
    engine.task.model.head.register_full_backward_hook(count)
    engine.update([partial(make, batch) for batch in next(batches(tiny, 3))], Rates(LR))
    assert left == [1, 0, 1, 0, 1, 0], "backward keeps none that are not the model's own"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_loss_falls_on_real_digits(tiny: Recipe, batches: Batches, precision: str):
    # four patches and strong branches: one that learns in thirty updates
    model = replace(tiny.model, patch_size=4, embed_dim=32, layer_scale=1.0)
    recipe = replace(tiny, model=model, precision=precision)
    engine = engine_for(recipe)
    global_batches = islice(batches(recipe, 1), 30)
    losses = [engine.update(PREPARE.later(each), Rates(1e-2)).loss for each in global_batches]
    assert losses[0] == pytest.approx(math.log(10), rel=0.02)
    assert sum(losses[-5:]) / 5 < 0.85 * losses[0]


def test_thirty_updates_are_those_of_a_plain_torch_loop(tiny: Recipe, batches: Batches):
    recipe = replace(tiny, optim=ADAMW)
    engine = engine_for(recipe)
    task = copy.deepcopy(engine.task)
    decayed = [p for name, p in task.named_parameters() if ".weight" in name and p.ndim >= 2]
    others = [p for p in task.parameters() if not any(p is each for each in decayed)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
    for (batch,) in islice(batches(recipe, 1), 30):
        info = engine.update(PREPARE.later([batch]), Rates(LR))
        plain.zero_grad()
        loss = task(PREPARE(batch))["cross_entropy"]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        plain.step()
        assert info.loss == pytest.approx(loss.item(), rel=1e-6)
        assert info.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    expected = {name: p.detach().flatten() for name, p in task.named_parameters()}
    assert relative(slices(engine, "weight"), expected) <= ROUNDING


def test_bf16_keeps_masters_in_float32(tiny: Recipe, batches: Batches):
    engine = engine_for(replace(tiny, precision="bf16"))
    train(engine, list(islice(batches(tiny, 1), 5)))
    masters = slices(engine, "weight")
    assert all(w.dtype == torch.float32 for w in masters.values())
    assert all(w.dtype == torch.float32 for w in slices(engine, "exp_avg").values())
    working = dict(engine.task.named_parameters())
    finer = 0
    for name, master in masters.items():
        assert working[name].dtype == torch.bfloat16
        assert torch.equal(working[name].flatten(), master.bfloat16()), name
        finer += (master.bfloat16().float() != master).sum().item()
    assert finer > 0.9 * sum(w.numel() for w in masters.values())


def test_bf16_stays_near_fp32(tiny: Recipe, batches: Batches):
    engines = [engine_for(replace(tiny, precision=precision)) for precision in ("fp32", "bf16")]
    one, other = (train(engine, list(islice(batches(tiny, 1), 10))) for engine in engines)
    for exact, rounded in zip(one, other, strict=True):
        assert rounded.loss == pytest.approx(exact.loss, rel=0.01)
        assert rounded.loss != exact.loss


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_slices_and_scalars_are_all_there_is_to_resume(
    tiny: Recipe, batches: Batches, precision: str
):
    recipe = replace(tiny, precision=precision)
    global_batches = list(islice(batches(recipe, 1), 5))
    first = engine_for(recipe)
    train(first, global_batches[:3])
    second = engine_for(replace(recipe, seed=1))
    for one, other in zip(first.slices(), second.slices(), strict=True):
        assert (one.name, one.kind, one.shape) == (other.name, other.kind, other.shape)
        other.view.copy_(one.view)
    second.loaded(first.scalars())
    infos = train(first, global_batches[3:]), train(second, global_batches[3:])
    assert infos[0] == infos[1]
    for one, other in zip(first.slices(), second.slices(), strict=True):
        assert torch.equal(one.view, other.view), one.name
    images = Normalise(recipe.data)(global_batches[0][0].images)
    assert torch.equal(first.predict(images), second.predict(images))


def test_lr_scale_of_a_group_multiplies_the_rate(tiny: Recipe, batches: Batches):
    engine = engine_for(tiny)
    still = engine.masters.optimizer.param_groups[0]
    still["lr_scale"] = 0.0
    before = slices(engine, "weight")
    engine.update(PREPARE.later(next(batches(tiny, 1))), Rates(LR))
    for name, w in slices(engine, "weight").items():
        decayed = any(p is dict(engine.task.named_parameters())[name] for p in still["params"])
        assert torch.equal(w, before[name]) == decayed, name
    assert [group["lr"] for group in engine.masters.optimizer.param_groups] == [0.0, LR]
