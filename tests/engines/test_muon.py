"""Muon is exact however its matrices are cut: each is whole where it is orthogonalised."""

from pathlib import Path

import muon
import pytest
import tiny
import torch
from reference import distance, train_single, trained
from test_resume import assert_equal, state

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.engines.single import SingleEngine
from bigvit.optim import MUON
from bigvit.optim.matrices import matrices_of

YARDSTICK = 5.1e-7  # largest of five orders of summation, as in test_equality.py
ALLOWED = 10
LAST = tiny.SHORT


@pytest.fixture(scope="module")
def single():
    return train_single(tiny.muon_short)[0]


@pytest.fixture(scope="module")
def more_on_two(warm, muon_ranks) -> Path:
    """The same folder, after two ranks showed the rest."""
    return launched(warm, 2, muon_ranks, "muon_more", "muon_halves", "muon_fp16")


@pytest.fixture(scope="module")
def on_three(warm, more_on_two) -> Path:
    """The same folder, after three ranks."""
    return launched(warm, 3, more_on_two, "muon_chain", "muon_more", "muon_elsewhere")


def launched(warm, world: int, folder: Path, *names: str) -> Path:
    done = warm(world, Path(__file__).with_name("ranks.py"), folder, *names, timeout=600)
    assert done.code == 0, done.output
    return folder


def assert_single(run: Path, single) -> None:
    for kind, prefix in (("weight", ""), ("ema", "ema ")):
        found = trained(run, LAST, kind)
        apart = distance(found, {name: single[prefix + name] for name in found})
        print(f"{run.name}, {kind}: {apart:.1e}, {apart / YARDSTICK:.2f} yardsticks")
        assert apart <= ALLOWED * YARDSTICK


def test_the_yardstick_is_what_other_orders_of_summation_show(single):
    seen = [distance(train_single(tiny.muon_short, order)[0], single) for order in (0,)]
    print(seen)
    assert 0 < max(seen) <= 2 * YARDSTICK


def test_a_run_from_engine_to_engine_equals_single(muon_ranks, single):
    assert_single(muon_ranks / "muon 2 chain", single)


@pytest.mark.slow
def test_pieces_that_are_orthogonalised_by_themselves_lie_far_above(single):
    def halve(engine: SingleEngine) -> None:
        optimizer = engine.masters.optimizer
        assert isinstance(optimizer, MUON)
        cut = list(optimizer.matrices.items())
        optimizer.matrices = {}
        for weight, found in cut:
            shape, held = tuple(weight.shape), [range(weight.numel())]
            optimizer.attach(matrices_of(shape, 2 * len(found), held, 0, weight, 0))

    apart = distance(train_single(tiny.muon_short, change=halve)[0], single)
    print(f"{apart / YARDSTICK:,.0f} yardsticks")
    assert apart > 100 * ALLOWED * YARDSTICK


@pytest.mark.slow
@pytest.mark.parametrize("way", [*muon.STAGES, *muon.OTHERS, *muon.CUT])
def test_two_ranks_equal_single_however_matrices_are_cut(way, more_on_two, single):
    assert_single(more_on_two / f"muon 2 {way}", single)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["chain", *muon.STAGES, *muon.OTHERS, *muon.CUT])
def test_three_ranks_equal_single(way, on_three, single):
    assert_single(on_three / f"muon 3 {way}", single)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on(on_three, single):
    assert_single(on_three / "muon elsewhere", single)


def test_a_matrix_has_one_moment_and_the_rest_have_two(muon_ranks):
    last = muon_ranks / "muon 2 chain" / "checkpoints" / step_name(LAST)
    kinds = {row.name: set(row.kinds) for row in read_manifest(last).tensors}
    both = {"weight", "exp_avg", "exp_avg_sq", "ema"}
    hidden = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    for name, found in kinds.items():
        assert found == (both - {"exp_avg_sq"} if name.endswith(hidden) else both), name
    assert sum(name.endswith(hidden) for name in kinds) == 12


@pytest.mark.slow
@pytest.mark.parametrize("way", muon.RESUMED)
def test_stopped_in_mid_epoch_and_resumed(way, more_on_two):
    assert_equal(more_on_two / f"muon halves {way}", more_on_two / f"muon 2 {way}", LAST)
    whole = more_on_two / f"muon bf16 {way}"
    assert_equal(more_on_two / f"muon bf16 halves {way}", whole, LAST)


@pytest.mark.slow
def test_bf16_is_identical_at_stages_1_and_2(more_on_two):
    one, two = (trained(more_on_two / f"muon bf16 {stage}", LAST) for stage in (1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("way", muon.FP16)
def test_an_overflow_in_fp16_skips_exactly_one_update(way, more_on_two):
    whole, halves = (more_on_two / f"muon fp16{half}_{way}" for half in ("", "_halves"))
    manifest = read_manifest(whole / "checkpoints" / step_name(LAST))
    assert (manifest.batch, manifest.update) == (LAST, LAST - 1)
    assert manifest.scalars["optimizer_steps"] == LAST - 1
    for key, value in state(whole, LAST).items():
        assert torch.equal(value, state(halves, LAST)[key]), key
