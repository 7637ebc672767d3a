"""Nothing is imported from the current folder by what the doctor and the launcher start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bigvit
from bigvit.cli import main
from bigvit.hosts.launch import _environment

NAMES = ("torch", "deepspeed", "psutil", "xxhash", "json", "runpy", "typing", "sitecustomize")
BROKEN = "import os\nopen(os.path.join({folder!r}, __name__ + '.ran'), 'w')\nraise SystemExit(7)\n"
SSH = """#!/bin/sh
for last; do :; done
cd / && exec sh -c "$last"
"""
PDSH = """#!/bin/sh
while [ "$1" != -w ]; do shift; done
shift 2
cd / && exec sh -c "$(echo "$*" | sed 's/%n/0/')"
"""
SCRIPT = """
import os
import beside, torch
print("imported", beside.__file__, torch.__version__, flush=True)
os._exit(0)
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules of names that are in use, ssh and pdsh that run here, and a
    PYTHONPATH with an empty entry, as `PYTHONPATH=$PYTHONPATH:/some/where` makes."""
    folder, bin, home = tmp_path / "trap", tmp_path / "bin", tmp_path / "home"
    for each in (folder, bin, home):
        each.mkdir()
    for name, text in (("ssh", SSH), ("pdsh", PDSH)):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    for name in NAMES:
        (folder / f"{name}.py").write_text(BROKEN.format(folder=str(folder)))
    (folder / "bigvit").mkdir()
    (folder / "bigvit/__init__.py").write_text(BROKEN.format(folder=str(folder)))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f":{Path(bigvit.__file__).parent.parent}")
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    monkeypatch.chdir(folder)
    return folder


def ran(trap: Path) -> list[str]:
    """The modules of the current folder that were imported."""
    return sorted(path.name for path in trap.rglob("*.ran"))


@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow), ["--hostfile", "hosts"]]
)
def test_the_doctor_imports_nothing_from_here(trap, capsys, options):
    """On this machine, and by ssh."""
    (trap / ".deepspeed_env").write_text(f"PYTHONPATH=:{os.environ['PYTHONPATH'][1:]}\n")
    (trap / "hosts").write_text("n1 slots=1\n")
    code = main(["doctor", *options])
    said = capsys.readouterr().out
    assert ran(trap) == []
    assert (code, "no problems\n" in said) == (0, True), said
    assert "all-reduce of 64 MiB" in said


def test_the_launcher_is_told_to_import_nothing_from_here(trap, tmp_path):
    """By the variables that it is given; slow: by a launch."""
    help = [sys.executable, "-m", "json.tool", "--help"]
    assert subprocess.run(help, capture_output=True).returncode != 0
    assert ran(trap) == ["sitecustomize.ran"]
    (trap / "sitecustomize.ran").unlink()
    words = ["--num_accelerators", "1", str(tmp_path / "scripts/train.py"), "digits_vit"]
    with _environment(words, False) as variables:
        done = subprocess.run(help, env=variables, capture_output=True)
    if sys.version_info >= (3, 11):
        assert (done.returncode, ran(trap)) == (0, [])
    code = "import sys; print(*sys.path, sep='\\n')"
    told = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True)
    path = told.stdout.decode().splitlines()
    assert path[0] == str(tmp_path / "scripts") and str(trap) not in path
    with _environment(["--module", *words], False) as variables:
        assert variables["PYTHONPATH"] == os.environ["PYTHONPATH"]


def test_hosts_are_told_what_they_were_and_not_this_folder(trap, tmp_path):
    (trap / ".deepspeed_env").write_text("GREETING=good day\n")
    words = ["--hostfile", "hosts", str(tmp_path / "scripts/train.py"), "digits_vit"]
    with _environment(words, True) as variables:
        file = Path(variables["DS_ENV_FILE"])
        assert file.stat().st_mode & 0o777 == 0o600
        path = f"{tmp_path / 'scripts'}:{os.environ['PYTHONPATH'][1:]}"
        assert file.read_text() == f"GREETING=good day\nPYTHONPATH={path}\n"
    assert not file.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="`python -m` of 3.10 looks there")
@pytest.mark.parametrize("where", ["here", "hosts"])
def test_a_launch_imports_nothing_from_here(trap, tmp_path, where):
    (trap / "sitecustomize.py").unlink()  # Python itself, before `bigvit launch` is there
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "beside.py").touch()
    (trap / "hosts").write_text("n1 slots=1\n")
    words = ["--hostfile", "hosts", "--force_multi", "--no_ssh_check", "--master_addr", "127.0.0.1"]
    words = words if where == "hosts" else ["--num_accelerators", "1"]
    bigvit_ = Path(sys.executable).with_name("bigvit")
    done = subprocess.run(
        [bigvit_, "launch", *words, str(script)],
        env={**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"][1:]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, ran(trap)) == (0, []), done.stderr
    assert f"imported {script.parent / 'beside.py'}" in done.stdout
