"""`bigvit samples` draws further views beside each image."""

from dataclasses import replace
from pathlib import Path

import torch
from pictures import jpegs, write_folders
from PIL import Image
from viewed import RECIPE

from bigvit.data.batch import Draws
from bigvit.data.loader import train_batches
from bigvit.data.sources import open_source
from bigvit.recipe import Layout, Run
from bigvit.visualize.samples import draw_samples, sample_panels


def test_each_view_stands_beside_its_image(tmp_path: Path) -> None:
    write_folders(tmp_path / "data", "train", jpegs(RECIPE.data.train_images))
    recipe, run = replace(RECIPE, data=replace(RECIPE.data)), Run(data_root=tmp_path / "data")
    drawn = sample_panels(recipe, run, 0, 2)
    own, *views = (panel for panel in drawn[6:])
    assert len(drawn) == 2 * (1 + 2 + 3)
    said = [line.text for panel in views for line in panel.lines]
    assert said == ["view 1.1", "view 1.2", "view 2.1", "view 2.2", "view 2.3"]
    assert {panel.image.shape for panel in drawn} == {(3, 24, 24)}
    source = open_source(recipe.data, "train", run.data_root)
    draws = Draws(None, ())  # nothing of the model's is looked at
    layout = Layout(1, recipe.batch_size, 1)
    batch = next(train_batches(source, recipe, layout, 0, 0, 0, lambda number, span: draws))[0]
    for i, panel in enumerate(views[:2]):
        assert torch.equal(panel.image, batch.views[0][1, i])
    for i, panel in enumerate(views[2:]):
        assert torch.equal(panel.image[:, :8, :16], batch.views[1][1, i])
        assert (panel.image[:, 8:] == 255).all() and (panel.image[:, :, 16:] == 255).all()
    draw_samples(recipe, run, 0, 2, tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as image:
        assert image.width > 6 * 112
