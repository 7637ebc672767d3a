"""ResNet's head of two layers (Grafit, thesis section 2.4.6): linear, BatchNorm, ReLU, linear.

Shapes: B images, D features, H hidden numbers, K classes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from each import each_of
from randomised import randomised
from safetensors.torch import save_file
from saving import save
from sklearn.datasets import load_digits
from torch import Tensor

from bigvit import models
from bigvit.checkpoint.weights import Unfit, fit, read_init
from bigvit.cli import main
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import AttentionPooling, AveragePooling, Recipe, ResNet
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import filled, recipe_from_json, to_json
from bigvit.task import Task

MLP = ResNet((1, 1, 1, 1), AveragePooling(), 24, False, 1, 10)
FC = replace(MLP, head_hidden_dim=None)
SCANS: Any = load_digits()
NEW = {
    "fc.hidden.weight",
    "fc.hidden.bias",
    "fc.norm.weight",
    "fc.norm.bias",
    "fc.norm.running_mean",
    "fc.norm.running_var",
    "fc.last.weight",
    "fc.last.bias",
}


def built(model: ResNet, seed: int = 0) -> Any:
    made = models.build(model, 32)
    made.init_weights(seed)
    return made


def digits(count: int) -> Tensor:
    """(count, 1, 32, 32), each pixel made 4 x 4."""
    images = torch.tensor(SCANS["images"][:count], dtype=torch.float32) / 16
    return images.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]


def of_digits(model: ResNet) -> Recipe:
    return replace(find_recipe("digits_vit")[1], model=model)


@each_of("training", [False, True])
@torch.no_grad()
def test_logits_are_the_two_layers_on_timms_features(training: bool):
    """The head written out in float64; statistics are of the batch, or those that are kept."""
    ours: Any = randomised(models.build(MLP, 32)).train(training)
    theirs: Any = timm.create_model("resnet50", layers=(1, 1, 1, 1), in_chans=1, num_classes=0)
    w = {name: each.double() for name, each in ours.state_dict().items()}
    theirs.load_state_dict({n: each for n, each in w.items() if n[:3] != "fc."}, strict=False)
    images = digits(16)
    x_BD = theirs.train(training).double()(images.double())
    h_BH = x_BD @ w["fc.hidden.weight"].T + w["fc.hidden.bias"]
    mean, var = w["fc.norm.running_mean"], w["fc.norm.running_var"]
    if training:
        mean, var = h_BH.mean(dim=0), h_BH.var(dim=0, unbiased=False)
    h_BH = (h_BH - mean) / (var + 1e-5).sqrt() * w["fc.norm.weight"] + w["fc.norm.bias"]
    expected_BK = h_BH.clamp(min=0) @ w["fc.last.weight"].T + w["fc.last.bias"]
    found_BK = ours.double()(images.double()).logits
    assert expected_BK.std() > 0.1 and (h_BH < 0).any()
    torch.testing.assert_close(found_BK, expected_BK, rtol=1e-6, atol=1e-6)
    if training:  # one update of momentum 0.1, by the unbiased variance
        kept = 0.9 * w["fc.norm.running_mean"] + 0.1 * mean
        torch.testing.assert_close(ours.fc.norm.running_mean.double(), kept, rtol=1e-5, atol=1e-6)


def test_it_begins_as_linear_layers_do_lies_last_and_decays_its_matrices():
    one, task = built(MLP), Task(of_digits(MLP))
    named = dict(one.named_parameters())
    for name in ("fc.hidden.weight", "fc.last.weight"):
        assert 0.018 < named[name].std() < 0.021 and named[name].abs().max() < 0.2
        assert not torch.equal(named[name], built(MLP, 1).get_parameter(name))
    assert (named["fc.norm.weight"] == 1).all() and not named["fc.hidden.bias"].any()
    of_head = [name for name in named if name.startswith("fc.")]
    assert {one.layer_id(name) for name in of_head} == {task.layers} == {MLP.depth + 1}
    decayed = {n for n in of_head if named[n].ndim > 1} - one.no_weight_decay()
    assert decayed == {"fc.hidden.weight", "fc.last.weight"}


@each_of(
    ("of", "into", "anew"),
    [
        (FC, MLP, True),
        (MLP, FC, True),
        (MLP, replace(MLP, num_classes=7), True),
        (MLP, replace(MLP, head_hidden_dim=32), True),
        (MLP, MLP, False),
        (FC, FC, False),
    ],
)
def test_init_makes_the_head_anew_where_another_was(
    of: ResNet, into: ResNet, anew: bool, tmp_path: Path
):
    given, ours, before = built(of, 1), built(into, 2), built(into, 2).state_dict()
    randomised(given)
    save_file(given.state_dict(), tmp_path / "weights.safetensors")
    done = fit(read_init(str(tmp_path / "weights.safetensors")), ours, into.grid(32))
    assert str(done) == ("head made anew" if anew else "as they are")
    for name, found in ours.state_dict().items():
        kept = anew and name.startswith("fc.")
        assert torch.equal(found, before[name] if kept else given.state_dict()[name]), name
    assert (NEW <= before.keys()) == (into.head_hidden_dim is not None)


def test_a_trunk_that_lacks_something_is_refused_beside_another_head(tmp_path: Path):
    given = {n: w for n, w in built(FC).state_dict().items() if n != "layer2.0.conv1.weight"}
    save_file(given, tmp_path / "weights.safetensors")
    with pytest.raises(Unfit, match=r"layer2\.0\.conv1\.weight"):
        fit(read_init(str(tmp_path / "weights.safetensors")), built(MLP), MLP.grid(32))


def test_older_recipes_meant_one_layer():
    recipe = of_digits(FC)
    older = to_json(recipe)
    del older["model"]["head_hidden_dim"]
    assert filled(older) == to_json(recipe) and recipe_from_json(older) == recipe
    assert recipe_from_json(to_json(of_digits(MLP))) == of_digits(MLP)


@each_of(
    ("changed", "said"),
    [
        ({"head_hidden_dim": 0}, "model.head_hidden_dim"),
        (
            {"pooling": AttentionPooling(1, "one", 3.0, 0.1)},
            "model.head_hidden_dim: 24.*model.pooling",
        ),
    ],
)
def test_what_makes_no_head_is_refused(changed: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        check_recipe(of_digits(replace(MLP, **changed)))


@each_of("onnx", [(), ("--onnx",)])
def test_timm_has_no_such_head(onnx: tuple[str, ...], tmp_path: Path, capsys: Any):
    recipe = of_digits(MLP)

    def task() -> Task:
        made = Task(recipe)
        made.init_weights()
        return made

    path = save(SingleEngine(task, recipe, alone()), tmp_path / "run", 0, to_json(recipe), 1)
    assert main(["export", str(path), "--out", str(tmp_path / "export"), *onnx]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "two layers (model.head_hidden_dim): no export; load the checkpoint by" in line
    assert "--model.head-hidden-dim None" in line and not (tmp_path / "export").exists()
