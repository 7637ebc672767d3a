"""Which weights a file of others holds, and what they are called here: its container, the prefixes
of its names, and the authors' names of layers."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from bigvit.checkpoint.pickled import Stored

T = TypeVar("T")

WEIGHTS, AVERAGES = ("model", "state_dict", "student"), ("model_ema", "state_dict_ema", "teacher")
"""Keys of the weights, and of their moving average, as training programs write them."""

WRAPPERS = ("module.", "backbone.")
"""What DistributedDataParallel, and DINO's, put before every name."""

LOSS = "drloc."
"""How the names of VTs-Drloc's own loss begin."""

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

AUTHORS_MLP = (
    (r"patch_embed\.(.+)", r"stem.\1"),
    (r"(blocks\.\d+)\.attn\.(.+)", r"\1.linear_tokens.\2"),
    (r"(blocks\.\d+)\.mlp\.(.+)", r"\1.mlp_channels.\2"),
    (r"(blocks\.\d+)\.gamma_(\d)", r"\1.ls\2"),
)
"""The same, for ResMLP, whose affine maps are (D,) there and (1, 1, D) here."""

OF_A_CLASS = r"head\.\d+\.(weight|bias)"
"""PatchConvNet's head of one class."""

NOT_OURS = r"(.*\.)?(num_batches_tracked|relative_position_index|attn_mask)"
"""What other programs save, and nothing needs."""


def chosen(
    content: Any, average: bool, flag: str = "--init"
) -> tuple[Mapping[str, Stored], list[str]]:
    """The weights among what a file holds, or their average, and what is to be said of them.

    Args:
        flag: the option that names the file.

    Raises:
        ValueError: there are none.
    """
    if not isinstance(content, dict):
        raise ValueError("it holds no named tensors")
    named = {key: content[key] for key in (*WEIGHTS, *AVERAGES) if _holds_tensors(content.get(key))}
    weights = [key for key in named if key in WEIGHTS]
    averages = [key for key in named if key in AVERAGES]
    if average and not averages:
        where = f"{weights[0]} only" if weights else "weights only"
        raise ValueError(f"it holds no average, {where}; leave {flag}-ema out")
    notes: list[str] = []
    if average or (averages and not weights):
        weights, notes = averages, [] if average else ["all that the file holds"]
    elif averages:
        notes = [f"not {averages[0]}, which {flag}-ema takes"]
    found = named[weights[0]] if weights else content
    if not _holds_tensors(found) or not all(type(name) is str for name in found):
        keys = ", ".join(map(str, list(content)[:8]))
        raise ValueError(f"it holds no named tensors; its keys are {keys or 'none'}")
    for name, value in found.items():
        if not isinstance(value, Stored):
            raise ValueError(f"it holds no named tensors: {name} is something else")
    return found, [*weights[:1], *notes]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(item, Stored) for item in value.values())


def unwrapped(weights: Mapping[str, T]) -> tuple[dict[str, T], list[str]]:
    """Weights without what wrappers put before their names, and without what lies beside the model
    that they wrapped; and what is to be said of it."""
    notes: list[str] = []
    named = {name.replace("_orig_mod.", ""): weight for name, weight in weights.items()}
    if named.keys() != weights.keys():
        notes.append("_orig_mod. taken off")
    for prefix in WRAPPERS:
        inside = {n.removeprefix(prefix): w for n, w in named.items() if n.startswith(prefix)}
        if inside and (prefix == "backbone." or len(inside) == len(named)):
            notes.append(f"{prefix} taken off")
            if beside := sorted({n.split(".")[0] for n in named if not n.startswith(prefix)}):
                notes.append(f"{' and '.join(beside)} left out")
            named = inside
    kept = {name: weight for name, weight in named.items() if not name.startswith(LOSS)}
    if len(kept) < len(named):
        notes.append(f"{LOSS} left out")
    return kept, notes


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names made ours; ours and timm's stay. Of CaiT all three are the same, and of
    PatchConvNet both, but for its heads of one row each, which are one of ours."""
    if any(name.startswith("blocks_token_only.") or ".attn.qkv_pos." in name for name in weights):
        return _one_head(weights)
    parallel = any(".attn1." in name for name in weights)
    mlps = "patch_embed.proj.weight" in weights and "blocks.0.norm2.alpha" in weights
    table = AUTHORS_MLP if mlps else AUTHORS_PARALLEL if parallel else AUTHORS
    fixed_positions = any(name.startswith("tokens_to_token.") for name in weights)
    swins = any(name.startswith("layers.0.blocks.0.") for name in weights)
    after = any(name.startswith("layers.0.downsample.") for name in weights)  # timm's lies before
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if re.fullmatch(NOT_OURS, name) or (fixed_positions and name == "pos_embed"):
            continue
        if mlps and name.endswith((".alpha", ".beta")):
            weight = weight.reshape(1, 1, -1)
        for theirs, ours in table:
            if re.fullmatch(theirs, name):
                name = re.sub(theirs, ours, name)
                break
        if swins:
            name = re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)
        if after and (stage := re.fullmatch(r"layers\.(\d+)\.(downsample\..+)", name)):
            name = f"layers.{int(stage[1]) + 1}.{stage[2]}"
        found[name] = weight
    return found


def _one_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layers of one row each, one a class, as one layer."""
    kept = {name: w for name, w in weights.items() if not re.fullmatch(OF_A_CLASS, name)}
    classes = range(len({name.split(".")[1] for name in weights.keys() - kept.keys()}))
    for part in ("weight", "bias") if classes else ():
        names = [f"head.{i}.{part}" for i in classes]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(f"it has heads of single classes, and {missing[0]} is missing")
        kept[f"head.{part}"] = torch.cat([weights[name] for name in names])
    return kept
