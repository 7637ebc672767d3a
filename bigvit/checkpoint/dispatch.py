# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A trained model that is larger than a device's memory: what fits lies on the devices, and the
rest is read from the checkpoint each time it is used."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_max_memory, set_module_tensor_to_device
from torch import Tensor, nn

from bigvit.checkpoint.load import Stored
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.resampling import of_grid
from bigvit.checkpoint.trained import Trained, looked_at
from bigvit.checkpoint.weights import TABLE, fitted, given_of
from bigvit.recipe import ImageSize
from bigvit.task import DTYPES, Task

GIB = 2**30
FREE = 0.9  # of the free memory of a device, what weights may take


def dispatched(
    path: Path,
    memory: float | None = None,
    image_size: ImageSize | None = None,
    ema: bool = False,
    crop_ratio: float | None = None,
    precision: str | None = None,
) -> Trained:
    """What `trained` returns, for predictions alone, without the whole model in memory: a weight
    that fits on no device is there only while its layer is computed. The model's logits are the
    same, to the bit.

    Args:
        memory: GiB of weights on each device, and of the CPU's memory; None for what is free.
        precision: of the weights, as a recipe's, which it is by default.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the size does not fit the model, there is no average, or the memory is too
            little for the largest layer.
    """
    found = read_checkpoint(path, ema, at_once=False)
    recipe = looked_at(found.recipe, image_size, crop_ratio)
    with init_empty_weights():
        task = Task(recipe)
    task.to(DTYPES[precision or recipe.precision])
    stored = found.model
    assert isinstance(stored, Stored)
    outline = {name: torch.empty(stored.shape(name), device="meta") for name in stored}
    here = found.recipe.model.grid(found.recipe.data.image_size)
    grid = recipe.model.grid(recipe.data.image_size)
    of_place = (name for name in stored if of_grid(name) or name.endswith(TABLE))
    moved = {name: stored[name] for name in of_place} if here != grid else {}
    given = given_of(found.recipe, outline | moved)
    weights, _ = fitted(given, task.model, grid, recipe.resampling)
    _dispatch(task.model, stored, {name: weights[name] for name in moved}, memory)
    return Trained(found.checkpoint, found.manifest, task)


class Weights(Mapping[str, Tensor]):
    """A model's weights in its own types: those that are held, and the others as they are read."""

    def __init__(self, stored: Stored, held: dict[str, Tensor], model: nn.Module) -> None:
        self.stored = stored
        self.types = {name: weight.dtype for name, weight in model.state_dict().items()}
        self.held = {name: weight.to(self.types[name]) for name, weight in held.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name in self.held:
            return self.held[name]
        return self.stored.read(name, self.types[name])

    def __contains__(self, name: object) -> bool:
        return name in self.types  # by default it would be read

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


def _dispatch(model: Any, stored: Stored, held: dict[str, Tensor], memory: float | None) -> None:
    """Put a model without memory on the devices."""
    limits: dict[Any, Any] = {
        device: int(FREE * free if memory is None else min(free, memory * GIB))
        for device, free in get_max_memory().items()
    }
    main: Any = next(iter(limits))
    devices: Any = infer_auto_device_map(model, limits, model.block_classes())
    weights = Weights(stored, held, model)
    places = {name: _place(name, devices) for name in weights}
    least = _least(model, places)
    if least > limits[main]:
        given = "there is too little free" if memory is None else f"--memory {memory:g}"
        raise ValueError(
            f"{given}: the largest layer and what is needed beside it take {least / GIB:.3g} GiB; "
            "give more, or take another machine"
        )
    buffers = {name for name, _ in model.named_buffers()}
    for name, place in places.items():
        if name in buffers or place != "disk" and (place != "cpu" or main == "cpu"):
            device = place if isinstance(place, int) else main
            set_module_tensor_to_device(model, name, device, weights[name])
        elif place == "cpu":  # a GPU is given a copy each time
            weights.held[name] = weights[name]
    # it warns of weights that are not there, and of a map's weights that belong to no part
    logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)
    more: Any = {"main_device": main, "state_dict": weights, "offload_index": {}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The following device_map keys", UserWarning)
        dispatch_model(model, devices, force_hooks=True, **more)


def _place(name: str, devices: Mapping[str, int | str]) -> int | str | None:
    """Where a weight's module lies, by the device map; None for one that is cut, whose own weights
    stay on the main device."""
    module = name
    while module:
        module = module.rpartition(".")[0]
        if module in devices:
            return devices[module]
    return None


def _least(model: nn.Module, places: Mapping[str, int | str | None]) -> int:
    """Bytes of the weights that are there at once where each layer's come and go with it: its own,
    those of the modules around it, and of modules that are cut."""
    own: dict[str, int] = {}
    stay = 0
    for name, weight in model.named_parameters():
        module = name.rpartition(".")[0]
        if places[name] is None:
            stay += weight.nbytes
        else:
            own[module] = own.get(module, 0) + weight.nbytes
    around = [
        sum(n for m, n in own.items() if f"{module}.".startswith(f"{m}." if m else ""))
        for module in own
    ]
    return stay + max(around, default=0)
