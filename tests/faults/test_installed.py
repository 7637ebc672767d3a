"""The installed wheel works, in a clean environment outside the checkout, and so does the sdist."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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


@pytest.mark.slow
def test_the_sdist_has_all_that_its_tests_and_pages_need(tmp_path: Path) -> None:
    clone = tmp_path / "clone"  # the build writes beside what it packs
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    names = [name for name in listed.split("\0") if name and (ROOT / name).exists()]
    for name in names:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():  # a link to one
            (clone / name).symlink_to(os.readlink(ROOT / name))
        else:
            shutil.copy(ROOT / name, clone / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", build], cwd=clone, env=clean, check=True, timeout=120)
    (packed,) = tmp_path.glob("bigvit-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / packed.name.removesuffix(".tar.gz")
    hidden = [name for name in names if name.startswith(".")]
    missing = [name for name in names if name not in hidden and not (source / name).exists()]
    assert not missing
    tests = ("tests/unit/test_docs.py", "tests/unit/test_completion.py", "tests/recipes")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    env = {**clean, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:]
