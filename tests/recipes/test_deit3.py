"""Every value of every DeiT III recipe, against tables written out here (recipe-facts.md)."""

from typing import Any

from each import each_of

from bigvit.recipe import Recipe, batch_layout, sides
from bigvit.recipe.check import check_recipe, leaves
from bigvit.recipe.find import all_recipes

EVERY = {
    name: r
    for name, r in all_recipes().items()
    if name.startswith("deit3_") and "_ft_" not in name  # test_transfer.py has those
}
RECIPES = {name: recipe for name, recipe in EVERY.items() if not name.endswith("_tokens")}

FAMILIES: dict[str, dict[str, Any]] = {
    "t16": {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3},
    "s16": {"patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6},
    "b16": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12},
    "l16": {"patch_size": 16, "embed_dim": 1024, "depth": 24, "num_heads": 16},
    "h14": {"patch_size": 14, "embed_dim": 1280, "depth": 32, "num_heads": 16},
    "h52_14": {"patch_size": 14, "embed_dim": 1280, "depth": 52, "num_heads": 16},
    "h26x2_14": {
        "patch_size": 14,
        "embed_dim": 1280,
        "depth": 26,
        "branches_per_block": 2,
        "num_heads": 16,
    },
}

SOURCES = {
    "6.14": "DeiT III, thesis tables 6.1, 6.14",
    "6.15": "DeiT III, thesis tables 6.1, 6.14, 6.15, section 6.4",
    "6.6": "DeiT III, thesis tables 6.1, 6.6, 6.14, section 6.4",
    "6.5": "DeiT III, thesis tables 6.1, 6.5, 6.14",
    "6.8": "DeiT III, thesis tables 6.1, 6.8, 6.14",
    "6.3.6": "DeiT III, thesis section 6.3.6, tables 6.6, 6.7; facebookresearch/deit",
    "6.1": "DeiT III, thesis tables 6.1, 6.5, 6.8; facebookresearch/deit",
    "repo": "DeiT III, facebookresearch/deit README_revenge.md; thesis table 6.1",
    "repo160": "DeiT III, facebookresearch/deit README_revenge.md; thesis table 6.1 "
    "(ViT-H at 160 px there, of which its patches cover 154)",
    "repo128": "DeiT III, facebookresearch/deit README_revenge.md; thesis table 6.1 "
    "(ViT-H at 128 px there, of which its patches cover 126)",
}

PRETRAINED_1K = """
    name                            source   family    pixels  epochs  lr    decay  drop
    deit3_t16_in1k_224              6.14     t16       224     400     3e-3  0.02   0.0
    deit3_s16_in1k_224_300e         6.15     s16       224     300     3e-3  0.02   0.0
    deit3_s16_in1k_224              6.15     s16       224     400     3e-3  0.02   0.0
    deit3_s16_in1k_224_600e         6.15     s16       224     600     3e-3  0.05   0.05
    deit3_s16_in1k_224_800e         6.15     s16       224     800     3e-3  0.05   0.1
    deit3_b16_in1k_224_300e         6.15     b16       224     300     3e-3  0.02   0.1
    deit3_b16_in1k_224              6.15     b16       224     400     3e-3  0.02   0.1
    deit3_b16_in1k_224_600e         6.15     b16       224     600     3e-3  0.05   0.15
    deit3_b16_in1k_224_800e         6.15     b16       224     800     3e-3  0.05   0.2
    deit3_l16_in1k_224_300e         6.15     l16       224     300     3e-3  0.02   0.4
    deit3_l16_in1k_224              6.15     l16       224     400     3e-3  0.02   0.4
    deit3_l16_in1k_224_600e         6.15     l16       224     600     3e-3  0.05   0.45
    deit3_l16_in1k_224_800e         6.15     l16       224     800     3e-3  0.05   0.5
    deit3_h14_in1k_224_300e         6.15     h14       224     300     3e-3  0.02   0.5
    deit3_h14_in1k_224              6.15     h14       224     400     3e-3  0.02   0.5
    deit3_h14_in1k_224_800e         6.6      h14       224     800     3e-3  0.05   0.6
    deit3_b16_in1k_128              6.6      b16       128     400     3e-3  0.02   0.1
    deit3_b16_in1k_128_800e         6.6      b16       128     800     3e-3  0.05   0.2
    deit3_b16_in1k_160              6.6      b16       160     400     3e-3  0.02   0.1
    deit3_b16_in1k_160_800e         6.6      b16       160     800     3e-3  0.05   0.2
    deit3_b16_in1k_192              6.6      b16       192     400     3e-3  0.02   0.1
    deit3_b16_in1k_192_800e         6.6      b16       192     800     3e-3  0.05   0.2
    deit3_l16_in1k_128              6.6      l16       128     400     3e-3  0.02   0.4
    deit3_l16_in1k_128_800e         6.6      l16       128     800     3e-3  0.05   0.5
    deit3_l16_in1k_160              6.6      l16       160     400     3e-3  0.02   0.4
    deit3_l16_in1k_160_800e         6.6      l16       160     800     3e-3  0.05   0.5
    deit3_l16_in1k_192              6.6      l16       192     400     3e-3  0.02   0.4
    deit3_l16_in1k_192_800e         6.6      l16       192     800     3e-3  0.05   0.5
    deit3_h14_in1k_126              6.6      h14       126     400     3e-3  0.02   0.5
    deit3_h14_in1k_126_800e         6.6      h14       126     800     3e-3  0.05   0.6
    deit3_h14_in1k_154              6.6      h14       154     400     3e-3  0.02   0.5
    deit3_h14_in1k_154_800e         6.6      h14       154     800     3e-3  0.05   0.6
    deit3_h14_in1k_182              6.6      h14       182     400     3e-3  0.02   0.5
    deit3_h14_in1k_182_800e         6.6      h14       182     800     3e-3  0.05   0.6
    deit3_h52_14_in1k_126           6.6      h52_14    126     400     3e-3  0.02   0.5
    deit3_h26x2_14_in1k_126         6.6      h26x2_14  126     400     3e-3  0.02   0.5
    deit3_s16_in1k_224_800e_repo    repo     s16       224     800     4e-3  0.05   0.05
    deit3_b16_in1k_192_800e_repo    repo     b16       192     800     3e-3  0.05   0.2
    deit3_l16_in1k_192_800e_repo    repo     l16       192     800     3e-3  0.05   0.45
    deit3_h14_in1k_154_800e_repo    repo160  h14       154     800     3e-3  0.05   0.6
"""

FINETUNED_1K = """
    name                                source  family    pixels  drop  starts_from
    deit3_b16_in1k_128_ft224            6.3.6   b16       224     0.2   deit3_b16_in1k_128
    deit3_b16_in1k_128_800e_ft224       6.3.6   b16       224     0.2   deit3_b16_in1k_128_800e
    deit3_b16_in1k_160_ft224            6.3.6   b16       224     0.2   deit3_b16_in1k_160
    deit3_b16_in1k_160_800e_ft224       6.3.6   b16       224     0.2   deit3_b16_in1k_160_800e
    deit3_b16_in1k_192_ft224            6.3.6   b16       224     0.2   deit3_b16_in1k_192
    deit3_b16_in1k_192_800e_ft224       6.3.6   b16       224     0.2   deit3_b16_in1k_192_800e
    deit3_l16_in1k_128_ft224            6.3.6   l16       224     0.45  deit3_l16_in1k_128
    deit3_l16_in1k_128_800e_ft224       6.3.6   l16       224     0.45  deit3_l16_in1k_128_800e
    deit3_l16_in1k_160_ft224            6.3.6   l16       224     0.45  deit3_l16_in1k_160
    deit3_l16_in1k_160_800e_ft224       6.3.6   l16       224     0.45  deit3_l16_in1k_160_800e
    deit3_l16_in1k_192_ft224            6.3.6   l16       224     0.45  deit3_l16_in1k_192
    deit3_l16_in1k_192_800e_ft224       6.3.6   l16       224     0.45  deit3_l16_in1k_192_800e
    deit3_h14_in1k_126_ft224            6.3.6   h14       224     0.55  deit3_h14_in1k_126
    deit3_h14_in1k_126_800e_ft224       6.3.6   h14       224     0.55  deit3_h14_in1k_126_800e
    deit3_h14_in1k_154_ft224            6.3.6   h14       224     0.55  deit3_h14_in1k_154
    deit3_h14_in1k_154_800e_ft224       6.3.6   h14       224     0.55  deit3_h14_in1k_154_800e
    deit3_h14_in1k_182_ft224            6.3.6   h14       224     0.55  deit3_h14_in1k_182
    deit3_h14_in1k_182_800e_ft224       6.3.6   h14       224     0.55  deit3_h14_in1k_182_800e
    deit3_h52_14_in1k_126_ft224         6.3.6   h52_14    224     0.55  deit3_h52_14_in1k_126
    deit3_h26x2_14_in1k_126_ft224       6.3.6   h26x2_14  224     0.55  deit3_h26x2_14_in1k_126
    deit3_s16_in1k_224_800e_ft384       6.3.6   s16       384     0.0   deit3_s16_in1k_224_800e
    deit3_b16_in1k_224_800e_ft384       6.3.6   b16       384     0.15  deit3_b16_in1k_224_800e
    deit3_l16_in1k_224_800e_ft384       6.3.6   l16       384     0.4   deit3_l16_in1k_224_800e
    deit3_b16_in1k_192_800e_ft224_repo  repo    b16       224     0.2   deit3_b16_in1k_192_800e_repo
    deit3_l16_in1k_192_800e_ft224_repo  repo    l16       224     0.45  deit3_l16_in1k_192_800e_repo
    deit3_h14_in1k_154_800e_ft224_repo  repo    h14       224     0.55  deit3_h14_in1k_154_800e_repo
    deit3_s16_in1k_224_800e_ft384_repo  repo    s16       384     0.0   deit3_s16_in1k_224_800e_repo
    deit3_b16_in1k_192_800e_ft384_repo  repo    b16       384     0.15  deit3_b16_in1k_192_800e_repo
    deit3_l16_in1k_192_800e_ft384_repo  repo    l16       384     0.4   deit3_l16_in1k_192_800e_repo
"""

PRETRAINED_21K = """
    name                           source   family  pixels  epochs  lr    drop
    deit3_s16_in21k_224            6.5      s16     224     90      3e-3  0.0
    deit3_s16_in21k_224_240e       6.5      s16     224     240     3e-3  0.05
    deit3_b16_in21k_224            6.5      b16     224     90      3e-3  0.1
    deit3_b16_in21k_224_240e       6.5      b16     224     240     3e-3  0.15
    deit3_l16_in21k_224            6.5      l16     224     90      3e-3  0.3
    deit3_l16_in21k_224_240e       6.5      l16     224     240     3e-3  0.35
    deit3_h14_in21k_224            6.8      h14     224     90      3e-3  0.5
    deit3_s16_in21k_224_240e_repo  repo     s16     224     240     1e-3  0.05
    deit3_b16_in21k_224_240e_repo  repo     b16     224     240     1e-3  0.1
    deit3_l16_in21k_224_240e_repo  repo     l16     224     240     1e-3  0.3
    deit3_h14_in21k_126_repo       repo128  h14     126     90      1e-3  0.5
"""

FINETUNED_21K = """
    name                                 source  family  pixels  drop  starts_from
    deit3_s16_in21k_224_ft224            6.1     s16     224     0.05  deit3_s16_in21k_224
    deit3_s16_in21k_224_240e_ft224       6.1     s16     224     0.05  deit3_s16_in21k_224_240e
    deit3_b16_in21k_224_ft224            6.1     b16     224     0.15  deit3_b16_in21k_224
    deit3_b16_in21k_224_240e_ft224       6.1     b16     224     0.15  deit3_b16_in21k_224_240e
    deit3_l16_in21k_224_ft224            6.1     l16     224     0.4   deit3_l16_in21k_224
    deit3_l16_in21k_224_240e_ft224       6.1     l16     224     0.4   deit3_l16_in21k_224_240e
    deit3_h14_in21k_224_ft224            6.1     h14     224     0.45  deit3_h14_in21k_224
    deit3_s16_in21k_224_240e_ft384       6.1     s16     384     0.05  deit3_s16_in21k_224_240e
    deit3_b16_in21k_224_240e_ft384       6.1     b16     384     0.15  deit3_b16_in21k_224_240e
    deit3_l16_in21k_224_240e_ft384       6.1     l16     384     0.4   deit3_l16_in21k_224_240e
    deit3_s16_in21k_224_240e_ft224_repo  repo    s16     224     0.05  deit3_s16_in21k_224_240e_repo
    deit3_b16_in21k_224_240e_ft224_repo  repo    b16     224     0.15  deit3_b16_in21k_224_240e_repo
    deit3_l16_in21k_224_240e_ft224_repo  repo    l16     224     0.4   deit3_l16_in21k_224_240e_repo
    deit3_h14_in21k_126_ft224_repo       repo    h14     224     0.45  deit3_h14_in21k_126_repo
"""

EVERYWHERE = {
    "model.mlp_ratio": 4.0,
    "model.layer_scale": 1e-4,
    "model.drop_path.group": 8,
    "model.in_chans": 3,
    "data.flip": 0.5,
    "data.crop.interpolation": "bicubic",
    "data.erasing": 0.0,
    "data.decode": "exact",
    "data.held_out": 0.0,
    "data.mix.cutmix": 1.0,
    "data.mix.switch": 0.5,
    "data.mix.group": 8,
    "data.mean": (0.485, 0.456, 0.406),
    "data.std": (0.229, 0.224, 0.225),
    "data.test_crop_ratio": 1.0,
    "objectives.0.weight": 1.0,
    "objectives.0.class_weights": None,
    "optim.betas": (0.9, 0.999),
    "optim.eps": 1e-8,
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "schedule.min_lr": 1e-5,
    "trainable": "all",
    "layer_decay": 1.0,
    "precision": "bf16",
    "gradient_precision": "fp32",
    "ema": None,
    "ema_end": None,
    "data.views": (),
    "data.level": "own",
    "teacher": None,
    "seed": 0,
}
IMAGENET_1K = {
    "model.num_classes": 1000,
    "data.dataset": "ImageNet-1k",
    "data.train_images": 1_281_167,
    "data.test_images": None,
    "data.classes": 1000,
}
IMAGENET_21K = {
    "model.num_classes": 21_841,
    "data.dataset": "ImageNet-21k",
    "data.train_images": 14_197_122,
    "data.test_images": 0,
    "data.classes": 21_841,
}
RESIZED_CROP = {"data.crop.scale": (0.08, 1.0), "data.crop.ratio": (3 / 4, 4 / 3)}

PROCEDURES: dict[str, dict[str, Any]] = {
    PRETRAINED_1K: {
        **EVERYWHERE,
        **IMAGENET_1K,
        **RESIZED_CROP,
        "data.augment.color_jitter": 0.3,
        "data.repeats": 3,
        "data.mix.mixup": 0.8,
        "objectives.0.threshold": 0.0,
        "objectives.0.smoothing": 0.0,
        "clip_norm": 1.0,
        "batch_size": 2048,
        "starts_from": None,
    },
    FINETUNED_1K: {
        **EVERYWHERE,
        **IMAGENET_1K,
        **RESIZED_CROP,
        "data.augment.operations": 2,
        "data.augment.magnitude": 9.0,
        "data.augment.magnitude_std": 0.5,
        "data.augment.increasing": True,
        "data.repeats": 1,
        "data.mix.mixup": 0.8,
        "objectives.0.smoothing": 0.1,
        "optim.lr": 1e-5,
        "optim.weight_decay": 0.1,
        "optim.weight_decay_end": None,
        "clip_norm": None,
        "schedule.epochs": 20,
        "batch_size": 512,
    },
    PRETRAINED_21K: {
        **EVERYWHERE,
        **IMAGENET_21K,
        "data.crop.padding": 4,
        "data.augment.color_jitter": 0.3,
        "data.repeats": 1,
        "data.mix.mixup": 0.0,
        "objectives.0.smoothing": 0.1,
        "optim.weight_decay": 0.02,
        "clip_norm": 1.0,
        "batch_size": 2048,
        "starts_from": None,
    },
    FINETUNED_21K: {
        **EVERYWHERE,
        **IMAGENET_1K,
        "data.crop.padding": 4,
        "data.augment.color_jitter": 0.3,
        "data.repeats": 1,
        "data.mix.mixup": 0.0,
        "objectives.0.smoothing": 0.1,
        "optim.lr": 3e-4,
        "optim.weight_decay": 0.02,
        "clip_norm": 1.0,
        "schedule.epochs": 50,
        "batch_size": 2048,
    },
}
KINDS = {
    PRETRAINED_1K: "RandomResizedCrop ThreeAugment BinaryCrossEntropy Lamb Cosine",
    FINETUNED_1K: "RandomResizedCrop RandAugment CrossEntropy AdamW Cosine",
    PRETRAINED_21K: "SimpleRandomCrop ThreeAugment CrossEntropy Lamb Cosine",
    FINETUNED_21K: "SimpleRandomCrop ThreeAugment CrossEntropy Lamb Cosine",
}

COLUMNS: dict[str, tuple[str, type]] = {
    "pixels": ("data.image_size", int),
    "epochs": ("schedule.epochs", int),
    "lr": ("optim.lr", float),
    "decay": ("optim.weight_decay", float),
    "drop": ("model.drop_path.rate", float),
    "starts_from": ("starts_from", str),
}


def rows(table: str) -> dict[str, dict[str, str]]:
    header, *lines = (line.split() for line in table.strip().splitlines())
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


ROWS = {name: (table, row) for table in PROCEDURES for name, row in rows(table).items()}


def expected(name: str) -> dict[str, Any]:
    table, row = ROWS[name]
    return {
        "source": SOURCES[row["source"]],
        **{f"model.{field}": value for field, value in FAMILIES[row["family"]].items()},
        **({} if "x2" in row["family"] else {"model.pooling.layer": 0, "model.dense_head": False}),
        **PROCEDURES[table],
        "resampling": "plain" if name.endswith("_repo") else "antialiased",
        **{path: kind(row[key]) for key, (path, kind) in COLUMNS.items() if key in row},
    }


def kinds(recipe: Recipe) -> str:
    data: Any = recipe.data
    parts = (data.crop, data.augment, *recipe.objectives, recipe.optim, recipe.schedule)
    return " ".join(type(part).__name__ for part in parts)


def test_there_are_76_of_the_thesis_and_18_of_the_repository():
    assert set(RECIPES) == set(ROWS)
    counts = [sum(not n.endswith("_repo") for n in rows(table)) for table in PROCEDURES]
    assert counts == [36, 23, 7, 10]
    counts = [sum(n.endswith("_repo") for n in rows(table)) for table in PROCEDURES]
    assert counts == [4, 6, 4, 4]
    assert len(RECIPES) == 94 and len(EVERY) == 94 + 3  # with token labels


@each_of("name", ROWS)
def test_every_value_is_the_published_one(name: str):
    found = dict(leaves(RECIPES[name]))
    wanted = expected(name)
    assert found == wanted
    assert {p: type(v) for p, v in found.items()} == {p: type(v) for p, v in wanted.items()}


@each_of("name", ROWS)
def test_every_part_is_of_its_kind(name: str):
    table, row = ROWS[name]
    recipe = RECIPES[name]
    assert kinds(recipe) == KINDS[table]
    assert type(recipe.model).__name__ == ("ParallelViT" if "x2" in row["family"] else "ViT")


@each_of("name", ROWS)
def test_it_is_checked_laid_out_and_cited(name: str):
    recipe = RECIPES[name]
    check_recipe(recipe)
    for world in (8, 32):
        layout = batch_layout(recipe, world, None)
        assert (layout.batch_size, layout.micro_batch) == (
            recipe.batch_size,
            recipe.batch_size // world,
        )
    assert "table" in recipe.source and "6." in recipe.source
    assert ("README_revenge.md" in recipe.source) == name.endswith("_repo")


@each_of("name", ROWS)
def test_a_name_says_what_it_is(name: str):
    """family_size+patch_data_resolution[_epochs][_ftN][_repo]"""
    _, row = ROWS[name]
    recipe, start = RECIPES[name], RECIPES[name]
    said = name.removesuffix("_repo")
    if recipe.starts_from:
        said, _, tuned = said.rpartition("_ft")
        assert int(tuned) == recipe.data.image_size
        assert recipe.starts_from == said + ("_repo" if name.endswith("_repo") else "")
        start = RECIPES[recipe.starts_from]
        assert start.starts_from is None
        assert start.model.maps(224)[-1][0] == recipe.model.maps(224)[-1][0]
        assert sides(start.data.image_size) < sides(recipe.data.image_size) or (
            start.data != recipe.data
        )
    data, usual = ("in21k", 90) if start.data.classes == 21_841 else ("in1k", 400)
    epochs = "" if start.epochs == usual else f"_{start.epochs}e"
    assert said == f"deit3_{row['family']}_{data}_{start.data.image_size}{epochs}"


def test_the_two_largest_models_weigh_the_same():
    """1025.73 million parameters and 271.73 GMAC at 224 with 1000 classes (recipe-facts.md)."""
    for name in ("deit3_h52_14_in1k_126_ft224", "deit3_h26x2_14_in1k_126_ft224"):
        model = RECIPES[name].model
        assert round(model.parameters(224) / 1e6, 2) == 1025.73
        assert round(model.macs(224) / 1e9, 2) == 271.73
        assert model.grid(224) == (16, 16)
        assert model.branches == 104
