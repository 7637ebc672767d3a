"""Checkpoints of the single engine: bit for bit, or refused with the damaged file's name."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from saving import as_format_1, load, rewrite, save

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import (
    Damaged,
    damage,
    read_manifest,
    step_name,
)
from bigvit.checkpoint.save import NotSaved
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import Rates, Recipe, batch_layout
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

TINY = replace(
    digits_vit,
    model=replace(digits_vit.model, embed_dim=16, depth=1, num_heads=2),
    batch_size=24,
)
PREPARE = Prepare(TINY)
SLICES = "rank_00000.safetensors"
MANIFEST = "manifest.json"


def fresh(recipe: Recipe = TINY) -> SingleEngine:
    def build() -> Task:
        task = Task(recipe)
        task.init_weights()
        return task

    return SingleEngine(build, recipe, alone())


def train(engine: SingleEngine, first: int, last: int) -> None:
    """Updates first .. last - 1 of the recipe."""
    layout = batch_layout(TINY, 1, 12)
    source = open_source(TINY.data, "train")
    batches = train_batches(source, TINY, layout, 0, 0, first, engine.task.draws)
    for update in range(first, last):
        engine.update(PREPARE.later(next(batches)), Rates(TINY.lr(update) + 1e-3))


def contents(engine: SingleEngine) -> dict[str, bytes]:
    """Every slice of an engine, and its working weights, to the bit."""
    slices = {f"{s.kind}/{s.name}": s.view.numpy().tobytes() for s in engine.slices()}
    working = {
        name: p.detach().view(-1).view(torch.uint8).numpy().tobytes()
        for name, p in engine.task.named_parameters()
    }
    return slices | working


@pytest.fixture(scope="module")
def trained() -> SingleEngine:
    engine = fresh()
    train(engine, 0, 3)
    return engine


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, trained: SingleEngine) -> Path:
    """The checkpoint of update 3, beside that of other weights as update 4."""
    folder = tmp_path_factory.mktemp("checkpoints")
    other = fresh()
    train(other, 0, 1)
    save(other, folder, 4, to_json(TINY), keep=9)
    return save(trained, folder, 3, to_json(TINY), keep=9)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loaded_engine_is_the_saved_one_to_the_bit_and_goes_on_alike(
    tmp_path: Path, precision: str
) -> None:
    recipe = replace(TINY, precision=precision)
    engine = fresh(recipe)
    train(engine, 0, 3)
    folder = save(engine, tmp_path, 3, to_json(recipe), keep=1)
    assert folder == tmp_path / "step_00000003"
    again = fresh(recipe)
    train(again, 0, 1)
    assert contents(again) != contents(engine)
    manifest = load(again, folder)
    assert (manifest.update, manifest.recipe) == (3, to_json(recipe))
    assert contents(again) == contents(engine)
    assert again.scalars() == engine.scalars() == {"optimizer_steps": 3}
    train(engine, 3, 5)
    train(again, 3, 5)
    assert contents(again) == contents(engine)


def test_every_weight_and_both_moments_are_saved(saved: Path, trained: SingleEngine) -> None:
    names = [name for name, _ in trained.task.named_parameters()]
    keys = {f"{kind}/{name}" for kind in ("weight", "exp_avg", "exp_avg_sq") for name in names}
    manifest = read_manifest(saved)
    assert manifest.by_key().keys() == keys
    assert [row.name for row in manifest.tensors] == names
    assert {path.name for path in saved.iterdir()} == {SLICES, MANIFEST}
    assert manifest.scalars == {"optimizer_steps": 3}
    assert (manifest.batch, manifest.update) == (3, 3)


def test_a_fresh_engines_moments_are_saved_as_zeros(tmp_path: Path) -> None:
    folder = save(fresh(), tmp_path, 0, to_json(TINY), keep=1)
    again = fresh()
    train(again, 0, 2)
    load(again, folder)
    assert contents(again) == contents(fresh())
    assert again.scalars() == {"optimizer_steps": 0}


def test_safetensors_itself_reads_the_files(saved: Path, trained: SingleEngine) -> None:
    wanted = {f"{part.kind}/{part.name}": part.view for part in trained.slices()}
    with safe_open(saved / SLICES, framework="pt") as file:
        assert set(file.keys()) == set(wanted)
        for key, view in wanted.items():
            tensor = file.get_tensor(key)
            assert tensor.dtype == view.dtype == torch.float32
            assert torch.equal(tensor, view)


def test_read_weights_gives_whole_named_tensors(saved: Path, trained: SingleEngine) -> None:
    _, weights = read_weights(saved)
    wanted = dict(trained.task.named_parameters())
    assert set(weights) == set(wanted)
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # more than the last newline


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(place: float) -> Callable[[Path], None]:
    """Flip the lowest bit of one byte, at this share of the file."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


def swap(path: Path) -> None:
    """Put the same file of another step in its place."""
    content = (path.parent.parent / step_name(4) / path.name).read_bytes()
    assert len(content) == path.stat().st_size and content != path.read_bytes()
    path.write_bytes(content)


DAMAGES = {
    "truncated": truncate,
    "halved": halve,
    "lengthened": lengthen,
    "emptied": empty,
    "removed": Path.unlink,
    "swapped": swap,
    **{f"flipped at {place}": flip(place) for place in (0, 0.1, 0.25, 0.5, 0.77, 1)},
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [SLICES, MANIFEST])
def test_a_damaged_file_is_named_and_nothing_is_changed(
    saved: Path, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "checkpoints" / step_name(3)
    shutil.copytree(saved.parent, folder.parent)
    DAMAGES[damage](folder / name)
    engine = fresh()
    before = contents(engine)
    with pytest.raises(Damaged) as refused:
        load(engine, folder)
    assert str(folder / name) in str(refused.value)
    assert contents(engine) == before
    assert engine.scalars() == {"optimizer_steps": 0}
    with pytest.raises(Damaged):
        read_weights(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"optimizer_steps": 3', '"optimizer_steps": 2'),
        ('"lr": 0.004', '"lr": 0.005'),
        ('"format": 2', '"format": 0'),
        ('"format": 2', '"format": 1'),
        ('"digest": "', '"digest": "0'),
        ('"name": "model.cls_token"', '"name": "model.cls_tokem"'),
    ],
)
def test_a_manifest_that_still_reads_but_says_something_else_is_refused(
    saved: Path, tmp_path: Path, old: str, new: str
) -> None:
    folder = tmp_path / step_name(3)
    shutil.copytree(saved, folder)
    text = (folder / MANIFEST).read_text()
    assert old in text
    (folder / MANIFEST).write_text(text.replace(old, new, 1))
    engine = fresh()
    before = contents(engine)
    with pytest.raises(Damaged) as refused:
        load(engine, folder)
    assert str(folder / MANIFEST) in str(refused.value)
    assert contents(engine) == before


def test_a_checkpoint_under_another_name_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / step_name(5))
    with pytest.raises(Damaged, match="belongs to step_00000003, not to step_00000005"):
        load(fresh(), tmp_path / step_name(5))


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_damaged_at_most(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(saved, tmp_path / saved.name)
    asked: Any = os.stat

    def pruned(path: Any, *args: Any, **options: Any) -> os.stat_result:
        found = asked(path, *args, **options)
        if str(path).endswith(SLICES) and copied.is_dir():
            copied.rename(tmp_path / ".gone")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", pruned)
        said = damage(copied)
    assert not copied.exists() and (not said or "missing" in said)


def test_another_models_checkpoint_is_refused_and_nothing_is_changed(saved: Path) -> None:
    deeper = fresh(replace(TINY, model=replace(TINY.model, depth=2)))
    before = contents(deeper)
    with pytest.raises(Damaged, match="holds no weight of model.blocks.1"):
        load(deeper, saved)
    assert contents(deeper) == before


def test_only_the_newest_are_kept(tmp_path: Path, trained: SingleEngine) -> None:
    for update in (8, 9, 10, 11):
        save(trained, tmp_path, update, to_json(TINY), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [step_name(10), step_name(11)]


def test_nothing_but_checkpoints_is_ever_removed(tmp_path: Path, trained: SingleEngine) -> None:
    others = [tmp_path / name for name in ("notes", "step_00000001_mine", "step_1")]
    for other in others:
        other.mkdir()
    save(trained, tmp_path, 2, to_json(TINY), keep=1)
    save(trained, tmp_path, 3, to_json(TINY), keep=1)
    assert all(other.is_dir() for other in others)
    assert (tmp_path / step_name(3)).is_dir()
    assert not (tmp_path / step_name(2)).exists()


def test_what_a_killed_job_left_aside_does_not_hurt(tmp_path: Path, trained: SingleEngine) -> None:
    aside = tmp_path / f".{step_name(3)}.aside"
    aside.mkdir()
    (aside / SLICES).write_bytes(b"half")
    (aside / "rank_00001.json").write_text("{")
    folder = save(trained, tmp_path, 3, to_json(TINY), keep=1)
    again = fresh()
    load(again, folder)
    assert contents(again) == contents(trained)
    assert [path.name for path in tmp_path.iterdir()] == [step_name(3)]


def test_saving_an_update_again_replaces_it(tmp_path: Path, trained: SingleEngine) -> None:
    save(fresh(), tmp_path, 3, to_json(TINY), keep=1)
    folder = save(trained, tmp_path, 3, to_json(TINY), keep=1)
    again = fresh()
    load(again, folder)
    assert contents(again) == contents(trained)


def test_what_cannot_be_written_is_said_and_leaves_nothing(
    tmp_path: Path, trained: SingleEngine
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotSaved, match="could not be written"):
        save(trained, tmp_path / "file" / "checkpoints", 3, to_json(TINY), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_newer_bigvit_wrote_is_told_from_damage(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / saved.name)
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"format": 2', '"format": 3'))
    assert re.search(
        r"of a newer bigvit: its format is 3, and this one reads 1 and 2", damage(folder)
    )


def test_a_checkpoint_of_format_1_is_read_alike(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / saved.name)
    as_format_1(folder)
    assert json.loads((folder / MANIFEST).read_text())["format"] == 1
    engines = fresh(), fresh()
    manifests = [load(e, f) for e, f in zip(engines, (saved, folder), strict=True)]
    assert contents(engines[0]) == contents(engines[1])
    assert {k: r.cuts for k, r in manifests[0].by_key().items()} == {
        k: r.cuts for k, r in manifests[1].by_key().items()
    }


def set_of(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["pieces"][0][where] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body["pieces"].pop(0), ""),  # the digest is right: other checks see it later
        (lambda body: body["pieces"].append(body["pieces"][0]), "do not fit"),
        (lambda body: body.update(pieces={}), "pieces must be a list"),
        (lambda body: body.pop("pieces"), "pieces must be a list"),
        (lambda body: body.update(tensors=[]), "tensors"),
        (set_of("file", "rank_00007.safetensors"), "one of the files"),
        (set_of("start", 1), "do not fit"),
        (set_of("start", -1), "do not fit"),
        (set_of("stop", 3), "do not fit"),
        (set_of("shape", [3]), "do not fit"),
        (set_of("shape", 3), "shape"),
        (set_of("dtype", "F33"), "F33"),
        (set_of("name", ""), "name"),
        (set_of("kind", "exp_avg"), "do not fit"),
    ],
)
def test_a_doctored_one_is_refused_as_ever(
    change: Callable[[dict[str, Any]], None], said: str, saved: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved, tmp_path / saved.name)
    as_format_1(folder)
    rewrite(folder, change)
    if said:
        assert str(folder / MANIFEST) in damage(folder) and said in damage(folder)
    else:
        with pytest.raises(Damaged, match="holds no weight"):
            load(fresh(), folder)


def test_a_failure_without_a_text_is_one(
    tmp_path: Path, trained: SingleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError  # str() of which is empty

    monkeypatch.setattr("bigvit.checkpoint.save.write_tensors", out_of_memory)
    with pytest.raises(NotSaved, match=r"could not be written \(MemoryError\(\)\)"):
        save(trained, tmp_path, 3, to_json(TINY), keep=1)
    assert list(tmp_path.iterdir()) == []
