"""`bigvit offsets`: a picture of guessed against true offsets on given images."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from saving import save
from sklearn.datasets import load_digits

from bigvit.cli import main
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.engines.build import fill, outline
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import CrossEntropy, DRLoc, Rates, batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task
from bigvit.visualize.offsets import AXES, guess, picture

LOSS = DRLoc(1.0, None, "absolute", "grid", 0.001, "last", True, 32, None, "mean", 64, 2)


def run(folder: Path, loss: DRLoc | None, updates: int) -> Path:
    """A run folder of a small ViT that learned on digits where its tokens lie."""
    _, recipe = find_recipe("digits_vit")
    model = replace(recipe.model, embed_dim=16, depth=2, num_heads=2)
    objectives = (
        CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
        *([loss] if loss else []),
    )
    recipe = replace(recipe, model=model, objectives=objectives, batch_size=24)
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    fill(engine, outline(recipe).initial_weight)
    source, layout = open_source(recipe.data, "train"), batch_layout(recipe, 1, None)
    batches = train_batches(source, recipe, layout, 0, 0, 0, engine.task.draws)
    prepare = Prepare(recipe)
    for micro in islice(batches, updates):
        engine.update(prepare.later(micro), Rates(1e-2))
    save(engine, folder / "checkpoints", updates, to_json(recipe), keep=1)
    (folder / "recipe.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("run"), LOSS, 250)


def scan(path: Path) -> Path:
    """A scanned digit as a file."""
    digits = load_digits(return_X_y=True)[0][5].reshape(8, 8)
    Image.fromarray((digits * 255 / 16).astype(np.uint8)).save(path)
    return path


def test_a_trained_head_guesses_better_than_any_constant(trained: Path):
    (checkpoint,) = (trained / "checkpoints").iterdir()
    guesses = guess(checkpoint, [], 6, 40, None)
    assert len(guesses) == 6 and all(each.true.shape == (40, 2) for each in guesses)
    assert all(each.grid == (4, 4) and each.true.min() >= 0 for each in guesses)
    error = np.mean([each.error for each in guesses])
    blind = np.mean([each.blind for each in guesses])
    print(f"{error:.2f} cells, a constant {blind:.2f}")
    assert error < 0.7 * blind


def test_the_command_draws_a_row_an_image(trained: Path, tmp_path: Path, capsys):
    out = tmp_path / "offsets.png"
    assert main(["offsets", str(trained), "--count", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count("off by") == 2 and str(out) in said
    with Image.open(out) as image:
        two = image.size
    given = scan(tmp_path / "five.png")
    assert main(["offsets", str(trained), str(given), "--out", str(out)]) == 0
    assert "five.png  off by" in capsys.readouterr().out
    with Image.open(out) as image:
        assert image.width == two[0] and 2 * image.height == two[1]
        assert len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 20


def test_dots_of_perfect_guesses_lie_on_the_diagonal(trained: Path, tmp_path: Path):
    (checkpoint,) = (trained / "checkpoints").iterdir()
    (each,) = guess(checkpoint, [], 1, 40, None)
    for guessed, on in ((each.true, True), (each.true + 1, False)):
        figure = picture([each._replace(guessed=guessed)])
        axes = figure.axes[1]
        legend = axes.get_legend()
        assert legend is not None and [t.get_text() for t in legend.get_texts()] == list(AXES)
        legend.remove()
        figure.savefig(tmp_path / "one.png")
        with Image.open(tmp_path / "one.png") as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        box = axes.get_window_extent()
        left, bottom = box.x0, image.height - box.y0
        blue = np.argwhere((pixels[..., 2] > 140) & (pixels[..., 0] < 80))  # drawn last
        distance = np.abs((blue[:, 1] - left) - (bottom - blue[:, 0]))
        assert len(blue) > 20 and (distance.max() < 8) == on


@pytest.mark.parametrize("offsets", ["signed", "classes", "gaussian"])
def test_every_kind_of_offsets_is_guessed_in_cells(offsets, tmp_path: Path):
    loss = replace(LOSS, offsets=offsets, blocks="all", grid=2)
    folder = run(tmp_path, loss, 2)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    (each,) = guess(checkpoint, [], 1, 40, None)
    assert each.grid == (2, 2) and each.true.min() == -1 and each.true.max() == 1
    assert each.guessed.isfinite().all() and each.guessed.abs().max() < 3


def test_what_cannot_be_drawn_is_refused_in_one_line(trained: Path, tmp_path: Path, capsys):
    plain = run(tmp_path / "plain", None, 1)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    for args, said in (
        ([str(plain)], "no DRLoc among its objectives"),
        ([str(trained), "--count", "0"], "--count: 0"),
        ([str(trained), str(broken)], "broken.png: not an image"),
        ([str(trained), str(tmp_path / "none.png")], "none.png"),
    ):
        assert main(["offsets", *args]) == 2
        assert said in capsys.readouterr().err
