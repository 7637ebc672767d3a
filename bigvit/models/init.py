"""Initial weights as a pure function of (seed, parameter name): the same on every rank, engine and
device, in whatever order the model is built. How a parameter begins is decided here, or by the
model's own `begin`."""

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bigvit import keyed_random
from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.class_attention import ClassBlock
from bigvit.layers.conv_norm import GroupNorm, LogitConv, ReluConv
from bigvit.layers.layer_scale import LayerScale
from bigvit.layers.norm import LayerNorm
from bigvit.layers.performer import Performer
from bigvit.layers.residual import initial_factors
from bigvit.layers.talking_heads import HeadMixing
from bigvit.layers.unit_rows import UnitRows


@runtime_checkable
class Ruled(Protocol):
    """A model that has rules of its own."""

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """What a parameter begins as; None where the model has no rule for it.

        Args:
            value: zeros of its shape, float32; they may be written to.
            generator: the parameter's own, fresh.
        """
        ...


def initial_weight(model: nn.Module, name: str, seed: int) -> Tensor:
    """The initial value of a parameter or buffer, float32; the model itself may lie on meta.

    Linear layers, class token and positions: normal of deviation 0.02, truncated
    at two units as timm does, biases 0. Convolutions, and layers of unit rows: as torch does, but
    for those of heads on maps, as mmsegmentation does (`layers/conv_norm.py`).
    Norms: 1 and 0. LayerScale: its initial value. Random features: orthogonal rows of norm
    sqrt(features). All that unless the model is `Ruled` and has another rule.

    Raises:
        TypeError: a module holds parameters whose initialisation is not known.
    """
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    value = torch.zeros(getattr(module, own).shape, dtype=torch.float32)
    generator = torch.Generator().manual_seed(keyed_random.seed("init", seed, name))
    ruled = model.begin(name, value, generator) if isinstance(model, Ruled) else None
    return _initial(module, own, value, generator) if ruled is None else ruled


def truncated(value: Tensor, generator: torch.Generator) -> Tensor:
    """What matrices and tokens begin as, written into `value`."""
    return nn.init.trunc_normal_(value, std=0.02, generator=generator)


def _initial(module: nn.Module, name: str, value: Tensor, generator: torch.Generator) -> Tensor:
    match module:
        case UnitRows() if name == "gain":
            return value.fill_(1)
        case LogitConv() if name == "bias":
            return value
        case LogitConv():
            return value.normal_(std=0.01, generator=generator)
        case ReluConv():
            fan_out = module.weight[:, 0].numel()
            return value.normal_(std=math.sqrt(2 / fan_out), generator=generator)
        case nn.Conv2d() | nn.ConvTranspose2d() | UnitRows():
            # torch's default, kaiming_uniform(a=sqrt(5)), is this bound for weight and bias alike
            bound = 1 / math.sqrt(module.weight[0].numel())
            return value.uniform_(-bound, bound, generator=generator)
        case LayerNorm() | BatchNorm() | GroupNorm():
            return value.fill_(1 if name in ("weight", "running_var") else 0)
        case LayerScale():
            return value.fill_(module.init)
        case ClassBlock():
            return initial_factors(module.residual, value, generator)
        case nn.Linear() | HeadMixing() if name == "bias":
            return value
        case nn.Linear() | HeadMixing():
            return truncated(value, generator)
        case _ if name in ("cls_token", "dist_token", "pos_embed", "relative_position_bias_table"):
            return truncated(value, generator)
        case Performer():
            return nn.init.orthogonal_(value, math.sqrt(len(value)), generator=generator)
        case _:
            raise TypeError(f"no initialisation is known for {type(module).__name__}.{name}")
