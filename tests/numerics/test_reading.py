"""What reads a run or a checkpoint finds it whole, says what it goes back past, and refuses one
whose list of weights is not its recipe's; --init finds all of that on every rank alike."""

import json
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from oblong import WIDE, recipe_of, saved, task_of, write_images
from safetensors.torch import load_file, save_file
from saving import rewrite

from bigvit.checkpoint import manifest as manifests
from bigvit.checkpoint.load import fill
from bigvit.checkpoint.weights import Unfit, read_init
from bigvit.cli import main
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command, DRLoc, Recipe, Run
from bigvit.recipe.store import to_json
from bigvit.training.given import given_checkpoint, given_weights
from bigvit.training.start import Refused, Start, plan_start

LOSS = DRLoc(0.5, None, "signed", "grid", 0.001, "last", True, 8, 2, "mean", 16, 2)
DRLOC = replace(recipe_of(32), objectives=(*recipe_of(32).objectives, LOSS))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, of different weights, an average, and a loss with a head."""
    run = tmp_path_factory.mktemp("two") / "run"
    saved(run, replace(DRLOC, ema=0.5), 1, 2)
    write_images(run.parent / "data", (32, 32), 10)
    return run


@pytest.fixture
def run(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "run"))


def commands(two: Path, path: Path, out: Path) -> dict[str, list[str]]:
    """All that read a run folder or a checkpoint."""
    data = two.parent / "data"
    root, picture = ["--data-root", str(data)], str(data / "val" / "class0" / "0.png")
    return {
        "evaluate": ["evaluate", str(path), *root, "--workers", "0"],
        "export": ["export", str(path), "--out", str(out / "export")],
        "attention": ["attention", str(path), picture, "--out", str(out / "attention")],
        "branches": ["branches", str(path), "--images", "2", *root, "--out", str(out / "b.png")],
        "offsets": ["offsets", str(path), picture, "--out", str(out / "o.png")],
    }


COMMANDS = list(commands(Path("a"), Path("a"), Path("a")))


def flip(checkpoint: Path) -> None:
    """A bit of the weights: only a digest shows it."""
    file = checkpoint / "rank_00000.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_checkpoint_is_gone_back_past_and_named(
    command: str, two: Path, run: Path, tmp_path: Path, capsys: Any, caplog: Any
):
    older, newest = manifests.checkpoints_in(run / "checkpoints")
    flip(newest)
    assert main(commands(two, run, tmp_path)[command]) == 0
    said = " ".join(caplog.messages)
    assert str(newest / "rank_00000.safetensors") in said and "digest" in said
    if command == "evaluate":
        assert json.loads(capsys.readouterr().out)["checkpoint"] == str(older)
    if command != "branches":  # it measures every checkpoint
        assert f"going back to {older}" in said
    assert main(commands(two, newest, tmp_path)[command]) == 2
    assert str(newest / "rank_00000.safetensors") in capsys.readouterr().err
    flip(older)
    assert main(commands(two, run, tmp_path)[command]) == 2


def leave_out(body: dict[str, Any]) -> None:
    body["tensors"] = [r for r in body["tensors"] if r["name"] != "model.blocks.1.ls2.gamma"]


def leave_out_an_average(body: dict[str, Any]) -> None:
    for row in body["tensors"]:
        if row["name"] == "model.norm.bias":
            del row["kinds"]["ema"]


def leave_out_the_losss_head(body: dict[str, Any]) -> None:
    body["tensors"] = [r for r in body["tensors"] if not r["name"].startswith("heads.")]


def rename(body: dict[str, Any]) -> None:
    for row in body["tensors"]:
        row["name"] = row["name"].replace("blocks.1.", "blocks.7.")


def turn(body: dict[str, Any]) -> None:
    for row in body["tensors"]:
        if row["name"] == "model.blocks.0.mlp.fc1.weight":
            row["shape"] = row["shape"][::-1]


DOCTORED = [leave_out, leave_out_an_average, leave_out_the_losss_head, rename, turn]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("doctored", DOCTORED)
def test_a_list_of_weights_that_is_not_the_recipes_is_refused(
    doctored: Any, command: str, two: Path, run: Path, tmp_path: Path, capsys: Any
):
    newest = manifests.checkpoints_in(run / "checkpoints")[-1]
    rewrite(newest, doctored)
    assert main(commands(two, newest, tmp_path)[command]) == 2
    said = capsys.readouterr().err
    assert "is not of its recipe's model" in said and "Traceback" not in said
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("doctored", DOCTORED)
def test_nor_does_a_training_start_from_it(doctored: Any, run: Path):
    newest = manifests.checkpoints_in(run / "checkpoints")[-1]
    rewrite(newest, doctored)
    with pytest.raises(Unfit, match=r"is not of its recipe's model: its (weight|average) "):
        read_init(str(newest))


# a run that goes on meanwhile


def write_and_prune(run: Path, began: Any, ended: Any) -> None:
    """Save one small checkpoint after another, of which one is kept."""
    from saving import save

    from bigvit.engines.single import SingleEngine
    from bigvit.ranks.joining import alone
    from bigvit.recipe.store import to_json

    recipe = recipe_of(32)
    engine = SingleEngine(lambda: task_of(recipe, 1), recipe, alone())
    number = 1
    while not ended.is_set():
        save(engine, run / "checkpoints", number, to_json(recipe), keep=1)
        began.set()
        number += 1
        time.sleep(0.05)  # else a reader that gets no core is always too late


def test_a_reader_beside_a_writer_that_prunes_never_fails(tmp_path: Path, capfd: Any):
    run, context = tmp_path / "run", multiprocessing.get_context("fork")
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    began, ended = context.Event(), context.Event()
    writer = context.Process(target=write_and_prune, args=(run, began, ended))
    writer.start()
    try:
        assert began.wait(120)
        codes, newest = [], set[int]()
        until = time.monotonic() + 8
        while time.monotonic() < until:
            codes.append(main(["export", str(run), "--out", str(tmp_path / "out")]))
            codes.append(main(["checkpoints", str(run)]))
            codes.append(main(["verify", str(run)]))
            newest |= {manifests.batch_of(p) for p in manifests.checkpoints_in(run / "checkpoints")}
    finally:
        ended.set()
        writer.join(60)
    assert writer.exitcode == 0 and len(newest) > 5, "it did save meanwhile"
    failed = sum(code != 0 for code in codes)
    print(f"{failed} of {len(codes)} reads failed, {max(newest)} checkpoints were saved")
    assert failed == 0, capfd.readouterr().err[-2000:]


# every rank alike


def on_ranks(world: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What work returns, or raises, on ranks that are threads here, connected by gloo."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    found: list[Any] = [None] * world

    def one(rank: int) -> None:
        group: Any = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=30))
        hosts = tuple(f"host{r}" for r in range(world))
        try:
            found[rank] = work(Ranks(rank, world, torch.device("cpu"), group, hosts=hosts))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def start_from(path: object, recipe: Recipe, **options: Any) -> Command:
    options = {"init": str(path), **options}
    return Command("x", replace(recipe, starts_from="y"), Run(**options), ())


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_one_rank_alone_cannot_read_ends_all_with_its_reason(tmp_path: Path, bad: int):
    state = task_of(recipe_of(32), 1).model.state_dict()
    for rank in range(3):
        save_file(state, tmp_path / f"{rank}.safetensors")
    (tmp_path / f"{bad}.safetensors").write_bytes(b"cut")
    found = on_ranks(
        3,
        lambda ranks: given_weights(
            start_from(tmp_path / f"{ranks.rank}.safetensors", recipe_of(32)), ranks, print
        ),
    )
    assert all(isinstance(error, Unfit) for error in found), found
    assert len({str(error).partition("cannot be read")[2] for error in found}) == 1


def test_what_fits_on_all_ranks_but_one_ends_all(tmp_path: Path):
    for rank in range(2):
        state = task_of(recipe_of(32), 1).model.state_dict()
        if rank == 1:
            del state["norm.bias"]
        save_file(state, tmp_path / f"{rank}.safetensors")
    found = on_ranks(
        2,
        lambda ranks: given_weights(
            start_from(tmp_path / f"{ranks.rank}.safetensors", recipe_of(32)), ranks, print
        ),
    )
    assert [type(error) for error in found] == [Unfit, Unfit]
    wanted = "does not fit x's ViT 24/2/3, patch 4"
    said = (
        f"--init {tmp_path / '1.safetensors'} {wanted}: 1 weights are missing, norm.bias the first"
    )
    assert [str(error) for error in found] == [said] * 2


def test_what_one_rank_sees_as_a_file_and_another_as_a_run_ends_both(two: Path, tmp_path: Path):
    save_file(task_of(recipe_of(32), 1).model.state_dict(), tmp_path / "x.safetensors")
    paths = [two, tmp_path / "x.safetensors"]
    found = on_ranks(
        2, lambda ranks: given_weights(start_from(paths[ranks.rank], recipe_of(32)), ranks, print)
    )
    assert all("not all hosts see the same there" in str(error) for error in found)


def test_each_rank_hashes_its_share_and_a_damaged_one_is_gone_back_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A checkpoint that four ranks wrote: its one file here as four, each with its tensors."""
    run = tmp_path / "run"
    for checkpoint in saved(run, recipe_of(32), 1, 2):
        split(checkpoint, 4)
    hashed: list[tuple[int, str]] = []
    seen = threading.local()
    real = manifests.verify_file

    def watched(folder: Path, file: Any) -> None:
        hashed.append((seen.rank, f"{folder.name}/{file.name}"))
        real(folder, file)

    monkeypatch.setattr(manifests, "verify_file", watched)

    def work(ranks: Ranks) -> Any:
        seen.rank = ranks.rank
        initial = given_weights(start_from(run, recipe_of(32)), ranks, print)
        assert initial is not None
        return initial("model.head.weight")

    found = on_ranks(2, work)
    wanted = task_of(recipe_of(32), 2).model.state_dict()["head.weight"]
    assert all(torch.equal(each, wanted) for each in found), found
    newest = [(rank, name) for rank, name in hashed if name.startswith("step_00000002/")]
    assert len(newest) == len(hashed) == 4 and len({name for _, name in newest}) == 4
    assert sorted(rank for rank, _ in newest) == [0, 0, 1, 1]
    hashed.clear()
    flip(run / "checkpoints" / "step_00000002")
    found = on_ranks(2, work)
    wanted = task_of(recipe_of(32), 1).model.state_dict()["head.weight"]
    assert all(torch.equal(each, wanted) for each in found), found


def test_rank_0_alone_reads_and_judges_a_manifest_once(run: Path, monkeypatch: pytest.MonkeyPatch):
    """From the check before torch is imported until weights are read, on three ranks."""
    seen, read = threading.local(), list[tuple[int, str]]()
    real = manifests.read_json

    def watched(path: Path) -> Any:
        read.append((seen.rank, path.parent.name))
        return real(path)

    monkeypatch.setattr(manifests, "read_json", watched)
    recipe = replace(DRLOC, ema=0.5)
    (run / "recipe.json").write_text(json.dumps({"recipe": to_json(recipe)}))
    command = Command("x", recipe, Run(resume="auto", run_dir=run), ())

    def work(ranks: Ranks) -> Any:
        seen.rank = ranks.rank
        start = plan_start(command, judge=ranks.rank == 0)
        assert start.folder == run and start.checkpoint is not None
        found = given_checkpoint(start, ranks, print)
        assert found is not None
        engine = SingleEngine(lambda: task_of(recipe, 7), recipe, ranks)
        fill(engine, *found)
        return {f"{part.kind}/{part.name}": part.view.clone() for part in engine.slices()}

    each = on_ranks(3, work)
    assert sorted(read) == [(0, "step_00000001"), (0, "step_00000002")], each
    stored = load_file(run / "checkpoints" / "step_00000002" / "rank_00000.safetensors")
    for found in each:
        assert found.keys() == stored.keys(), found
        assert all(torch.equal(found[name], stored[name]) for name in stored)


def test_a_checkpoint_that_another_rank_does_not_see_is_refused_on_all(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = manifests.checkpoints_in(two / "checkpoints")[-1]
    seen, real = threading.local(), Path.is_dir
    monkeypatch.setattr(
        Path, "is_dir", lambda path: real(path) and (path != checkpoint or seen.rank == 0)
    )

    def work(ranks: Ranks) -> Any:
        seen.rank = ranks.rank
        return given_checkpoint(Start(two, checkpoint), ranks, print)

    for error in on_ranks(2, work):
        assert isinstance(error, Refused) and f"not all ranks see {checkpoint}" in str(error)


def split(checkpoint: Path, count: int) -> None:
    """Write a checkpoint of one file as one of several."""
    tensors = load_file(checkpoint / "rank_00000.safetensors")
    names = {key: f"rank_{i % count:05d}.safetensors" for i, key in enumerate(sorted(tensors))}
    files = []
    for name in sorted(set(names.values())):
        save_file({k: t for k, t in tensors.items() if names[k] == name}, checkpoint / name)
        path = checkpoint / name
        digest = manifests.digest_of_file(path)
        files.append({"name": name, "bytes": path.stat().st_size, "digest": digest})
    order = sorted(set(names.values()))

    def change(body: dict[str, Any]) -> None:
        body["files"] = files
        body["tensors"] = [
            row | {"kinds": {kind: dtype}, "cuts": [[order.index(file), 1, length]]}
            for row in body["tensors"]
            for kind, dtype in row["kinds"].items()
            for (_, _, length), file in [(row["cuts"][0], names[f"{kind}/{row['name']}"])]
        ]

    rewrite(checkpoint, change)


def test_what_was_taken_is_said(two: Path, tmp_path: Path):
    said: list[str] = []
    for options in ({}, {"init_ema": True}):
        command = start_from(two, recipe_of(32), **options)
        assert on_ranks(1, lambda ranks, c=command: given_weights(c, ranks, said.append)) != [None]
    assert said == [f"weights of {two}: as they are", f"weights of {two}: ema, as they are"]
    file = tmp_path / "x.pth"
    state = {f"module.{n}": w for n, w in task_of(recipe_of(32), 1).model.state_dict().items()}
    torch.save({"state_dict_ema": state}, file)
    wide = replace(recipe_of((16, 48)), model=replace(WIDE, num_classes=3))
    on_ranks(1, lambda ranks: given_weights(start_from(file, wide), ranks, said.append))
    assert said[-1] == (
        f"weights of {file}: state_dict_ema, all that the file holds, module. taken off, positions "
        "taken for 8 x 8, positions resampled, head made anew"
    )
