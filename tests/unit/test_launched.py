"""What launchers say of a rank by variables."""

from pathlib import Path
from typing import Any

import pytest
from each import each_of

from bigvit.cli import arguments
from bigvit.cli import main as bigvit
from bigvit.ranks.launched import INSTEAD, Launched, launched
from bigvit.train import main

NAMES = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_PORT")
NAMES = (*NAMES, "TORCHELASTIC_MAX_RESTARTS", *INSTEAD)
SAID = [  # by deepspeed, torchrun, srun, and by nobody
    ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "WORLD_SIZE": "8"}, (5, 1, 8, 4)),
    ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (5, 1, 8, 4)),
    ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 0, 8, None)),
    ({}, (0, 0, 1, None)),
    # by accelerate: one process, and one of two
    ({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}, (0, 0, 1, None)),
    (
        {
            "ACCELERATE_MIXED_PRECISION": "no",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"},
        },
        (1, 1, 2, None),
    ),
]
ASKED = [
    ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}, "several processes, and"),
    ({"TORCHELASTIC_MAX_RESTARTS": "3", "RANK": "0", "WORLD_SIZE": "1"}, "--max-restarts 3: it"),
    ({"ACCELERATE_USE_FSDP": "true"}, "--use_fsdp (ACCELERATE_USE_FSDP is true) means nothing"),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, "--engine deepspeed --sharding NAME"),
    ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "--precision NAME"),
    ({"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "scripts/train.py --compile"),
]
WRONG = [
    ({"RANK": "one"}, "RANK: 'one'"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: '2'"),
    ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK: '-1'"),
    ({"RANK": "٣", "WORLD_SIZE": "8"}, "RANK: '٣'"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE: ''"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE: '0'"),
    ({"WORLD_SIZE": "2", "LOCAL_RANK": "1e0"}, "LOCAL_RANK: '1e0'"),
    ({"LOCAL_SIZE": "many"}, "LOCAL_SIZE: 'many'"),
    ({"MASTER_PORT": "99999"}, "MASTER_PORT: '99999'"),
]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch):
    def say(said: dict[str, str]) -> None:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in said.items():
            monkeypatch.setenv(name, value)

    return say


@each_of(("said", "meant"), SAID)
def test_every_launchers_words_are_understood(variables, said, meant):
    variables(said)
    assert launched() == Launched(*meant)


@each_of(("said", "named"), WRONG)
def test_what_cannot_be_is_refused_before_anything_else(variables, capsys, said, named):
    variables(said)
    assert main(["digits_vit"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {named} is not allowed; ")


@each_of(("said", "named"), ASKED)
def test_what_a_launcher_was_asked_for_in_vain_is_refused(variables, capsys, said, named):
    variables(said)
    assert main(["digits_vit"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and named in error and error.count("\n") == 1


@pytest.mark.parametrize("local, said", [(0, True), (1, False)])
def test_what_another_host_alone_meets_is_said_there_once(
    variables: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Any,
    local: int,
    said: bool,
):
    monkeypatch.setattr(arguments, "ALONE", 0.01)  # rank 0 sees the run, and says nothing
    own = {"RANK": str(2 + local), "LOCAL_RANK": str(local), "LOCAL_SIZE": "2", "WORLD_SIZE": "4"}
    variables(own)
    gone = tmp_path / "gone"
    for command in (["neighbours", str(gone)], ["label-maps", str(gone), "--out", str(tmp_path)]):
        assert bigvit(command) == 2
        assert (str(gone) in capsys.readouterr().err) == said
