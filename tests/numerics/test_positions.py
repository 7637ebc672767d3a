"""Positions of a ViT on the grid of images of another size, as DINO's small crops are."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from bigvit.layers.positions import on_grid
from bigvit.models import build
from bigvit.recipe import CaiT, DeiT, LVViT, ViT
from bigvit.recipe.find import find_recipe

SIZES = ((4, 6), (7, 3), (6, 6))


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("grid", SIZES)
def test_values_and_gradients_are_torchs(grid, others):
    torch.manual_seed(0)
    given = torch.randn(1, others + 25, 8, dtype=torch.float32, requires_grad=True)
    again = given.detach().clone().requires_grad_()
    wanted = again[:, others:].unflatten(1, (5, 5)).permute(0, 3, 1, 2)
    wanted = F.interpolate(wanted, grid, mode="bicubic", align_corners=False)
    wanted = torch.cat([again[:, :others], wanted.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    found = on_grid(given, (5, 5), grid)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    back = torch.randn_like(found)
    (found * back).sum().backward()
    (wanted * back).sum().backward()
    torch.testing.assert_close(given.grad, again.grad, rtol=0, atol=1e-5)


def test_the_same_grid_is_left_alone():
    given = torch.randn(1, 26, 8)
    assert on_grid(given, (5, 5), (5, 5)) is given


@pytest.mark.parametrize(
    "name",
    ["deit3_s16_in1k_224", "cait_xxs24_in1k_224", "lv_vit_s_in1k_224", "deit_ti16_in1k_224"],
)
def test_another_size_is_as_a_model_of_that_size(name):
    """The same weights, positions resampled once by torch, in a model that is built for it."""
    _, recipe = find_recipe(name)
    assert isinstance(recipe.model, ViT | CaiT | LVViT | DeiT)
    small, side = replace(recipe.model, depth=2), recipe.model.patch_size
    model, other = build(small, 4 * side), build(small, (2 * side, 3 * side))
    model.init_weights(0)
    weights = model.state_dict()
    positions = weights["pos_embed"]
    others = positions.shape[1] - 16
    plane = positions[:, others:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    plane = F.interpolate(plane, (2, 3), mode="bicubic").flatten(2).transpose(1, 2)
    weights["pos_embed"] = torch.cat([positions[:, :others], plane], dim=1)
    other.load_state_dict(weights)
    images = torch.randn(2, 3, 2 * side, 3 * side)
    found = model(images)
    assert found.grid == (2, 3)
    torch.testing.assert_close(found.cls, other(images).cls, rtol=0, atol=1e-5)
    found.cls.square().sum().backward()
    assert model.pos_embed.grad is not None and model.pos_embed.grad.abs().sum() > 0
