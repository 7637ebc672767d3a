"""Whoever says how large a dense model is counts trunk and head."""

import json
from pathlib import Path
from typing import Any

import pytest

from bigvit.cli import main
from bigvit.engines.build import outline
from bigvit.recipe import batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.recipe.parse import parse
from bigvit.training.spoken import beginning

NAMES = {
    "ade20k_swin_t_512": ("UperNet", "60.1 M", "32.4 M"),
    "mask_rcnn_patchconvnet_s60": ("MaskRCNN", "47.0 M", "22.1 M"),
}


@pytest.mark.parametrize("name", NAMES)
def test_trunk_and_head_are_counted(name: str, capsys: Any) -> None:
    kind, short, own = NAMES[name]
    task = outline(find_recipe(name)[1])
    whole = sum(p.numel() for p in task.parameters())
    head = sum(p.numel() for p in task.heads.parameters())
    assert (f"{whole / 1e6:.1f} M", f"{head / 1e6:.1f} M") == (short, own)
    assert main(["plan", name, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["parameters"], planned["head_parameters"]) == (whole, head)
    assert main(["list", name, "--json"]) == 0
    listed = {each["name"]: each["parameters"] for each in json.loads(capsys.readouterr().out)}
    assert listed[name] == whole
    assert main(["list", name]) == 0
    assert f"with {kind}" in capsys.readouterr().out
    command = parse([name])
    layout = batch_layout(command.recipe, 2, None)
    said = beginning(command, layout, "cpu", 1, (9, 9, 9), "new", None, Path("run"))
    assert f"with {kind}, {short.removesuffix('.0 M').removesuffix(' M')} M" in said
    assert f"(its head {own} and" in said
