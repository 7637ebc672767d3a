"""Skipping the dropped samples' work gives what masking it gives, however the batch is cut.

Shapes: L branches, B samples.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bigvit import models
from bigvit.layers.stochastic_depth import Dropped, Factors, Order
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import (
    AttentionPooling,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    LayerScale,
    Model,
    ParallelViT,
    PatchConvNet,
    ResMLP,
    StochasticDepth,
    ViT,
)

BATCH = 24
RELATIVE = 1e-6
DROP = StochasticDepth(rate=0.4, group=8)  # keeps four or five of eight
SECOND_STAGE = ClassAttention(depth=1, keys="class and patches")
POOLED = AttentionPooling(1, "classes", 2.5, 0.5)
MODELS = {
    "vit": ViT(4, 32, 3, 4, 2.5, 0.5, ClassToken(0), False, DROP, 3, 10),
    "two by two": ParallelViT(4, 32, 2, 2, 4, 2.5, 0.5, DROP, 3, 10),
    "cait": CaiT(4, 32, 3, 4, 2.5, True, LayerScale(0.5), SECOND_STAGE, None, False, DROP, 3, 10),
    "resmlp": ResMLP(4, 32, 3, 2.5, "affine", "linear", 0.5, True, ClassMlp(1), DROP, 3, 10),
    "patchconvnet": PatchConvNet(4, "convolutions", 32, 6, "layer", 0.5, POOLED, DROP, 3, 10),
}

every = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


def built(config: Model) -> ClassTokenTransformer:
    model = models.build(config, 12)
    model.init_weights(0)
    with torch.no_grad():  # biases and norms that show
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    return model


def images() -> Tensor:
    return torch.randn(BATCH, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def gradients(
    model: ClassTokenTransformer, x: Tensor, draws: Dropped, backward: float = 1.0
) -> dict[str, Tensor]:
    """Gradients of the mean square of the logits, by name, and the logits themselves."""
    model.zero_grad()
    logits = model(x, draws).logits
    (logits.square().mean() * backward).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"logits": logits.detach()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative L2 difference over what both name."""
    assert a.keys() == b.keys()
    nothing = ("qkv.bias", ".k.bias", "proj_l.bias")  # those of keys, and of logits, have none
    shown = [n for n in a if not n.endswith(nothing)]
    return max(float((a[n] - b[n]).norm() / b[n].norm()) for n in shown)


@every
def test_skipping_equals_masking(config: Model, masked):
    assert set(config.drop_path.kept(config.branches)) == {4, 5}
    model = built(config)
    draws = model.draws(0, 5, (0, BATCH))
    assert isinstance(draws, Order)
    mask = masked(config.drop_path, config.branches, draws)
    skipping, masking = (gradients(model, images(), each) for each in (draws, mask))
    assert distance(skipping, masking) <= RELATIVE
    moved = Factors(mask.factors.roll(1, dims=1))
    assert distance(gradients(model, images(), moved), masking) > 1e3 * RELATIVE


@every
def test_weights_after_updates_equal_those_of_masking(config: Model, masked):
    ends = []
    for skip in (True, False):
        model = built(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(5):
            draws = model.draws(0, number, (0, BATCH))
            gradients(
                model,
                images(),
                draws if skip else masked(config.drop_path, config.branches, draws),
            )
            optimizer.step()
        ends.append(dict(model.state_dict()))
    assert distance(*ends) <= RELATIVE


@every
@pytest.mark.parametrize("size", [8, 16])
def test_pieces_of_the_batch_add_up_to_it(config: Model, size: int):
    """As micro-batches, or as ranks, have them: equal logits, and gradients that add up."""
    model = built(config)
    x = images()
    whole = gradients(model, x, model.draws(0, 5, (0, BATCH)))
    total: dict[str, Tensor] = {}
    logits: list[Tensor] = []
    for start in range(0, BATCH, size):
        stop = min(start + size, BATCH)
        share = (stop - start) / BATCH
        part = gradients(model, x[start:stop], model.draws(0, 5, (start, stop)), share)
        logits.append(part.pop("logits"))
        total = {name: total.get(name, 0) + part[name] for name in part}
    assert distance(total | {"logits": torch.cat(logits)}, whole) <= RELATIVE


@every
def test_backward_twice_gives_the_same_and_images_keep_their_gradient(config: Model):
    model, x = built(config), images().requires_grad_()
    loss = model(x, model.draws(0, 5, (0, BATCH))).logits.square().mean()
    inputs = [x, *model.parameters()]
    once = torch.autograd.grad(loss, inputs, retain_graph=True)
    again = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert once[0].abs().sum() > 0


def test_gradients_are_those_of_finite_differences():
    config = replace(MODELS["two by two"], embed_dim=8, num_heads=2, depth=1, patch_size=6)
    model = built(config).double()
    draws = model.draws(0, 5, (0, 8))

    def logits(x: Tensor) -> Tensor:
        return model(x, draws).logits

    torch.autograd.gradcheck(logits, images()[:8].double().requires_grad_(), fast_mode=True)
