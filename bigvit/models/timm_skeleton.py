"""timm's module with ours in it, and what can be known of it without memory for its weights.

It is made once (`skeleton`): buffers are as timm made them, weights have no memory, and ours stand
in the place of every DropPath, Dropout and BatchNorm. A forward pass without memory (`traced`) says
in which order branches are computed, and what cannot be trained exactly.
"""

import copy
import inspect
import re
from collections import Counter
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import timm
import torch
from accelerate import init_empty_weights
from timm.layers import DropPath  # pyright: ignore[reportPrivateImportUsage]
from timm.models import convit
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.timm import Dropout, Path, replace_batch_norms, skip_dropped
from bigvit.recipe import ImageSize, Timm, TimmSizes, sides
from bigvit.recipe.models.timm import size_argument

IMAGES = 3  # of a traced batch
RATE = 0.1234567  # of timm's paths, which ours replace
LINSPACE = torch.linspace
PATH = re.compile(r"(\w+_)?drop_path\d*")  # how timm calls a path


class Trace(NamedTuple):
    """What a training forward pass does."""

    order: tuple[str, ...]  # the path of each branch, as they are computed
    blocks: tuple[str, ...]  # modules that have paths, likewise
    faults: tuple[str, ...]  # why it cannot be trained exactly


@lru_cache(maxsize=8)
def traced(model: Timm, image_size: ImageSize) -> Trace:
    """Go through a training forward pass without memory."""
    net = copy.deepcopy(skeleton(model, image_size)).to("meta").train()
    module: Any
    logits: Any = None
    order: list[str] = []
    faults: dict[str, None] = {}
    entered: list[str] = []

    def take(name: str, x: Tensor) -> None:
        order.append(name)
        if x.shape[0] % IMAGES:
            faults[f"{name} is given something that is not images one after the other"] = None

    for name, module in net.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
        if isinstance(module, Path):
            module.take = partial(take, name)
        if isinstance(module, Dropout):
            module.keys = torch.empty(IMAGES, dtype=torch.int64, device="meta")
    names = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    if tied := [n for n, p in net.named_parameters() if names[id(p)] > 1]:
        faults[f"{len(tied)} of its weights, {tied[0]} first, are used under several names"] = None
    before: dict[str, Any] = {}
    shape = IMAGES, model.in_chans, *sides(image_size)
    try:
        for _ in range(2):  # after the first, what follows from shapes alone is there
            order.clear()
            entered.clear()
            before = {name: (b, b._version) for name, b in net.named_buffers()}
            with torch.device("meta"), _Random(entered, faults):
                logits = net(torch.empty(shape))
        if not isinstance(logits, Tensor) or logits.shape != (IMAGES, model.num_classes):
            faults["what it returns in training are not the logits of its classes alone"] = None
    except Exception as error:  # of many kinds, timm's and torch's
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        faults[f"its forward pass depends on more than shapes ({said})"] = None
    statistics = {
        id(b) for m in net.modules() if isinstance(m, BatchNorm) for b in m.buffers(False)
    }
    for name, b in net.named_buffers():
        if id(b) not in statistics and (b is not before[name][0] or b._version != before[name][1]):
            faults[f"its forward pass changes the buffer {name}"] = None
    called = Counter(entered)
    owners = dict.fromkeys(path.rpartition(".")[0] for path in order)
    first = sorted((name for name in owners if name and called[name] == 1), key=entered.index)
    inner = {n for n in first if any(n.startswith(f"{other}.") for other in first)}
    return Trace(tuple(order), tuple(n for n in first if n not in inner), tuple(faults))


class _Random(TorchDispatchMode):
    """Notes what draws from a generator."""

    def __init__(self, entered: list[str], faults: dict[str, None]) -> None:
        super().__init__()
        self.entered, self.faults = entered, faults

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fused = "scaled_dot_product" in str(func) and not (kwargs or {}).get("dropout_p")
        if torch.Tag.nondeterministic_seeded in func.tags and not fused:
            self.faults[f"{self.entered[-1] or 'it'} draws at random ({func})"] = None
        return func(*args, **(kwargs or {}))


def counted(model: Timm, image_size: ImageSize) -> TimmSizes:
    """The sizes of a model, to be written into its recipe: parameters that are trained, and the
    products of linear layers, convolutions and attention."""
    net = copy.deepcopy(skeleton(model, image_size)).to("meta").eval()
    parameters = sum(p.numel() for p in net.parameters() if p.requires_grad)
    net.requires_grad_(False)
    with torch.device("meta"), FlopCounterMode(display=False) as flops:
        net(torch.empty(1, model.in_chans, *sides(image_size)))
    order = traced(model, image_size).order
    return TimmSizes(parameters, flops.get_total_flops() // 2, len(order))


def exported(model: Timm, image_size: ImageSize) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an export's config.json says of a model, and what timm's has beside weights."""
    net = skeleton(model, image_size)
    said, arguments = net.pretrained_cfg, model.named | {"in_chans": model.in_chans}
    if _takes(type(net), "img_size"):
        arguments["img_size"] = size_argument(image_size)
    keys = ("first_conv", "classifier", "fixed_input_size", "pool_size", "interpolation")
    config = {
        "architecture": model.architecture,
        "num_features": getattr(net, "num_features", None),
        "model_args": arguments,
        "pretrained_cfg": {key: said[key] for key in keys if key in said},
    }
    return config, net.constants


@lru_cache(maxsize=8)
def skeleton(model: Timm, image_size: ImageSize) -> Any:
    """timm's module with ours in it, its weights without memory, its buffers as they are.

    Raises:
        ValueError: timm cannot build it.
    """
    module: Any
    parent: Any
    gated: Any = convit.GPSA
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        net = _without_memory(model, image_size)
        _replace_paths(net)
        for number, (parent, name, dropout) in enumerate(_children(net, nn.Dropout)):
            if dropout.p > 0:
                setattr(parent, name, Dropout(dropout.p, number))
                if hasattr(parent, "fused_attn"):
                    parent.fused_attn = False  # torch's kernel would draw by itself
        for module in net.modules():
            if isinstance(module, gated):  # it would be made by a forward pass
                here = SimpleNamespace(qk=SimpleNamespace(weight=torch.empty(0)))
                module.rel_indices = gated.get_rel_indices(here, net.patch_embed.num_patches)
        replace_batch_norms(net)
        skip_dropped(net)
        net.constants = _make_constant(net)
    return net


def _without_memory(model: Timm, image_size: ImageSize) -> Any:
    """timm's module, its weights on meta, its buffers as they are."""
    try:
        with init_empty_weights(include_buffers=False):
            net = create(model, image_size)
    except (NotImplementedError, RuntimeError):  # it computes something with its weights
        net = create(model, image_size)
    for module in net.modules():
        for name, p in module._parameters.items():
            if p is not None and not p.is_meta:
                module._parameters[name] = nn.Parameter(p.detach().to("meta"), p.requires_grad)
    return net


def create(model: Timm, image_size: ImageSize) -> Any:
    given = {"in_chans": model.in_chans, "num_classes": model.num_classes, **model.named}
    try:
        kind = _kind(model)
        if _takes(kind, "img_size"):
            given["img_size"] = size_argument(image_size)
        if _takes(kind, "drop_path_rate"):
            given["drop_path_rate"] = RATE
        with mock.patch.object(torch, "linspace", _linspace):
            return timm.create_model(model.architecture, pretrained=False, **given)
    except (NotImplementedError, MemoryError):
        raise
    except Exception as error:  # of many kinds of timm's own
        if isinstance(error, RuntimeError) and "meta" in str(error):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"model.architecture: timm {timm.__version__} cannot build {model.summary} for images "
            f"of data.image_size {image_size} ({said})"
        ) from None


@lru_cache(maxsize=64)
def _kind(model: Timm) -> type:
    """The class of a model, by building one as its arguments say."""
    try:
        with torch.device("cpu"), init_empty_weights(include_buffers=False):
            return type(timm.create_model(model.architecture, **model.named))
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error):
            raise
        return type(timm.create_model(model.architecture, **model.named))


def _linspace(start: float, end: float, *args: Any, **options: Any) -> Tensor:
    """torch's, but for timm's rates by depth: none is 0, for timm would make no module for it."""
    made = LINSPACE(start, end, *args, **options)
    return torch.full_like(made, RATE) if end == RATE else made


def _takes(kind: type, argument: str) -> bool:
    """Whether a class, or one that it hands what else it is given, has such an argument."""
    for each in kind.__mro__:
        parameters = inspect.signature(each.__init__).parameters
        if argument in parameters:
            return True
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            return False
    return False


def _children(net: nn.Module, kind: Any) -> list[tuple[nn.Module, str, Any]]:
    named = ((m, name, c) for m in net.modules() for name, c in m.named_children())
    return [(module, name, child) for module, name, child in named if isinstance(child, kind)]


def _replace_paths(net: nn.Module) -> None:
    """Put a `Path` in the place of each DropPath, and of what timm has in modules of the same class
    where their place in the depth gives them a rate of 0: an Identity of that name, or nothing."""
    places: set[tuple[type, str]] = set()
    for parent, name, _ in _children(net, DropPath):
        setattr(parent, name, Path())
        if PATH.fullmatch(name):
            places.add((type(parent), name))
    for module in net.modules():
        for kind, name in places:
            same = type(module) is kind
            if same and isinstance(getattr(module, name, module), nn.Identity | None):
                setattr(module, name, Path())


def _make_constant(net: nn.Module) -> dict[str, Tensor]:
    """Keep buffers that nothing changes out of what is trained and saved; they are returned."""
    found: dict[str, Tensor] = {}
    for prefix, module in net.named_modules():
        if isinstance(module, BatchNorm):
            continue
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            if (buffer := module._buffers[name]) is not None:
                module._non_persistent_buffers_set.add(name)
                found[f"{prefix}.{name}".lstrip(".")] = buffer
    return found
