"""Pooling by attention, as a head of any model: its arithmetic, its names, what it attends to.

Shapes: B images, N patches, D width, K classes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import literal_patchconvnet
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from each import each_of
from PIL import Image
from randomised import randomised
from saving import save
from torch import Tensor

from bigvit import models
from bigvit.cli import main
from bigvit.engines.single import SingleEngine
from bigvit.export.folder import export
from bigvit.layers.precision import upcast
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    AttentionPooling,
    AveragePooling,
    ClassToken,
    Model,
    PatchConvNet,
    ResMLP,
    ResNet,
    StochasticDepth,
    Swin,
    ViT,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import filled, recipe_from_json, to_json
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task
from bigvit.visualize import attention_page
from bigvit.visualize.attention import AttentionMaps, attended

TOLERANCE = 1e-5
NONE = StochasticDepth(rate=0.0, group=4)
ONE, EACH = AttentionPooling(2, "one", 2.5, 0.1), AttentionPooling(2, "classes", 2.5, 0.1)
MODELS: dict[str, Model] = {
    "patchconvnet": PatchConvNet(2, "convolutions", 24, 2, "layer", 0.1, ONE, NONE, 1, 10),
    "vit": ViT(2, 24, 2, 3, 2.0, 0.1, ONE, False, NONE, 1, 10),
    "swin": Swin(1, 12, (1, 2), (1, 2), 4, 2.0, ONE, NONE, 1, 10),
    "resnet": ResNet((1, 1), ONE, None, False, 1, 10),
    "resmlp": ResMLP(2, 24, 2, 2.0, "layer_norm", "linear", 0.1, False, ONE, NONE, 1, 10),
}


def with_queries(name: str, pooling: AttentionPooling) -> Any:
    return replace(MODELS[name], pooling=pooling)  # type: ignore[arg-type]


def images(size: int = 8, count: int = 2) -> Tensor:
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(1))


@each_of("name", MODELS)
@each_of("pooling", [ONE, EACH])
@torch.no_grad()
def test_it_is_what_the_authors_code_computes_of_the_last_patches(name: str, pooling: Any):
    """Written out in float64, on what the blocks left."""
    ours: Any = randomised(models.build(with_queries(name, pooling), 16)).double()
    features = ours.features(images(16).double(), ours.walk(None, ()))
    weights = ours.state_dict()
    for old, new in (("fc.", "head."), ("head.fc.", "head.")):
        weights = {n.replace(old, new) if n.startswith(old) else n: w for n, w in weights.items()}
    one = pooling.queries == "one"
    cls = weights["cls_token"].expand(2, -1, -1)
    block = literal_patchconvnet.within(weights, "blocks_token_only.0.")
    eps = ours.norm.eps
    pooled = literal_patchconvnet.pool(block, cls, features.stream, 2, one)
    pooled = F.layer_norm(
        pooled, pooled.shape[-1:], weights["norm.weight"], weights["norm.bias"], eps
    )
    rows = pooled if pooled.shape[1] > 1 else pooled.expand(-1, 10, -1)
    expected = (rows * weights["head.weight"]).sum(dim=2) + weights["head.bias"]
    found = ours(images(16).double()).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    single = ours.float()(images(16)).logits
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=10 * TOLERANCE)


@each_of("name", MODELS)
@each_of("pooling", [ONE, EACH])
def test_it_is_counted_lies_before_the_head_and_is_saved_by_one_name(name: str, pooling: Any):
    model = with_queries(name, pooling)
    recipe = replace(digits_vit, model=model)
    check_recipe(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    task = Task(recipe)
    task.init_weights()
    named = dict(task.model.named_parameters())
    assert model.parameters(8) == sum(p.numel() for p in named.values())
    depths = {n: task.model.layer_id(n) for n in named}
    last = model.depth + 2
    assert set(depths.values()) == set(range(last + 1)) and task.layers == last
    assert depths["cls_token"] == depths["blocks_token_only.0.attn.q.weight"] == last - 1
    assert depths["norm.weight"] == last
    assert "model.cls_token" in task.no_weight_decay()
    assert (task.model.blocks_token_only[0].gamma_1 == 0.1).all()
    assert len(task.model.all_blocks()) == model.depth + 1


def test_a_resnet_50_grows_as_the_thesis_says():
    """4.6 instead of 4.1 GFLOPs (section 5.3.4)."""
    own = ResNet((3, 4, 6, 3), AttentionPooling(1, "one", 3.0, 1e-4), None, False, 3, 1000)
    before = replace(own, pooling=AveragePooling())
    assert round(before.macs(224) / 1e9, 1) == 4.1
    assert own.macs(224) / 1e9 == pytest.approx(4.6, rel=0.02)


def test_older_recipes_meant_the_pooling_that_there_was():
    meant = {"vit": ClassToken(0), "swin": AveragePooling(), "resnet": AveragePooling()}
    for name, pooling in meant.items():
        recipe = replace(digits_vit, model=with_queries(name, pooling))  # type: ignore[arg-type]
        older = to_json(recipe)
        del older["model"]["pooling"]
        assert filled(older) == to_json(recipe)
        assert recipe_from_json(older) == recipe


@each_of("name", MODELS)
def test_it_has_no_export(name: str, tmp_path: Path):
    path = saved(MODELS[name], tmp_path / "run")
    said = "PatchConvNet" if name == "patchconvnet" else r"pools by attention \(model.pooling\)"
    with pytest.raises(ValueError, match=f"{said}.*no export"):
        export(path, tmp_path / "export")
    assert not (tmp_path / "export").exists()


@each_of(
    ("model", "said"),
    [
        (with_queries("vit", replace(ONE, heads=5)), "model.pooling.heads"),
        (with_queries("swin", replace(ONE, heads=5)), "model.pooling.heads: 5.*24"),
        (with_queries("resnet", replace(ONE, heads=3)), "model.pooling.heads: 3.*512"),
        (with_queries("vit", ClassToken(1)), "model.pooling.layer"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_pooling_is_refused(model: Any, said: str):
    with pytest.raises(ValueError, match=said):
        check_recipe(replace(digits_vit, model=model))


CPU = Ranks(0, 1, torch.device("cpu"), None)


def saved(model: Model, folder: Path) -> Path:
    """A checkpoint of random weights."""
    recipe = replace(digits_vit, model=model)

    def task() -> Task:
        made = Task(recipe)
        made.init_weights()
        randomised(made.model)
        return made

    return save(SingleEngine(task, recipe, CPU), folder, 0, to_json(recipe), 1)


@each_of("name", MODELS)
@torch.no_grad()
def test_maps_are_the_shares_that_weigh_the_patches(name: str):
    for pooling in (ONE, EACH):
        ours: Any = randomised(models.build(with_queries(name, pooling), 16))
        found, output = attended(ours, images(16))
        *_, (layer, maps) = found.items()
        assert layer == "blocks_token_only.0.attn"
        features = ours.features(images(16), ours.walk(None, ()))
        block: Any = ours.blocks_token_only[0]
        cls = upcast(ours.cls_token).expand(2, -1, -1)
        seen = block.norm1(torch.cat([cls, upcast(features.stream)], dim=1))
        one, count = pooling.queries == "one", cls.shape[1]
        q, k = block.attn.q(seen[:, :count]), block.attn.k(seen if one else seen[:, count:])
        width = q.shape[2] // 2
        scores = torch.einsum("bchd,bnhd->bhcn", *(z.unflatten(2, (2, width)) for z in (q, k)))
        shares = (scores / width**0.5).softmax(dim=3)
        wanted = shares[:, :, 0, 1:] if one else shares
        assert maps.shape[-1] == output.grid[0] * output.grid[1]
        torch.testing.assert_close(maps, wanted, rtol=1e-4, atol=1e-6)


def test_the_command_draws_a_map_or_one_a_class(tmp_path: Path, capsys: Any, monkeypatch: Any):
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / "scan.png")
    drawn: list[AttentionMaps] = []
    picture = attention_page.picture
    monkeypatch.setattr(attention_page, "picture", lambda each: drawn.append(each) or picture(each))
    scan = str(tmp_path / "scan.png")
    one = str(saved(MODELS["patchconvnet"], tmp_path / "one"))
    each = str(saved(with_queries("patchconvnet", EACH), tmp_path / "each"))
    assert main(["attention", one, scan, "--out", str(tmp_path / "a")]) == 0
    assert main(["attention", each, scan, "--out", str(tmp_path / "b")]) == 0
    assert main(["attention", each, scan, "--classes", "5", "--out", str(tmp_path / "c")]) == 0
    single, three, five = drawn
    assert single.layers == ["blocks_token_only.0.attn"] and single.maps.shape == (1, 2, 4, 4)
    assert three.maps.shape == (3, 2, 4, 4) and five.maps.shape == (5, 2, 4, 4)
    named = [name.partition(",")[0] for name in five.layers]
    assert named == [name for _, name in five.predictions]
    torch.testing.assert_close(five.maps[:3], three.maps)
    sums = three.maps.sum(dim=(2, 3))
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert len(list((tmp_path / "b").glob("*.png"))) == 1
    capsys.readouterr()
    assert main(["attention", one, scan, "--classes", "2"]) == 2
    assert "no query a class" in capsys.readouterr().err


SIDE, PATCH = 32, 8
COLOURS = ((220, 40, 40), (40, 200, 60), (50, 70, 230), None)


def one_patch(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noise, with a tint of its own in each patch, and a class's colour in one patch, or nowhere:
    images, classes, and the number of that patch."""
    draw = np.random.default_rng(seed)
    cells = SIDE // PATCH
    pixels, classes, places = list[Any](), list[int](), list[int]()
    for i in range(count):
        tint = draw.normal(0, 20, (cells, cells, 3)).repeat(PATCH, 0).repeat(PATCH, 1)
        image = draw.normal(120, 20, (SIDE, SIDE, 1)).clip(0, 255) + tint
        row, column = draw.integers(cells, size=2)
        if colour := COLOURS[i % 4]:
            image[row * PATCH :, column * PATCH :][:PATCH, :PATCH] = colour
        pixels.append((image - 120) / 60)
        classes.append(i % 4)
        places.append(int(row * cells + column))
    images = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float()
    return images, torch.tensor(classes), torch.tensor(places)


@pytest.mark.parametrize("queries", ["one", "classes"])
def test_the_one_informative_patch_has_the_maximum(queries: Any):
    """Of the one query's map, and of each class's query on images of that class."""
    pooling = AttentionPooling(1, queries, 2.0, 1.0)
    model = models.build(
        PatchConvNet(PATCH, "convolutions", 48, 1, "layer", 0.1, pooling, NONE, 3, 4), SIDE
    )
    model.init_weights(0)
    x, classes, _ = one_patch(0, 2048)
    updates, rate = 250, 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    generator = torch.Generator().manual_seed(0)
    for update in range(updates):
        share = min(1, (update + 1) / 20) * (0.5 + 0.5 * np.cos(np.pi * update / updates))
        optimizer.param_groups[0]["lr"] = rate * share
        chosen = torch.randperm(len(x), generator=generator)[:32]
        loss = F.cross_entropy(model(x[chosen]).logits, classes[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, classes, places = one_patch(1, 32)
    with torch.no_grad():
        found, output = attended(model.eval(), x)
    maps = found["blocks_token_only.0.attn"][:, 0]
    own = maps[torch.arange(len(x)), classes] if queries == "classes" else maps
    coloured = classes < 3
    right = int((own.argmax(dim=1) == places)[coloured].sum())
    print(f"the informative patch has the maximum in {right} of {int(coloured.sum())} images")
    assert (output.logits.argmax(dim=1) == classes).sum() >= 31
    assert right >= 23 and coloured.sum() == 24
