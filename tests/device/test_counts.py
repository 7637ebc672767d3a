"""How often the host waits for the device in an update that logs nothing, and where."""

import json

import counts
import pytest

NORM = "read: runtime/utils.py is_invalid_grad_norm"
FLAT = "synchronize: runtime/zero/stage_1_and_2.py independent_gradient_partition_epilogue"
PIECES = "synchronize: runtime/zero/stage3.py independent_gradient_partition_epilogue"
GATHERED = "synchronize: runtime/zero/partition_parameters.py _allgather_params_coalesced"
DEEPSPEED = ({}, {NORM: 1}, {NORM: 1, FLAT: 2}, {NORM: 1, PIECES: 2, GATHERED: 1})
"""At each stage. The norm decides whether weights may change; FLAT and PIECES: each micro-batch."""
OURS = ({"read: engines/deepspeed/engine.py _before_step": 1}, {}, {}, {})
"""At stage 0 in float32 DeepSpeed does not look at the norm, and so we must."""


@pytest.fixture(scope="module")
def tables(device_runs):
    found = json.loads((device_runs / "counts.json").read_text())
    print(counts.table(found))
    return found


@pytest.mark.parametrize("stage", counts.STAGES)
@pytest.mark.parametrize("optimizer", counts.RECIPES)
def test_an_update_waits_where_it_is_known_to_and_nowhere_else(optimizer, stage, tables):
    rows = tables[f"{optimizer} {stage}"]
    found = {
        by: {f"{kind}: {where}": count for kind, who, where, count in rows if who == by}
        for by in ("ours", "DeepSpeed", "others")
    }
    assert found == {"ours": OURS[stage], "DeepSpeed": DEEPSPEED[stage], "others": {}}


def test_images_are_varied_without_a_wait(tables):
    assert tables["varied"] == []
