"""ResMLP's weights from and for others: timm's files and the authors', other resolutions, exports
and folding.

Shapes: N patches, D width.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import literal_resmlp
import pytest
import timm
import torch
from each import each_of
from oblong import recipe_of, saved
from randomised import randomised
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, checkpoint_filter_fn
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.dispatch import GIB, dispatched
from bigvit.checkpoint.trained import trained
from bigvit.checkpoint.weights import Fitted, Given, Unfit, fit, read_init
from bigvit.cli import main
from bigvit.export.folder import export
from bigvit.models.folding import folded
from bigvit.recipe import (
    AveragePooling,
    ClassMlp,
    ImageSize,
    ResMLP,
    StochasticDepth,
    resmlp,
    sides,
)
from bigvit.task import Task

State = dict[str, Tensor]
NO_DROP = StochasticDepth(rate=0.0, group=4)
TINY = ResMLP(4, 24, 2, 4.0, "affine", "linear", 0.1, False, AveragePooling(), NO_DROP, 3, 10)
SIZE, GRID = 32, (8, 8)
S12 = resmlp("s12", patch_size=16, shift=True, drop_path=NO_DROP, num_classes=5, in_chans=3)
RELATIVE = 1e-6


def of_timm(size: ImageSize = SIZE) -> nn.Module:
    """timm's model of `TINY`'s sizes, random."""
    made = MlpMixer(*(10, sides(size), 3, 4, 2, 24, 4.0), block_layer=ResBlock, norm_layer=Affine)  # pyright: ignore
    return randomised(made)


def authors(state: State) -> State:
    """timm's names and shapes -> those of resmlp_models.py, `layers_scale_mlp_blocks`."""
    found: State = {}
    for name, weight in state.items():
        for ours, theirs in (
            (r"^stem\.", "patch_embed."),
            (r"\.linear_tokens\.", ".attn."),
            (r"\.mlp_channels\.", ".mlp."),
            (r"\.ls(\d)$", r".gamma_\1"),
        ):
            name = re.sub(ours, theirs, name)
        found[name] = weight.flatten() if name.endswith(("alpha", "beta")) else weight
    assert found["blocks.1.norm1.alpha"].shape == found["blocks.1.gamma_2"].shape == (24,)
    return found


def images(size: ImageSize = SIZE, count: int = 2) -> Tensor:
    return torch.randn(count, 3, *sides(size), generator=torch.Generator().manual_seed(1))


def built(model: ResMLP, size: ImageSize = SIZE, seed: int = 0) -> Any:
    return randomised(models.build(model, size), seed)


@torch.no_grad()
def test_the_tests_authors_file_is_one_as_timm_reads_it():
    theirs, fresh = of_timm(), randomised(of_timm(), seed=5)
    fresh.load_state_dict(checkpoint_filter_fn(authors(theirs.state_dict()), fresh))
    assert torch.equal(fresh(images()), theirs(images()))


@each_of("packed", ["bare", "model, module.", "timm", "timm.safetensors"])
@torch.no_grad()
def test_files_of_timm_and_of_the_authors_have_their_logits(packed: str, tmp_path: Path):
    theirs = of_timm()
    state = theirs.state_dict()
    content: Any = {
        "bare": authors(state),
        "model, module.": {"model": {f"module.{n}": w for n, w in authors(state).items()}},
        "timm": {"state_dict": state},
    }.get(packed)
    file = tmp_path / packed.replace(", ", "_")
    if content is None:
        save_file(state, file)
    else:
        torch.save(content, file)
    given = read_init(str(file))
    for model in (TINY, replace(TINY, shift=True)):  # shifts that are not there are 0
        ours = built(model, seed=9)
        assert fit(given, ours, GRID) == Fitted(False, False)
        torch.testing.assert_close(ours(images()).logits, theirs(images()), rtol=1e-5, atol=1e-5)
    assert fit(given, built(replace(TINY, num_classes=7)), GRID) == Fitted(False, True)
    with pytest.raises(Unfit, match="blocks.0.conv_tokens.bias the first"):
        fit(given, built(replace(TINY, norm="affine", communication="conv")), GRID)


def test_shifts_that_a_model_has_not_are_refused():
    given = Given(built(replace(TINY, shift=True)).state_dict(), GRID)
    with pytest.raises(Unfit, match="4 weights are unexpected, blocks.0.shift1 first"):
        fit(given, built(TINY), GRID)


def by_timm(weight: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """A matrix of patches (N, N) as timm resamples positions: its columns, then its rows."""
    old, new = list(before), list(after)

    def positions(of: Tensor) -> Tensor:
        return resample_abs_pos_embed(of[None], new, old_size=old, num_prefix_tokens=0)[0]

    shares = before[0] * before[1] / (after[0] * after[1])
    return positions(positions(weight.T).T) * shares


CHANGES: list[tuple[ImageSize, ImageSize]] = [(32, 48), (32, (16, 64)), ((16, 64), (32, 24))]


@each_of(("size", "other"), CHANGES)
@torch.no_grad()
def test_matrices_of_another_resolution_are_resampled(size: ImageSize, other: ImageSize):
    model = replace(TINY, pooling=ClassMlp(1))
    source, ours = built(model, size), built(model, other, seed=3)
    before, after = model.grid(size), model.grid(other)
    given = Given(source.state_dict(), before)
    done = fit(given, ours, after)
    assert str(done) == "cross-patch matrices resampled"
    old, new = source.state_dict(), ours.state_dict()
    for i in (0, 1):
        name = f"blocks.{i}.linear_tokens"
        wanted = by_timm(old[f"{name}.weight"], before, after)
        torch.testing.assert_close(new[f"{name}.weight"], wanted, rtol=0, atol=1e-6)
        bias = resample_abs_pos_embed(
            old[f"{name}.bias"][None, :, None], list(after), list(before), num_prefix_tokens=0
        )
        torch.testing.assert_close(new[f"{name}.bias"], bias.flatten(), rtol=0, atol=1e-6)
    name = "blocks_token_only.0.linear_tokens"
    row, resized = old[f"{name}.weight"], new[f"{name}.weight"]
    assert torch.equal(row[:, :1], resized[:, :1]), "the class token's own weight"
    assert torch.equal(old[f"{name}.bias"], new[f"{name}.bias"])
    positions = resample_abs_pos_embed(
        row[:, 1:, None], list(after), list(before), num_prefix_tokens=0
    )
    shares = before[0] * before[1] / (after[0] * after[1])
    torch.testing.assert_close(resized[0, 1:], positions.flatten() * shares, rtol=0, atol=1e-6)
    back = built(model, size, seed=4)
    fit(Given(old, before), back, before)
    assert all(torch.equal(back.state_dict()[n], w) for n, w in old.items())


@torch.no_grad()
def test_a_smooth_matrix_does_the_same_to_a_smooth_image():
    """A mean stays a mean; a blur of each patch's surroundings stays one of the same share of the
    image, away from its edge."""
    grid, finer = (16, 16), (24, 24)

    def places(size: tuple[int, int]) -> Tensor:
        """(N, 2): centres of patches, in shares of the image."""
        rows, columns = ((torch.arange(n) + 0.5) / n for n in size)
        return torch.cartesian_prod(rows, columns)

    def blur(size: tuple[int, int]) -> Tensor:
        apart = torch.cdist(places(size), places(size))
        return (-((apart / 0.12) ** 2)).exp().softmax(dim=1)

    def smooth(size: tuple[int, int]) -> Tensor:
        return (5 * places(size)).sin().sum(dim=1)

    model = replace(TINY, depth=1)
    source = built(model, 64)
    block = source.blocks[0].linear_tokens
    for matrix in (torch.full((256, 256), 1 / 256), blur(grid)):
        block.weight.copy_(matrix)
        ours = built(model, 96)
        fit(Given(source.state_dict(), grid), ours, finer)
        found = ours.blocks[0].linear_tokens.weight @ smooth(finer)
        wanted = (torch.full((576, 576), 1 / 576) if matrix[0, 0] == 1 / 256 else blur(finer)) @ (
            smooth(finer)
        )
        inner = ((places(finer) - 0.5).abs() < 0.4).all(dim=1)
        assert (found - wanted)[inner].abs().max() < 0.02 * wanted.abs().max()


def test_what_cannot_be_resampled_or_is_in_doubt_is_refused(tmp_path: Path):
    mlp = replace(TINY, communication="mlp")
    given = Given(built(mlp).state_dict(), GRID)
    assert fit(given, built(mlp), GRID) == Fitted(False, False)
    for size in (48, (16, 64)):  # more patches, and as many that lie otherwise
        with pytest.raises(Unfit, match="an MLP across 8 x 8 patches"):
            fit(given, built(mlp, size), mlp.grid(size))
    conv = replace(TINY, communication="conv")
    assert fit(Given(built(conv).state_dict(), GRID), built(conv, 48), (12, 12)).resampled is False
    # a bare file of 64 patches, for a model of 4 x 16
    torch.save(authors(of_timm((16, 64)).state_dict()), tmp_path / "x.pth")
    wide = built(TINY, (16, 64))
    with pytest.raises(Unfit, match=r"64 patches are as many as the model's 4 x 16.*--init-grid"):
        fit(read_init(str(tmp_path / "x.pth")), wide, (4, 16))
    told = read_init(str(tmp_path / "x.pth"), grid=(4, 16))
    assert fit(told, wide, (4, 16)) == Fitted(False, False)
    with pytest.raises(Unfit, match="it has 64 patches, not those of --init-grid 4 8"):
        read_init(str(tmp_path / "x.pth"), grid=(4, 8))


def run_of(folder: Path, model: ResMLP, size: ImageSize) -> Path:
    recipe = replace(recipe_of(size), model=model)
    return saved(folder, recipe, 1)[0]


@torch.no_grad()
def timm_logits(folder: Path, x: Tensor) -> Tensor:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x)


@each_of(("shift", "other"), [(False, None), (True, None), (True, (64, 48))])
@torch.no_grad()
def test_timm_computes_the_logits_of_an_export_folded_or_not(
    shift: bool, other: ImageSize | None, tmp_path: Path
):
    path = run_of(tmp_path / f"{shift} {other}", replace(S12, shift=shift), 32)
    model, size = trained(path, other).task.model.eval(), other or 32
    x, state = images(size), model.state_dict()
    wanted = model.double()(x.double()).logits
    assert wanted.std() > 0.3
    words = ["export", str(path), *(["--image-size", "64", "48"] if other else [])]
    for more in ((), ("--fold",)):
        folder = tmp_path / f"{shift} {other} {more}"
        assert main([*words, "--out", str(folder), *more]) == 0
        found = timm_logits(folder, x)
        apart = ((found - wanted).norm() / wanted.norm()).item()
        print(f"shift {shift}, {more}: {apart:.1e}")
        assert apart <= RELATIVE
        given = read_init(str(folder))
        assert given.grid == S12.grid(size)
        again = built(replace(S12, shift=False), size, seed=7)
        assert fit(given, again, S12.grid(size)) == Fitted(False, False)
        assert ((again(x).logits - wanted).norm() / wanted.norm()).item() <= RELATIVE
        exported = load_file(folder / "model.safetensors")
        if more:
            for name in ("blocks.3.norm2", "blocks.11.norm2", "norm"):
                assert (exported[f"{name}.alpha"] == 1).all() and not exported[f"{name}.beta"].any()
            assert all((exported[f"blocks.{i}.ls2"] == 1).all() for i in range(12))
        kept = "blocks.3.norm1.alpha", "blocks.3.ls1", "blocks.3.linear_tokens.weight"
        assert all(torch.equal(exported[name], state[name].float()) for name in kept)
        # wrong by as little as a forgotten shift, it would be seen
        if shift:
            forgotten = {n: w for n, w in state.items() if ".shift" not in n}
            again.load_state_dict(forgotten)
            assert ((again(x).logits - wanted).norm() / wanted.norm()).item() > 1e3 * RELATIVE


@torch.no_grad()
def test_folding_is_exact_in_float64():
    state = built(replace(TINY, shift=True)).double().state_dict()
    x = images(count=1).double()[0]
    wanted = literal_resmlp.logits(state, x)
    found = literal_resmlp.logits(folded(state), x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[Any, str]] = {
    "B24 in patches of 16": (replace(S12, embed_dim=768, depth=24), "no ResMLP but S12"),
    "class-MLP": (replace(S12, pooling=ClassMlp(1)), "no ResMLP but S12"),
    "convolution": (replace(S12, communication="depthwise"), "no ResMLP but S12"),
    "LayerNorm": (replace(S12, norm="layer_norm"), "no ResMLP but S12"),
}


@each_of("name", REFUSED)
def test_what_timm_cannot_build_is_refused(name: str):
    model, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        model.timm(224)


def test_a_model_without_affine_maps_is_not_folded(tmp_path: Path, capsys: Any):
    (path,) = saved(tmp_path / "run", recipe_of(32), 1)
    assert main(["export", str(path), "--fold"]) == 2
    assert "--fold: ViT has no affine maps" in capsys.readouterr().err
    assert not (tmp_path / "run/export").exists()


@torch.no_grad()
def test_a_dispatched_model_is_resampled_too(tmp_path: Path):
    model = replace(TINY, num_classes=5, pooling=ClassMlp(1), shift=True)
    path = run_of(tmp_path / "run", model, 32)
    usual = trained(path, (24, 40)).task
    size = sum(p.nbytes for p in usual.model.parameters())
    found: Task = dispatched(path, 0.6 * size / GIB, (24, 40), precision="fp32").task
    assert any(p.is_meta for p in found.model.parameters())
    x = images((24, 40))
    assert torch.equal(found.predict(x), usual.predict(x))


def test_an_export_says_how_its_patches_lie(tmp_path: Path):
    path = run_of(tmp_path / "run", S12, (32, 128))
    folder = export(path, tmp_path / "export")
    config = json.loads((folder / "config.json").read_text())
    assert config["model_args"] == {"img_size": [32, 128], "in_chans": 3}
    assert read_init(str(folder)).grid == (2, 8)
    assert read_init(f"timm:local-dir:{folder}").grid == (2, 8)
