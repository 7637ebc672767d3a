"""`bigvit doctor` on two hosts: a sound pair, and pairs with one thing wrong, which it names."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import hosts as two
import pytest

import bigvit

pytestmark = pytest.mark.multihost


def examine(
    hosts: two.Hosts, tmp_path: Path, *more: object, port: int | None = None, **variables: str
) -> tuple[int | None, str, list[str]]:
    """The exit code of a doctor on the first host, all it said, and the problems among that."""
    hosts.export(**variables)
    output = tmp_path / "output"
    output.unlink(missing_ok=True)
    own = ("--hostfile", "hosts", "--master-port", port or two.free_port())
    command = ("bigvit", "doctor", *own, *more)
    began = time.monotonic()
    code = two.wait(hosts.popen("n1", command, output), 150)
    said = output.read_text()
    print(f"{time.monotonic() - began:.0f} s\n{said}")
    problems = [line.removeprefix("PROBLEM  ") for line in said.splitlines() if "PROBLEM" in line]
    return code, said, problems


def at(hosts: two.Hosts, name: str, *command: object) -> None:
    """Run a command on a host, by its own mounts and network."""
    words = [*hosts.inside(name), *map(str, command)]
    subprocess.run(words, check=True, capture_output=True, env=hosts.environment())


@contextlib.contextmanager
def mounted(hosts: two.Hosts, name: str, *mount: object) -> Iterator[None]:
    """Something else in the place of a file or folder, on one host alone."""
    at(hosts, name, "mount", *mount)
    try:
        yield
    finally:
        at(hosts, name, "umount", mount[-1])


@contextlib.contextmanager
def dropped(hosts: two.Hosts, name: str, *packets: object) -> Iterator[None]:
    """A host that answers no such packets, as behind a firewall."""
    at(hosts, name, "ip", "rule", "add", *packets, "blackhole")
    try:
        yield
    finally:
        at(hosts, name, "ip", "rule", "del", *packets, "blackhole")


def test_a_sound_pair_has_no_problems(hosts, tmp_path):
    code, said, problems = examine(hosts, tmp_path, "digits_vit", "--run-dir", tmp_path / "run")
    assert (code, problems) == (0, []), said
    assert "every host connects to every other" in said
    assert "all-reduce of 64 MiB over 2 ranks" in said
    assert "train data, 1,497 images in 10 classes" in said
    assert "n2" in said and f"{two.ADDRESSES['n2']} ({hosts.link}n2)" in said
    assert not list(tmp_path.glob(".bigvit*"))


@pytest.fixture
def pets(tmp_path) -> tuple[Path, Path]:
    """Data of two classes, and their copy with an image of another name."""
    from PIL import Image

    root, copy = tmp_path / "data", tmp_path / "copy"
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
    shutil.copytree(root, copy)
    (copy / "train" / "cat" / "2.png").rename(copy / "train" / "cat" / "renamed.png")
    return root, copy


def test_other_versions_other_data_and_a_full_disk_are_named(hosts, pets, tmp_path):
    """All that is wrong is said at once; each part comes from its own examination."""
    found = Path(bigvit.__file__)
    other = tmp_path / "other.py"
    other.write_text(found.read_text().replace(bigvit.__version__, "0.0.9"))
    timm = Path(str(distribution("timm").locate_file(""))) / (
        f"timm-{distribution('timm').version}.dist-info/METADATA"
    )
    older = tmp_path / "METADATA"
    older.write_text(timm.read_text().replace(distribution("timm").version, "1.0.11", 1))
    recipe, run, (root, copy) = tmp_path / "recipe.py", tmp_path / "run", pets
    recipe.write_text(RECIPE)
    run.mkdir()
    small = ("-t", "tmpfs", "-o", "size=128k", "none", run)
    with contextlib.ExitStack() as stack:
        for mount in (
            ("--bind", other, found),
            ("--bind", older, timm),
            ("--bind", copy, root),
            small,
        ):
            stack.enter_context(mounted(hosts, "n2", *mount))
        at(hosts, "n2", "sh", "-c", f"head -c 200000 /dev/zero > {run}/filler || true")
        options = (f"{recipe}:pets", "--data-root", root, "--run-dir", run)
        code, said, problems = examine(hosts, tmp_path, *options)
    assert code == 1
    assert f"n2: bigvit: 0.0.9, and on n1: {bigvit.__version__}; install the same" in problems
    assert any(problem.startswith("n2: timm: 1.0.11, and on n1: ") for problem in problems)
    (data,) = (problem for problem in problems if "train data" in problem)
    assert data.startswith("n2: train data: 6 images in 2 classes, digest ")
    assert "same     test data, 6 images" in said
    full = [problem for problem in problems if "run folder" in problem or str(run) in problem]
    assert f"n2: {run} cannot be written to: No space left on device" in full[0], said
    assert "n2: 0.0 MB are free for the run folder, and the checkpoints kept need " in full[1]
    assert full[2].startswith("n2: its run folder is another one than here")
    assert len(full) == 3
    assert len(problems) == 7, said  # the version, the code, timm's version, the data, the disk


RECIPE = """\
from dataclasses import replace

from bigvit.recipes.photos import photos_vit_64

data = replace(photos_vit_64.data, dataset="pets", train_images=6, classes=2)
pets = replace(photos_vit_64, data=data, batch_size=2)
"""


@pytest.mark.slow
def test_a_blocked_port_is_named(hosts, tmp_path):
    master = two.ADDRESSES["n1"]
    with dropped(hosts, "n1", "ipproto", "tcp", "sport", "29511"):
        code, said, problems = examine(hosts, tmp_path, port=29511)
    assert code == 1
    assert len(problems) == 1, said
    assert problems[0].startswith(
        f"n2 cannot connect to n1 ({master}, port 29511): timed out; open"
    )
    assert "the all-reduce was not tried" in said


@pytest.mark.slow
def test_a_host_that_answers_on_no_port_of_its_own_is_named(hosts, tmp_path):
    with dropped(hosts, "n2", "ipproto", "tcp", "sport", "33000-60999"):
        code, said, problems = examine(hosts, tmp_path)
    assert code == 1
    assert all(problem.startswith("n") and " cannot connect to " in problem for problem in problems)
    assert any(problem.startswith("n1 cannot connect to n2 (") for problem in problems), said


def test_a_host_that_does_not_answer_is_named(hosts, tmp_path):
    hosts.stop("n2")
    try:
        code, said, problems = examine(hosts, tmp_path)
    finally:
        hosts.start("n2")
    assert code == 1
    assert len(problems) == 1 and problems[0].startswith("n2: ssh: connect"), said


@pytest.mark.slow
def test_a_name_that_leads_to_the_loopback_is_named(hosts, tmp_path):
    own = tmp_path / "hosts"
    own.write_text("127.0.1.1 n2\n10.77.0.1 n1\n")
    with mounted(hosts, "n2", "--bind", own, "/etc/hosts"):
        code, said, problems = examine(hosts, tmp_path)
    assert code == 1
    assert problems[0].startswith("n2: its own name leads to 127.0.1.1, where gloo"), said


@pytest.mark.slow
def test_an_interface_that_one_host_lacks_is_named(hosts, tmp_path):
    code, said, problems = examine(hosts, tmp_path, GLOO_SOCKET_IFNAME=f"{hosts.link}n1")
    assert code == 1
    assert problems[0].startswith(f"n2: GLOO_SOCKET_IFNAME is {hosts.link}n1, and the inter"), said
    assert problems[1].startswith("n2: the all-reduce failed: "), said


@pytest.mark.slow
def test_bigvit_env_carries_values_through_deepspeed_and_ssh(hosts, tmp_path):
    """The file is read by both: by DeepSpeed through pdsh, and by bigvit itself."""
    script, output = tmp_path / "say.py", tmp_path / "output"
    script.write_text("import os\nprint('<' + os.environ['GREETING'] + '>', flush=True)\n")
    greeting = "it's a good day; *all* & #1 ~ <you>"
    command = ["bigvit", "env", "--interface", f"{hosts.link}n1", f"GREETING={greeting}"]
    assert two.wait(hosts.popen("n1", command, output), 30) == 0, output.read_text()
    assert "GREETING=(not shown)" in output.read_text()
    lines = (hosts.folder / ".deepspeed_env").read_text().splitlines()
    assert f"GREETING={greeting}" in lines
    assert f"GLOO_SOCKET_IFNAME={hosts.link}n1" in lines and f"PYTHONPATH={two.ROOT}" in lines
    address = ("--master_addr", two.ADDRESSES["n1"], "--master_port", two.free_port())
    launcher = ["deepspeed", "--hostfile", "hosts", *address, "--no_ssh_check", script]
    assert two.wait(hosts.popen("n1", launcher, output), 60) == 0, output.read_text()
    for name in two.NAMES:
        assert f"{name}: <{greeting}>" in output.read_text()
    ask = (
        "from bigvit.hosts.hostfile import run_on; import sys; "
        f"print(run_on(['n1', 'n2'], [sys.executable, {str(script)!r}], 30))"
    )
    said = tmp_path / "said"
    assert two.wait(hosts.popen("n1", [sys.executable, "-c", ask], said), 60) == 0
    assert said.read_text().count(f"<{greeting}>") == 2
    hosts.export()
