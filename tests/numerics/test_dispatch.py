"""A model that is larger than what it may take of memory: its logits are the usual ones to the
bit, and at no time is more of it there than is allowed."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from each import each_of
from PIL import Image
from randomised import randomised
from saving import save
from torch import Tensor

from bigvit.checkpoint.dispatch import GIB, dispatched
from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.trained import trained
from bigvit.cli import main
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    AttentionPooling,
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    CvT,
    LayerScale,
    LinearStochasticDepth,
    LVViT,
    Model,
    ParallelViT,
    PatchConvNet,
    Recipe,
    ResMLP,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    TokenLabeling,
    ViT,
    sides,
)
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.recipes.photos import photos_vit_64
from bigvit.task import DTYPES, Task
from bigvit.visualize.attention import attended

ROOT = Path(__file__).parents[2]
OLDER = ROOT / "tests/faults/older_run/run"
CPU = Ranks(0, 1, torch.device("cpu"), None)
NONE = StochasticDepth(rate=0.0, group=4)
SECOND = ClassAttention(2, "patches")
ONE, EACH = AttentionPooling(2, "one", 2.0, 0.5), AttentionPooling(2, "classes", 2.0, 0.5)
MODELS: dict[str, Model] = {
    "vit": ViT(2, 24, 3, 2, 2.0, 0.5, ClassToken(0), False, NONE, 1, 10),
    "parallel": ParallelViT(2, 24, 2, 2, 2, 2.0, 0.5, NONE, 1, 10),
    "cait": CaiT(2, 24, 2, 2, 2.0, True, LayerScale(0.5), SECOND, None, True, NONE, 1, 10),
    "lv_vit": LVViT(
        (3, 2), (1, 2), 6, 12, 2, 2, 3.0, 2.0, True, LinearStochasticDepth(0.0, 4), 1, 10
    ),
    "resmlp": ResMLP(2, 24, 3, 2.0, "affine", "linear", 0.5, True, ClassMlp(1), NONE, 1, 10),
    "swin": Swin(1, 12, (1, 2), (1, 2), 4, 2.0, AveragePooling(), NONE, 1, 10),
    "t2t": T2TViT(8, 12, 2, 2, 2.0, NONE, 1, 10),
    "cvt": CvT((12, 20), (1, 2), (1, 2), 2.0, NONE, 1, 10),
    "resnet": ResNet((1, 1), AveragePooling(), None, False, 1, 10),
    "patchconvnet": PatchConvNet(2, "convolutions", 12, 2, "batch", 0.5, EACH, NONE, 1, 10),
    "attending swin": Swin(1, 12, (1, 2), (1, 2), 4, 2.0, ONE, NONE, 1, 10),
}


def recipe_of(model: Model, precision: str = "fp32") -> Recipe:
    recipe = replace(digits_vit, model=model, precision=precision, ema=0.9)
    if getattr(model, "dense_head", False):  # which wants an objective of its own
        recipe = replace(recipe, objectives=(*recipe.objectives, TokenLabeling(0.5, 0.1, "image")))
    return recipe


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
    channels, size = task.recipe.model.in_chans, sides(task.recipe.data.image_size)
    images = torch.randn(3, channels, *size, generator=torch.Generator().manual_seed(1))
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


def test_the_average_and_another_size_are_the_usual_ones(tmp_path):
    model = ViT(
        8, 24, 3, 2, 2.0, 0.5, ClassToken(0), False, NONE, 3, photos_vit_64.model.num_classes
    )
    path = saved(replace(photos_vit_64, model=model, ema=0.9), tmp_path)
    for size, ema in ((None, False), (None, True), (48, False), ((48, 80), True)):
        usual = trained(path, size, ema).task
        found = dispatched(path, 0.6 * bytes_of(usual) / GIB, size, ema, precision="fp32").task
        assert any(weight.is_meta for weight in found.model.parameters())
        assert logits(found).equal(logits(usual)), (size, ema)


def test_files_of_several_ranks_and_of_an_older_version_are_read():
    assert len(read_manifest(*(OLDER / "checkpoints").iterdir()).files) == 2
    usual = trained(OLDER).task
    found = dispatched(OLDER, 0.5 * bytes_of(usual) / GIB).task
    assert any(weight.is_meta for weight in found.model.parameters())
    assert logits(found).equal(logits(usual))


def test_a_checkpoint_may_be_pruned_once_it_was_opened(tmp_path):
    path = saved(recipe_of(MODELS["vit"]), tmp_path)
    usual = trained(path).task
    found = dispatched(path, 0.5 * bytes_of(usual) / GIB).task
    shutil.rmtree(path)
    assert logits(found).equal(logits(usual))


@torch.no_grad()
@each_of("name", ["vit", "cait", "patchconvnet", "attending swin"])
def test_attention_is_the_usual_one(name, tmp_path):
    path = saved(recipe_of(MODELS[name]), tmp_path / name)
    usual = trained(path).task
    found = dispatched(path, 0.5 * bytes_of(usual) / GIB, precision="fp32").task
    images = torch.randn(2, 1, 8, 8)
    maps, output = attended(usual.model, images)
    same, again = attended(found.model, images)
    assert again.logits.equal(output.logits) and list(same) == list(maps)
    assert all(same[layer].equal(maps[layer]) for layer in maps)


def test_the_commands_say_the_same(run, tmp_path, capsys):
    share = str(0.5 * bytes_of(trained(run).task) / GIB)
    said = list[dict[str, Any]]()
    for more in ((), ("--dispatch", "--memory", share), ("--dispatch",)):
        assert main(["evaluate", str(run), "--workers", "0", *more]) == 0
        out, error = capsys.readouterr()
        said.append({k: v for k, v in json.loads(out).items() if k != "images_per_second"})
        assert error == ""
    assert said[0] == said[1] == said[2] and said[0]["images"] > 0
    photo = tmp_path / "photo.png"
    Image.new("L", (8, 8), 99).save(photo)
    for name, more in (("usual", ()), ("dispatched", ("--dispatch", "--memory", share))):
        words = ["attention", str(run), str(photo), "--out", str(tmp_path / name), *more]
        assert main(words) == 0
    pages = [(tmp_path / name / "index.html").read_text() for name in ("usual", "dispatched")]
    assert pages[0] == pages[1]


WRONG = [
    (("--memory", "1"), "--memory: it limits what --dispatch does"),
    (("--dispatch", "--memory", "0"), "--memory: 0.0 is not allowed; it must be above 0"),
    (("--dispatch", "--memory", "-1"), "--memory: -1.0 is not allowed"),
    (("--dispatch", "--memory", "nan"), "--memory: nan is not allowed"),
    (("--dispatch", "--memory", "1e-9"), "--memory 1e-09: the largest layer and what is needed"),
]


@each_of(("words", "named"), WRONG)
def test_a_memory_that_cannot_be_is_refused(run, capsys, words, named):
    for command in (["evaluate", str(run)], ["attention", str(run), "photo.png"]):
        assert main([*command, *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {named}") and error.count("\n") == 1


def test_a_damaged_file_is_found_before_anything_is_computed(tmp_path, capsys):
    path = saved(recipe_of(MODELS["vit"]), tmp_path)
    file = path / read_manifest(path).files[0].name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["evaluate", str(path), "--dispatch"]) == 2
    assert "is damaged: its digest is not what was written" in capsys.readouterr().err


PEAK = """
import sys, threading
from pathlib import Path
import torch
from bigvit.checkpoint.dispatch import GIB, dispatched

def anonymous():  # bytes that no file backs
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024

path, memory = Path(sys.argv[1]), float(sys.argv[2])
before = most = anonymous()
done = threading.Event()

def watch():
    global most
    while not done.wait(0.002):
        most = max(most, anonymous())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
with torch.no_grad():
    task = dispatched(path, memory / GIB).task
    logits = task.predict(torch.ones(1, 1, 8, 8))
done.set()
watcher.join()
print(logits.sum().item().hex(), most - before)
"""


def test_the_peak_is_below_the_models_size(tmp_path):
    recipe = replace(
        recipe_of(ViT(2, 192, 24, 3, 4.0, 0.5, ClassToken(0), False, NONE, 1, 10)), ema=None
    )
    path = saved(recipe, tmp_path)
    usual = trained(path).task
    size = bytes_of(usual)
    words = [sys.executable, "-c", PEAK, str(path), str(size // 4)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    total, peak = done.stdout.split()
    with torch.no_grad():
        wanted: Any = usual.predict(torch.ones(1, 1, 8, 8)).sum().item()
    assert wanted.hex() == total
    assert size > 40e6 and int(peak) < 0.75 * size, (peak, size)
