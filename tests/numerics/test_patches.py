"""`bigvit patches`: rows of the matrices across patches as they lie, and how sparse they are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each import each_of
from oblong import recipe_of, saved
from PIL import Image

from bigvit.checkpoint.trained import trained
from bigvit.cli import main
from bigvit.recipe import AveragePooling, ClassMlp, ResMLP, StochasticDepth
from bigvit.visualize.patches import Learned, Rows, learned, sparsity
from bigvit.visualize.patches_page import curves, mosaic

NO_DROP = StochasticDepth(rate=0.0, group=4)
TINY = ResMLP(4, 24, 2, 2.0, "affine", "linear", 0.1, False, AveragePooling(), NO_DROP, 3, 5)
SIZE = (32, 40)  # 8 x 10 patches


def run_of(folder: Path, model: ResMLP) -> Path:
    saved(folder, replace(recipe_of(SIZE), model=model), 1)
    return folder


def test_sparsity_is_the_share_below_a_twentieth_of_the_largest():
    weight = torch.tensor([[0.0, 0.049, -0.049], [0.051, -1.0, 0.5]])
    assert sparsity(weight) == 0.5
    assert sparsity(10 * weight) == 0.5 and sparsity(torch.ones(3, 3)) == 0


def test_central_rows_lie_as_their_patches_do(tmp_path: Path):
    run = run_of(tmp_path / "run", TINY)
    found, model = learned(run, side=4), trained(run).task.model
    for block, rows in enumerate(found.rows):
        weight = model.blocks[block].linear_tokens.weight
        assert rows.name == f"blocks.{block}.linear_tokens"
        assert rows.pictures.shape == (4, 4, 8, 10)
        for i, j in np.ndindex(4, 4):  # the patches of rows 2 to 5, columns 3 to 6
            row = weight[(2 + i) * 10 + 3 + j].detach()
            assert torch.equal(rows.pictures[i, j].flatten(), row)
        assert rows.sparsity == sparsity(weight)
    assert learned(run, side=99).rows[0].pictures.shape == (8, 10, 8, 10)
    fc2 = [sparsity(block.mlp_channels.fc2.weight) for block in model.blocks]
    assert found.sparsity["mlp_channels.fc2"] == fc2
    assert list(found.sparsity) == ["linear_tokens", "mlp_channels.fc1", "mlp_channels.fc2"]


@each_of(
    ("changed", "names"),
    [
        ({"pooling": ClassMlp(2)}, ["linear_tokens", "mlp_channels.fc1", "mlp_channels.fc2"]),
        ({"norm": "layer_norm"}, ["linear_tokens", "mlp_channels.fc1", "mlp_channels.fc2"]),
        (
            {"communication": "mlp"},
            ["mlp_tokens.fc1", "mlp_tokens.fc2", "mlp_channels.fc1", "mlp_channels.fc2"],
        ),
        (
            {"communication": "conv", "pooling": ClassMlp(1)},
            ["mlp_channels.fc1", "mlp_channels.fc2"],
        ),
    ],
)
def test_other_models_show_what_they_have(
    changed: dict[str, Any], names: list[str], tmp_path: Path
):
    model = replace(TINY, **changed)
    found = learned(run_of(tmp_path / str(names) / str(changed), model))
    assert list(found.sparsity) == names
    layers = [rows.name for rows in found.rows]
    classes = model.pooling.depth if isinstance(model.pooling, ClassMlp) else 0
    blocks = 0 if model.communication == "conv" else model.depth
    assert len(layers) == blocks + classes
    for rows in found.rows[blocks:]:
        assert rows.pictures.shape == (1, 1, 8, 10)
    assert len(curves([found]).axes[0].lines) == len(names)


def test_the_command_writes_a_page_and_says_the_numbers(tmp_path: Path, capsys: Any):
    runs = [
        run_of(tmp_path / "one", TINY),
        run_of(tmp_path / "norms", replace(TINY, norm="layer_norm")),
    ]
    assert main(["patches", *map(str, runs), "--out", str(tmp_path / "out"), "--side", "2"]) == 0
    *lines, page = capsys.readouterr().out.splitlines()
    said = [json.loads(line) for line in lines]
    assert [each["run"] for each in said] == ["one", "norms"]
    assert said[0]["sparsity"] == learned(runs[0]).sparsity
    text = Path(page).read_text()
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert len(pictures) == 5 and all(f'src="{name}"' in text for name in pictures)
    assert main(["patches", str(runs[0])]) == 0
    assert (runs[0] / "patches/index.html").is_file()


def test_a_spike_is_red_where_it_lies(tmp_path: Path):
    pictures = torch.zeros(2, 2, 3, 3)
    pictures[0, 1, 2, 0], pictures[1, 0, 1, 1] = 2.0, -2.0
    pixels = mosaic(Rows("a", pictures, 0.9))
    Image.fromarray(pixels).save(tmp_path / "rows.png")
    factor = pixels.shape[1] // 7
    cells = pixels[factor // 2 :: factor, factor // 2 :: factor].astype(int)
    assert cells.shape == (7, 7, 3)
    red, blue, white = cells[2, 4], cells[4 + 1, 1], cells[0, 0]
    assert red[0] > 2 * red[2] and blue[2] > 2 * blue[0] and white.min() > 240
    assert not cells[3].any() and not cells[:, 3].any(), "gaps are black"


def test_curves_are_those_of_the_runs():
    found = [
        Learned("$a$", 1, [], {"linear_tokens": [0.9, 0.8], "mlp_channels.fc1": [0.5, 0.4]}),
        Learned("_b", 2, [], {"mlp_tokens.fc1": [0.7]}),
    ]
    figure = curves(found)
    (axes,), (legend,) = figure.axes, figure.legends
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [
        *found[0].sparsity.values(),
        *found[1].sparsity.values(),
    ]
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["$a$: linear_tokens", "$a$: mlp_channels.fc1", "_b: mlp_tokens.fc1"]
    first, second, third = axes.lines
    assert first.get_color() == second.get_color() != third.get_color()
    assert first.get_linestyle() != second.get_linestyle()


@pytest.mark.parametrize("kind", ["vit", "conv"])
def test_a_model_without_such_matrices_is_refused(kind: str, tmp_path: Path, capsys: Any):
    recipe = recipe_of(SIZE)
    if kind == "conv":
        recipe = replace(recipe, model=replace(TINY, communication="conv"))
    saved(tmp_path / "run", recipe, 1)
    assert main(["patches", str(tmp_path / "run")]) == 2
    assert "has no matrices across patches; a ResMLP has them" in capsys.readouterr().err
    assert not (tmp_path / "run/patches").exists()
