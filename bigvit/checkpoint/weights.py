"""Weights to start from, from wherever they are: our runs and exports, timm, the authors' files."""

import math
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bigvit.checkpoint.containers import chosen, renamed, unwrapped
from bigvit.checkpoint.manifest import Damaged, digest_of_file
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.of_timm import pretrained
from bigvit.checkpoint.pickled import TorchFile
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe.words import read_json

EXPORTED, CONFIG = "model.safetensors", "config.json"
"""The files of an export."""

DIGEST = "weights_xxh3_128"
"""The key in an export's config.json that says which weights it is about."""

OF_PATCHES = "aux_head."
HEADS = ("head.", "head_dist.", OF_PATCHES, "fc.")
"""How the names of a classifier's weights begin."""

Grid = tuple[int, int]
"""Patches down and across."""


class Unfit(ValueError):
    """Weights that cannot be read, or are not of the recipe's model."""


@dataclass(frozen=True)
class Given:
    """A model's weights from somewhere, by our names."""

    weights: Mapping[str, Tensor]
    grid: Grid | None = None  # of its positions; None where nothing says it
    notes: tuple[str, ...] = ()  # what was taken, and what was done to the names
    raw: Mapping[str, Tensor] | None = None  # by the source's own names, where those are not ours


@dataclass(frozen=True)
class Fitted:
    """What was done to weights to make them fit."""

    resampled: bool  # positions were resampled to another grid
    new_head: bool  # the head was made anew: none was given, or of another number of classes
    left_out: bool = False  # a head on patches was given, and the model has none
    assumed: Grid | None = field(default=None, compare=False)  # the positions' grid, not known

    def __str__(self) -> str:
        done = ["head made anew"] * self.new_head
        if self.resampled:
            done.insert(0, "positions resampled")
        if self.assumed is not None:
            done.insert(0, "positions taken for {} x {}".format(*self.assumed))
        if self.left_out:
            done.append("head on patches left out")
        changed = self.resampled or self.new_head or self.left_out
        return ", ".join(done if changed else [*done, "as they are"])


def read_init(
    init: str,
    average: bool = False,
    grid: Grid | None = None,
    ranks: Ranks | None = None,
    flag: str = "--init",
    at_once: bool = True,
) -> Given:
    """A model's weights, from what `--init` names: a run or checkpoint of ours, an export, a
    .safetensors file or one of `torch.save` with timm's or the authors' names, or timm:NAME.
    Collective.

    Args:
        average: the moving average of the weights, where there is one beside them.
        grid: of the positions, where the source does not say it.
        flag: the option that names them.
        at_once: False to read each of a run's weights when it is asked for.

    Raises:
        Unfit: on every rank; there is nothing that one of them can read. Nothing but tensors is
            ever unpickled.
    """
    ranks = ranks or alone()
    path = Path(init)
    ours = path.is_dir() and not (path / EXPORTED).is_file()
    somewhere, elsewhere = ranks.agree_each([ours, not ours])
    if somewhere and elsewhere:
        raise Unfit(f"{flag} {init}: not all hosts see the same there; put it where all do")
    reason, given = "", Given({})
    try:
        if ours:
            found = read_checkpoint(path, average, f"{flag}-ema", ranks, at_once=at_once)
            here = found.recipe.model.grid(found.recipe.data.image_size)
            given = Given(found.model, here, ("ema",) * average)
        elif init.startswith("timm:"):
            given = _from_timm(init.removeprefix("timm:"), average, flag)
        else:
            file = path / EXPORTED if path.is_dir() else path
            given = _of_file(file, path.is_dir(), average, flag)
        if grid is not None:
            given = _on_grid(given, grid)
    except (OSError, SafetensorError, ValueError) as error:
        reason = str(error) or repr(error)
    failed, fine = ranks.agree_each([bool(reason), not reason])
    if failed:
        who = f"{ranks.name(ranks.rank)}: " if fine and reason else ""
        raise Unfit(f"{flag} {init}: cannot be read ({ranks.first_text(who + reason)})")
    return given


def fit(given: Given, model: nn.Module, grid: Grid, resampling: str = "antialiased") -> Fitted:
    """Put weights into a model that has its own initial ones, as `fitted` makes them fit."""
    weights, done = fitted(given, model, grid, resampling)
    model.load_state_dict(weights, strict=False)
    return done


def fitted(
    given: Given, model: nn.Module, grid: Grid, resampling: str = "antialiased"
) -> tuple[dict[str, Tensor], Fitted]:
    """Weights made to fit a model, whose shapes alone are looked at.

    Positions (1, N, D) of another grid are resampled, those of class tokens before them kept; a
    head of another number of classes, or none, is left out, to be made anew, and so is a head on
    patches that the model has not.

    Args:
        grid: the model's.
        resampling: as a recipe's.

    Raises:
        Unfit: a name is missing or unexpected, or a shape cannot be made to fit.
    """
    own, heads = model.state_dict(), HEADS
    of_timm: Any = model
    if hasattr(model, "adapted"):  # one of timm's own, which knows its names and positions
        weights, heads = of_timm.adapted(given.raw or given.weights), of_timm.head_names()
        given = Given(weights, grid, given.notes)
    head = [name for name in own if name.startswith(heads)]
    new_head = not any(name in given.weights for name in head) or any(
        name in given.weights and given.weights[name].shape != own[name].shape for name in head
    )
    head = head if new_head else []
    strange = () if any(name.startswith(OF_PATCHES) for name in own) else (OF_PATCHES,)
    left_out = any(name.startswith(strange) for name in given.weights)
    weights = {
        name: w
        for name, w in given.weights.items()
        if name not in head and not name.startswith(strange)
    }
    check_names(weights, own.keys() - head, "--init")
    source, resampled = None, False
    if (positions := weights.get("pos_embed")) is not None:
        others = max(0, own["pos_embed"].shape[1] - math.prod(grid))
        source = given.grid or _assumed(positions.shape[1] - others, grid)
        if resampled := source != grid:
            weights["pos_embed"] = resample_positions(positions, source, grid, resampling)
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            shapes = f"{tuple(weight.shape)}, but the model's is {tuple(own[name].shape)}"
            raise Unfit(f"--init: {name} is {shapes}; choose weights of the recipe's model")
    assumed = source if given.grid is None else None
    return weights, Fitted(resampled, new_head, left_out, assumed)


def hash_weight(hasher: xxhash.xxh3_128, name: str, weight: Tensor) -> None:
    """Add a weight to a digest: its name and shape, and its values, which are float32."""
    hasher.update(name.encode() + struct.pack(f"<{weight.dim()}q", *weight.shape))
    hasher.update(weight.numpy().data)


def check_names(given: Iterable[str], wanted: Collection[str], what: str) -> None:
    """Raise Unfit where other weights are given than a model has."""
    names = set(given)
    if missing := sorted(set(wanted) - names):
        raise Unfit(f"{what}: {len(missing)} weights are missing, {missing[0]} the first")
    if unexpected := sorted(names - set(wanted)):
        raise Unfit(f"{what}: {len(unexpected)} weights are unexpected, {unexpected[0]} first")


def _assumed(count: int, grid: Grid) -> Grid:
    """The grid of a file's positions that nothing tells of: square, as in everybody's files, unless
    they could be the model's own, which is not square."""
    side = math.isqrt(count)
    oblong = count == math.prod(grid) and grid[0] != grid[1]
    if side * side == count and not oblong:
        return side, side
    why = f"are as many as the model's {grid[0]} x {grid[1]}" if oblong else "make no square"
    raise Unfit(
        f"--init: the file's {count} positions {why}, and it does not say how many are down and "
        "how many across; say it by --init-grid H W"
    )


def resample_positions(
    positions: Tensor, source: Grid, grid: Grid, resampling: str = "antialiased"
) -> Tensor:
    """Positions (1, N, D) of a grid of h x w -> (1, N', D) of another, bicubic. Those of up to two
    class tokens before them stay as they are.

    Args:
        resampling: "antialiased" as timm does it, or "plain" as facebookresearch/deit's main.py.
    """
    if not are_of(positions, source):
        raise Unfit(
            f"--init: {positions.shape[1]} positions are not those of {source[0]} x {source[1]}"
        )
    patches = math.prod(source)
    others, positions = positions[:, :-patches], positions[:, -patches:]
    maps = positions.float().unflatten(1, source).permute(0, 3, 1, 2)
    smooth = resampling == "antialiased"
    resized = nn.functional.interpolate(maps, size=grid, mode="bicubic", antialias=smooth)
    return torch.cat([others, resized.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)], dim=1)


def are_of(positions: Tensor, grid: Grid) -> bool:
    """Whether positions (1, N, D) are those of a grid, and of up to two class tokens."""
    return 0 <= positions.shape[1] - math.prod(grid) <= 2


def _on_grid(given: Given, grid: Grid) -> Given:
    """What was given, where the person says how its positions lie."""
    if given.grid not in (None, grid):
        says = "{} x {}".format(*given.grid)
        raise ValueError(f"it says itself that its grid is {says}; leave --init-grid out")
    positions = given.weights.get("pos_embed")
    if positions is None or not are_of(positions, grid):
        count = "no" if positions is None else positions.shape[1]
        raise ValueError(f"it has {count} positions, not those of --init-grid {grid[0]} {grid[1]}")
    return Given(given.weights, grid, given.notes, given.raw)


def _from_timm(name: str, average: bool, flag: str) -> Given:
    if average:
        raise ValueError(f"timm has no average of the weights; leave {flag}-ema out")
    model = pretrained(name)
    raw = dict(model.state_dict())
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    return Given(renamed(raw), grid, raw=raw)


def _of_file(path: Path, exported: bool, average: bool, flag: str) -> Given:
    """The weights of a file; an export's is compared with what its config.json says of it."""
    if path.suffix == ".safetensors":
        if average:
            raise ValueError(f"it holds no average, weights only; leave {flag}-ema out")
        config = _config_beside(path)
        if exported and (digest := config.get(DIGEST)) and digest != digest_of_file(path):
            raise Damaged(
                f"{path} is not the file that {CONFIG} beside it is about; export again, or name "
                "the file itself"
            )
        raw, notes = unwrapped(load_file(path))
        weights = renamed(raw)
        return Given(weights, _grid_of(config, weights), tuple(notes), raw)
    file = TorchFile(path)
    stored, notes = chosen(file.content, average, flag)
    found, more = unwrapped(stored)
    raw = file.read(found)
    return Given(renamed(raw), None, (*notes, *more), raw)


def _config_beside(path: Path) -> dict[str, Any]:
    """The config.json of an export, ours or timm's."""
    try:
        config = read_json(path.with_name(CONFIG)) if path.name == EXPORTED else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _grid_of(config: dict[str, Any], weights: Mapping[str, Tensor]) -> Grid | None:
    """The grid of an export's positions, by the size of its images and of its patches."""
    positions, patches = weights.get("pos_embed"), weights.get("patch_embed.proj.weight")
    try:
        size = config.get("model_args", {}).get("img_size")
        size = size or config["pretrained_cfg"]["input_size"][1:]
        height, width = (size, size) if isinstance(size, int) else size
        assert positions is not None and patches is not None
        grid = height // patches.shape[2], width // patches.shape[3]
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, IndexError):
        return None
    return grid if are_of(positions, grid) else None
