"""Numbers that later versions must not change: initial weights, and all that is drawn.

    python tests/numerics/numbers_before.py     # records them anew; CHANGELOG.md then says why

Weights are compared by sums, as another processor rounds their last bits differently; what is drawn
is whole numbers and raw bits, and compared exactly.
"""

import json
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from bigvit.data import augment, mix
from bigvit.data.sampler import Sampler
from bigvit.engines.build import outline
from bigvit.recipe import Recipe
from bigvit.recipe.find import all_recipes

FILE = Path(__file__).with_name("before.json")
FEW = 20_000  # elements of the weights that the ordinary tests make
LARGE = 90e6  # parameters of the largest model that is made whole
SPAN = 64  # positions of a global batch
SIZE = (500, 375)  # of an image before it is varied, pixels


def sums(recipe: Recipe, most: int | None = FEW) -> list[float]:
    """Of all initial weights of at most so many elements: their number, sum, sum of squares, and a
    sum that their order and their names change."""
    task, total = outline(recipe), torch.zeros(4, dtype=torch.float64)
    for number, (name, parameter) in enumerate(task.named_parameters()):
        if most is None or parameter.numel() <= most:
            weight = task.initial_weight(name).double().flatten()
            place = (torch.arange(len(weight)) + 7 * number) % 251 + 1
            parts = (len(weight), weight.sum(), weight.square().sum(), (weight * place).sum())
            total += torch.tensor(parts, dtype=torch.float64)
    return total.tolist()


def layout(recipe: Recipe) -> str:
    """A digest of the parameters' names, shapes, depths, and which are decayed or trained."""
    task = outline(recipe)
    kept = task.no_weight_decay()
    lines = [
        f"{name} {tuple(p.shape)} {task.layer_id(name)} {name in kept} {p.requires_grad}"
        for name, p in task.named_parameters()
    ]
    return xxhash.xxh3_128("\n".join(lines).encode()).hexdigest()


def drawn(recipe: Recipe) -> dict[str, str]:
    """Digests of everything random about some images, and of their order."""
    data, seed = recipe.data, recipe.seed
    sampler = Sampler(data.train_images // data.repeats, data.repeats, recipe.batch_size, seed)
    number = recipe.updates_per_epoch + 1
    epoch, slots, ids = sampler.batch(number)
    images = [augment.draw(data, seed, epoch, slot, SIZE) for slot in slots[:SPAN].tolist()]
    span = (0, min(SPAN, recipe.batch_size))
    draws = mix.draw(data, seed, number, span), outline(recipe).draws(number, span)
    return {
        "order": xxhash.xxh3_128(slots.tobytes() + ids.tobytes()).hexdigest(),
        "images": xxhash.xxh3_128(repr([_plain(each) for each in images]).encode()).hexdigest(),
        "batch": " ".join(sorted(map(_digest, _tensors(draws)))),
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what was drawn, however it is held."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        yield from _tensors(vars(value))
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _plain(value: Any) -> Any:
    """Numbers without the names of what holds them."""
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(tensor: Tensor) -> str:
    content = repr((tuple(tensor.shape), str(tensor.dtype))).encode() + tensor.numpy().tobytes()
    return xxhash.xxh3_64(content).hexdigest()


def built_from(recipe: Recipe) -> tuple[Any, ...]:
    """What initial weights depend on."""
    objectives = [replace(each, weight=1.0) for each in recipe.objectives]
    return recipe.model, recipe.data.image_size, objectives, recipe.seed, recipe.trainable


def drawn_from(recipe: Recipe) -> tuple[Any, ...]:
    """What is told apart of what is drawn."""
    data = recipe.data
    parts = (recipe.model, data, *recipe.objectives, *vars(data).values())
    kinds = tuple(type(part).__name__ for part in parts)
    return *kinds, data.repeats > 1, recipe.model.drop_path.grouped


def record() -> dict[str, dict[str, Any]]:
    """By recipe; what is as in another says that one's name."""
    found: dict[str, dict[str, Any]] = {}
    built: list[tuple[tuple[Any, ...], str]] = []
    draws: set[tuple[Any, ...]] = set()
    for name, recipe in all_recipes().items():
        here = found[name] = {}
        if alike := [other for key, other in built if key == built_from(recipe)]:
            here["weights as"] = alike[0]
        else:
            built.append((built_from(recipe), name))
            here |= {"layout": layout(recipe), "few": sums(recipe)}
            if recipe.model.parameters(recipe.data.image_size) <= LARGE:
                here["all"] = sums(recipe, None)
        if (key := drawn_from(recipe)) not in draws:
            draws.add(key)
            here["drawn"] = drawn(recipe)
    return found


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(said)}" for name, said in record().items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
