"""What is pickled in a file of weights is not run, and what holds no weights is refused."""

import functools
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_containers import VIT, assert_logits, of_timm
from torch import nn

from bigvit.checkpoint.weights import Unfit, read_init


class Runs:
    """Pickled, it makes a folder when it is read by whoever believes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def handmade(folder: Path) -> dict[str, bytes]:
    """Pickles that make a folder, by each way in which a pickle can call something."""
    name = str(folder).encode()
    text = b"V" + name + b"\n"
    return {
        "REDUCE": b"cos\nmkdir\n(" + text + b"tR.",
        "INST": b"(" + text + b"ios\nmkdir\n.",
        "OBJ": b"(cos\nmkdir\n" + text + b"o.",
        "NEWOBJ": b"\x80\x02cos\nmkdir\n(" + text + b"t\x81.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93(" + text + b"tR.",
        "dotted": b"\x80\x04\x8c\x02os\x8c\x10path.os.makedirs\x93(" + text + b"tR.",
        "through getattr": b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(Vos\ntRVmkdir\ntR("
        + text + b"tR.",
        "eval": b"cbuiltins\neval\n(V__import__('os').mkdir('" + name + b"')\ntR.",
        "BUILD": b"cfunctools\npartial\n(cos\nmkdir\ntR(cos\nmkdir\n(" + text + b"t}NtbR.",
        "of torch": b"ctorch._utils\n_import_dotted_name\n(Vos.mkdir\ntR(" + text + b"tR.",
        "with attributes": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nmkdir\nN("
        + text + b"tNtR.",
    }  # fmt: skip


def zipped(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
    return path


def older(path: Path, pickled: bytes) -> Path:
    """A file of the format before, whose parts are pickles, one after another."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = (magic, pickle.dumps(1001, 2), pickle.dumps(system, 2), pickled, pickle.dumps([], 2))
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("packed", [zipped, older])
@pytest.mark.parametrize("how", handmade(Path("x")))
def test_a_pickle_that_would_run_code_runs_none(
    tmp_path: Path, how: str, packed: Callable[[Path, bytes], Path]
):
    made = tmp_path / "made"
    pickled = handmade(made)[how]
    if how in ("REDUCE", "INST", "OBJ", "STACK_GLOBAL", "dotted", "through getattr", "eval"):
        pickle.loads(pickled)  # it would
        made.rmdir()
    with pytest.raises(Unfit, match=r"--init .*x\.pth: cannot be read"):
        read_init(str(packed(tmp_path / "x.pth", pickled)))
    assert not made.exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "older"])
def test_weights_beside_code_are_read_and_the_code_is_not_run(tmp_path: Path, old: bool):
    theirs, made = of_timm(VIT), tmp_path / "made"
    content = {
        "hook": Runs(made),
        "model": theirs.state_dict(),
        "more": [functools.partial(os.mkdir, str(made)), nn.Linear(2, 2), {Runs(made): Runs(made)}],
    }
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
    assert_logits(read_init(str(tmp_path / "x.pth")), VIT, theirs)
    assert not made.exists()


@pytest.mark.parametrize("old_format", [False, True])
@pytest.mark.parametrize("kind", ["runs", "partial", "module"])
def test_pickled_objects_are_not_run(tmp_path: Path, kind: str, old_format: bool):
    made = tmp_path / "made"
    objects: dict[str, Any] = {
        "runs": Runs(made),
        "partial": functools.partial(os.mkdir, str(made)),
        "module": nn.Linear(2, 2),
    }
    state = of_timm(VIT).state_dict()
    content = {"model": state, "args": objects[kind]}
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=not old_format)
    read = read_init(str(tmp_path / "x.pth")).weights
    assert all(torch.equal(read[name], weight) for name, weight in state.items())
    torch.save(objects[kind], tmp_path / "x.pth", _use_new_zipfile_serialization=not old_format)
    with pytest.raises(Unfit, match=r"x\.pth.*no named tensors"):
        read_init(str(tmp_path / "x.pth"))
    assert not made.exists()


# one refusal, ours


def garbled(path: Path, kind: str) -> None:
    """Files that are not what their names say, or not any more."""
    state = of_timm(VIT).state_dict()
    torch.save({"model": state}, path)
    data = path.read_bytes()
    match kind:
        case "text":
            path.write_text("<!DOCTYPE html><p>404")
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "cut, older":
            torch.save({"model": state}, path, _use_new_zipfile_serialization=False)
            path.write_bytes(path.read_bytes()[:-9])
        case "a bit":
            changed = bytearray(data)
            changed[len(data) // 2] ^= 1
            path.write_bytes(changed)
        case "numpy's":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("weight.npy", b"\x93NUMPY")
        case "a storage longer than its bytes":
            with zipfile.ZipFile(path) as archive:
                parts = {name: archive.read(name) for name in archive.namelist()}
            with zipfile.ZipFile(path, "w") as archive:
                for name, part in parts.items():
                    archive.writestr(name, part[:-4] if "/data/" in name else part)
        case "module":
            torch.save(of_timm(VIT), path)
        case "others":
            torch.save({"epoch": 3, "lr": 0.1, "best": {"acc": 1.0}}, path)


KINDS = {
    "text": "not a file that torch.save wrote",
    "empty": "not a file that torch.save wrote",
    "cut": "not a file that torch.save wrote",
    "cut, older": "is damaged",
    "a bit": "is damaged",
    "numpy's": "a zip file without a data.pkl",
    "a storage longer than its bytes": "is damaged",
    "module": "it holds no named tensors",
    "others": "it holds no named tensors; its keys are epoch, lr, best",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_such_file_is_refused_in_our_words(tmp_path: Path, kind: str):
    garbled(tmp_path / "x.pth", kind)
    with pytest.raises(Unfit, match=KINDS[kind]) as refused:
        read_init(str(tmp_path / "x.pth"))
    assert "weights_only" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_without_named_tensors_is_refused(tmp_path: Path):
    contents: list[Any] = [[torch.ones(2)], torch.ones(2), {"a": 1}, {"model": {"a": [1]}}]
    for content in contents:
        torch.save(content, tmp_path / "x.pth")
        with pytest.raises(Unfit, match="no named tensors"):
            read_init(str(tmp_path / "x.pth"))
    for name in ("empty.pth", "empty.safetensors"):
        (tmp_path / name).touch()
        with pytest.raises(Unfit, match=name):
            read_init(str(tmp_path / name))
    for name in ("absent.pth", "absent.safetensors"):
        with pytest.raises(Unfit, match=name):
            read_init(str(tmp_path / name))
    (tmp_path / "text.pth").write_text("<!DOCTYPE html>")
    with pytest.raises(Unfit, match=r"text\.pth"):
        read_init(str(tmp_path / "text.pth"))
