"""Writing .deepspeed_env."""

import os
from pathlib import Path

import psutil
import pytest

from bigvit.cli import main
from bigvit.hosts import carried
from bigvit.variables import write_variables


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and an environment with nothing to carry but PATH."""
    for name in list(os.environ):
        if name not in ("PATH", "HOME") and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/a:/b")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_set_and_matters_is_written(own_folder, monkeypatch):
    carry = {"HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    stay = {"HF_TOKEN": "hf_1", "CUDA_VISIBLE_DEVICES": "0", "EDITOR": "vi", "UCX_TLS": ""}
    for name, value in {**carry, **stay}.items():
        monkeypatch.setenv(name, value)
    path, lines = write_variables(["GREETING=good day", "WORDS=a=b"], None)
    wanted = {**carry, "PATH": "/a:/b", "GREETING": "good day", "WORDS": "a=b"}
    assert sorted(lines) == sorted(f"{name}={value}" for name, value in wanted.items())
    assert path.read_text() == "\n".join(lines) + "\n"
    found = carried()
    assert {name: found[name] for name in wanted} == wanted


def test_lines_of_other_variables_stay(own_folder):
    (own_folder / ".deepspeed_env").write_text("MINE=1\nPATH=/old\n")
    assert write_variables([], None)[1] == ["MINE=1", "PATH=/a:/b"]


def test_an_interface_is_for_gloo_and_nccl(capsys):
    there = next(iter(psutil.net_if_addrs()))
    assert main(["env", "--interface", there]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"GLOO_SOCKET_IFNAME={there}" in said and f"NCCL_SOCKET_IFNAME={there}" in said
    assert main(["env", "--interface", "eth77"]) == 2
    assert "--interface eth77: there are " in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", ["A", "A B=1", "1A=1", "=1", 'A="x"', "A=$HOME", "A=`x`", "A=a\\b", "A=%h", "A=x\ny"]
)
def test_what_cannot_be_carried_is_refused(own_folder, given):
    with pytest.raises(ValueError):
        write_variables([given], None)
    assert not (own_folder / ".deepspeed_env").exists()


def test_a_blank_at_an_end_is_refused():
    with pytest.raises(ValueError, match="A=' x' cannot be carried"):
        write_variables(["A= x"], None)
