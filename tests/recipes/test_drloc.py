"""Every recipe of dense relative localization against the paper's tables, written out here."""

from typing import Any

import pytest
from each import each_of

from bigvit.recipe import Cosine, DRLoc, Images, batch_layout
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import all_recipes

EVERY = all_recipes()
MODELS = ("swin_t", "t2t_vit_14", "cvt_13", "resnet50", "vit_b16")
RECIPES = {n: r for n, r in EVERY.items() if n.removeprefix("drloc_").startswith(MODELS)}
TABLE_1A = """
    in100 126689 5000 100       cifar10 50000 10000 10      cifar100 50000 10000 100
    flowers102 2040 6149 102    svhn 73257 26032 10         clipart 33525 14604 345
    infograph 36023 15582 345   painting 50416 21850 345    quickdraw 120750 51750 345
    real 120906 52041 345       sketch 48212 20916 345
""".split()
DATA: dict[str, tuple[int | None, ...]] = {
    TABLE_1A[i]: tuple(map(int, TABLE_1A[i + 1 : i + 4])) for i in range(0, len(TABLE_1A), 4)
}
DATA["in1k"] = (1_281_167, None, 1000)
SMALL = [name for name in DATA if name not in ("in100", "in1k")]
PARAMETERS = {"swin_t": 28.3, "t2t_vit_14": 21.5, "cvt_13": 20.0, "resnet50": 25.6, "vit_b16": 86.6}
LAMBDA = {"swin_t": 0.5, "t2t_vit_14": 0.1, "cvt_13": 0.1, "resnet50": 0.1, "vit_b16": 0.01}

DROP_PATH = {"swin_t": 0.2}
USUAL: dict[str, Any] = {
    "lr": 1e-3, "warm-up": 20, "batch": 1024, "clip": None, "ema": None, "crop": 0.875,
}  # fmt: skip
TABLE_7: dict[str, dict[str, Any]] = {  # "the default hyperparameters of each ... VT baseline"
    "swin_t_in1k_300e": {**USUAL, "clip": 5.0},  # Swin's config.py
    "t2t_vit_14_in1k_300e": {  # T2T-ViT's main.py, its README for 8 GPUs, its default_cfgs
        "lr": 5e-4, "warm-up": 10, "batch": 512, "clip": None, "ema": 0.99996, "crop": 0.9,
        "drop-path": 0.1,
    },
}  # fmt: skip


def wanted() -> dict[str, tuple[str, str, str, int, bool]]:
    """(model, data, table, epochs, fine-tuned) by the baseline's name."""
    three, found = ("cvt_13", "swin_t", "t2t_vit_14"), {}
    for m in three:
        found[f"{m}_in100"] = (m, "in100", "table 2b", 100, False)
        found[f"{m}_in100_300e"] = (m, "in100", "table 2b", 300, False)
        found |= {f"{m}_{d}": (m, d, "table 3", 100, False) for d in SMALL}
    for m in ("swin_t", "t2t_vit_14"):
        found |= {f"{m}_{d}_ft": (m, d, "table 4", 100, True) for d in SMALL}
        found[f"{m}_in1k_300e"] = (m, "in1k", "supplement, table 7", 300, False)
    for m in (*three, "resnet50"):
        found[f"{m}_infograph_300e"] = (m, "infograph", "supplement, table 8", 300, False)
    for d in ("cifar10", "cifar100", "infograph"):
        found[f"vit_b16_{d}"] = ("vit_b16", d, "supplement, table 9", 100, False)
    return found


WANTED = wanted()
PAIRS = {f"drloc_swin_t_cifar100_m{pairs}": pairs for pairs in (32, 128, 256)}


def test_they_are_all_there_and_no_others():
    assert set(RECIPES) == set(WANTED) | {f"drloc_{name}" for name in WANTED} | set(PAIRS)
    assert len(RECIPES) == 133


@each_of("name", WANTED)
def test_a_row_of_a_table(name: str):
    model, data, table, epochs, finetuned = WANTED[name]
    plain, with_loss = EVERY[name], EVERY[f"drloc_{name}"]
    check_recipe(plain)
    check_recipe(with_loss)
    assert table in plain.source
    images = plain.data
    assert isinstance(images, Images)
    assert plain.model.parameters(224) / 1e6 == pytest.approx(
        PARAMETERS[model] - (1000 - images.classes) * plain.model.maps(224)[-1][0] / 1e6, abs=0.1
    )
    assert (images.train_images, images.test_images, images.classes) == DATA[data]
    assert plain.model.num_classes == DATA[data][2]
    own = TABLE_7.get(name, USUAL)
    assert (plain.optim.lr, plain.optim.weight_decay) == (5e-4 if finetuned else own["lr"], 0.05)
    assert isinstance(plain.schedule, Cosine)
    assert (plain.schedule.epochs, plain.schedule.warmup_epochs) == (
        epochs,
        10 if finetuned else own["warm-up"],
    )
    assert (plain.schedule.warmup_lr, plain.schedule.min_lr) == (1e-6, 1e-5)
    found = (plain.batch_size, plain.clip_norm, plain.ema, images.test_crop_ratio)
    assert found == (own["batch"], own["clip"], own["ema"], own["crop"])
    drop_path = getattr(plain.model, "drop_path", None)  # ResNet-50 has none
    assert drop_path is None or drop_path.rate == own.get("drop-path", DROP_PATH.get(model, 0.0))
    assert plain.starts_from == (f"{model}_in1k_300e" if finetuned else None)
    assert plain.starts_from is None or plain.starts_from in EVERY
    assert plain.data.image_size == 224
    assert plain.resampling == "antialiased"
    assert (plain.precision, plain.gradient_precision) == ("fp32", "fp32")
    cross, loss = with_loss.objectives
    assert (cross,) == plain.objectives and isinstance(loss, DRLoc)
    assert (loss.weight, loss.pairs, loss.ramp, loss.offsets) == (
        LAMBDA[model],
        64,
        None,
        "absolute",
    )
    assert (loss.hidden_dim, loss.hidden_layers, loss.blocks) == (512, 2, "last")
    assert loss.pooled(plain.model.grid(224)) == (7, 7)
    assert with_loss.data == plain.data and with_loss.model == plain.model
    assert batch_layout(with_loss, 8, own["batch"] // 8).accumulation == 1


@each_of("name", PAIRS)
def test_table_2a_varies_the_pairs(name: str):
    loss = EVERY[name].objectives[1]
    assert isinstance(loss, DRLoc) and loss.pairs == PAIRS[name]
    assert EVERY[name].model == EVERY["swin_t_cifar100"].model
