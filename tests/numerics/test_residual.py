"""What multiplies residual branches: initial values, and factors fixed from a given run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bigvit import models
from bigvit.checkpoint.model import read_checkpoint
from bigvit.models import ClassAttentionTransformer
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    BranchScalar,
    CaiT,
    ClassAttention,
    Command,
    FixedLayerScale,
    Fixup,
    LayerScale,
    Recipe,
    Residual,
    Run,
    StochasticDepth,
    TFixup,
    UniformLayerScale,
    Unscaled,
    batch_layout,
)
from bigvit.recipe.find import find_recipe
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start

SECOND_STAGE = ClassAttention(depth=2, keys="class and patches")
NO_DROP = StochasticDepth(rate=0.0, group=8)
MODEL = CaiT(2, 64, 2, 4, 4.0, True, LayerScale(1e-5), SECOND_STAGE, None, False, NO_DROP, 1, 10)
BLOCKS = 4  # of both stages


def built(residual: Residual) -> ClassAttentionTransformer:
    model = models.build(replace(MODEL, residual=residual), 8)
    assert isinstance(model, ClassAttentionTransformer)
    model.init_weights(0)
    return model


def factors(model: ClassAttentionTransformer) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in model.named_parameters() if ".gamma_" in n}


@pytest.mark.parametrize(
    ("residual", "shape", "value"),
    [
        (LayerScale(1e-6), (64,), 1e-6),
        (LayerScale(0.0), (64,), 0.0),
        (BranchScalar(0.0), (1,), 0.0),
        (BranchScalar(1e-5), (1,), 1e-5),
        (Fixup(), (1,), 1.0),
        (TFixup(), (1,), 1.0),
    ],
)
def test_factors_start_at_their_value(residual: Residual, shape: tuple[int, ...], value: float):
    found = factors(built(residual))
    assert len(found) == 2 * BLOCKS
    for factor in found.values():
        assert torch.equal(factor, torch.full(shape, value))


def test_uniform_factors_differ_and_have_their_mean():
    found = factors(built(UniformLayerScale(1e-5)))
    everything = torch.cat(list(found.values()))
    assert 0 <= everything.min() and everything.max() <= 2e-5
    assert len(everything.unique()) > 0.99 * len(everything)
    assert everything.mean().item() == pytest.approx(1e-5, rel=0.1)
    assert everything.std().item() == pytest.approx(2e-5 / 12**0.5, rel=0.1)


def test_without_factors_there_are_none():
    assert not factors(built(Unscaled()))


def test_fixup_starts_as_the_identity_with_small_first_layers():
    plain, model = built(Unscaled()).state_dict(), built(Fixup())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model(x).logits, torch.zeros(2, 10))
    scale = (2 * BLOCKS) ** -0.5
    for name, weight in model.state_dict().items():
        if name.endswith((".proj.weight", "fc2.weight")) and "patch" not in name:
            assert not weight.any(), name
        elif name.endswith(".qkv.weight"):
            assert torch.equal(weight[:128], plain[name][:128])
            assert torch.equal(weight[128:], plain[name][128:] * scale)
        elif name.endswith((".attn.v.weight", "fc1.weight")):
            assert torch.equal(weight, plain[name] * scale), name
        elif name in plain and name != "head.weight":
            assert torch.equal(weight, plain[name]), name
    with torch.no_grad():  # all it takes to leave the identity is the head and last layers
        model.head.weight.normal_()
    assert model(x).logits.abs().max() > 0.1


def test_t_fixup_is_xaviers_with_values_and_mlp_smaller():
    state = built(TFixup()).state_dict()
    small = 0.67 * BLOCKS**-0.25
    for name, weight in state.items():
        if name.endswith(".qkv.weight"):
            parts = dict(zip("qkv", weight.chunk(3), strict=True))
        elif ".attn." in name and name.endswith((".q.weight", ".k.weight", ".v.weight")):
            parts = {name[-len("v.weight")]: weight}
        elif name.startswith("blocks") and name.endswith((".proj.weight", "1.weight", "2.weight")):
            if "norm" in name:
                continue
            parts = {"v": weight}
        else:
            continue
        for part, matrix in parts.items():
            bound = (6 / sum(matrix.shape)) ** 0.5 * (small if part == "v" else 1)
            assert 0.97 * bound < matrix.abs().max() <= bound, (name, part)


@pytest.mark.parametrize("residual", [Fixup(), TFixup(), UniformLayerScale(1e-3)])
def test_initial_weights_are_a_function_of_seed_and_name(residual: Residual):
    first, again = built(residual).state_dict(), built(residual).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def of_digits(residual: Residual, starts_from: str | None, seed: int) -> Recipe:
    _, recipe = find_recipe("digits_vit")
    model = replace(MODEL, embed_dim=24, num_heads=2, mlp_ratio=2.0, residual=residual)
    schedule = replace(recipe.schedule, epochs=1, warmup_epochs=0)
    return replace(
        recipe, model=model, schedule=schedule, starts_from=starts_from, seed=seed, batch_size=149
    )


def trained(recipe: Recipe, folder: Path, init: Path | None) -> dict[str, Tensor]:
    """The recipe's run, as the loop runs it; its last weights."""
    values = Run(run_dir=folder, engine="single", workers=0, init=init and str(init))
    command = Command("fixed", recipe, values, ())
    start, opened = plan_start(command), RunFolder(folder, command, 1)
    run(command, batch_layout(recipe, 1, None), start, alone(), opened, lambda: False)
    opened.close()
    return dict(read_checkpoint(folder / "checkpoints" / f"step_{recipe.updates:08d}").model)


def test_fixed_factors_are_those_of_a_run_and_nothing_else_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first = trained(of_digits(LayerScale(1e-2), None, seed=0), tmp_path / "first", None)
    gammas = {name for name in first if ".gamma_" in name}
    assert any((first[name] - 1e-2).abs().max() > 1e-3 for name in gammas)
    recipe = of_digits(FixedLayerScale(), "the first", seed=1)
    second = trained(recipe, tmp_path / "second", tmp_path / "first")
    assert f"as they are, {len(gammas)} of {len(first)} are taken" in capsys.readouterr().out
    fresh = models.build(recipe.model, 8)
    fresh.init_weights(recipe.seed)
    for name, start in fresh.state_dict().items():
        if name in gammas:
            assert torch.equal(second[name], first[name]), name
        elif name.endswith("fc1.weight"):  # it trained, from its own start
            assert 0 < (second[name] - start).norm() < 0.5 * (second[name] - first[name]).norm()
