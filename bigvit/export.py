"""Weights for the rest of the world: a folder that timm loads."""

from pathlib import Path
from typing import Any

from bigvit.checkpoint.files import rename, write_json
from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.save import write_tensors
from bigvit.data.sources import class_names
from bigvit.recipe import Recipe
from bigvit.recipe.store import recipe_from_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"

# timm's entry point by width; every value of the model is given beside it
ARCHITECTURES = {
    384: "deit3_small_patch16_224",
    512: "deit3_medium_patch16_224",
    768: "deit3_base_patch16_224",
    1024: "deit3_large_patch16_224",
    1280: "deit3_huge_patch14_224",
}


def export(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint's model, without its training heads, so that
    `timm.create_model("local-dir:FOLDER", pretrained=True)` loads it with the same logits.

    Raises:
        Damaged: the checkpoint is not whole.
        OSError: the folder cannot be written.
    """
    manifest, weights = read_weights(checkpoint)
    recipe = recipe_from_json(manifest.recipe)
    prefix = "model."
    model = {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{WEIGHTS}.aside"
    write_tensors(aside, model)
    rename(aside, folder / WEIGHTS)
    write_json(folder / CONFIG, timm_config(recipe))
    return folder


def strangers(folder: Path) -> list[str]:
    """What lies in a folder that an export does not write."""
    ours = (WEIGHTS, CONFIG, f".{WEIGHTS}.aside", f".{CONFIG}.aside")
    return sorted(path.name for path in folder.iterdir() if path.name not in ours)


def timm_config(recipe: Recipe) -> dict[str, Any]:
    """config.json as timm reads it: architecture, its arguments, how images become inputs."""
    model, data = recipe.model, recipe.data
    size = data.image_size
    return {
        "architecture": ARCHITECTURES.get(model.embed_dim, "deit3_small_patch16_224"),
        "num_classes": model.num_classes,
        "num_features": model.embed_dim,
        "global_pool": "token",
        "model_args": {
            "img_size": size,
            "patch_size": model.patch_size,
            "in_chans": model.in_chans,
            "embed_dim": model.embed_dim,
            "depth": model.depth,
            "num_heads": model.num_heads,
            "mlp_ratio": model.mlp_ratio,
            "init_values": model.layer_scale,
        },
        "pretrained_cfg": {
            "input_size": [model.in_chans, size, size],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": getattr(data, "test_crop_ratio", 1.0),
            "crop_mode": "center",
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": model.num_classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "label_names": class_names(data),
        },
    }
