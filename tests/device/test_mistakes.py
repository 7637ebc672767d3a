"""What a CPU forgives shows on the pretend device: thirteen mistakes put into the real code."""

import json
from pathlib import Path

import mistakes
import pytest

SCRIPT = Path(mistakes.__file__)


@pytest.fixture(scope="module")
def on_cpu(warm, tmp_path_factory):
    return _found(warm, tmp_path_factory.mktemp("mistakes"))


@pytest.fixture(scope="module")
def there(on_device, tmp_path_factory):
    return _found(on_device, tmp_path_factory.mktemp("mistakes_on_device"))


def _found(start, folder):
    done = start(1, SCRIPT, folder, timeout=120)
    assert done.code == 0, done.output
    return json.loads((folder / "mistakes.json").read_text())


def test_the_code_as_it_is_does_the_same_on_both(on_cpu, there):
    cpu, device = on_cpu[mistakes.CODE], there[mistakes.CODE]
    assert (cpu["device"], device["device"]) == ("cpu", "pretend:1")
    assert device["waits"] == []
    for found in (cpu, device):
        assert all(found["saved True"] + found["saved False"])
    for key in ("loss", "weights"):
        assert device[key] == pytest.approx(cpu[key], rel=1e-5), key
    assert device["evaluated"] == pytest.approx(cpu["evaluated"], rel=1e-5)


@pytest.mark.parametrize("mistake", mistakes.MISTAKES, ids=lambda each: each.what)
def test_a_mistake_passes_on_a_cpu_and_shows_on_the_device(mistake, on_cpu, there):
    assert on_cpu[mistake.what] == on_cpu[mistakes.CODE]
    found, right = there[mistake.what], there[mistakes.CODE]
    if "error" in found:
        assert mistake.shows in found["error"]
    else:
        assert [key for key in found if found[key] != right[key]] == [mistake.shows]
