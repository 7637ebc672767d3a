"""How often the host waits for the device in an update that logs nothing, and where."""

import json

import counts
import pytest

# TODO fill
DEEPSPEED: dict[str, dict[str, int]] = {}


@pytest.fixture(scope="module")
def tables(device_runs):
    found = json.loads((device_runs / "counts.json").read_text())
    print(counts.table(found))
    return found


@pytest.mark.parametrize("stage", counts.STAGES)
@pytest.mark.parametrize("optimizer", counts.RECIPES)
def test_ours_waits_for_nothing(optimizer, stage, tables):
    rows = tables[f"{optimizer} {stage}"]
    assert [row for row in rows if row[1] != "DeepSpeed"] == []


@pytest.mark.parametrize("stage", counts.STAGES)
@pytest.mark.parametrize("optimizer", counts.RECIPES)
def test_deepspeed_waits_where_it_is_known_to(optimizer, stage, tables):
    rows = tables[f"{optimizer} {stage}"]
    theirs = {f"{kind}: {where}": count for kind, who, where, count in rows if who == "DeepSpeed"}
    assert theirs == DEEPSPEED[stage]
