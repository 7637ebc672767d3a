"""Measures the device that is here, for plans: `bigvit plan NAME --calibrate`."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import psutil
import torch
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.check import check_data
from bigvit.data.loader import train_batches
from bigvit.data.sources import open_splits
from bigvit.engines.build import outline
from bigvit.plan.activations import parts
from bigvit.plan.calibration import HERE, write_calibration
from bigvit.plan.devices import Device, find_device, known_as
from bigvit.plan.report import images_per_core_second
from bigvit.recipe import Digits, Recipe, Run, batch_layout
from bigvit.recipe.parse import parse
from bigvit.task import DTYPES

BUDGET = 40.0  # seconds for the products, and for the loader
ROUNDS = 5
IMAGES = 4000  # that the loader is measured with, at most


def calibrate(words: Sequence[str], wanted: str | None) -> str:
    """Measure this device with a recipe, and keep what was found.

    Args:
        words: a recipe and overrides, as in training.
        wanted: the name of the device that is meant; None: whichever is here.

    Returns:
        The name of the device that is here.

    Raises:
        ValueError: another one is here, or the data cannot be read.
    """
    command = parse(words, "bigvit plan")
    recipe, run = command.recipe, command.run
    has_data = run.data_root is not None or isinstance(recipe.data, Digits)
    if has_data:
        check_data(recipe.data, run)
    place, called, memory = _place()
    name = known_as(called, memory) or HERE
    if wanted is not None and wanted != name:
        raise ValueError(f"--gpu {wanted}: {called} is here; leave --gpu out, or calibrate there")
    dtype = DTYPES[recipe.precision]
    products, best = _products(recipe, place, dtype)
    copied = _copied(place, memory)
    print(
        f"{called}: {products / 1e12:.3g} TFLOPs/s in products of the model's shapes, "
        f"{best / 1e12:.3g} at best; memory {copied / 1e9:.0f} GB/s"
    )
    known = find_device(name) if name != HERE else None
    peaks = dict.fromkeys(("fp32", "bf16", "fp16"), 0.0) | {recipe.precision: best}
    peaks = peaks if known is None else known.peaks
    link = _linked(place) or (known.link if known is not None else copied / 8)
    source = "measured here" if known is None else known.source
    share = products / peaks[recipe.precision]
    device = Device(memory, copied, peaks, link, source, share, 1.0, _launch(place))
    feeding = _feeding(recipe, run) if has_data else None
    if feeding is None:
        print("the loader was not measured: no --data-root was given")
    else:
        print(f"the loader: {feeding * images_per_core_second(recipe):,.0f} images/s and core")
    print(f"kept in {write_calibration(name, device, feeding)}")
    return name


def _place() -> tuple[torch.device, str, int]:
    """The device that is here, what torch calls it, and its memory in bytes."""
    if torch.cuda.is_available():
        cuda: Any = torch.cuda
        properties: Any = cuda.get_device_properties(0)
        return torch.device("cuda", 0), properties.name, properties.total_memory
    return torch.device("cpu"), "a CPU", psutil.virtual_memory().total


def _seconds(run: Callable[[], object], place: torch.device, times: int = 1) -> float:
    """Median seconds of a call, after two that warm up."""
    found = list[float]()
    for i in range(-2, ROUNDS):
        _settle(place)
        began = time.perf_counter()
        for _ in range(times):
            run()
        _settle(place)
        if i >= 0:
            found.append((time.perf_counter() - began) / times)
    return median(found)


def _settle(place: torch.device) -> None:
    if place.type != "cpu":
        torch.accelerator.synchronize()


def _products(recipe: Recipe, place: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOPs a second of the model's products on 64 images (on a CPU one), all and the best."""
    images = 64 if place.type != "cpu" else 1
    shapes = Counter[tuple[int, int, int]]()
    for part in parts(recipe, 0.0):
        for op, *_ in part.steps:
            if op.kind in ("linear", "conv") and op.shape is not None:
                rows, inputs, outputs = op.shape
                shapes[rows * images, inputs, outputs] += len(part.shares)
    began, flops, seconds, best = time.monotonic(), 0.0, 0.0, 0.0
    for (rows, inputs, outputs), times in shapes.most_common():
        if time.monotonic() - began > BUDGET:
            break
        a = torch.randn(rows, inputs, device=place).to(dtype)
        b = torch.randn(inputs, outputs, device=place).to(dtype)
        each, once = 2.0 * rows * inputs * outputs, _seconds(lambda a=a, b=b: a @ b, place)
        flops, seconds, best = flops + times * each, seconds + times * once, max(best, each / once)
    return flops / seconds, best


def _copied(place: torch.device, memory: int) -> float:
    """Bytes a second, read and written, of a copy within the device."""
    one = torch.empty(min(memory // 64, 2**30), dtype=torch.uint8, device=place)
    other = torch.empty_like(one)
    return 2 * one.numel() / _seconds(lambda: other.copy_(one), place)


def _linked(place: torch.device) -> float | None:
    """Bytes a second from this device to the next of this host, if there is one."""
    if place.type == "cpu" or torch.cuda.device_count() < 2:
        return None
    one = torch.empty(2**28, dtype=torch.uint8, device=place)
    other = torch.empty_like(one, device=torch.device("cuda", 1))
    return one.numel() / _seconds(lambda: other.copy_(one), place)


def _launch(place: torch.device) -> float:
    """Seconds of the host for an operation that has nothing to do."""
    one: Tensor = torch.zeros(8, device=place)
    began, times = time.perf_counter(), 5000
    for _ in range(times):
        one.add_(1)
    seconds = (time.perf_counter() - began) / times
    _settle(place)
    return seconds


def _feeding(recipe: Recipe, run: Run) -> float | None:
    """Images a second and core that the loader prepares, over what is modelled."""
    train_set, _ = open_splits(recipe.data, run.data_root, run.classes_map)
    layout = batch_layout(recipe, 1, batch_layout(recipe, 1, None).micro_batch)
    on_device = run.augment_on != "worker" and torch.cuda.is_available()
    draws = outline(recipe).draws
    images, core_seconds, began = 0, 0.0, time.monotonic()
    for micro in train_batches(train_set, recipe, layout, 0, 1, 0, draws, on_device):
        counted: list[Batch] = list(micro)
        images += sum(len(batch.images) for batch in counted)
        core_seconds += sum(batch.core_seconds for batch in counted)
        if images >= IMAGES or time.monotonic() - began > BUDGET / 2:
            break
    return images / core_seconds / images_per_core_second(recipe)
