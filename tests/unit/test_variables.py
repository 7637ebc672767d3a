"""Writing .deepspeed_env."""

import os
from pathlib import Path

import psutil
import pytest

from bigvit.cli import main
from bigvit.hosts.environment import write_variables
from bigvit.hosts.hostfile import carried


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
    carry |= {"NCCL_IB_PKEY": "0x7fff", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    stay = {"CUDA_VISIBLE_DEVICES": "0", "EDITOR": "vi", "UCX_TLS": ""}
    for name, value in {**carry, **stay}.items():
        monkeypatch.setenv(name, value)
    path, variables, left_out = write_variables(["GREETING=good day", "WORDS=a=b"], None)
    wanted = {**carry, "PATH": "/a:/b", "GREETING": "good day", "WORDS": "a=b"}
    assert variables == wanted and left_out == []
    assert path.read_text() == "".join(f"{name}={value}\n" for name, value in variables.items())
    found = carried()
    assert {name: found[name] for name in wanted} == wanted


SECRETS = {
    "HF_TOKEN": "hf_sesame1",
    "HF_API_KEYS": "sesame2",
    "HF_PROXY_PASSWD": "sesame3",
    "NCCL_NET_AUTH": "sesame4",
    "TORCH_HUB_CREDENTIALS": "sesame5",
    "UCX_SOMETHING_NEW": "sesame6",
    "HF_ENDPOINT": "https://anna:sesame7@hub.example:8443/mirror",
}


def test_secrets_are_left_out_and_named(own_folder, monkeypatch, capsys):
    monkeypatch.setenv("https_proxy", "http://anna:sesame8@proxy:3128")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame9")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    assert main(["env", "HF_TOKEN=hf_sesame1"]) == 0
    output, errors = capsys.readouterr()
    assert "sesame" not in output + errors
    assert "PATH=/a:/b\n" in output and "HF_TOKEN=(not shown)\n" in output
    assert errors.count("\n") == 1 and ": " in errors
    named = errors.strip().rpartition(": ")[2].split(", ")
    assert named == sorted(SECRETS.keys() - {"HF_TOKEN"})
    # what was asked for by name is written, and nothing else
    assert (own_folder / ".deepspeed_env").read_text() == "PATH=/a:/b\nHF_TOKEN=hf_sesame1\n"


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ("https://hub.example", False),
        ("https://hub.example/user@1", False),
        ("https://anna@hub.example", True),
        ("https://anna:pa@ss@hub.example/", True),
        ("anna:word@hub.example:80", True),
    ],
)
def test_an_address_with_a_login_is_left_out(own_folder, monkeypatch, value, left_out):
    monkeypatch.setenv("HF_ENDPOINT", value)
    _, variables, names = write_variables([], None)
    assert (names == ["HF_ENDPOINT"]) == left_out == ("HF_ENDPOINT" not in variables)


def test_a_path_with_signs_in_it_is_no_login(monkeypatch):
    path = "/opt/python@3.12/bin:/spack/gcc-12:gcc@12/bin"
    monkeypatch.setenv("PATH", path)
    assert write_variables([], None).variables == {"PATH": path}


@pytest.mark.parametrize("there", [None, 0o644, 0o666])
def test_nobody_else_can_read_the_file(own_folder, there):
    path = own_folder / ".deepspeed_env"
    reader = None
    if there is not None:
        path.write_text("OLD=1\n")
        path.chmod(there)
        reader = path.open()  # by one who opened it before
    umask = os.umask(0)
    try:
        write_variables(["SECRET_NAME=sesame"], None)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    if reader is not None:
        assert reader.read() == "OLD=1\n"
        reader.close()
    assert [file.name for file in own_folder.iterdir()] == [".deepspeed_env"]


def test_a_link_that_waits_in_the_way_is_not_followed(own_folder):
    """What stands under a name that can be foreseen may be another user's."""
    victim = own_folder / "victim"
    victim.write_text("mine")
    for name in (".deepspeed_env.aside", ".deepspeed_env"):
        (own_folder / name).symlink_to(victim)
    victim.write_text("MINE=1\n")
    write_variables(["A=1"], None)
    assert victim.read_text() == "MINE=1\n"


def test_an_import_path_is_written_without_the_current_folder(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":/lib::.:/more:")
    assert write_variables([], None).variables["PYTHONPATH"] == "/lib:/more"


def test_lines_of_other_variables_stay(own_folder):
    (own_folder / ".deepspeed_env").write_text("MINE=1\nPATH=/old\n")
    assert write_variables([], None).variables == {"MINE": "1", "PATH": "/a:/b"}


def test_a_line_that_deepspeed_cannot_read_is_refused_without_its_value(own_folder):
    path = own_folder / ".deepspeed_env"
    path.write_text("A=1\nexport HF_TOKEN=sesame\n")
    with pytest.raises(ValueError, match="line 2: 'export HF_TOKEN' is not NAME=VALUE") as refused:
        write_variables([], None)
    assert "sesame" not in str(refused.value)
    path.write_text("")
    assert write_variables([], None).variables == {"PATH": "/a:/b"}


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
    with pytest.raises(ValueError, match="the value of A cannot be carried: .* a blank at an end"):
        write_variables(["A= x"], None)
