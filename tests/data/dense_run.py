"""What tests ask of a run of a dense task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigvit.cli import main

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What a `bigvit` command prints."""

    def said(*words: object, code: int = 0) -> str:
        assert main([str(word) for word in words]) == code
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    return said


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "evaluation"]
