"""Teachers that say something of each cell of an image.

Such a model makes a map of features, takes its mean, and classifies that by one linear layer: then
the same layer says of each cell what that is, and the mean of the cells is the model's answer. That
is checked of every teacher, and what it does not hold for is refused. Where a model of ours has a
head on patches, that head says it.

Shapes: B images, C channels, h x w cells, D width, K classes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from bigvit.checkpoint.of_timm import TIMM, of_timm
from bigvit.checkpoint.run import class_names, run_of
from bigvit.checkpoint.trained import trained
from bigvit.checkpoint.weights import hash_weight
from bigvit.labelling.whole import WHOLE
from bigvit.ranks.memory import wanting
from bigvit.recipe import Data, ImageSize, Timm, sides

APART = 1e-4  # of the largest logit, by which the mean of the cells may differ from the model's
PROBES = 2  # images of noise that both are asked about

Score = Callable[[Tensor], Tensor]
"""Normalised images (B, C, H, W) -> logits of each cell (B, h, w, K) float32."""


class Dense(NamedTuple):
    """A teacher on a device."""

    name: str
    digest: str  # of its weights
    data: Data  # how whole images are fed to it
    score: Score
    cells: tuple[int, int]  # (h, w)
    classes: list[str] | None  # the names of its outputs, where they are known
    outputs: int


def dense(given: str, image_size: ImageSize, ema: bool, device: torch.device) -> Dense:
    """The teacher that is named: a run or checkpoint of ours, timm:NAME or timm:local-dir:FOLDER.

    Raises:
        ValueError: it cannot be read, does not take images of that size, or says nothing of cells.
    """
    if given.startswith(TIMM):
        model, data, score, whole, classes = _of_timm(given, image_size)
    else:
        model, data, score, whole, classes = _of_run(given, image_size, ema)
    model.to(device).eval()
    cells, outputs = _checked(given, data, score, whole, device)
    return Dense(given, digest_of(model), data, score, cells, classes, outputs)


def digest_of(model: nn.Module) -> str:
    """Of the weights and their names."""
    hasher = xxhash.xxh3_128()
    for name, weight in sorted(model.state_dict().items()):
        hash_weight(hasher, name, weight.detach().cpu().float().contiguous())
    return hasher.hexdigest()


_Parts = tuple[nn.Module, Data, Score, Callable[[Tensor], Tensor], list[str] | None]


def _of_run(given: str, image_size: ImageSize, ema: bool) -> _Parts:
    checkpoint, _, task = trained(Path(given), image_size, ema)
    recipe, model = task.recipe, task.model
    classes = class_names(run_of(checkpoint), recipe.data.classes)
    if isinstance(recipe.model, Timm):
        score: Score = _cells_of_timm(given, model.net)
        return model.net, recipe.data, score, model.net, classes

    def cells(images: Tensor) -> Tensor:
        features = model.features(images, model.walk(None, ()))
        if (found := model.dense(features)) is not None:
            return found.unflatten(1, features.grid).float()
        if features.cls:
            raise _no_cells(given, "it reads classes off a class token")
        logits = model.classify(features.tokens)
        return logits.unflatten(1, features.grid).float()

    def whole(images: Tensor) -> Tensor:
        output = model(images)
        return output.logits if output.dense is None else output.dense.mean(dim=1)

    return model, recipe.data, cells, whole, classes


def _of_timm(given: str, image_size: ImageSize) -> _Parts:
    taken = of_timm(given)
    model, size = taken.model, sides(image_size)
    if taken.input_size[1:] != size and hasattr(model, "set_input_size"):
        try:
            model.set_input_size(img_size=size)
        except Exception as error:
            said = str(error).splitlines() or [repr(error)]
            raise ValueError(
                f"--image-size {image_size}: {given} does not take it ({said[0]})"
            ) from None
    if taken.input_size[0] != 3:
        raise ValueError(f"{given}: it takes {taken.input_size[0]} channels, and images have 3")
    data = replace(WHOLE, image_size=image_size, mean=taken.mean, std=taken.std)
    return model, data, _cells_of_timm(given, model), model, None


def _cells_of_timm(given: str, model: Any) -> Score:
    """timm's head applied to maps of one cell each."""

    def score(images: Tensor) -> Tensor:
        found = model.forward_features(images)
        if not isinstance(found, Tensor):
            raise _no_cells(given, "its last features are not one map")
        if found.dim() == 3:  # (B, N, D)
            if getattr(model, "num_prefix_tokens", 0):
                raise _no_cells(given, "it has a class token, or others that are no cells")
            grid = getattr(getattr(model, "patch_embed", None), "grid_size", (0, 0))
            if grid[0] * grid[1] != found.shape[1]:
                raise _no_cells(given, f"its {found.shape[1]} tokens lie on no grid that is known")
            each = found.flatten(0, 1)[:, None]
        elif found.dim() == 4 and getattr(model, "output_fmt", "NCHW") == "NHWC":
            grid, each = found.shape[1:3], found.flatten(0, 2)[:, None, None]
        elif found.dim() == 4:  # (B, D, h, w)
            grid = found.shape[2:]
            each = found.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]
        else:
            raise _no_cells(given, f"its last features have the shape {tuple(found.shape)}")
        return model.forward_head(each).view(len(images), *grid, -1).float()

    return score


@torch.no_grad()
def _checked(
    given: str,
    data: Data,
    score: Score,
    whole: Callable[[Tensor], Tensor],
    device: torch.device,
) -> tuple[tuple[int, int], int]:
    """The cells and classes of a teacher whose cells' mean is its answer."""
    generator = torch.Generator().manual_seed(0)
    shape = (PROBES, data.channels, *sides(data.image_size))
    images = torch.randn(shape, generator=generator).to(device)
    try:
        logits, cells = whole(images).float(), score(images)
    except (AttributeError, NotImplementedError, RuntimeError, AssertionError) as error:
        if lacking := wanting(error):
            raise ValueError(
                f"--image-size {data.image_size}: {PROBES} images of it are too large for {given} "
                f"here: {lacking}"
            ) from None
        said = (str(error).splitlines() or [repr(error)])[0]
        raise _no_cells(given, f"its last map cannot be read ({said})") from None
    if cells.shape[:1] + cells.shape[3:] != logits.shape:
        raise _no_cells(given, f"its cells' logits have the shape {tuple(cells.shape)}")
    apart = float((cells.mean(dim=(1, 2)) - logits).abs().max())
    if not apart <= APART * float(logits.abs().max()):
        why = f"the mean of its cells' logits is {apart:.3g} apart from its own"
        raise _no_cells(given, f"it does not classify the mean of a map by one layer: {why}")
    return (cells.shape[1], cells.shape[2]), cells.shape[3]


def _no_cells(given: str, why: str) -> ValueError:
    return ValueError(
        f"{given}: {why}, so that nothing says what its cells show; choose a teacher whose last "
        "map is pooled by its mean, as NFNets', ResNets', RegNets' and Swins' are"
    )
