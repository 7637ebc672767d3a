"""Pictures are read back: they show what was measured, of images of any shape and brightness."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image

from bigvit.visualize import attention_page, branches, offsets
from bigvit.visualize.attention import AttentionMaps
from bigvit.visualize.branches import Ratios
from bigvit.visualize.drawing import save
from bigvit.visualize.offsets import Guess


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def within(axes: Axes, pixels: np.ndarray) -> np.ndarray:
    """What a picture has within axes."""
    left, bottom, right, top = np.rint(axes.get_window_extent().extents).astype(int)
    return pixels[len(pixels) - top : len(pixels) - bottom, left:right]


def attention(pixels: np.ndarray, layers: int, heads: int) -> AttentionMaps:
    """Maps that are hot in the lower right corner."""
    maps = torch.full((layers, heads, 4, 6), 0.01)
    maps[:, :, 3, 5] = 0.5
    names = [f"blocks.{n}.attn" for n in range(layers)]
    return AttentionMaps("a$b$.png", pixels, names, maps, [(0.9, "cat"), (0.1, "$dog$")])


@pytest.mark.parametrize("shape", [(32, 48), (48, 32), (8, 64), (300, 20), (224, 224)], ids=str)
@pytest.mark.parametrize("brightness", [0, 255])
def test_a_hot_corner_is_bright_over_an_image_of_any_brightness(
    shape: tuple[int, int], brightness: int, tmp_path: Path
) -> None:
    found = attention(np.full((*shape, 3), brightness, np.uint8), 1, 1)
    figure = attention_page.picture(found)
    save(figure, tmp_path / "picture.png")
    pixels = read(tmp_path / "picture.png")
    for axes in figure.axes[1:3]:  # the mean, and the only head
        shown = within(axes, pixels).sum(axis=2)
        height, width = shown.shape
        hot = shown[height - max(1, height // 10) :, width - max(1, width // 14) :]
        cold = shown[: height // 2, : width // 2]
        assert hot.min() > 240 and hot.mean() > cold.mean() + 200, (hot.mean(), cold.mean())


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3), (3, 1)])
def test_attention_is_labelled_with_layers_heads_and_values(layers: int, heads: int) -> None:
    figure = attention_page.picture(attention(np.zeros((32, 32, 3), np.uint8), layers, heads))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "a$b$.png" and "taken for" in titles
    for layer in range(layers):
        for part in ("mean", *(f"head {n}" for n in range(heads))):
            assert f"blocks.{layer}.attn\n{part}, 0.01 to 0.5" in titles
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts == [" 90.0 %  cat\n 10.0 %  $dog$"]
    bars = [axes for axes in figure.findobj(Axes) if axes.get_xlabel() == "share of the attention"]
    assert [tick.get_text() for tick in bars[0].get_xticklabels()] == ["least", "largest"]


def test_a_map_that_is_the_same_everywhere_is_drawn(tmp_path: Path) -> None:
    found = attention(np.zeros((16, 16, 3), np.uint8), 1, 2)
    page = attention_page.write(
        [found._replace(maps=torch.ones(1, 2, 1, 1)), found], tmp_path / "out", "a <run>"
    )
    assert "<h1>a &lt;run&gt;</h1>" in page.read_text()
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_curves_have_a_legend_labels_and_a_scale_that_fits(tmp_path: Path) -> None:
    found = [
        Ratios("_one", 50, [1e-6, 0.1, 0.2], [0.5, 0.4, 0.3]),
        Ratios("_one", 100, [0.2, 0.3, 0.2], [0.6, 0.5, 0.0]),
        Ratios("$two$", 7, [0.2], [0.6]),
    ]
    figure = branches.picture(found)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "update 50 of _one",
        "update 100 of _one",
        "update 7 of $two$",
    ]
    above, below = figure.axes
    assert (above.get_yscale(), below.get_yscale()) == ("log", "linear")
    assert below.get_xlabel() == "block" and below.get_ylim()[0] == 0
    for axes, kind in ((above, "attention"), (below, "mlp")):
        assert "branch" in axes.get_title() and "norm" in axes.get_ylabel()
        for line, each in zip(axes.lines, found, strict=True):
            assert np.asarray(line.get_ydata()).tolist() == getattr(each, kind)
    colours = [line.get_color() for line in above.lines]
    assert colours[0] == colours[1] != colours[2], "a colour a run"
    branches.draw(found, tmp_path / "branches.png")
    assert len(np.unique(read(tmp_path / "branches.png").reshape(-1, 3), axis=0)) > 100
    branches.draw([Ratios("one", 1, [0.0], [0.0])], tmp_path / "one block.png")


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 50), (1, 50, 20)], ids=str)
def test_offsets_of_images_of_any_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    true = torch.tensor([[-1.0, 2.0], [0.0, 1.0]])
    pixels = torch.zeros(shape, dtype=torch.uint8)
    figure = offsets.picture([Guess("$1$", pixels, (2, 5), true, true + 9)] * 2)
    save(figure, tmp_path / "offsets.png")
    image, plot = figure.axes[:2]
    assert plot.get_title() == "off by 9.00 cells (a constant: 0.50)"
    assert image.get_title() == "$1$" and plot.get_xlabel() == "true offset, cells"
    (low, high), lines = plot.get_xlim(), len(image.collections)
    assert (low, high, lines) == (-5, 5, 2)
    for dots in plot.collections:
        assert np.asarray(dots.get_offsets()).max() <= 5, "what lies outside is drawn on the edge"


def test_the_format_follows_the_name(tmp_path: Path) -> None:
    figure = branches.picture([Ratios("one", 1, [0.1], [0.1])])
    for name, kind in (("a.jpg", "JPEG"), ("a.PNG", "PNG"), ("plain", "PNG")):
        save(figure, tmp_path / name)
        with Image.open(tmp_path / name) as image:
            assert image.format == kind
    with pytest.raises(ValueError, match="xyz"):
        save(figure, tmp_path / "a.xyz")


def test_no_window_and_nothing_global_is_asked_for() -> None:
    code = (
        "import sys, matplotlib\n"
        "before = list(dict.items(matplotlib.rcParams))\n"  # its own items() chooses a backend
        "from bigvit.visualize import attention_page, branches, offsets, samples\n"
        "branches.picture([branches.Ratios('one', 1, [0.1], [0.1])]).canvas.draw()\n"
        "assert list(dict.items(matplotlib.rcParams)) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
