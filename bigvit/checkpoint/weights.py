"""Weights to start from, from wherever they are: our runs and exports, timm, the authors' files."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bigvit.checkpoint.load import read_model
from bigvit.checkpoint.start import find_checkpoint

AUTHORS = ((r"(blocks\.\d+)\.gamma_(\d)", r"\1.ls\2.gamma"),)
"""Names in facebookresearch/deit -> ours."""

AUTHORS_PARALLEL = tuple(
    (rf"(blocks\.\d+)\.{theirs}", rf"\1.{ours}")
    for theirs, ours in {
        r"attn\.(.+)": r"attns.0.attn.\2",
        r"attn1\.(.+)": r"attns.1.attn.\2",
        r"mlp\.(.+)": r"ffns.0.mlp.\2",
        r"mlp1\.(.+)": r"ffns.1.mlp.\2",
        r"norm1\.(.+)": r"attns.0.norm.\2",
        r"norm11\.(.+)": r"attns.1.norm.\2",
        r"norm2\.(.+)": r"ffns.0.norm.\2",
        r"norm21\.(.+)": r"ffns.1.norm.\2",
        r"gamma_1": r"attns.0.ls.gamma",
        r"gamma_1_1": r"attns.1.ls.gamma",
        r"gamma_2": r"ffns.0.ls.gamma",
        r"gamma_2_1": r"ffns.1.ls.gamma",
    }.items()
)
"""The same, for models with two parallel branches."""


HEADS = ("head.", "fc.")
"""How the names of a classifier's weights begin."""

NOT_OURS = r"(.*\.)?(num_batches_tracked|relative_position_index|attn_mask)"
"""What other programs save, and nothing needs."""


class Unfit(ValueError):
    """Weights that cannot be read, or are not of the recipe's model."""


@dataclass(frozen=True)
class Fitted:
    """What was done to weights to make them fit."""

    resampled: bool  # positions were resampled to another grid
    new_head: bool  # the head was made anew, for another number of classes

    def __str__(self) -> str:
        done = ["positions resampled"] * self.resampled + ["head made anew"] * self.new_head
        return ", ".join(done) or "as they are"


def read_init(init: str) -> dict[str, Tensor]:
    """A model's weights by our names, from what `--init` names: a run or checkpoint of ours, an
    export, a .safetensors or .pth file with timm's or the authors' names, or timm:NAME.

    Raises:
        Unfit: there is nothing that can be read; nothing but tensors is ever unpickled.
    """
    if init.startswith("timm:"):
        return _from_timm(init.removeprefix("timm:"))
    path = Path(init)
    if path.is_dir() and (path / "model.safetensors").is_file():
        path = path / "model.safetensors"
    try:
        if path.is_dir():
            return read_model(find_checkpoint(path))[1]
        return _renamed(_tensors_of(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise Unfit(f"--init {init}: cannot be read ({error})") from None


def fit(weights: Mapping[str, Tensor], model: nn.Module, grid: tuple[int, int]) -> Fitted:
    """Put weights into a model that has its own initial ones, as `fitted` makes them fit."""
    given, done = fitted(weights, model, grid)
    model.load_state_dict(given, strict=False)
    return done


def fitted(
    weights: Mapping[str, Tensor], model: nn.Module, grid: tuple[int, int]
) -> tuple[dict[str, Tensor], Fitted]:
    """Weights made to fit a model, whose shapes alone are looked at.

    Positions (1, N, D) of another grid are resampled bicubically (from a square one); a head of
    another number of classes is left out, to be made anew.

    Raises:
        Unfit: a name is missing or unexpected, or a shape cannot be made to fit.
    """
    own = model.state_dict()
    head = [name for name in own if name.startswith(HEADS)]
    new_head = any(name in weights and weights[name].shape != own[name].shape for name in head)
    head = head if new_head else []
    given = {name: w for name, w in weights.items() if name not in head}
    wanted = {name for name in own if name not in head}
    if missing := sorted(wanted - given.keys()):
        raise Unfit(f"--init: {len(missing)} weights are missing, {missing[0]} the first")
    if unexpected := sorted(given.keys() - wanted):
        raise Unfit(f"--init: {len(unexpected)} weights are unexpected, {unexpected[0]} first")
    resampled = False
    if (positions := given.get("pos_embed")) is not None:
        side = round(positions.shape[1] ** 0.5)
        square = side * side == positions.shape[1]
        resampled = (side, side) != grid if square else positions.shape[1] != math.prod(grid)
        if resampled:
            given["pos_embed"] = resample_positions(positions, grid)
    for name, weight in given.items():
        if weight.shape != own[name].shape:
            shapes = f"{tuple(weight.shape)}, but the model's is {tuple(own[name].shape)}"
            raise Unfit(f"--init: {name} is {shapes}; choose weights of the recipe's model")
    return given, Fitted(resampled, new_head)


def resample_positions(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions (1, N, D) of a square grid -> (1, h * w, D), bicubic with antialiasing, as timm."""
    side = round(positions.shape[1] ** 0.5)
    if side * side != positions.shape[1]:
        raise Unfit(f"--init: {positions.shape[1]} positions are not those of a square grid")
    square = positions.float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
    resized = nn.functional.interpolate(square, size=grid, mode="bicubic", antialias=True)
    return resized.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)


def _from_timm(name: str) -> dict[str, Tensor]:
    import timm

    try:
        return _renamed(dict(timm.create_model(name, pretrained=True).state_dict()))
    except Exception as error:  # unknown name, no weights, no network: many kinds of its own
        raise Unfit(f"--init timm:{name}: {type(error).__name__}: {error}") from None


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what it raises at a file that is no such file is not documented
        raise OSError(f"{type(error).__name__}: {error}") from None
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(w, Tensor) for w in loaded.values()):
        raise OSError("it holds no named tensors")
    return loaded


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names made ours; ours and timm's stay. Of CaiT all three are the same."""
    if any(name.startswith("blocks_token_only.") for name in weights):
        return weights
    parallel = any(".attn1." in name for name in weights)
    fixed_positions = any(name.startswith("tokens_to_token.") for name in weights)
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if re.fullmatch(NOT_OURS, name) or (fixed_positions and name == "pos_embed"):
            continue
        for theirs, ours in AUTHORS_PARALLEL if parallel else AUTHORS:
            if re.fullmatch(theirs, name):
                name = re.sub(theirs, ours, name)
                break
        renamed[name] = weight
    return renamed
