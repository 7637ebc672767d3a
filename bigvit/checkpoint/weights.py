"""Weights to start from, from wherever they are: our runs and exports, timm, the authors' files."""

import contextlib
import math
import struct
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from bigvit.checkpoint.containers import chosen, renamed, unwrapped
from bigvit.checkpoint.manifest import Damaged, digest_of_file
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.of_timm import pretrained
from bigvit.checkpoint.pickled import TorchFile
from bigvit.checkpoint.plain_vit import as_deit3
from bigvit.checkpoint.resampling import (
    Grid,
    Unfit,
    counted,
    lie_on,
    patches_of,
    resample_tables,
    resampled,
)
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Recipe, Swin
from bigvit.recipe.words import read_json

EXPORTED, CONFIG = "model.safetensors", "config.json"
"""The files of an export."""

DIGEST = "weights_xxh3_128"
"""The key in an export's config.json that says which weights it is about."""

OF_PATCHES = "aux_head."
TABLE = ".relative_position_bias_table"
HEADS = ("head.", "head_dist.", OF_PATCHES, "fc.")
"""How the names of a classifier's weights begin."""


@dataclass(frozen=True)
class Given:
    """A model's weights from somewhere, by our names."""

    weights: Mapping[str, Tensor]
    grid: Grid | None = None  # of its patches; None where nothing says it
    notes: tuple[str, ...] = ()  # what was taken, and what was done to the names
    raw: Mapping[str, Tensor] | None = None  # by the source's own names, where those are not ours
    origin: str = "what is given"  # what was named, for a message
    windows: Mapping[str, Grid] = field(default_factory=dict)  # of Swin's tables, where it is known


@dataclass(frozen=True)
class Fitted:
    """What was done to weights to make them fit."""

    resampled: bool  # what knows where patches lie was resampled to another grid
    new_head: bool  # the head was made anew: none was given, or of another number of classes
    left_out: bool = False  # a head on patches was given, and the model has none
    assumed: Grid | None = field(default=None, compare=False)  # the patches' grid, not known
    what: str = field(default="positions", compare=False)  # the cells of a grid are
    shared: bool = False  # one query became that of every class
    plain: bool = False  # a plain ViT's became DeiT III's

    def __str__(self) -> str:
        done = ["one query taken for every class's"] * self.shared
        done += ["head made anew"] * self.new_head
        if self.resampled:
            mixing = self.what == "patches"
            done.insert(0, f"{'cross-patch matrices' if mixing else self.what} resampled")
        if self.assumed is not None:
            done.insert(0, "{} taken for {} x {}".format(self.what, *self.assumed))
        if self.left_out:
            done.append("head on patches left out")
        done += ["LayerScale of 1, the class token with its position"] * self.plain
        changed = self.resampled or self.new_head or self.left_out or self.shared or self.plain
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
        grid: of the patches, where the source does not say it.
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
            given = given_of(found.recipe, found.model, ("ema",) * average)
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
    return replace(given, origin=f"{flag} {init}")


def given_of(recipe: Recipe, weights: Mapping[str, Tensor], notes: tuple[str, ...] = ()) -> Given:
    """The weights of a recipe's model."""
    model, size = recipe.model, recipe.data.image_size
    windows = model.windows(size) if isinstance(model, Swin) else {}
    return Given(weights, model.grid(size), notes, windows=windows)


def fit(
    given: Given,
    model: nn.Module,
    grid: Grid,
    resampling: str = "antialiased",
    wanted: str = "the model",
) -> Fitted:
    """Put weights into a model that has its own initial ones, as `fitted` makes them fit."""
    weights, done = fitted(given, model, grid, resampling, wanted)
    model.load_state_dict(weights, strict=False)
    return done


def fitted(
    given: Given,
    model: nn.Module,
    grid: Grid,
    resampling: str = "antialiased",
    wanted: str = "the model",
) -> tuple[dict[str, Tensor], Fitted]:
    """Weights made to fit a model, whose shapes alone are looked at.

    Positions of another grid and ResMLP's matrices across patches are resampled, those of class
    tokens kept; a head of another number of classes or of other layers, or none, is left out, to be
    made anew, and so is a head on patches that the model has not. What a model says changes nothing
    as zeros may be missing. Queries (1, K, D) of other classes are made anew with the head; one
    query becomes that of every class.

    Args:
        grid: the model's.
        resampling: as a recipe's.
        wanted: what the model is, for a message.

    Raises:
        Unfit: a name is missing or unexpected, or a shape cannot be made to fit. It says which, of
            what and for what.
    """
    with unfit(f"{given.origin} does not fit {wanted}"):
        return _fitted(given, model, grid, resampling)


def _fitted(
    given: Given, model: nn.Module, grid: Grid, resampling: str
) -> tuple[dict[str, Tensor], Fitted]:
    own, heads = model.state_dict(), HEADS
    if plain := as_deit3(given.weights, own, given.grid):
        given = replace(given, weights=plain)
    of_timm: Any = model
    if hasattr(model, "adapted"):  # one of timm's own, which knows its names and positions
        weights, heads = of_timm.adapted(given.raw or given.weights), of_timm.head_names()
        given = replace(given, weights=weights, grid=grid, raw=None)
    head = [name for name in own if name.startswith(heads)]
    new_head = not any(name in given.weights for name in head) or any(
        name in given.weights and given.weights[name].shape != own[name].shape for name in head
    )
    head = head if new_head else []
    other_head = [n for n in given.weights if new_head and n.startswith("fc.") and n not in own]
    shared, queries, given_queries = False, own.get("cls_token"), given.weights.get("cls_token")
    if queries is not None and given_queries is not None and queries.shape[1] > 1:
        shared = given_queries.shape[1] == 1
        if not shared and given_queries.shape != queries.shape:
            head = [*head, "cls_token"]
    strange = () if any(name.startswith(OF_PATCHES) for name in own) else (OF_PATCHES,)
    left_out = any(name.startswith(strange) for name in given.weights)
    weights = {
        name: w
        for name, w in given.weights.items()
        if name not in head and name not in other_head and not name.startswith(strange)
    }
    neutral: set[str] = of_timm.neutral() if hasattr(model, "neutral") else set()
    weights |= {name: torch.zeros(own[name].shape) for name in neutral - weights.keys()}
    check_names(weights, own.keys() - head)
    if shared:
        weights["cls_token"] = weights["cls_token"].repeat(1, own["cls_token"].shape[1], 1)
    source, moved, what = None, False, counted(weights)
    others = max(0, own["pos_embed"].shape[1] - math.prod(grid)) if "pos_embed" in own else 0
    if (count := patches_of(weights, others)) is not None:
        source = given.grid or _assumed(count, grid, what)
        if moved := source != grid:
            weights |= resampled(weights, source, grid, resampling)
    tables = (n for n in weights if n.endswith(TABLE) and n in own)
    modules = ((n, model.get_submodule(n.removesuffix(TABLE))) for n in tables)
    windows = {n: _window(m) for n, m in modules if isinstance(m, WindowAttention)}
    if cut := resample_tables(weights, windows, given.windows):
        weights, moved, what = weights | cut, True, "relative positions"
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            shapes = f"{tuple(weight.shape)}, but the model's is {tuple(own[name].shape)}"
            raise Unfit(f"{name} is {shapes}; choose weights of that model")
    assumed = source if given.grid is None else None
    return weights, Fitted(moved, new_head, left_out, assumed, what, shared, plain is not None)


def _window(attention: WindowAttention) -> Grid:
    """Tokens (down, across) of a window."""
    down, across = attention.window_size
    return int(down), int(across)


def hash_weight(hasher: xxhash.xxh3_128, name: str, weight: Tensor) -> None:
    """Add a weight to a digest: its name and shape, and its values, which are float32."""
    hasher.update(name.encode() + struct.pack(f"<{weight.dim()}q", *weight.shape))
    hasher.update(weight.numpy().data)


@contextlib.contextmanager
def unfit(what: str) -> Generator[None]:
    """Say of what it is that weights do not fit in here."""
    try:
        yield
    except Unfit as error:
        raise Unfit(f"{what}: {error}") from None


def check_names(given: Iterable[str], wanted: Collection[str]) -> None:
    """Raise Unfit where other weights are given than a model has."""
    names = set(given)
    if missing := sorted(set(wanted) - names):
        raise Unfit(f"{len(missing)} weights are missing, {missing[0]} the first")
    if unexpected := sorted(names - set(wanted)):
        raise Unfit(f"{len(unexpected)} weights are unexpected, {unexpected[0]} first")


def _assumed(count: int, grid: Grid, what: str) -> Grid:
    """The grid of a file's patches that nothing tells of: square, as in everybody's files, unless
    they could be the model's own, which is not square."""
    side = math.isqrt(count)
    oblong = count == math.prod(grid) and grid[0] != grid[1]
    if side * side == count and not oblong:
        return side, side
    why = f"are as many as the model's {grid[0]} x {grid[1]}" if oblong else "make no square"
    raise Unfit(
        f"its {count} {what} {why}, and it does not say how many are down and how many across; say "
        "it by --init-grid H W"
    )


def _on_grid(given: Given, grid: Grid) -> Given:
    """What was given, where the person says how its patches lie."""
    if given.grid not in (None, grid):
        says = "{} x {}".format(*given.grid)
        raise ValueError(f"it says itself that its grid is {says}; leave --init-grid out")
    if not lie_on(given.weights, grid):
        count = patches_of(given.weights)
        cells = f"{count or 'no'} {counted(given.weights)}"
        raise ValueError(f"it has {cells}, not those of --init-grid {grid[0]} {grid[1]}")
    return replace(given, grid=grid)


def _from_timm(name: str, average: bool, flag: str) -> Given:
    if average:
        raise ValueError(f"timm has no average of the weights; leave {flag}-ema out")
    model = pretrained(name)
    raw = dict(model.state_dict())
    patches = getattr(model, "patch_embed", getattr(model, "stem", None))  # of ResMLP: the stem
    grid = getattr(patches, "grid_size", None)
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
    """The grid of an export's patches, by the size of its images and of its patches."""
    of_pixels = ("patch_embed.proj.weight", "stem.proj.weight")
    patches = next((weights[name] for name in of_pixels if name in weights), None)
    try:
        size = config.get("model_args", {}).get("img_size")
        size = size or config["pretrained_cfg"]["input_size"][1:]
        height, width = (size, size) if isinstance(size, int) else size
        assert patches is not None
        grid = height // patches.shape[2], width // patches.shape[3]
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, IndexError):
        return None
    return grid if lie_on(weights, grid) else None
