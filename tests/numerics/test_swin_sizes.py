"""Swin at other sizes than it was made for, oblong ones too, whose windows are padded: against timm
and, padded before it is shifted, against transformers; and its tables for other windows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from each import each_of
from randomised import randomised
from timm import create_model
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple
from transformers import SwinBackbone, SwinConfig

from bigvit import models
from bigvit.checkpoint.weights import Fitted, Given, Unfit, fit, given_of
from bigvit.models import SwinTransformer
from bigvit.recipe import AveragePooling, ImageSize, PaddedSwin, StochasticDepth, Swin
from bigvit.recipes.deit3 import deit3_b16_in1k_224 as published

NONE = StochasticDepth(rate=0.0, group=1)
TINY: Any = (4, 24, (2, 2, 2, 2), (1, 2, 4, 8), 7, 4.0, AveragePooling(), NONE, 3, 10)
SMALL: Any = (4, 24, (2, 2), (2, 4), 7, 4.0, AveragePooling(), NONE, 3, 10)


def of_timm(size: Any, ours: SwinTransformer, **options: Any) -> Any:
    theirs = create_model(
        "swin_tiny_patch4_window7_224",
        img_size=size,
        embed_dim=24,
        depths=(2, 2, 2, 2),
        num_heads=(1, 2, 4, 8),
        num_classes=10,
        **options,
    ).eval()
    theirs.load_state_dict(ours.state_dict())
    return theirs


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("size", [(224, 160), (64, 192), (512, 512)], ids=str)
def test_maps_and_logits_are_timms(size: tuple[int, int]) -> None:
    ours = models.build(Swin(*TINY), size)
    randomised(ours)
    theirs = of_timm(size, ours)
    images = torch.randn(1, 3, *size)
    assert_close(ours(images).logits, theirs(images))
    wanted = theirs.forward_intermediates(images, intermediates_only=True)
    for own, of in zip(ours.maps(images), wanted, strict=True):
        assert_close(own, of if of.shape == own.shape else of.movedim(3, 1))


@torch.no_grad()
@pytest.mark.parametrize("size", [(224, 160), (64, 192), (512, 512)], ids=str)
def test_padded_before_it_is_shifted_maps_are_those_of_transformers(size: tuple[int, int]) -> None:
    """Whose names are mapped in test_upernet.py; here the last layer's norm is left out there."""
    from test_upernet import as_theirs

    ours = models.build(PaddedSwin(*TINY), size)
    randomised(ours)
    stages = [f"stage{i}" for i in (1, 2, 3, 4)]
    theirs = SwinBackbone(
        SwinConfig(
            image_size=size,
            embed_dim=24,
            depths=[2, 2, 2, 2],
            num_heads=[1, 2, 4, 8],
            out_features=stages,  # pyright: ignore[reportCallIssue]
        )
    ).eval()
    weights = as_theirs({f"model.{name}": w for name, w in ours.state_dict().items()})
    weights = {name.removeprefix("backbone."): w for name, w in weights.items()}
    lacking = theirs.load_state_dict(weights, strict=False)
    own_norms = ("swin.layernorm.", "hidden_states_norms.")
    assert all(name.startswith(own_norms) for name in lacking.missing_keys)
    for given in {size, size[::-1]}:  # turned, too
        images = torch.randn(1, 3, *given)
        for own, of in zip(ours.maps(images), theirs(images).feature_maps, strict=True):
            normed = torch.nn.functional.layer_norm(own.movedim(1, 3), own.shape[1:2])
            assert_close(normed.movedim(3, 1), of)


@torch.no_grad()
def test_of_whole_windows_it_is_timms_that_always_shifts() -> None:
    ours = models.build(PaddedSwin(*TINY), 224)
    randomised(ours)
    theirs = of_timm(224, ours, always_partition=True)
    images = torch.randn(1, 3, 224, 224)
    assert_close(ours(images).logits, theirs(images))
    assert PaddedSwin(*TINY).timm(224)["model_args"]["always_partition"] is True
    with pytest.raises(
        ValueError, match="no Swin that pads its grid before it is shifted, as .*512"
    ):
        PaddedSwin(*TINY).timm(512)


def test_an_image_of_no_whole_patches_is_refused() -> None:
    with pytest.raises(ValueError, match="data.image_size: .225, 160. .* multiple of model.patch_"):
        Swin(*TINY).check((225, 160), None)


def assert_offsets_keep_their_bias(source: Any, ours: Any) -> None:
    """In windows that are no larger."""
    for old, new in zip(source.all_blocks(), ours.all_blocks(), strict=True):
        before, after = (block.attn._get_rel_pos_bias()[0] for block in (old, new))
        (h, w), (_, whole) = new.window_size, old.window_size
        for y in range(h):
            for x in range(w):  # of the first token with each
                assert torch.equal(after[:, 0, y * w + x], before[:, 0, y * whole + x])


SIZES: list[tuple[ImageSize, ImageSize]] = [(56, (56, 40)), (112, (20, 56))]


@each_of(("size", "other"), SIZES)
@torch.no_grad()
def test_in_smaller_windows_an_offset_keeps_its_bias(size: ImageSize, other: ImageSize) -> None:
    source, ours = (models.build(Swin(*SMALL), each) for each in (size, other))
    randomised(source, 1)
    randomised(ours, 2)
    done = fit(Given(source.state_dict()), ours, (1, 1))
    assert done == Fitted(True, False) and str(done) == "relative positions resampled"
    assert_offsets_keep_their_bias(source, ours)


@each_of("other", [(40, 40), (56, 24), (112, 40)])
@torch.no_grad()
def test_of_an_oblong_run_tables_are_taken_from_their_own_windows(other: ImageSize) -> None:
    """At (56, 40) windows are (7, 7) and, in the second stage, (7, 5)."""
    recipe = replace(
        published, model=Swin(*SMALL), data=replace(published.data, image_size=(56, 40))
    )
    source, ours = (models.build(recipe.model, each) for each in ((56, 40), other))
    randomised(source, 1)
    fit(given_of(recipe, source.state_dict()), ours, (1, 1))
    assert_offsets_keep_their_bias(source, ours)


def test_a_window_that_lies_the_other_way_is_another() -> None:
    recipe = replace(
        published, model=Swin(*SMALL), data=replace(published.data, image_size=(56, 40))
    )
    source, ours = (models.build(recipe.model, each) for each in ((56, 40), (40, 56)))
    assert fit(given_of(recipe, source.state_dict()), ours, (1, 1)) == Fitted(True, False)


@torch.no_grad()
def test_for_larger_windows_tables_are_resampled_as_their_authors_do() -> None:
    source = models.build(Swin(*SMALL), 112)
    wider: Any = (*SMALL[:4], 12, *SMALL[5:])
    ours = models.build(Swin(*wider), 96)
    fit(Given(randomised(source, 1).state_dict()), ours, (1, 1))
    for i in (0, 1):
        name = f"layers.{i}.blocks.1.attn.relative_position_bias_table"
        table = source.state_dict()[name]
        wanted = resize_rel_pos_bias_table_simple(table, (12, 12), (23**2, table.shape[1]))
        assert_close(ours.state_dict()[name], wanted)


def test_tables_of_no_square_window_are_refused() -> None:
    source, ours = (models.build(Swin(*SMALL), size) for size in ((56, 40), 56))
    with pytest.raises(Unfit, match="relative_position_bias_table is .* choose weights of that"):
        fit(Given(source.state_dict()), ours, (1, 1))


@torch.no_grad()
def test_padded_it_has_the_same_weights_at_any_size() -> None:
    source, ours = (models.build(PaddedSwin(*SMALL), size) for size in (56, (20, 112)))
    randomised(source)
    assert fit(Given(source.state_dict()), ours, (1, 1)) == Fitted(False, False)
    assert ours(torch.randn(2, 3, 20, 112)).logits.isfinite().all()


@pytest.mark.parametrize("kind", [Swin, PaddedSwin])
def test_masks_are_there_where_weights_have_no_memory_yet(kind: type[Swin]) -> None:
    """fsdp2 builds a model so. timm's own are -100 where a window sees across an edge."""
    config = kind(4, 24, (1, 2), (1, 2), 4, 2.0, AveragePooling(), StochasticDepth(0.0, 1), 3, 5)
    with init_empty_weights(include_buffers=False):
        model = models.build(config, 64)
    theirs: Any = create_model(
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=4,
        embed_dim=24,
        depths=(1, 2),
        num_heads=(1, 2),
        num_classes=5,
    )
    found, wanted = dict(model.named_buffers()), dict(theirs.named_buffers())
    assert found.keys() == wanted.keys() and "layers.1.blocks.1.attn_mask" in found
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
