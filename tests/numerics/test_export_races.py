"""Two exports into one folder leave one of them, whole, and refuse or follow the other."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from oblong import images, recipe_of, saved

from bigvit.checkpoint.weights import Unfit, read_init
from bigvit.cli import main
from bigvit.export.folder import export

SIZES = (32, 48)
HELD = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs whose exports differ in weights and in size."""
    root = tmp_path_factory.mktemp("races")
    for i, size in enumerate(SIZES):
        saved(root / f"run{i}", recipe_of(size), i + 1)
        assert main(["export", str(root / f"run{i}"), "--out", str(root / f"export{i}")]) == 0
    return [root / f"run{i}" for i in range(2)]


def racer(run: str, folder: str, races: int, barrier: Any, codes: Any) -> None:
    """Export as often as told, each time at the same moment as the other."""
    from bigvit.cli import main

    for race in range(races):
        barrier.wait(120)
        codes.put((race, main(["export", run, "--out", f"{folder}/{race}"])))
        barrier.wait(120)


def race(runs: list[Path], folder: Path, races: int) -> list[list[int]]:
    """The exit codes of every race."""
    context = multiprocessing.get_context("fork")
    barrier, codes = context.Barrier(2), context.Queue()
    racers = [
        context.Process(target=racer, args=(str(run), str(folder), races, barrier, codes))
        for run in runs
    ]
    for each in racers:
        each.start()
    found: list[list[int]] = [[] for _ in range(races)]
    for _ in range(2 * races):
        number, code = codes.get(timeout=120)
        found[number].append(code)
    for each in racers:
        each.join(60)
    return found


def content(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model.safetensors").read_bytes(), (folder / "config.json").read_bytes()


def assert_whole_or_refused(runs: list[Path], folder: Path, races: int) -> None:
    whole = [content(run.parent / f"export{i}") for i, run in enumerate(runs)]
    found = race(runs, folder, races)
    for number, codes in enumerate(found):
        assert sorted(codes) in ([0, 0], [0, 2]), codes
        assert content(folder / str(number)) in whole, f"race {number} published a mixture"
        assert len(list((folder / str(number)).iterdir())) == 3
    print(f"{sum(sorted(codes) == [0, 2] for codes in found)} of {races} were refused")


def test_of_two_exports_at_once_one_is_there_and_whole(runs: list[Path], tmp_path: Path):
    assert_whole_or_refused(runs, tmp_path, 5)


@pytest.mark.slow
def test_of_many_races_none_publishes_a_mixture(runs: list[Path], tmp_path: Path):
    assert_whole_or_refused(runs, tmp_path, 100)


def stop_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process be killed at its count-th rename or removal."""
    left = [count]

    def counted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return real(*args, **options)

        return call

    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_a_killed_export_is_whole_or_absent_and_followed_by_the_next(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    folder = export(runs[0], tmp_path / "out")
    old = content(folder)
    if (child := os.fork()) == 0:
        stop_at(monkeypatch, count)
        export(runs[1], folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    if (folder / "config.json").exists():
        assert content(folder) == old
    else:
        with pytest.raises(FileNotFoundError):
            timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert len(list(folder.iterdir())) > 1 or count == 1
    assert main(["export", str(runs[1]), "--out", str(folder)]) == 0
    assert content(folder) == content(runs[1].parent / "export1")
    assert len(list(folder.iterdir())) == 3


def test_leftovers_are_no_strangers_and_others_are(runs: list[Path], tmp_path: Path, capsys: Any):
    folder = tmp_path / "out"
    folder.mkdir()
    for name in (".model.safetensors.0badcafe.aside", ".config.json.aside"):
        (folder / name).write_text("half")
    assert main(["export", str(runs[0]), "--out", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    (folder / ".model.safetensors.mine").write_text("years of work")
    assert main(["export", str(runs[0]), "--out", str(folder)]) == 2
    assert "it holds other files (.model.safetensors.mine)" in capsys.readouterr().err


def test_a_config_says_which_weights_it_is_about(runs: list[Path], tmp_path: Path):
    """What a reader that opened both at different times could have in its hands is refused."""
    folder = export(runs[0], tmp_path / "out")
    assert read_init(str(folder)).grid == (8, 8)
    other = export(runs[1], tmp_path / "other")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(Unfit, match=r"is not the file that config\.json beside it is about"):
        read_init(str(folder))


@torch.no_grad()
def test_names_of_classes_lie_where_timm_and_where_transformers_look(
    runs: list[Path], tmp_path: Path
):
    names = ["a", "b", "c", "d", "e"]
    classes = runs[0] / "classes.json"
    classes.write_text(json.dumps(names))
    folder = export(runs[0], tmp_path / "out")
    classes.unlink()
    assert json.loads((folder / "config.json").read_text())["label_names"] == names
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert model.pretrained_cfg["label_names"] == names
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(str(folder)).eval()
    assert theirs.config.id2label == dict(enumerate(names))
    assert theirs.config.label2id == {name: i for i, name in enumerate(names)}
    x = images(32)
    torch.testing.assert_close(theirs(x).logits, model(x))
