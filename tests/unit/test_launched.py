"""What launchers say of a rank by variables."""

import pytest
from each import each_of

from bigvit.ranks.launched import Launched, launched
from bigvit.train import main

NAMES = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_PORT")
SAID = [  # by deepspeed, torchrun, srun, and by nobody
    ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "WORLD_SIZE": "8"}, (5, 1, 8, 4)),
    ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (5, 1, 8, 4)),
    ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 0, 8, None)),
    ({}, (0, 0, 1, None)),
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
