"""Initial weights are a function of the seed and a parameter's name, and of the right size."""

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bigvit import models
from bigvit.models.init import initial_weight
from bigvit.recipe import ClassToken, Recipe, StochasticDepth, ViT
from bigvit.task import Task

MODEL = ViT(
    4, 128, 3, 4, 4.0, 1e-4, ClassToken(0), False, StochasticDepth(rate=0.0, group=8), 3, 10
)


def weights(seed: int) -> dict[str, Tensor]:
    model = models.build(MODEL, 16)
    model.init_weights(seed)
    return model.state_dict()


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_same_seed_gives_same_weights_and_another_seed_others():
    first = weights(0)
    torch.manual_seed(123)  # torch's own generator has no say
    assert_same(first, weights(0))
    other = weights(1)
    constant = {name for name, w in first.items() if w.unique().numel() == 1}
    assert {name for name in first if torch.equal(first[name], other[name])} == constant


def test_device_of_construction_does_not_matter():
    with torch.device("meta"):
        model = models.build(MODEL, 16)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, math.nan)
    model.init_weights(0)
    assert_same(weights(0), model.state_dict())


def test_order_of_construction_does_not_matter():
    model = models.build(MODEL, 16)
    blocks, head, cls_token = model.blocks, model.head, model.cls_token
    del model.blocks, model.head, model.cls_token
    model.head, model.blocks, model.cls_token = head, blocks, cls_token
    assert [name for name, _ in model.named_modules()] != [
        name for name, _ in models.build(MODEL, 16).named_modules()
    ]
    model.init_weights(0)
    assert_same(weights(0), model.state_dict())


def test_torchs_generator_is_left_alone():
    model = models.build(MODEL, 16)
    before = torch.get_rng_state()
    model.init_weights(0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_task_initialises_its_model_from_the_recipes_seed(tiny: Recipe):
    task = Task(tiny)
    task.init_weights()
    model = models.build(tiny.model, tiny.data.image_size)
    model.init_weights(tiny.seed)
    assert_same(model.state_dict(), task.model.state_dict())


def test_each_kind_of_parameter_has_its_distribution():
    for name, w in weights(0).items():
        kind = name.rpartition(".")[2]
        if name.startswith("patch_embed"):
            bound = 1 / math.sqrt(3 * 4 * 4)
            assert w.abs().max() <= bound, name
            assert w.abs().max() > 0.9 * bound, name
        elif "norm" in name:
            assert torch.equal(w, torch.full_like(w, 1.0 if kind == "weight" else 0.0)), name
        elif kind == "gamma":
            assert torch.equal(w, torch.full_like(w, 1e-4)), name
        elif kind == "bias":
            assert torch.equal(w, torch.zeros_like(w)), name
        else:
            error = 4 / math.sqrt(2 * w.numel())
            assert w.std().item() == pytest.approx(0.02, rel=error), name
            assert abs(w.mean().item()) <= 4 * 0.02 / math.sqrt(w.numel()), name


@pytest.mark.parametrize("block", range(MODEL.depth))
def test_qkv_has_deviation_two_hundredths_in_each_part(block: int):
    w = weights(0)[f"blocks.{block}.attn.qkv.weight"]
    assert w.std().item() == pytest.approx(0.02, rel=0.02)
    for part in w.chunk(3):
        assert part.std().item() == pytest.approx(0.02, rel=0.02)


def test_patch_convolution_is_uniform_as_torch_makes_it():
    ours = weights(0)["patch_embed.proj.weight"]
    theirs = nn.Conv2d(3, 128, kernel_size=4, stride=4).weight
    assert ours.std().item() == pytest.approx(1 / math.sqrt(3 * 48), rel=0.02)
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.03)


def test_parameters_of_equal_shape_differ():
    drawn = {name: w for name, w in weights(0).items() if w.unique().numel() > 1}
    names = sorted(drawn)
    pairs = [(a, b) for a in names for b in names if a < b and drawn[a].shape == drawn[b].shape]
    assert ("blocks.0.attn.qkv.weight", "blocks.2.attn.qkv.weight") in pairs
    for a, b in pairs:
        together = torch.stack([drawn[a].flatten(), drawn[b].flatten()])
        assert abs(torch.corrcoef(together)[0, 1].item()) <= 5 / math.sqrt(together.shape[1]), (
            a,
            b,
        )


def generator_for(name: str, seed: int) -> torch.Generator:
    """Key -> 128-bit digest -> Philox -> the upper 63 of 64 bits."""
    digest = hashlib.blake2b(repr(("init", seed, name)).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(1)
    return torch.Generator().manual_seed(int(bits[0]) >> 1)


def test_two_parameters_are_what_their_keys_give():
    for seed in (0, 7):
        found = weights(seed)
        name = "blocks.1.attn.qkv.weight"
        matrix = torch.zeros(384, 128)
        nn.init.trunc_normal_(matrix, std=0.02, generator=generator_for(name, seed))
        assert torch.equal(found[name], matrix)
        name = "patch_embed.proj.weight"
        bound = 48**-0.5
        kernel = torch.zeros(128, 3, 4, 4)
        kernel.uniform_(-bound, bound, generator=generator_for(name, seed))
        assert torch.equal(found[name], kernel)


@pytest.mark.parametrize("module", [nn.PReLU(), nn.BatchNorm1d(4), nn.Embedding(3, 4)])
def test_a_module_of_unknown_kind_is_refused(module: nn.Module):
    with pytest.raises(TypeError, match=rf"{type(module).__name__}\.weight"):
        model = nn.Sequential(nn.Linear(4, 4), module)
        for name, _ in model.named_parameters():
            initial_weight(model, name, seed=0)
