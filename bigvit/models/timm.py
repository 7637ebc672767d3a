"""Any of timm's models, as a recipe trains it: nothing random happens in its forward pass.

timm's module is made once without memory for weights (`_skeleton`), with ours in the place of every
DropPath, Dropout and BatchNorm. A model is a copy of that, whose weights are made anew as those of
any module, so that engines can shard them. A forward pass on tensors without memory (`traced`) says
in which order branches are computed, and what cannot be trained exactly.

Shapes: B images, K classes.
"""

import copy
import fnmatch
import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import timm
import torch
from accelerate import init_empty_weights
from timm.layers import DropPath  # pyright: ignore[reportPrivateImportUsage]
from timm.models import convit, group_parameters
from timm.optim._param_groups import auto_group_layers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bigvit import keyed_random
from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.stochastic_depth import Drop, Dropped, Span, draw, drops
from bigvit.layers.timm import Dropout, Path, recompute, replace_batch_norms, skip_dropped
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features, Output
from bigvit.recipe import ImageSize, Timm, TimmSizes, sides
from bigvit.recipe.models.timm import size_argument

IMAGES = 3  # of a traced batch
RATE = 0.1234567  # of timm's paths, which ours replace
LINSPACE = torch.linspace
PATH = re.compile(r"(\w+_)?drop_path\d*")  # how timm calls a path


class TimmDraws(NamedTuple):
    """What a training forward pass is told."""

    paths: Dropped
    keys: Tensor | None  # (B,) int64, of each image: what dropout is a function of, if there is any


class TimmModel(Backbone):
    """A model of timm's, with timm's names for all weights."""

    net: Any  # timm's module; no child, as it would stand before all names

    def __init__(self, model: Timm, image_size: ImageSize) -> None:
        super().__init__()
        self.config, self.image_size = model, image_size
        net = copy.deepcopy(_skeleton(model, image_size))
        _give_memory(net)
        # whoever looks sees one module, whose weights and children are those of timm's
        vars(self)["net"] = net
        self._modules, self._buffers, self._parameters = net._modules, net._buffers, net._parameters
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        self.paths = {name: m for name, m in net.named_modules() if isinstance(m, Path)}
        self.dropouts = [m for m in net.modules() if isinstance(m, Dropout)]

    def forward(self, images: Tensor, draws: Any = None, blocks: Collection[int] = ()) -> Output:
        """Args and result as a `Backbone`'s; there are logits, and no tokens."""
        given: dict[str, list[Drop]] = {name: [] for name in self.paths}
        if draws is not None and draws.paths is not None:
            for name, drop in zip(self.traced.order, self.given(draws), strict=True):
                given[name].append(drop)
        for name, path in self.paths.items():
            path.give(given[name], len(images))
        for dropout in self.dropouts:
            dropout.keys = draws.keys if draws is not None else None
        logits = self.net(images)
        return Output(logits, logits[:, :0, None], (0, 0), logits, {})

    def given(self, draws: TimmDraws) -> list[Drop]:
        """What each branch drops, in the order of the forward pass."""
        return drops(self.config.drop_path, len(self.traced.order), draws.paths)

    def features(self, images: Tensor, walk: Walk) -> Features:
        """Not asked for: timm's models have no such thing in common."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> "TimmModel":
        self.net.train(mode)
        super().train(mode)
        return self

    @property
    def traced(self) -> "Trace":
        """What a forward pass does."""
        return traced(self.config, self.image_size)

    def check(self) -> None:
        """Refuse what cannot be trained exactly.

        Raises:
            ValueError: says what, and why.
        """
        model, found = self.config, self.traced
        if found.faults:
            raise ValueError(
                f"model.architecture: {model.summary} cannot be trained as recipes are, the same "
                f"on any number of ranks: {'; '.join(found.faults)}"
            )
        if model.branches != len(found.order):
            raise ValueError(
                f"model.sizes: {model.branches} branches are not those of timm's {model.summary}; "
                f"write sizes={counted(model, self.image_size)}"
            )
        if model.drop_path.rate and not found.order:
            raise ValueError(
                f"model.drop_path.rate: {model.drop_path.rate} is not allowed; timm's "
                f"{model.summary} has no stochastic depth: choose 0"
            )

    def all_blocks(self) -> list[Any]:
        """What has a stochastic depth of its own, first to last."""
        return [self.net.get_submodule(name) for name in self.traced.blocks]

    def recompute(self, share: float) -> None:
        """Recompute this share of the blocks in backward, spread evenly over the depth."""
        super().recompute(share)
        for block in self.all_blocks():
            if block.recompute:
                recompute(block)

    def initial_weight(self, name: str, seed: int) -> Tensor:
        """What timm's own initialiser makes of a parameter or buffer, its generator seeded once for
        the whole model; float32."""
        if vars(self).get("seeded") != seed:
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(keyed_random.seed("init", seed, self.config.architecture))
                made = _create(self.config, self.image_size)
            vars(self).update(seeded=seed, first=made.state_dict(keep_vars=False))
        return vars(self)["first"][name].detach().float()

    def draws(self, seed: int, number: int, span: Span) -> Any:
        """Everything random of a training forward pass over positions [start, stop) of a batch."""
        paths = draw(self.config.drop_path, len(self.traced.order), seed, number, span)
        if not self.dropouts:
            return TimmDraws(paths, None)
        each = [keyed_random.seed("dropout", seed, number, i) for i in range(*span)]
        return TimmDraws(paths, torch.tensor(each))

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: timm's rule."""
        asked = getattr(self.net, "no_weight_decay", set)()
        return {
            name
            for name, _ in self.named_parameters()
            if name.endswith(".bias") or any(fnmatch.fnmatch(name, each) for each in asked)
        }

    def layer_id(self, name: str) -> int:
        """Depth of a parameter, by timm's groups; of anything else, the deepest."""
        if "layers" not in vars(self):
            net = self.net
            if hasattr(net, "group_matcher"):
                layers: Any = group_parameters(net, net.group_matcher(coarse=False), reverse=True)
            else:
                layers = auto_group_layers(net)
            vars(self)["layers"] = layers
        found: dict[str, int] = vars(self)["layers"]
        return found.get(name, max(found.values()))

    def head_names(self) -> tuple[str, ...]:
        """How the names of the classifier's weights begin."""
        names = self.net.pretrained_cfg.get("classifier") or ()
        return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))

    def adapted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's weights from elsewhere by the names and, where timm knows how to resample
        them, in the shapes of this one's."""
        own, net = self.state_dict(), self.net
        weights = {
            name: weight
            for name, weight in weights.items()
            if name not in net.constants and not name.endswith(".num_batches_tracked")
        }
        fits = own.keys() == weights.keys()
        head = self.head_names()
        if fits and all(
            weights[name].shape == own[name].shape for name in own if not name.startswith(head)
        ):
            return weights
        change = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
        if change is None:
            return weights
        kept = {name: w for name, w in weights.items() if not name.startswith(head)}
        return {**dict(change(kept, net)), **{n: weights[n] for n in weights.keys() - kept.keys()}}


class Trace(NamedTuple):
    """What a training forward pass does."""

    order: tuple[str, ...]  # the path of each branch, as they are computed
    blocks: tuple[str, ...]  # modules that have paths, likewise
    faults: tuple[str, ...]  # why it cannot be trained exactly


@lru_cache(maxsize=8)
def traced(model: Timm, image_size: ImageSize) -> Trace:
    """Go through a training forward pass without memory."""
    net = copy.deepcopy(_skeleton(model, image_size)).to("meta").train()
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
    net = copy.deepcopy(_skeleton(model, image_size)).to("meta").eval()
    parameters = sum(p.numel() for p in net.parameters() if p.requires_grad)
    net.requires_grad_(False)
    with torch.device("meta"), FlopCounterMode(display=False) as flops:
        net(torch.empty(1, model.in_chans, *sides(image_size)))
    order = traced(model, image_size).order
    return TimmSizes(parameters, flops.get_total_flops() // 2, len(order))


def exported(model: Timm, image_size: ImageSize) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an export's config.json says of a model, and what timm's has beside weights."""
    net = _skeleton(model, image_size)
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
def _skeleton(model: Timm, image_size: ImageSize) -> Any:
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
            net = _create(model, image_size)
    except (NotImplementedError, RuntimeError):  # it computes something with its weights
        net = _create(model, image_size)
    for module in net.modules():
        for name, p in module._parameters.items():
            if p is not None and not p.is_meta:
                module._parameters[name] = nn.Parameter(p.detach().to("meta"), p.requires_grad)
    return net


def _create(model: Timm, image_size: ImageSize) -> Any:
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


class _Own(nn.Module):
    """Empty weights, made as those of any module here."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))


def _give_memory(net: nn.Module) -> None:
    """Make a skeleton's weights: empty, sharded or again without memory, as they are made here."""
    made: dict[int, nn.Parameter] = {}
    here = torch.empty(0).device
    for module in net.modules():
        own = {name: p for name, p in module._parameters.items() if p is not None}
        fresh = _Own({n: tuple(p.shape) for n, p in own.items() if id(p) not in made})
        for name, p in own.items():
            if id(p) not in made:
                made[id(p)] = fresh.get_parameter(name)
            new = made[id(p)]
            new.requires_grad_(p.requires_grad)
            module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(here)
