"""Every kind of model that timm has goes through ONNX, or is refused with the reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from oblong import CLASSES, WIDE, images, recipe_of, saved, task_of

from bigvit.cli import main
from bigvit.models.timm_skeleton import counted
from bigvit.recipe import (
    AveragePooling,
    CaiT,
    ClassAttention,
    DeiT,
    DistillationToken,
    LayerScale,
    LinearStochasticDepth,
    Model,
    ParallelViT,
    ResNet,
    StochasticDepth,
    Swin,
    Timm,
    TimmSizes,
    resmlp,
)

NO_DROP = StochasticDepth(rate=0.0, group=4)
TOKEN = DistillationToken(prediction="logits", decayed=False)
POOLED = AveragePooling()
LAST = ClassAttention(depth=2, keys="class and patches")
TWINS = "depths=(1,1,1,1)", "embed_dims=(16,16,32,32)", "num_heads=(1,1,2,2)"
KINDS: dict[str, tuple[Model, tuple[str, ...]]] = {
    "vit": (WIDE, ("--image-size", "48")),
    "parallel": (ParallelViT(4, 24, 2, 2, 3, 2.0, 1e-1, NO_DROP, 3, CLASSES), ()),
    "deit": (
        DeiT(4, 24, 2, 3, 2.0, TOKEN, LinearStochasticDepth(rate=0.0, group=4), 3, CLASSES),
        (),
    ),
    "cait": (
        CaiT(4, 24, 2, 2, 3.0, True, LayerScale(0.1), LAST, None, False, NO_DROP, 3, CLASSES),
        (),
    ),
    "resmlp": (
        resmlp("s12", patch_size=16, shift=True, drop_path=NO_DROP, num_classes=5, in_chans=3),
        ("--fold",),
    ),
    "swin": (Swin(2, 8, (1, 2), (1, 2), 4, 2.0, POOLED, NO_DROP, 3, CLASSES), ()),
    "resnet": (ResNet((1, 1, 1, 1), POOLED, None, False, 3, CLASSES), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_onnx_runtime_computes_the_logits_of_any_number_of_images(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, options = KINDS[name]
    recipe = replace(recipe_of(32), model=model)
    saved(tmp_path / "run", recipe, 1)
    assert main(["export", str(tmp_path / "run"), "--onnx", *options]) == 0
    said, folder = capsys.readouterr().out.splitlines()
    assert 0 <= float(said.split("torch's by ")[1].split()[0]) <= 1e-4
    session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
    if "--image-size" in options:
        assert session.get_inputs()[0].shape[1:] == [3, 48, 48]
        return
    ours = task_of(recipe, 1).model.eval()
    for count in (1, 4):
        x = images(32, count)
        (found,) = session.run(None, {"images": x.numpy()})
        wanted = ours(x).prediction("logits").numpy()
        assert wanted.std() > 0.05 and np.abs(found - wanted).max() <= 1e-4


@pytest.mark.slow
def test_what_onnx_cannot_take_is_refused_and_the_export_before_it_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Timm("twins_svt_small", TWINS, TimmSizes(0, 0, 0), NO_DROP, 3, CLASSES)
    model = replace(bare, sizes=counted(bare, 64))
    saved(tmp_path / "run", replace(recipe_of(64), model=model), 1)
    assert main(["export", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "export"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--onnx"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: --onnx: ONNX cannot take this Timm (") and "\x1b" not in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
