"""What the ranks agree on in an update, and an error that one of them alone meets."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from by_hand import Apart
from small import TINY

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.run import checkpoints_of

SCRIPT = Path(__file__).with_name("one_rank.py")
EPOCH = ("--schedule.epochs", "1", "--schedule.warmup-epochs", "0", "--evaluate-every", "1")
OPTIONS = ("--workers", "0", "--checkpoint-every", "3", "--log-every", "5", "--timeout", "60")


def failed(
    warm: Any, phase: str, folder: Path
) -> tuple[list[int], list[str], list[list[list[str]]]]:
    """Exit codes, outputs and all-reduces of two ranks, of which the second meets an error."""
    words = ("digits_vit", *TINY, *EPOCH, *OPTIONS, "--run-dir", folder / "run")
    end = Apart(warm, 2, SCRIPT, phase, folder, *words).end(150)
    return end.codes, end.output, [json.loads((folder / f"{r}.json").read_text()) for r in (0, 1)]


@pytest.mark.parametrize("phase", ["reading", pytest.param("evaluating", marks=pytest.mark.slow)])
def test_one_rank_alone_meets_an_error(phase: str, warm: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    codes, outputs, updates = failed(warm, phase, tmp_path)
    assert codes == [1, 1], outputs
    assert time.monotonic() - began < 100, "nobody waits for a rank that has ended"
    doing = "reading batch 9 failed" if phase == "reading" else "evaluating failed"
    reason = f"rank 1 on {socket.gethostname()}: {doing} (OSError: [Errno 5] Input/output error"
    assert f"error: {reason}" in outputs[0], outputs[0]
    assert "Traceback" not in "".join(outputs) and "error: " not in outputs[1], outputs
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert status["reason"].startswith(reason)
    assert status["update"] == (8 if phase == "reading" else 23)
    last = checkpoints_of(tmp_path / "run")[-1]  # also the one that was on its way
    assert last.name == ("step_00000006" if phase == "reading" else "step_00000021")
    read_weights(last)
    # on the device the loss, and the norms of what is decayed and what is not; and one on the host
    # that nobody waits for before the update
    assert updates[0] == updates[1]
    saved = [number for number in range(len(updates[0])) if number in (3, 6)]
    plain = [each for number, each in enumerate(updates[0][1:8], 1) if number not in saved]
    assert len(plain) == 5 and all(each == ["host, later", *3 * ["device"]] for each in plain), (
        plain
    )
