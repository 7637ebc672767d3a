"""The installed wheel works, in a clean environment outside the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_the_wheel_trains_through_the_launcher(tmp_path):
    def run(*command: object, cwd: Path = ROOT) -> str:
        words = [str(word) for word in command]
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            words, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    build = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", tmp_path)
    run(sys.executable, "-m", "pip", "wheel", "-q", *build, ROOT)
    (wheel,) = tmp_path.glob("bigvit-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "clean")
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    # what the wheel depends on is taken from here; this checkout's own installation is not, as
    # the .pth files of a folder that a .pth file names are not read
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import bigvit; print(bigvit.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "clean"))
    assert "deit3_h14_in1k_126" in run(tmp_path / "clean" / "bin" / "bigvit", "list", cwd=tmp_path)
    options = ("--schedule.epochs", 1, "--schedule.warmup-epochs", 0, "--workers", 0)
    bigvit = tmp_path / "clean" / "bin" / "bigvit"
    run(bigvit, "train", "digits_vit", "--ranks", 2, *options, cwd=tmp_path)
    assert "supervise.sh" in run(bigvit, "scripts", tmp_path / "cluster", cwd=tmp_path)
    status = json.loads((tmp_path / "runs" / "digits_vit" / "status.json").read_text())
    assert (status["state"], status["update"]) == ("done", 23)
