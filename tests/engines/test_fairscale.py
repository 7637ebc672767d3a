"""Where fairscale is wrong, so that nobody comes to rely on it: each is gone round in
`bigvit/engines/fairscale.py`, which test_others.py holds to `single`."""

import json
from pathlib import Path

import pytest

RANKS = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def traps(warm, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("traps")
    done = warm(2, RANKS, folder, "fairscale_traps", timeout=120)
    assert done.code == 0, done.output
    return json.loads((folder / "traps.json").read_text())


def test_gradients_are_zeroed_by_the_wrapper(traps):
    assert traps["zero_grad of the optimizer"] > 1e-3
    assert traps["zero_grad of the wrapper"] < 1e-6


def test_an_optimizer_that_clips_by_itself_sees_a_part_of_the_gradient(traps):
    assert traps["clipping inside"] > 1e-5
    assert traps["no clipping inside"] < 1e-6


def test_weights_move_at_the_first_forward_pass(traps):
    assert traps["moves at the first forward pass"]
    assert not traps["moves after it was told"]


def test_a_state_dict_does_not_survive_its_loading(traps):
    assert traps["changes the state that it is given"]


def test_its_loss_scaling_is_off_where_there_is_no_gpu(traps):
    assert not traps["its scaler is on"]
