"""DINO's recipes against the authors' main_dino.py and README.md (facebookresearch/dino), and the
thesis's section 4.3.2, written out here (recipe-facts.md)."""

from typing import Any

from each import each_of

from bigvit.recipe import Dino, Images, ViewAugment
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {n: each for n, each in all_recipes().items() if n.startswith("dino_") and "in1k" in n}

EVERYWHERE: dict[str, Any] = {
    "data.train_images": 1_281_167,
    "data.image_size": 224,
    "data.crop.scale": (0.4, 1.0),
    "data.crop.interpolation": "bicubic",
    "data.flip": 0.5,
    "data.erasing": 0.0,
    "data.mix": None,
    "data.repeats": 1,
    "data.test_images": 0,
    "data.mean": (0.485, 0.456, 0.406),
    "data.std": (0.229, 0.224, 0.225),
    "model.drop_path.rate": 0.1,
    "optim.betas": (0.9, 0.999),
    "optim.eps": 1e-8,
    "optim.weight_decay": 0.04,
    "optim.weight_decay_end": 0.4,
    "schedule.warmup_epochs": 10,
    "schedule.warmup_lr": 0.0,
    "schedule.min_lr": 1e-6,
    "clip_norm": 3.0,
    "ema": 0.996,
    "ema_end": 1.0,
    "starts_from": None,
    "objectives.0.weight": 1.0,
    "objectives.0.outputs": 65_536,
    "objectives.0.hidden_dim": 2048,
    "objectives.0.hidden_layers": 2,  # nlayers 3
    "objectives.0.bottleneck_dim": 256,
    "objectives.0.norm": "none",
    "objectives.0.student_temperature": 0.1,
    "objectives.0.centre_momentum": 0.9,
    "objectives.0.held_epochs": 1,
    "objectives.0.large": (0, 1),
    "objectives.0.small": (2,),
}
EACH: dict[str, tuple[Any, ...]] = {
    # epochs, batch, lr, follower's temperatures, epochs of their warm-up, gain, side of small crops
    "vit_s16_in1k_224_100": (100, 512, 1e-3, (0.04, 0.04), 0, "one", 96),
    "vit_s16_in1k_224_300": (300, 1024, 2e-3, (0.04, 0.07), 30, "trained", 96),
    "vit_s16_in1k_224_800": (800, 1024, 2e-3, (0.04, 0.07), 30, "trained", 96),
    "vit_b16_in1k_224_100": (100, 1024, 2e-3, (0.04, 0.04), 0, "one", 96),
    "vit_b16_in1k_224_300": (300, 1024, 2e-3, (0.04, 0.07), 30, "one", 96),
    "resmlp_s12_in1k_224": (300, 1024, 2e-3, (0.04, 0.07), 30, "one", 224),
    "resmlp_s24_in1k_224": (300, 1024, 2e-3, (0.04, 0.07), 30, "one", 224),
}
MODELS = {  # width, blocks, parameters of the trunk (M): the README's 21 and 85, table 4.3's
    "vit_s16": (384, 12, 21),
    "vit_b16": (768, 12, 85),
    "resmlp_s12": (384, 12, 15),
    "resmlp_s24": (384, 24, 30),
}


@each_of("name", EACH)
def test_values(name: str):
    epochs, batch, lr, temperatures, warmup, gain, side = EACH[name]
    recipe = RECIPES[f"dino_{name}"]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    wanted = {
        **EVERYWHERE,
        "schedule.epochs": epochs,
        "batch_size": batch,
        "optim.lr": lr,
        "objectives.0.teacher_temperature": temperatures,
        "objectives.0.warmup_epochs": warmup,
        "objectives.0.gain": gain,
    }
    assert {path: found[path] for path in wanted} == wanted
    assert isinstance(recipe.data, Images)
    second, small = recipe.data.views
    assert (second.count, second.image_size, second.crop.interpolation) == (1, 224, "bicubic")
    assert (small.count, small.image_size, second.flip, small.flip) == (8, side, 0.5, 0.5)
    assert second.crop == recipe.data.crop
    assert dict(leaves(small))["crop.scale"] == (0.05, 0.4)
    # probabilities of jitter, grayscale, blur, solarize; strengths of jitter
    jitter = (0.8, 0.4, 0.4, 0.2, 0.1, 0.2)
    for varied, blur, solarize in ((recipe.data, 1.0, 0.0), (second, 0.1, 0.2), (small, 0.5, 0.0)):
        assert varied.augment == ViewAugment(*jitter, blur, solarize)
    width, blocks, millions = next(v for k, v in MODELS.items() if name.startswith(k))
    (loss,) = recipe.objectives
    assert isinstance(loss, Dino)
    size = recipe.model.parameters(224) - (width + 1) * 1000
    assert recipe.model.maps(224)[-1][0] == width and len(recipe.model.maps(224)) == blocks
    assert round(size / 1e6) in (millions, millions + 1)


def test_there_are_no_others():
    assert len(RECIPES) == len(EACH)


def test_the_followers_temperature_is_numpys_linspace():
    """0.04, then 30 epochs to 0.07, the last of which has it (main_dino.py, DINOLoss)."""
    (loss,) = RECIPES["dino_vit_s16_in1k_224_300"].objectives
    assert isinstance(loss, Dino)
    found = [loss.temperature(epoch) for epoch in range(32)]
    assert found[0] == 0.04 and abs(found[29] - 0.07) < 1e-12 and found[30] == found[31] == 0.07
    assert abs(found[1] - (0.04 + 0.03 / 29)) < 1e-12
