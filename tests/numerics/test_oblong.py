"""Positions of a grid that is not square stand where they stood, whoever reads them, and what does
not say its grid is asked for it. timm resamples them beside us, told the grid that they have."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from oblong import DATA, WIDE, images, logits, recipe_of, saved, task_of, write_images
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.resampling import resample_positions
from bigvit.checkpoint.trained import trained
from bigvit.checkpoint.weights import Fitted, Given, Unfit, fit, read_init
from bigvit.cli import main
from bigvit.data.sources import open_source
from bigvit.evaluate import evaluate
from bigvit.export.folder import export
from bigvit.ranks.joining import alone
from bigvit.recipe import ImageSize
from bigvit.visualize.attention import attended

ATOL = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 x 16 patches: as many as 8 x 8."""
    folder = tmp_path_factory.mktemp("wide") / "run"
    saved(folder, recipe_of((16, 64)), 1)
    return folder


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 x 12 patches: as many as 12 x 4."""
    folder = tmp_path_factory.mktemp("twelve") / "run"
    saved(folder, recipe_of((16, 48)), 1)
    return folder


def expected(size: ImageSize, other: ImageSize) -> nn.Module:
    """The model of these weights at another size, its positions resampled by timm."""
    state = task_of(recipe_of(size), 1).model.state_dict()
    before, after = (list(WIDE.grid(each)) for each in (size, other))
    state["pos_embed"] = resample_abs_pos_embed(
        state["pos_embed"], after, old_size=before, num_prefix_tokens=0
    )
    model = models.build(WIDE, other)
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def test_evaluate_counts_what_the_run_counted(run: Path, tmp_path: Path, capsys: Any):
    write_images(tmp_path, (16, 64))
    task, source = task_of(recipe_of((16, 64)), 1), open_source(DATA, "test", tmp_path)
    counted = evaluate(task.predict, source, DATA, 16, alone()).as_json()
    assert 0 < counted["top1_correct"] < counted["images"] == 30
    assert main(["evaluate", str(run), "--data-root", str(tmp_path), "--workers", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["top1_correct"] == counted["top1_correct"]
    assert found["test_loss"] == pytest.approx(counted["test_loss"], rel=1e-6)


CHANGES = [((16, 64), (16, 64)), ((16, 64), 32), ((16, 64), (64, 16)), ((16, 48), (48, 16))]
CHANGES += [((16, 64), (32, 128)), ((16, 48), 28)]


@pytest.mark.parametrize(("size", "other"), CHANGES, ids=str)
@torch.no_grad()
def test_every_way_to_read_it_has_timms_logits(
    run: Path, twelve: Path, tmp_path: Path, size: ImageSize, other: ImageSize
):
    path = run if size == (16, 64) else twelve
    wanted, x = expected(size, other), images(other)
    model: Any = trained(path, other).task.model
    torch.testing.assert_close(logits(model, x), logits(wanted, x), rtol=0, atol=ATOL)
    maps, _ = attended(model, x)
    torch.testing.assert_close(maps, attended(wanted, x)[0], rtol=0, atol=ATOL)  # type: ignore
    folder = export(path, tmp_path / "export", other)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(theirs(x), logits(wanted, x), rtol=0, atol=ATOL)
    for source in (path, export(path, tmp_path / "as it is")):
        model = models.build(WIDE, other)
        done = fit(read_init(str(source)), model, WIDE.grid(other))
        assert done == Fitted(size != other, False) and done.assumed is None
        torch.testing.assert_close(logits(model, x), logits(wanted, x), rtol=0, atol=ATOL)


def test_an_export_is_asked_for_its_grid_by_its_patches_and_images(run: Path, tmp_path: Path):
    folder = export(run, tmp_path / "export")
    assert read_init(str(folder)).grid == (4, 16)
    assert read_init(str(folder / "model.safetensors")).grid == (4, 16)
    config = json.loads((folder / "config.json").read_text())
    del config["model_args"]["img_size"]  # as timm's own exports have it
    (folder / "config.json").write_text(json.dumps(config))
    assert read_init(str(folder)).grid == (4, 16)
    config["pretrained_cfg"]["input_size"] = [3, 24, 24]  # not of these weights
    (folder / "config.json").write_text(json.dumps(config))
    assert read_init(str(folder)).grid is None


def bare(path: Path, size: ImageSize) -> Path:
    save_file(task_of(recipe_of(size), 1).model.state_dict(), path)
    return path


def test_a_bare_file_is_taken_for_square_and_that_is_said(tmp_path: Path):
    given = read_init(str(bare(tmp_path / "x.safetensors", 32)))
    done = fit(given, models.build(WIDE, (16, 48)), (4, 12))
    assert str(done) == "positions taken for 8 x 8, positions resampled"
    done = fit(given, models.build(WIDE, 32), (8, 8))
    assert str(done) == "positions taken for 8 x 8, as they are"


@pytest.mark.parametrize(
    ("size", "other", "said"),
    [
        ((16, 64), (16, 64), "64 positions are as many as the model's 4 x 16"),
        (32, (64, 16), "64 positions are as many as the model's 16 x 4"),
        ((16, 48), (48, 16), "48 positions are as many as the model's 12 x 4"),
        ((16, 48), 32, "48 positions make no square"),
    ],
)
@torch.no_grad()
def test_a_bare_file_that_could_be_meant_otherwise_is_asked_for(
    tmp_path: Path, size: ImageSize, other: ImageSize, said: str
):
    file, (down, across) = bare(tmp_path / "x.safetensors", size), WIDE.grid(size)
    model, grid = models.build(WIDE, other), WIDE.grid(other)
    with pytest.raises(Unfit, match=f"{said}.* say it by --init-grid H W"):
        fit(read_init(str(file)), model, grid)
    assert fit(read_init(str(file), grid=(down, across)), model, grid).assumed is None
    x = images(other)
    wanted = logits(expected(size, other), x)
    torch.testing.assert_close(logits(model, x), wanted, rtol=0, atol=ATOL)


def test_a_grid_that_the_source_contradicts_is_refused(run: Path, tmp_path: Path):
    with pytest.raises(Unfit, match="its grid is 4 x 16; leave --init-grid out"):
        read_init(str(run), grid=(8, 8))
    assert read_init(str(run), grid=(4, 16)).grid == (4, 16)
    with pytest.raises(Unfit, match="it has 64 positions, not those of --init-grid 4 15"):
        read_init(str(bare(tmp_path / "x.safetensors", 32)), grid=(4, 15))


def theirs_main_py(positions: Tensor, side: int, new: int) -> Tensor:
    """facebookresearch/deit, main.py, where it fine-tunes."""
    pos_tokens = positions.reshape(-1, side, side, positions.shape[2]).permute(0, 3, 1, 2)
    pos_tokens = torch.nn.functional.interpolate(
        pos_tokens, size=(new, new), mode="bicubic", align_corners=False
    )
    return pos_tokens.permute(0, 2, 3, 1).flatten(1, 2)


@pytest.mark.parametrize(("side", "new"), [(14, 24), (12, 14), (14, 8), (14, 14)])
def test_plain_resampling_is_the_authors_and_the_other_timms(side: int, new: int):
    positions = torch.randn(1, side * side, 6, generator=torch.Generator().manual_seed(0))
    found = resample_positions(positions, (side, side), (new, new), "plain")
    torch.testing.assert_close(found, theirs_main_py(positions, side, new), rtol=0, atol=1e-6)
    smooth = resample_positions(positions, (side, side), (new, new), "antialiased")
    wanted = resample_abs_pos_embed(positions, [new, new], [side, side], num_prefix_tokens=0)
    torch.testing.assert_close(smooth, wanted, rtol=0, atol=1e-6)
    if new != side:  # they differ by some per cent, and much more downwards
        assert (found - smooth).norm() / smooth.norm() > 0.03


@torch.no_grad()
def test_a_recipe_says_how_its_positions_are_resampled(tmp_path: Path):
    seen: list[Tensor] = []
    for resampling in ("antialiased", "plain"):
        recipe = recipe_of(32, resampling=resampling)
        (checkpoint,) = saved(tmp_path / resampling, recipe, 1)
        task, x = task_of(recipe, 1), images(48)
        wanted = task.model.state_dict()["pos_embed"]
        if resampling == "plain":
            wanted = theirs_main_py(wanted, 8, 12)
        else:
            wanted = resample_abs_pos_embed(wanted, [12, 12], [8, 8], num_prefix_tokens=0)
        model: Any = trained(checkpoint, 48).task.model
        torch.testing.assert_close(model.pos_embed, wanted, rtol=0, atol=1e-6)
        folder = export(checkpoint, tmp_path / f"export {resampling}", 48)
        exported = load_file(folder / "model.safetensors")["pos_embed"]
        torch.testing.assert_close(exported, wanted, rtol=0, atol=1e-6)
        given = Given(task.model.state_dict(), (8, 8))
        started = models.build(WIDE, 48)
        fit(given, started, (12, 12), recipe.resampling)
        torch.testing.assert_close(started.pos_embed, wanted, rtol=0, atol=1e-6)
        seen.append(logits(model, x))
    assert (seen[0] - seen[1]).abs().max() > 1e-3


@pytest.mark.parametrize("words", [["32", "128"], ["16", "64"], ["24"]])
def test_evaluate_and_attention_take_height_and_width(
    run: Path, tmp_path: Path, capsys: Any, words: list[str]
):
    write_images(tmp_path, (24, 40), 10)
    options = ["--data-root", str(tmp_path), "--workers", "0", "--image-size", *words]
    assert main(["evaluate", str(run), *options]) == 0
    size = [int(word) for word in words]
    assert json.loads(capsys.readouterr().out)["image_size"] == (size if size[1:] else size[0])
    picture = str(tmp_path / "val" / "class0" / "0.png")
    out = tmp_path / "pictures"
    assert (
        main(["attention", str(run), *options[-len(words) - 1 :], picture, "--out", str(out)]) == 0
    )
    assert (out / "index.html").is_file()


@pytest.mark.parametrize("words", [["1", "2", "3"], ["0"], ["-4", "8"]])
def test_a_size_that_is_none_is_refused(run: Path, capsys: Any, words: list[str]):
    for command in ("evaluate", "export"):
        assert main([command, str(run), "--image-size", *words]) == 2
        said = capsys.readouterr().err
        assert "--image-size: " in said and "Traceback" not in said
