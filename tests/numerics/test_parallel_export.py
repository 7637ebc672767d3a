"""A ViT with two parallel branches is exported; timm builds no block with another number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from oblong import images, logits, recipe_of, saved, task_of

from bigvit.cli import main
from bigvit.export.folder import timm_config
from bigvit.models import build
from bigvit.recipe import ImageSize, ParallelViT, StochasticDepth
from bigvit.recipe.find import find_recipe

TWO = ParallelViT(4, 24, 2, 2, 3, 2.0, 1e-1, StochasticDepth(rate=0.0, group=4), 3, 5)


@pytest.mark.parametrize("size", [32, (16, 48)], ids=str)
@torch.no_grad()
def test_timm_computes_its_logits(tmp_path: Path, size: ImageSize):
    recipe = replace(recipe_of(size), model=TWO)
    saved(tmp_path / "run", recipe, 1)
    assert main(["export", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "export"
    theirs: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert type(theirs.blocks[0]).__name__ == "ParallelThingsBlock"
    wanted = logits(task_of(recipe, 1).model, images(size))
    assert wanted.std() > 0.1
    torch.testing.assert_close(theirs(images(size)), wanted, rtol=0, atol=1e-5)


def test_config_alone_makes_the_published_one():
    """H-26x2's, but for its depth: a model of 1.03 billion parameters is too large for a test."""
    _, recipe = find_recipe("deit3_h26x2_14_in1k_126")
    config = timm_config(recipe, 126, None)
    assert config["model_args"]["depth"] == 26 and config["model_args"]["embed_dim"] == 1280
    arguments = {**config["model_args"], "depth": 1}
    with torch.device("meta"):
        theirs = timm.create_model(config["architecture"], num_classes=1000, **arguments)
        ours = build(replace(recipe.model, depth=1), 126)  # type: ignore[type-var]
    shapes = [{n: w.shape for n, w in m.state_dict().items()} for m in (theirs, ours)]
    assert shapes[0] == shapes[1]


def test_three_branches_are_refused_before_anything_is_written(tmp_path: Path, capsys: Any):
    saved(tmp_path / "run", replace(recipe_of(32), model=replace(TWO, branches_per_block=3)), 1)
    assert main(["export", str(tmp_path / "run")]) == 2
    said = "timm's entry points build no ParallelViT with 3 branches in a block, but with 2"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run" / "export").exists()
