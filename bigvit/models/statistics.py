"""Which of a model's BatchNorms gather statistics in training."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm


def freeze(model: nn.Module, gathers: Callable[[str], bool]) -> None:
    """Let those stand still that do not gather, by their names."""
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm):
            module.frozen = not gathers(name)


def gathered(module: nn.Module, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of some buffers, by name, that are of no BatchNorm that stands still."""
    modules = module.named_modules()
    frozen = {name for name, each in modules if isinstance(each, BatchNorm) and each.frozen}
    return {name: b for name, b in statistics.items() if name.rpartition(".")[0] not in frozen}
