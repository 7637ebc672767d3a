"""Weights to start from: timm's, the authors' and our own, put into models of ours; and exports.

Shapes: N patches, D width.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from randomised import randomised
from safetensors.torch import save_file
from saving import save
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.resampling import resample_positions
from bigvit.checkpoint.weights import Fitted, Given, Unfit, fit, read_init
from bigvit.engines.single import SingleEngine
from bigvit.export.folder import export
from bigvit.models import ClassTokenTransformer
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    ClassToken,
    Images,
    ImageSize,
    Model,
    ParallelViT,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ViT,
)
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task

TOLERANCE = 1e-5
NO_DROP = StochasticDepth(rate=0.0, group=8)
SMALL = ViT(16, 48, 2, 3, 4.0, 1e-4, ClassToken(0), False, NO_DROP, 3, 10)
PARALLEL = ParallelViT(16, 48, 2, 2, 3, 4.0, 1e-4, NO_DROP, 3, 10)
State = dict[str, Tensor]


def small_of_timm(size: ImageSize = 224, classes: int = 10) -> nn.Module:
    sizes: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": classes}
    return timm.create_model("deit3_base_patch16_224", img_size=size, **sizes)


def ours(model: Model = SMALL, size: ImageSize = 224) -> ClassTokenTransformer:
    """With weights of its own, which are to be replaced."""
    built = models.build(model, size)
    randomised(built, seed=7)
    return built


def images(size: ImageSize, count: int = 2) -> Tensor:
    height, width = size if isinstance(size, tuple) else (size, size)
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_same_logits(a: ClassTokenTransformer, theirs: nn.Module, size: ImageSize) -> None:
    x = images(size)
    expected = theirs(x)
    assert expected.std() > 0.3
    torch.testing.assert_close(a(x).logits, expected, rtol=0, atol=TOLERANCE)


@pytest.fixture
def of_timm(tmp_path: Path) -> tuple[nn.Module, Path]:
    """A model of timm's with random weights, and its file."""
    theirs = randomised(small_of_timm())
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    return theirs, tmp_path / "timm.safetensors"


@pytest.mark.parametrize("size", [160, (224, 320), 384, 224])
def test_at_another_size_the_logits_are_those_of_timm_resampled(
    of_timm: tuple[nn.Module, Path], size: ImageSize
):
    theirs, file = of_timm
    grid = SMALL.grid(size)
    state = theirs.state_dict()
    state["pos_embed"] = resample_abs_pos_embed(
        state["pos_embed"], list(grid), old_size=[14, 14], num_prefix_tokens=0
    )
    resized = small_of_timm(size)
    resized.load_state_dict(state)
    model = ours(size=size)
    assert fit(read_init(str(file)), model, grid) == Fitted(size != 224, False)
    assert_same_logits(model, resized.eval(), size)


def test_as_many_positions_of_another_shape_are_resampled_too(of_timm: tuple[nn.Module, Path]):
    """14 x 14 patches are as many as 7 x 28, but stand elsewhere: a bare file does not say it."""
    theirs, file = of_timm
    size = (112, 448)
    model = ours(size=size)
    with pytest.raises(Unfit, match="--init-grid H W"):
        fit(read_init(str(file)), model, (7, 28))
    fit(read_init(str(file), grid=(14, 14)), model, (7, 28))
    positions = theirs.state_dict()["pos_embed"]
    expected = resample_abs_pos_embed(positions, [7, 28], [14, 14], num_prefix_tokens=0)
    torch.testing.assert_close(model.pos_embed.detach(), expected, rtol=0, atol=1e-6)


def theirs_of(name: str) -> str:
    """A name of ours -> the authors', for a plain model."""
    return re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", name)


BRANCHES = {  # ours -> facebookresearch/deit, Layer_scale_init_Block_paralx2
    "attns.0.norm": "norm1",
    "attns.1.norm": "norm11",
    "attns.0.attn": "attn",
    "attns.1.attn": "attn1",
    "attns.0.ls.gamma": "gamma_1",
    "attns.1.ls.gamma": "gamma_1_1",
    "ffns.0.norm": "norm2",
    "ffns.1.norm": "norm21",
    "ffns.0.mlp": "mlp",
    "ffns.1.mlp": "mlp1",
    "ffns.0.ls.gamma": "gamma_2",
    "ffns.1.ls.gamma": "gamma_2_1",
}


def theirs_of_parallel(name: str) -> str:
    """The same, for one with two parallel branches."""
    for mine, authors in BRANCHES.items():
        name = re.sub(rf"^(blocks\.\d+)\.{re.escape(mine)}(?=\.|$)", rf"\1.{authors}", name)
    return name


@pytest.mark.parametrize(
    "model, renamed", [(SMALL, theirs_of), (PARALLEL, theirs_of_parallel)], ids=["plain", "x2"]
)
def test_files_of_the_authors_are_read_by_their_names(
    tmp_path: Path, model: Model, renamed: Callable[[str], str]
):
    source = ours(model)
    state = {renamed(name): weight for name, weight in source.state_dict().items()}
    assert len(state) == len(source.state_dict())
    assert "blocks.1.gamma_2" in state
    assert not any(".ls" in name or "ns.0." in name for name in state)
    torch.save({"model": state, "epoch": 800}, tmp_path / "authors.pth")
    read = read_init(str(tmp_path / "authors.pth"))
    assert read.weights.keys() == source.state_dict().keys()
    target = models.build(model, 224)
    assert fit(read, target, (14, 14)) == Fitted(False, False)
    with torch.no_grad():
        torch.testing.assert_close(
            target(images(224)).logits, source(images(224)).logits, rtol=0, atol=0
        )


@pytest.mark.parametrize("wrap", ["model", "state_dict", None])
def test_tensors_in_a_pth_may_stand_below_a_key(tmp_path: Path, wrap: str | None):
    state = ours().state_dict()
    torch.save({wrap: state, "args": {"lr": 1.0}} if wrap else state, tmp_path / "x.pth")
    read = read_init(str(tmp_path / "x.pth")).weights
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], weight) for name, weight in state.items())


def test_a_model_that_timm_does_not_have_is_refused():
    with pytest.raises(Unfit, match="no_such_model"):
        read_init("timm:no_such_model")


def unchanged(model: nn.Module, state: State) -> bool:
    return all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    "name", ["blocks.1.ls2.gamma", "pos_embed", "norm.bias", "head.bias", "head.weight"]
)
def test_a_missing_weight_is_named(name: str):
    model = ours()
    state = {key: weight.clone() for key, weight in model.state_dict().items()}
    given = {key: weight + 1 for key, weight in state.items() if key != name}
    with pytest.raises(Unfit, match=re.escape(name)):
        fit(Given(given), model, (14, 14))
    assert unchanged(model, state)


def test_an_unexpected_weight_is_named():
    model = ours()
    state = {key: weight.clone() for key, weight in model.state_dict().items()}
    given = {key: weight + 1 for key, weight in state.items()} | {"dist_token": torch.ones(1)}
    with pytest.raises(Unfit, match="dist_token"):
        fit(Given(given), model, (14, 14))
    deeper = models.build(replace(SMALL, depth=3), 224).state_dict()
    with pytest.raises(Unfit, match=r"blocks\.2\."):
        fit(Given(deeper), model, (14, 14))
    assert unchanged(model, state)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("patch_embed.proj.weight", (48, 3, 14, 14)),
        ("blocks.0.attn.qkv.bias", (145,)),
        ("pos_embed", (1, 196, 49)),
        ("cls_token", (1, 2, 48)),
    ],
)
def test_a_weight_of_the_wrong_shape_is_named(name: str, shape: tuple[int, ...]):
    model = ours()
    state = {key: weight.clone() for key, weight in model.state_dict().items()}
    given = {key: weight + 1 for key, weight in state.items()} | {name: torch.ones(shape)}
    with pytest.raises(Unfit, match=re.escape(name)):
        fit(Given(given), model, (14, 14))
    assert unchanged(model, state)


def test_another_number_of_classes_leaves_the_models_own_head():
    source, model = ours(replace(SMALL, num_classes=21)), ours()
    randomised(source, seed=3)
    weight, bias = model.head.weight.detach().clone(), model.head.bias.detach().clone()
    fitted = fit(Given(source.state_dict()), model, (14, 14))
    assert fitted == Fitted(resampled=False, new_head=True)
    assert str(fitted) == "positions taken for 14 x 14, head made anew"
    assert torch.equal(model.head.weight, weight) and torch.equal(model.head.bias, bias)
    rest = {name: w for name, w in source.state_dict().items() if not name.startswith("head.")}
    assert all(torch.equal(model.state_dict()[name], w) for name, w in rest.items())


def test_positions_that_are_no_square_are_refused():
    model = ours(size=160)
    given = ours().state_dict() | {"pos_embed": torch.ones(1, 197, 48)}
    with pytest.raises(Unfit, match="197"):
        fit(Given(given), model, (10, 10))
    with pytest.raises(Unfit, match="280"):
        resample_positions(torch.ones(1, 280, 48), (14, 14), (10, 10))


DATA = Images(
    dataset="photographs",
    train_images=60,
    test_images=None,
    classes=10,
    image_size=32,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=None,
    erasing=0.0,
    repeats=1,
    mix=None,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    test_crop_ratio=0.9,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """Four by four patches of eight pixels."""
    model = replace(SMALL, patch_size=8, embed_dim=24)
    _, digits = find_recipe("digits_vit")
    return replace(digits, model=model, data=DATA, batch_size=16)


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two checkpoints, of different weights."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.json").write_text("{}")
    for update in (3, 6):

        def build(update: int = update) -> Task:
            task = Task(recipe)
            randomised(task, seed=update)
            return task

        engine = SingleEngine(build, recipe, replace(alone(), device=torch.device("cpu")))
        save(engine, folder / "checkpoints", update, to_json(recipe), keep=2)
    return folder


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step_00000006"


def test_each_kind_of_source_gives_the_same_weights(recipe: Recipe, run: Path, tmp_path: Path):
    expected = Task(recipe)
    randomised(expected, seed=6)
    exported = export(newest(run), tmp_path / "export")
    torch.save(expected.model.state_dict(), tmp_path / "x.pth")
    for source in (
        run,
        newest(run),
        exported,
        exported / "model.safetensors",
        tmp_path / "x.pth",
    ):
        read = read_init(str(source))
        assert read.weights.keys() == expected.model.state_dict().keys(), source
        model = ours(recipe.model, 32)
        assert fit(read, model, (4, 4)) == Fitted(False, False)
        assert unchanged(model, expected.model.state_dict()), source
    older = read_init(str(run / "checkpoints" / "step_00000003")).weights
    assert not torch.equal(older["head.weight"], expected.model.head.weight)


def test_a_folder_that_holds_no_weights_is_unfit(tmp_path: Path):
    with pytest.raises(Unfit, match=re.escape(str(tmp_path))):
        read_init(str(tmp_path))


def test_a_damaged_checkpoint_is_unfit(recipe: Recipe, tmp_path: Path):
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    checkpoint = save(engine, tmp_path / "checkpoints", 1, to_json(recipe), keep=1)
    (checkpoint / "rank_00000.safetensors").write_bytes(b"cut")
    with pytest.raises(Unfit, match="rank_00000"):
        read_init(str(checkpoint))


@pytest.mark.parametrize("size", [None, 48, (32, 56), (16, 64)])
@torch.no_grad()
def test_timm_loads_an_export_of_any_size_with_our_logits(
    recipe: Recipe, run: Path, tmp_path: Path, size: ImageSize | None
):
    folder = export(newest(run), tmp_path / "export", size)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    size = size or 32
    height, width = size if isinstance(size, tuple) else (size, size)
    config: Any = theirs.pretrained_cfg
    assert tuple(config["input_size"]) == (3, height, width)
    assert config["crop_pct"] == 0.9
    weights = read_weights(newest(run))[1]
    state = {name.removeprefix("model."): weight for name, weight in weights.items()}
    grid = [height // 8, width // 8]
    state["pos_embed"] = resample_abs_pos_embed(
        state["pos_embed"], grid, old_size=[4, 4], num_prefix_tokens=0
    )
    model = models.build(recipe.model, size)
    model.load_state_dict(state)
    assert_same_logits(model, theirs, size)


def test_an_export_of_another_size_starts_a_training_there(
    recipe: Recipe, run: Path, tmp_path: Path
):
    folder = export(newest(run), tmp_path / "export", 48)
    model = ours(recipe.model, 48)
    assert fit(read_init(str(folder)), model, (6, 6)) == Fitted(False, False)
    direct = ours(recipe.model, 48)
    fitted = fit(read_init(str(run)), direct, (6, 6))
    assert str(fitted) == "positions resampled"
    assert unchanged(model, direct.state_dict())
