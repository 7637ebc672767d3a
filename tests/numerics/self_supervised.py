"""What tests of Grafit and DINO share: objectives of a small recipe, and random features."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bigvit import objectives
from bigvit.data.prepare import Targets
from bigvit.models import Output
from bigvit.models.init import initial_weight
from bigvit.recipe import Dino, Grafit, Predictor, Projector, Recipe
from bigvit.recipes.digits import digits_vit

IMAGES, DIM = 30, 16
B, T = 8, 3
CLASSES = torch.tensor([0, 1, 2] * 9 + [2, 1, 9])  # nobody else is of class 9
GRAFIT = Grafit(
    weight=1.0,
    knn=1.0,
    instance=1.0,
    sigma=0.05,
    projector=Projector(hidden_dim=20, norm="none", dim=12),
    predictor=Predictor(hidden_dim=24, norm="none"),
    views=1,
)
DINO = Dino(
    weight=1.0,
    outputs=40,
    hidden_dim=20,
    hidden_layers=2,
    bottleneck_dim=12,
    norm="none",
    gain="one",
    student_temperature=0.1,
    teacher_temperature=(0.04, 0.07),
    warmup_epochs=4,
    centre_momentum=0.9,
    held_epochs=1,
    large=(0, 1),
    small=(2,),
)


def recipe_of(objective: Grafit | Dino) -> Recipe:
    """Trains an objective on the digits, of which no more than its width and batch are read."""
    model = replace(digits_vit.model, embed_dim=DIM)
    return replace(
        digits_vit,
        model=model,
        objectives=(objective,),
        data=replace(digits_vit.data, views=T),
        ema=0.9,
    )


def built(objective: Grafit | Dino, rank: int = 0, world: int = 1) -> Any:
    """It, with its initial weights and what it keeps; of `IMAGES` training images."""
    made: Any = objectives.build(objective, recipe_of(objective))
    if getattr(made, "memory", None) is not None:
        made.memory.images = IMAGES
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(10 * initial_weight(made, name, 0))  # of which ReLU and GELU see all
    made.meet(rank, world, torch.device("cpu"))
    for part in made.kept():
        flat = part.tensor.view(-1)
        flat.copy_(made.fresh(part.name, part.start, part.start + len(flat)))
    return made


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def output(seed: int, groups: dict[int, int], followed: dict[int, tuple[int, int]]) -> Output:
    """Features of B images: views and dim of what the follower says, by group."""
    cls = drawn(seed, B, DIM)
    views = {group: drawn(seed + group, B, count, DIM) for group, count in groups.items()}
    said = {g: drawn(seed + 50 + g, B, *shape) for g, shape in followed.items()}
    return Output(cls[:, :10], cls[:, None], (1, 1), cls, {}, views=views, followed=said)


def targets(ids: list[int]) -> Targets:
    chosen = torch.tensor(ids)
    own = CLASSES[chosen]
    dense = torch.nn.functional.one_hot(own, 10).float()
    return Targets(own, dense, ids=chosen, every=CLASSES)
