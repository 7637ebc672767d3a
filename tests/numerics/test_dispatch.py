"""A model that is larger than what it may take of memory: its logits are the usual ones to the
bit, and at no time is more of it there than is allowed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from each import each_of
from randomised import randomised
from saving import save
from torch import Tensor

from bigvit.checkpoint.dispatch import GIB, dispatched
from bigvit.checkpoint.trained import trained
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    CaiT,
    ClassAttention,
    CvT,
    Digits,
    LayerScale,
    Model,
    ParallelViT,
    Recipe,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    ViT,
)
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.task import DTYPES, Task

ROOT = Path(__file__).parents[2]
OLDER = ROOT / "tests/faults/older_run/run"
CPU = Ranks(0, 1, torch.device("cpu"), None)
NONE = StochasticDepth(rate=0.0, group=4)
MODELS: dict[str, Model] = {
    "vit": ViT(2, 24, 3, 2, 2.0, 0.5, NONE, 1, 10),
    "parallel": ParallelViT(2, 24, 2, 2, 2, 2.0, 0.5, NONE, 1, 10),
    "cait": CaiT(
        2, 24, 2, 2, 2.0, True, LayerScale(0.5), ClassAttention(2, "patches"), NONE, 1, 10
    ),
    "swin": Swin(1, 12, (1, 2), (1, 2), 4, 2.0, NONE, 1, 10),
    "t2t": T2TViT(8, 12, 2, 2, 2.0, NONE, 1, 10),
    "cvt": CvT((12, 20), (1, 2), (1, 2), 2.0, NONE, 1, 10),
    "resnet": ResNet((1, 1), 1, 10),
}


def recipe_of(model: Model, precision: str = "fp32") -> Recipe:
    data = digits_vit.data
    assert isinstance(data, Digits)
    return replace(digits_vit, model=model, data=data, precision=precision, ema=0.9)


def saved(recipe: Recipe, folder: Path) -> Path:
    """A checkpoint whose average is not its weights."""
    engine = SingleEngine(lambda: _random(recipe), recipe, CPU)
    for part in engine.slices():
        if part.kind == "ema":
            part.view.mul_(0.9)
        if part.kind == "buffer":
            part.view.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))
    return save(engine, folder, 5, to_json(recipe), keep=1)


def _random(recipe: Recipe) -> Task:
    task = Task(recipe)
    randomised(task.model)
    return task


@torch.no_grad()
def logits(task: Task) -> Tensor:
    side = task.recipe.data.image_size
    images = torch.randn(3, 1, side, side, generator=torch.Generator().manual_seed(1))
    return task.predict(images)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(recipe_of(MODELS["vit"]), tmp_path_factory.mktemp("vit"))


def bytes_of(task: Task) -> int:
    return sum(weight.nbytes for weight in task.model.parameters())


SHARES = (0.0, 0.3, 0.7, 1.5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@each_of("name", MODELS)
def test_every_model_has_the_same_logits_with_a_part_of_it_in_memory(name, precision, tmp_path):
    recipe = recipe_of(MODELS[name], precision)
    path = saved(recipe, tmp_path / name)
    _, _, usual = trained(path)
    usual.to(DTYPES[precision])
    wanted = logits(usual)
    assert wanted.std() > 0.01
    whole, away = bytes_of(usual), set[bool]()
    for share in SHARES:
        try:
            _, _, found = dispatched(path, share * whole / GIB or 1e-12)
        except ValueError as error:
            assert "the largest layer" in str(error) and share < 1
            continue
        on_meta = sum(p.nbytes for p in found.model.parameters() if p.is_meta)
        away.add(on_meta > 0)
        assert whole - on_meta <= share * whole
        assert logits(found).equal(wanted)
        assert on_meta == sum(p.nbytes for p in found.model.parameters() if p.is_meta)
    assert away == {True, False}
