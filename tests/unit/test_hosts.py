"""Reading a hostfile, and running a command on hosts: `ssh` is a script that runs it here."""

import os
import sys
from pathlib import Path

import pytest

from bigvit.cli import main
from bigvit.hosts.hostfile import Done, carried, read_hostfile, run_on
from bigvit.hosts.launch import _value

SSH = """#!/bin/sh
echo "$@" >> "$SSH_LOG"
for last; do :; done
case "$*" in *" far "*) echo refused >&2; exit 255 ;; esac
exec sh -c "$last"
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a home without .deepspeed_env, and an ssh that stays here."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "ssh").write_text(SSH)
    (bin / "ssh").chmod(0o755)
    here, home = tmp_path / "my folder", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("HOME", str(home))
    for name in ("PDSH_SSH_ARGS_APPEND", "DS_ENV_FILE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(here)
    return here


def test_a_hostfile_is_read_in_its_order(own_folder: Path) -> None:
    path = own_folder / "hosts"
    path.write_text("# two\nb slots=8\n\n  user@a   slots=4 # the small one\n")
    assert list(read_hostfile(path).items()) == [("b", 8), ("user@a", 4)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=2\nb\n", "line 2: 'b' is not HOST slots=N"),
        ("a slots=two\n", "line 1"),
        ("a slots=0\n", "line 1"),
        ("a slots=2x\n", "line 1"),
        ("a slots=2\n#\na slots=2\n", "line 3: a is there already"),
        ("# nobody\n", "names no host"),
    ],
)
def test_a_wrong_hostfile_is_refused(own_folder: Path, text: str, said: str) -> None:
    path = own_folder / "hosts"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_hostfile(path)


HOSTS = ["n1", "node-1.cluster.local", "10.0.0.1", "anna@n_1", "fe80::1:2", "::1", "2001:db8::7"]
NO_HOSTS = ["-oProxyCommand=x", "--x", "anna@-n1", "@n1", "a;b", "$(x)", "a`b`", "n[1-3]", "a|b"]
NO_HOSTS += ["^file", "/n1/", "exec:n1", "n1,n2", "n1&", "a'b", "..", "n1%h", "a@b@c", "ä\u202en1"]


@pytest.mark.parametrize("host", HOSTS)
def test_names_and_addresses_are_hosts(own_folder: Path, host: str) -> None:
    path = own_folder / "hosts"
    path.write_text(f"{host} slots=2\n")
    assert read_hostfile(path) == {host: 2}


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_ssh_or_a_shell_would_take_for_something_else_is_no_host(
    own_folder: Path, host: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By whichever command it comes; nothing is started."""
    path = own_folder / "hosts"
    path.write_text(f"n1 slots=2\n{host} slots=2\n")
    script = ["scripts/train.py", "digits_vit"]
    for command in (
        ["doctor", "--hostfile", str(path)],
        ["hosts", "--hostfile", str(path), "digits_vit"],
        ["launch", "--hostfile", str(path), *script],
        ["launch", f"--hostfile={path}", "--no_ssh", "--node_rank", "0", *script],
        ["launch", "--hostf", str(path), *script],
        ["launch", f"--master_addr={host}", *script],
        ["launch", "--master_addr", host, *script],
        ["doctor", f"--master-addr={host}"],
    ):
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert f"{host!r} is not the name or address of a host" in said, command
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("own", "value"),
    [
        ("", None),  # no option at all: `bigvit launch scripts/train.py ...`
        ("--num_gpus 2", None),
        ("--hostfile a", "a"),
        ("--hostf=a", "a"),
        ("-H a --hostfile b", "b"),
        ("--hostfile", ""),
    ],
)
def test_an_option_of_the_launcher_is_read_as_it_reads_it(own: str, value: str | None) -> None:
    assert _value(own.split(), "-H", "--hostfile") == value


@pytest.mark.parametrize("word", ["runs/a;b", "runs/$(x)", "a'b", "a`b", "a*", "(1,2)", "%h", ""])
def test_what_other_hosts_shells_would_read_is_not_launched(
    own_folder: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_folder / "hosts").write_text("n1 slots=2\nn2 slots=2\n")
    given = ["--hostfile", "hosts", "scripts/train.py", "digits_vit", "--run-dir", word]
    assert main(["launch", *given]) == 2
    said = capsys.readouterr().err
    assert f"{word!r}: DeepSpeed puts it into the command lines of other hosts" in said


def test_an_absent_hostfile_is_refused(own_folder: Path) -> None:
    with pytest.raises(ValueError, match="absent cannot be read"):
        read_hostfile(own_folder / "absent")


def test_variables_are_carried_as_deepspeed_does(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    (Path.home() / ".deepspeed_env").write_text("A=home\nB=home\n")
    (own_folder / ".deepspeed_env").write_text("B=here=1\n")
    found = carried()
    assert (found["A"], found["B"], found["NCCL_DEBUG"]) == ("home", "here=1", "INFO")
    assert found["PYTHONPATH"] == ""  # without the current folder, which DeepSpeed adds
    for line in ("# why", "A;touch x=1"):
        (own_folder / ".deepspeed_env").write_text(f"B=1\n{line}\n")
        with pytest.raises(ValueError, match="line 2: .* is not NAME=VALUE"):
            carried()
    (own_folder / ".deepspeed_env").write_text("B=1\n# why\n")
    with pytest.raises(ValueError, match="line 2: '# why' is not NAME=VALUE"):
        carried()


def test_a_command_runs_on_every_host_in_this_folder(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F my_config")
    (own_folder / ".deepspeed_env").write_text("GREETING=good day\n")
    code = "import os; print(os.getcwd(), os.environ['GREETING']); raise SystemExit(3)"
    found = run_on(["a", "far", "b"], [sys.executable, "-c", code], 20, ssh_port=2222)
    said = Done(3, f"{own_folder} good day\n", "")
    assert found == {"a": said, "far": Done(255, "", "refused\n"), "b": said}
    lines = (tmp_path / "log").read_text().splitlines()
    assert all(line.startswith("-F my_config -x") and " -p 2222 " in line for line in lines)


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    code = f"import time; time.sleep(2); open({str(tmp_path / 'late')!r}, 'w')"
    assert run_on(["a"], [sys.executable, "-c", code], 0.5)["a"].code is None
    assert not (tmp_path / "late").exists()
