"""Any of timm's models, as a recipe trains it: nothing random happens in its forward pass.

A model is a copy of its skeleton (`timm_skeleton.py`), whose weights are made anew as those of any
module, so that engines can shard them.

Shapes: B images, K classes.
"""

import copy
import fnmatch
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from timm.models import group_parameters
from timm.optim._param_groups import auto_group_layers
from torch import Tensor, nn

from bigvit import keyed_random
from bigvit.layers.stochastic_depth import Drop, Dropped, Span, draw, drops
from bigvit.layers.timm import Dropout, Path, recompute
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features, Output
from bigvit.models.timm_skeleton import Trace, counted, create, skeleton, traced
from bigvit.recipe import ImageSize, Timm


class TimmDraws(NamedTuple):
    """What a training forward pass is told."""

    paths: Dropped
    keys: Tensor | None  # (B,) int64, of each image: what dropout is a function of, if there is any


def before_head(net: Any, images: Tensor) -> Tensor:
    """What a model of timm's makes of images (B, C, H, W) before its head (B, D).

    Raises:
        ValueError: it has no such vector.
    """
    try:
        found = net.forward_head(net.forward_features(images), pre_logits=True)
    except (AttributeError, TypeError) as error:
        kind = type(net).__name__
        raise ValueError(f"timm's {kind} does not tell its features apart ({error})") from None
    return found.flatten(1)


class TimmModel(Backbone):
    """A model of timm's, with timm's names for all weights."""

    net: Any  # timm's module; no child, as it would stand before all names

    def __init__(self, model: Timm, image_size: ImageSize) -> None:
        super().__init__()
        self.config, self.image_size = model, image_size
        net = copy.deepcopy(skeleton(model, image_size))
        _give_memory(net)
        # whoever looks sees one module, whose weights and children are those of timm's
        vars(self)["net"] = net
        self._modules, self._buffers, self._parameters = net._modules, net._buffers, net._parameters
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        self.paths = {name: m for name, m in net.named_modules() if isinstance(m, Path)}
        self.dropouts = [m for m in net.modules() if isinstance(m, Dropout)]

    def forward(
        self,
        images: Tensor,
        draws: Any = None,
        blocks: Collection[int] = (),
        mix: Any = None,
        read: Any = None,
    ) -> Output:
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

    def embed(self, images: Tensor) -> Tensor:
        self._drop_nothing(len(images))
        return before_head(self.net, images)

    def _drop_nothing(self, images: int) -> None:
        """In the next forward pass, of so many images."""
        for path in self.paths.values():
            path.give([], images)
        for dropout in self.dropouts:
            dropout.keys = None

    def given(self, draws: TimmDraws) -> list[Drop]:
        """What each branch drops, in the order of the forward pass."""
        return drops(self.config.drop_path, len(self.traced.order), draws.paths)

    def features(self, images: Tensor, walk: Walk) -> Features:
        """Not asked for: timm's models have no such thing in common."""
        raise NotImplementedError

    def maps(self, images: Tensor, blocks: Sequence[int] | None = None) -> list[Tensor]:
        """As a `Backbone`'s, by timm's `forward_intermediates`, which counts blocks as it does;
        left out: all that it gives.

        Raises:
            ValueError: timm's model has none, or not such blocks.
        """
        self._drop_nothing(len(images))
        if not hasattr(self.net, "forward_intermediates"):
            raise ValueError(f"timm's {self.config.summary} gives no features of its blocks")
        asked = None if blocks is None else list(blocks)
        try:
            return self.net.forward_intermediates(images, indices=asked, intermediates_only=True)
        except AssertionError as error:
            raise ValueError(f"blocks: {asked} are not of this model ({error})") from None

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
                made = create(self.config, self.image_size)
            vars(self).update(seeded=seed, first=made.state_dict(keep_vars=False))
        return vars(self)["first"][name].detach().float()

    def draws(self, seed: int, number: int, span: Span, views: int = 0) -> Any:
        """As a `Backbone`'s."""
        paths = draw(self.config.drop_path, len(self.traced.order), seed, number, span, views)
        if not self.dropouts:
            return TimmDraws(paths, None)
        key = ("dropout", seed, number, *([views] if views else []))
        each = [keyed_random.seed(*key, i) for i in range(*span)]
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
