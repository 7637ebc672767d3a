"""Hosts that differ in what they train on, or do not share the run folder, are refused."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hosts as two
import pytest
from PIL import Image

pytestmark = pytest.mark.multihost


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    subprocess.run([sys.executable, two.ROOT / "scripts" / "photos.py", folder], check=True)
    return folder


@contextmanager
def mounted(hosts: two.Hosts, *options: object) -> Iterator[None]:
    """Something mounted on n2 alone."""
    hosts.mount("n2", *options)
    try:
        yield
    finally:
        hosts.unmount("n2", Path(str(options[-1])))


@pytest.fixture
def refused(hosts, warm) -> Callable[..., str]:
    """What a run over both hosts says that ends with code 2."""

    def run(recipe: str, *options: object) -> str:
        script = Path(__file__).with_name("impatient.py")
        ranks = hosts.warm(warm, script, recipe, "--workers", 0, *options)
        assert ranks.wait(60) == [2, 2], ranks.output
        assert "Traceback" not in ranks.output
        return ranks.output

    return run


def test_another_copy_of_the_data_is_refused(hosts, refused, photos, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    for file in other.rglob("train/*/*.jpg"):  # the same names, other pixels
        Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file, quality=90)
    run = tmp_path / "run"
    with mounted(hosts, "--bind", other, photos):
        said = refused("photos_vit_64", "--data-root", photos, "--run-dir", run)
    assert "error: rank 1 on n2 differs from rank 0 on n1: index.train.contents is" in said
    assert "pixels of the first batch is" in said
    assert said.count("error:") == 1


@pytest.mark.slow
def test_images_of_other_names_are_refused(hosts, refused, photos, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    next(other.rglob("train/cat/*.jpg")).rename(other / "train" / "cat" / "another.jpg")
    run = tmp_path / "run"
    with mounted(hosts, "--bind", other, photos):
        said = refused("photos_vit_64", "--data-root", photos, "--run-dir", run)
    assert "error: rank 1 on n2 differs from rank 0 on n1: index.train.digest is" in said


@pytest.mark.parametrize("blind", ["n1", pytest.param("n2", marks=pytest.mark.slow)])
def test_data_that_one_host_lacks_are_said_on_both(hosts, refused, blind, photos, tmp_path):
    run = tmp_path / "run"
    hosts.mount(blind, "-t", "tmpfs", "tmpfs", photos)
    try:
        said = refused("photos_vit_64", "--data-root", photos, "--run-dir", run)
    finally:
        hosts.unmount(blind, photos)
    seeing = two.NAMES[1 - two.NAMES.index(blind)]
    rank = two.NAMES.index(blind)
    assert f"{blind}: error: --data-root {photos}" in said
    assert f"{seeing}: error: rank {rank} on {blind}: --data-root {photos}" in said


@pytest.mark.slow
def test_a_problem_of_all_hosts_is_said_once(hosts, refused, tmp_path):
    said = refused("photos_vit_64", "--data-root", tmp_path / "nothing")
    assert said.count("error:") == 1


def test_a_run_folder_that_is_not_shared_is_refused(hosts, refused, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with mounted(hosts, "-t", "tmpfs", "tmpfs", runs):
        said = refused("digits_vit", "--run-dir", runs / "run")
    assert (
        f"error: --run-dir {runs / 'run'}: rank 1 on n2 does not see there what rank 0 on n1"
        in said
    )
