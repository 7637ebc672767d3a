"""An exported folder is a model that timm loads, with our logits."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from saving import save
from timm.data.config import resolve_model_data_config
from torch import Tensor

from bigvit import models
from bigvit.cli import main
from bigvit.data.batch import Batch
from bigvit.data.loader import test_batches as all_test_images
from bigvit.data.prepare import Normalise, Prepare
from bigvit.data.sources import open_source
from bigvit.engines.ema import averaged
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import evaluate
from bigvit.export.folder import export, timm_config
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    AveragePooling,
    ClassToken,
    CvT,
    DRLoc,
    Rates,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    ViT,
)
from bigvit.recipe.find import find_recipe
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task

HELD = ["README.md", "config.json", "model.safetensors"]
Batches = Callable[[Recipe, int], Iterator[list[Batch]]]


def trained(recipe: Recipe, batches: Batches) -> SingleEngine:
    """Three updates, at a rate that moves every weight well away from its start."""

    def build() -> Task:
        task = Task(recipe)
        task.init_weights()
        return task

    engine = SingleEngine(build, recipe, Ranks(0, 1, torch.device("cpu"), None))
    prepare = Prepare(recipe)
    for micro in islice(batches(recipe, 1), 3):
        engine.update(prepare.later(micro), Rates(0.02))
    return engine


def digits() -> tuple[Tensor, Tensor]:
    """Test images, as they are and normalised."""
    data = find_recipe("digits_vit")[1].data
    pixels = next(all_test_images(open_source(data, "test"), data, 64, 0, 1, 0)).images
    return pixels, Normalise(data)(pixels)


def timm_logits(folder: Path, images: Tensor) -> Tensor:
    """As a stranger computes them: everything is in the folder."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config: Any = model.pretrained_cfg
    mean, std = (torch.tensor(config[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        return model((images.float() / 255 - mean) / std)


@pytest.mark.parametrize("width", [16, 48])
def test_timm_computes_our_logits_on_digits(
    tiny: Recipe, batches: Batches, tmp_path: Path, width: int
):
    recipe = replace(tiny, model=replace(tiny.model, embed_dim=width))
    engine, (pixels, images) = trained(recipe, batches), digits()
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(recipe), keep=1)
    folder = export(checkpoint, tmp_path / "export")
    ours = engine.predict(images)
    assert ours.std() > 0.05
    torch.testing.assert_close(timm_logits(folder, pixels), ours, rtol=0, atol=1e-6)


OTHERS = {
    "swin": Swin(
        1, 8, (1, 2), (1, 2), 4, 2.0, AveragePooling(), StochasticDepth(rate=0.0, group=4), 1, 10
    ),
    "resnet": ResNet((1, 1, 1, 1), AveragePooling(), None, False, 1, 10),
}
LOSS = DRLoc(0.5, None, "absolute", "grid", 0.001, "last", True, 8, 2, "mean", 16, 2)


@pytest.mark.parametrize("name", OTHERS)
def test_timm_computes_the_logits_of_other_backbones_without_the_head_of_a_loss(
    tiny: Recipe, batches: Batches, tmp_path: Path, name: str
):
    recipe = replace(tiny, model=OTHERS[name], objectives=(*tiny.objectives, LOSS))
    engine, (pixels, images) = trained(recipe, batches), digits()
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(recipe), keep=1)
    folder = export(checkpoint, tmp_path / "export")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True)
    missing = theirs.state_dict().keys() ^ engine.task.model.state_dict().keys()
    assert all(each.endswith("num_batches_tracked") for each in missing)
    ours = engine.predict(images)
    assert ours.std() > 0.05
    torch.testing.assert_close(timm_logits(folder, pixels), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["T2TViT", "CvT"])
def test_what_timm_does_not_have_is_refused_before_anything_is_written(
    tiny: Recipe, batches: Batches, tmp_path: Path, name: str
):
    none = StochasticDepth(rate=0.0, group=4)
    model = {
        "T2TViT": T2TViT(4, 8, 1, 1, 2.0, none, 1, 10),
        "CvT": CvT((8, 8), (1, 1), (1, 1), 2.0, none, 1, 10),
    }[name]
    recipe = replace(tiny, model=model)
    checkpoint = save(
        trained(recipe, batches), tmp_path / "checkpoints", 3, to_json(recipe), keep=1
    )
    if name == "T2TViT":
        with pytest.raises(ValueError, match="data.image_size: 7 is not allowed"):
            export(checkpoint, tmp_path / "export", image_size=7)
    with pytest.raises(ValueError, match=f"timm's entry points build no {name}"):
        export(checkpoint, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_bf16_is_exported_from_its_float32_masters(tiny: Recipe, batches: Batches, tmp_path: Path):
    recipe = replace(tiny, precision="bf16")
    engine, (pixels, images) = trained(recipe, batches), digits()
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(recipe), keep=1)
    folder = export(checkpoint, tmp_path / "export")
    masters = {part.name: part for part in engine.slices() if part.kind == "weight"}
    exact = Task(recipe)
    exact.load_state_dict({name: p.view.view(p.shape) for name, p in masters.items()})
    with torch.no_grad():
        ours = exact.predict(images)
    assert (ours - engine.predict(images).float()).abs().max() > 1e-4
    torch.testing.assert_close(timm_logits(folder, pixels), ours, rtol=0, atol=1e-6)


def test_the_average_of_the_weights_is_exported_and_evaluated_by_choice(
    tiny: Recipe, batches: Batches, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = replace(tiny, ema=0.5)
    engine, (pixels, images) = trained(recipe, batches), digits()
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(recipe), keep=1)
    last = engine.predict(images)
    with averaged(engine):
        mean = engine.predict(images)
    assert torch.equal(engine.predict(images), last) and (mean - last).abs().max() > 0.01
    for flags, wanted in (((), last), (("--ema",), mean)):
        folder = tmp_path / "-".join(("export", *flags))
        assert main(["export", str(checkpoint), "--out", str(folder), *flags]) == 0
        logits = timm_logits(folder, pixels)
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-6)
        capsys.readouterr()
        assert main(["evaluate", str(checkpoint), "--workers", "0", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["weights"] == ("ema" if flags else "last") and found["images"] == 300
        test_set = open_source(recipe.data, "test")

        def predict(each: Tensor, ema: bool = bool(flags)) -> Tensor:
            with averaged(engine) if ema else contextlib.nullcontext():
                return engine.predict(each)

        counts = evaluate(predict, test_set, recipe.data, 64, engine.ranks, 0).as_json()
        assert found["top1_correct"] == counts["top1_correct"]
        assert found["test_loss"] == pytest.approx(counts["test_loss"], rel=1e-6)


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_checkpoint_without_an_average_is_refused(
    tiny: Recipe,
    batches: Batches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
):
    engine = trained(tiny, batches)
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(tiny), keep=1)
    assert main([command, str(checkpoint), "--ema"]) == 2
    said = capsys.readouterr().err
    assert "holds no average of the weights" in said and "Traceback" not in said


def test_a_second_export_replaces_the_first(tiny: Recipe, batches: Batches, tmp_path: Path):
    engine = trained(tiny, batches)
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(tiny), keep=1)
    folder = export(checkpoint, tmp_path / "export")
    (folder / "model.safetensors").write_bytes(b"stale")
    export(checkpoint, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "export"]


def test_config_names_the_classes_and_how_images_become_inputs(
    tiny: Recipe, batches: Batches, tmp_path: Path
):
    engine = trained(tiny, batches)
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(tiny), keep=1)
    (tmp_path / "classes.json").write_text(json.dumps([str(digit) for digit in range(10)]))
    folder = export(checkpoint, tmp_path / "export")
    config = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    assert config["label_names"] == [str(digit) for digit in range(10)]
    assert config["input_size"] == [1, 8, 8]
    assert (config["mean"], config["std"]) == ([0.305], [0.376])
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    loaded: Any = model.pretrained_cfg
    assert loaded["label_names"] == config["label_names"]
    data = resolve_model_data_config(model)
    assert (data["input_size"], list(data["mean"]), data["crop_pct"]) == ((1, 8, 8), [0.305], 1.0)


WIDTHS = {384: 6, 768: 12, 1408: 16}  # the last has no architecture of its own in timm_config


@pytest.mark.parametrize("width", WIDTHS)
def test_config_alone_makes_the_model_of_an_imagenet_recipe(width: int):
    _, recipe = find_recipe("deit3_h14_in1k_126")
    drop = StochasticDepth(rate=0.0, group=8)
    model = ViT(14, width, 1, WIDTHS[width], 4.0, 1e-4, ClassToken(0), False, drop, 3, 1000)
    config = timm_config(replace(recipe, model=model), 126, None)
    ours = models.build(model, 126)
    ours.init_weights(seed=0)
    theirs = timm.create_model(config["architecture"], num_classes=1000, **config["model_args"])
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 126, 126, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(images), ours(images).logits, rtol=0, atol=1e-6)
    assert config["pretrained_cfg"]["label_names"] is None  # not known without the data set
    assert config["pretrained_cfg"]["input_size"] == [3, 126, 126]
    assert config["pretrained_cfg"]["mean"] == [0.485, 0.456, 0.406]


def test_nothing_else_is_removed_from_the_folder(
    tmp_path: Path, tiny: Recipe, batches: Batches
) -> None:
    engine = trained(tiny, batches)
    checkpoint = save(engine, tmp_path / "checkpoints", 3, to_json(tiny), keep=1)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    (out / "thesis.tex").write_text("years of work")
    assert main(["export", str(checkpoint), "--out", str(out)]) == 2
    assert (out / "thesis.tex").exists() and (out / "config.json").read_text() == "{}"
    (out / "thesis.tex").unlink()
    assert main(["export", str(checkpoint), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
