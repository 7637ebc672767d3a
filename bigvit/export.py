"""Weights for the rest of the world: a folder that timm loads."""

from pathlib import Path
from typing import Any

from bigvit.checkpoint.files import rename, write_json
from bigvit.checkpoint.folder import class_names
from bigvit.checkpoint.load import read_model
from bigvit.checkpoint.save import write_tensors
from bigvit.checkpoint.start import run_of
from bigvit.checkpoint.weights import resample_positions
from bigvit.recipe import (
    CaiT,
    ClassAttention,
    FixedLayerScale,
    ImageSize,
    LayerScale,
    Model,
    Recipe,
    ResNet,
    Swin,
    UniformLayerScale,
    ViT,
    sides,
)
from bigvit.recipe.store import recipe_from_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"

# timm's entry point of a ViT by width; every value of the model is given beside it
ARCHITECTURES = {
    384: "deit3_small_patch16_224",
    512: "deit3_medium_patch16_224",
    768: "deit3_base_patch16_224",
    1024: "deit3_large_patch16_224",
    1280: "deit3_huge_patch14_224",
}

LAYERS = {
    ViT: {"first_conv": "patch_embed.proj", "classifier": "head"},
    CaiT: {"first_conv": "patch_embed.proj", "classifier": "head"},
    Swin: {"first_conv": "patch_embed.proj", "classifier": "head.fc"},
    ResNet: {"first_conv": "conv1", "classifier": "fc"},
}
"""timm's names of the first and the last layer."""


def export(
    checkpoint: Path, folder: Path, image_size: ImageSize | None = None, ema: bool = False
) -> Path:
    """Write a checkpoint's model, without its training heads, so that
    `timm.create_model("local-dir:FOLDER", pretrained=True)` loads it with the same logits.

    Args:
        image_size: for images of another size than the recipe's; positions are resampled.
        ema: the average of the weights instead of them.

    Raises:
        Damaged: the checkpoint is not whole.
        OSError: the folder cannot be written.
        ValueError: timm has no such model.
    """
    manifest, model = read_model(checkpoint, "ema" if ema else "weight")
    recipe = recipe_from_json(manifest.recipe)
    size = image_size or recipe.data.image_size
    _architecture(recipe.model, sides(size))  # refused before anything is written
    grid = recipe.model.grid(size)
    if "pos_embed" in model and grid != recipe.model.grid(recipe.data.image_size):
        model["pos_embed"] = resample_positions(model["pos_embed"], grid)
    classes = class_names(run_of(checkpoint), recipe.model.num_classes)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{WEIGHTS}.aside"
    write_tensors(aside, model)
    rename(aside, folder / WEIGHTS)
    write_json(folder / CONFIG, timm_config(recipe, size, classes))
    return folder


def strangers(folder: Path) -> list[str]:
    """What lies in a folder that an export does not write."""
    ours = (WEIGHTS, CONFIG, f".{WEIGHTS}.aside", f".{CONFIG}.aside")
    return sorted(path.name for path in folder.iterdir() if path.name not in ours)


def timm_config(recipe: Recipe, size: ImageSize, classes: list[str] | None) -> dict[str, Any]:
    """config.json as timm reads it: architecture, its arguments, how images become inputs."""
    model, data = recipe.model, recipe.data
    height, width = sides(size)
    return {
        **_architecture(recipe.model, (height, width)),
        "num_classes": model.num_classes,
        "pretrained_cfg": {
            "input_size": [model.in_chans, height, width],
            "fixed_input_size": not isinstance(model, ResNet),
            "interpolation": "bicubic",
            "crop_pct": getattr(data, "test_crop_ratio", 1.0),
            "crop_mode": "center",
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": model.num_classes,
            "pool_size": None,
            **LAYERS[type(model)],
            "label_names": classes,
        },
    }


def _architecture(model: Model, size: tuple[int, int]) -> dict[str, Any]:
    """timm's entry point, and what it is to be called with."""
    match model:
        case ViT():
            architecture = ARCHITECTURES.get(model.embed_dim, "deit3_small_patch16_224")
            return _of_tokens(architecture, model, size, {"init_values": model.layer_scale})
        case CaiT(
            talking_heads=True,
            pooling=ClassAttention(depth=depth, keys="class and patches"),
            residual=LayerScale() | UniformLayerScale() | FixedLayerScale(),
        ):
            own = {"depth_token_only": depth, "mlp_ratio_token_only": model.mlp_ratio}
            return _of_tokens("cait_s24_224", model, size, own)
        case CaiT():
            kind = "CaiT but with talking heads, LayerScale and class attention to all tokens"
            raise ValueError(f"timm's entry points build no {kind}: no export")
        case Swin():
            return {
                "architecture": "swin_tiny_patch4_window7_224",
                "num_features": model.maps(size)[-1][0],
                "global_pool": "avg",
                "model_args": {
                    "img_size": list(size),
                    "patch_size": model.patch_size,
                    "in_chans": model.in_chans,
                    "embed_dim": model.embed_dim,
                    "depths": list(model.depths),
                    "num_heads": list(model.num_heads),
                    "window_size": model.window_size,
                    "mlp_ratio": model.mlp_ratio,
                },
            }
        case ResNet() if len(model.depths) == 4:
            return {
                "architecture": "resnet50",
                "num_features": 2048,
                "global_pool": "avg",
                "model_args": {"layers": list(model.depths), "in_chans": model.in_chans},
            }
        case _:
            kind = f"{type(model).__name__} like this"
            raise ValueError(f"timm's entry points build no {kind}: no export")


def _of_tokens(
    architecture: str, model: ViT | CaiT, size: tuple[int, int], own: dict[str, Any]
) -> dict[str, Any]:
    """What ViT and CaiT have in common, and what is one's own."""
    return {
        "architecture": architecture,
        "num_features": model.embed_dim,
        "global_pool": "token",
        "model_args": {
            "img_size": list(size),
            "patch_size": model.patch_size,
            "in_chans": model.in_chans,
            "embed_dim": model.embed_dim,
            "depth": model.depth,
            "num_heads": model.num_heads,
            "mlp_ratio": model.mlp_ratio,
            **own,
        },
    }
