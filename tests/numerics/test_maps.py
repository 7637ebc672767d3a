"""Features as maps are timm's of the same weights, of square and of oblong images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oblong import recipe_of, saved
from randomised import randomised
from timm import create_model
from torch import Tensor

import bigvit
from bigvit import models
from bigvit.models import Backbone
from bigvit.recipe import (
    AveragePooling,
    Model,
    ResNet,
    StochasticDepth,
    Swin,
    Timm,
    TimmSizes,
    cait,
    vit,
)

NONE = StochasticDepth(rate=0.0, group=8)
OURS: dict[str, Model] = {
    "swin_tiny_patch4_window7_224": Swin(
        4, 96, (2, 2, 6, 2), (3, 6, 12, 24), 7, 4.0, AveragePooling(), NONE, 3, 10
    ),
    "resnet50": ResNet((3, 4, 6, 3), AveragePooling(), None, False, 3, 10),
    "deit3_base_patch16_224": vit(
        "b16", layer_scale=1e-4, drop_path=NONE, num_classes=10, in_chans=3
    ),
    "cait_xxs24_224": cait("xxs24", group=8, num_classes=10, in_chans=3),
}
STAGED = ("swin_tiny_patch4_window7_224", "resnet50")


def both(name: str, size: tuple[int, int]) -> tuple[Backbone, Any]:
    """Our model and timm's of the same random weights."""
    ours = models.build(OURS[name], size)
    randomised(ours)
    sized: dict[str, Any] = {} if name == "resnet50" else {"img_size": size}
    theirs = create_model(name, num_classes=10, **sized).eval()
    lacking = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not lacking.unexpected_keys
    assert all(each.endswith("num_batches_tracked") for each in lacking.missing_keys)
    return ours, theirs


def channels_first(maps: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """timm gives Swin's maps with channels last."""
    return [m if m.shape == o.shape else m.movedim(3, 1) for m, o in zip(maps, like, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("size", [pytest.param((224, 224), marks=pytest.mark.slow), (160, 256)])
@pytest.mark.parametrize("name", OURS)
def test_maps_are_those_of_timm(name: str, size: tuple[int, int]) -> None:
    ours, theirs = both(name, size)
    images = torch.randn(2, 3, *size)
    found = ours.maps(images)
    blocks = ours.last_blocks()
    if name in STAGED:  # timm counts stages; ResNet's first is its stem
        indices = [stage + (name == "resnet50") for stage in range(4)]
        assert [size[0] // m.shape[2] for m in found] == [4, 8, 16, 32]
    else:
        indices = blocks
        assert len(found) == 4 and {m.shape[2:] for m in found} == {(size[0] // 16, size[1] // 16)}
    wanted = theirs.forward_intermediates(images, indices=indices, intermediates_only=True)
    wanted = channels_first(wanted, found)
    for ours_, timms in zip(found, wanted, strict=True):
        assert (ours_ - timms).abs().max() <= 1e-5 * timms.abs().max()
    back = ours.maps(images, blocks[::-1])
    assert all(torch.equal(a, b) for a, b in zip(back, found[::-1], strict=True))


def test_a_model_of_timm_has_those_of_timm() -> None:
    model = models.build(Timm("convnext_atto", (), TimmSizes(0, 0, 0), NONE, 3, 10), 64)
    images = torch.randn(1, 3, 64, 96)
    randomised(model)
    found = model.maps(images)
    assert [tuple(m.shape[2:]) for m in found] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    with pytest.raises(ValueError, match="blocks: .9. are not of this model"):
        model.maps(images, [9])


def test_a_block_that_there_is_not() -> None:
    model = models.build(OURS["cait_xxs24_224"], 32)
    with pytest.raises(ValueError, match=r"blocks: \[24\] are not of this model; it has 0 to 23"):
        model.maps(torch.zeros(1, 3, 32, 32), [3, 24])


def test_a_trained_model_gives_maps_at_its_own_size_or_another(tmp_path: Path) -> None:
    saved(tmp_path / "run", recipe_of((16, 64)), 1)
    trained = bigvit.load_trained(tmp_path / "run")
    assert {m.shape for m in trained.features(torch.zeros(2, 3, 16, 64))} == {(2, 24, 4, 16)}
    with pytest.raises(ValueError, match=r"16 x 48 pixels: the model is for 16 x 64; load it"):
        trained.features(torch.zeros(2, 3, 16, 48))
    wider = bigvit.load_trained(tmp_path / "run", image_size=(16, 48))
    one = wider.features(torch.zeros(1, 3, 16, 48), [0])
    assert one[0].shape == (1, 24, 4, 12)
