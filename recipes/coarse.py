"""Grafit and DINO made small, no paper: a ViT on Fashion-MNIST and on digits, which learns coarse
classes and is asked for fine ones, and a ViT and a ResMLP without any labels.

Fashion-MNIST's coarser classes are by a file, `--classes-map`: docs/grafit.md has the two of
`benchmarks/coarse_to_fine.py`. `coarse_fashion_groups_*` tell three apart,
`coarse_fashion_clothes_*` two, `coarse_digits_*` odd from even.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    ClassToken,
    Cosine,
    CrossEntropy,
    Digits,
    Dino,
    Grafit,
    Images,
    Objective,
    Predictor,
    Projector,
    RandomResizedCrop,
    Recipe,
    ResMLP,
    Shift,
    StochasticDepth,
    Views,
    ViT,
)

SOURCE = "bigvit: Grafit (thesis chapter 2) made small, no paper"
DROP_PATH = StochasticDepth(rate=0.0, group=8)
CROP = RandomResizedCrop(scale=(0.4, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bilinear")
GRAFIT = Grafit(
    weight=1.0,
    knn=1.0,
    instance=1.0,
    sigma=0.05,
    projector=Projector(hidden_dim=256, norm="batch", dim=64),
    predictor=Predictor(hidden_dim=256, norm="batch"),
    views=1,
)
METHODS: dict[str, tuple[Objective, ...]] = {
    "baseline": (CrossEntropy(weight=1.0, smoothing=0.0, class_weights=None),),
    "snca": (replace(GRAFIT, instance=0.0, predictor=None),),
    "grafit_fc": (replace(GRAFIT, projector=Projector(hidden_dim=None, norm="none", dim=64)),),
    "grafit": (GRAFIT,),
}


def vit(patch: int, in_chans: int, num_classes: int) -> ViT:
    """Four blocks, 64 channels."""
    return ViT(
        patch_size=patch,
        embed_dim=64,
        depth=4,
        num_heads=4,
        mlp_ratio=2.0,
        layer_scale=0.1,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=DROP_PATH,
        in_chans=in_chans,
        num_classes=num_classes,
    )


def of(data: Images | Digits, model: ViT | ResMLP, method: str, epochs: int, batch: int) -> Recipe:
    """A method on data that have a group of views, which it leaves out where nothing asks."""
    objectives = METHODS[method]
    if method in ("baseline", "snca"):
        data = replace(data, views=()) if isinstance(data, Images) else replace(data, views=0)
    follows = method.startswith("grafit")
    return Recipe(
        source=SOURCE,
        model=model,
        data=data,
        objectives=objectives,
        teacher=None,
        optim=AdamW(
            lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=1.0,
        schedule=Cosine(epochs=epochs, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=batch,
        precision="fp32",
        gradient_precision="fp32",
        ema=0.99 if follows else None,
        ema_end=1.0 if follows else None,
        seed=0,
    )


def fashion(classes: int) -> Images:
    """By a file of coarser classes; so many images are enough here."""
    return Images(
        dataset="Fashion-MNIST, the first 6,000 and 2,000 images",
        train_images=6_000,
        test_images=2_000,
        held_out=0.0,
        classes=classes,
        image_size=28,
        crop=CROP,
        flip=0.5,
        augment=None,
        erasing=0.0,
        views=(Views(2, 28, CROP, flip=0.5, augment=None, erasing=0.0),),
        level="map",
        repeats=1,
        mix=None,
        mean=(0.286, 0.286, 0.286),
        std=(0.353, 0.353, 0.353),
        test_crop_ratio=1.0,
        decode="exact",
    )


DIGITS = Digits(
    image_size=8,
    augment=Shift(pixels=1),
    views=2,
    level="parity",
    repeats=1,
    mean=(0.305,),
    std=(0.376,),
)

GROUPS, CLOTHES, PARITY = vit(7, 3, 3), vit(7, 3, 2), vit(2, 1, 2)
coarse_fashion_groups_baseline = of(fashion(3), GROUPS, "baseline", 5, 100)
coarse_fashion_groups_snca = of(fashion(3), GROUPS, "snca", 5, 100)
coarse_fashion_groups_grafit_fc = of(fashion(3), GROUPS, "grafit_fc", 5, 100)
coarse_fashion_groups_grafit = of(fashion(3), GROUPS, "grafit", 5, 100)
coarse_fashion_clothes_baseline = of(fashion(2), CLOTHES, "baseline", 5, 100)
coarse_fashion_clothes_snca = of(fashion(2), CLOTHES, "snca", 5, 100)
coarse_fashion_clothes_grafit_fc = of(fashion(2), CLOTHES, "grafit_fc", 5, 100)
coarse_fashion_clothes_grafit = of(fashion(2), CLOTHES, "grafit", 5, 100)
coarse_digits_baseline = of(DIGITS, PARITY, "baseline", 10, 60)
coarse_digits_snca = of(DIGITS, PARITY, "snca", 10, 60)
coarse_digits_grafit_fc = of(DIGITS, PARITY, "grafit_fc", 10, 60)
coarse_digits_grafit = of(DIGITS, PARITY, "grafit", 10, 60)

# DINO: two crops of all, and four small ones; ResMLP's are of the same size.
DINO = Dino(
    weight=1.0,
    outputs=1024,
    hidden_dim=256,
    hidden_layers=2,
    bottleneck_dim=64,
    norm="none",
    gain="one",
    student_temperature=0.1,
    teacher_temperature=(0.04, 0.04),
    warmup_epochs=0,
    centre_momentum=0.9,
    held_epochs=1,
    large=(0, 1),
    small=(2,),
)


def dino(model: ViT | ResMLP, local: int) -> Recipe:
    """Ten epochs of the same images, without their classes."""
    data = fashion(10)
    small = RandomResizedCrop(scale=(0.1, 0.4), ratio=(3 / 4, 4 / 3), interpolation="bilinear")
    before = of(data, model, "grafit", 10, 100)
    return replace(
        before,
        source="bigvit: DINO (arXiv:2104.14294) made small, no paper",
        data=replace(
            data,
            level="own",
            test_images=0,
            views=(
                Views(1, 28, CROP, flip=0.5, augment=None, erasing=0.0),
                Views(4, local, small, flip=0.5, augment=None, erasing=0.0),
            ),
        ),
        objectives=(DINO,),
        optim=replace(before.optim, lr=1e-3, weight_decay=0.04, weight_decay_end=0.4),
        clip_norm=3.0,
        ema=0.99,
        ema_end=1.0,
    )


dino_fashion_vit = dino(vit(7, 3, 10), local=14)
dino_fashion_resmlp = dino(
    ResMLP(
        patch_size=7,
        embed_dim=64,
        depth=4,
        mlp_ratio=2.0,
        norm="affine",
        communication="linear",
        layer_scale=0.1,
        shift=True,
        pooling=AveragePooling(),
        drop_path=DROP_PATH,
        in_chans=3,
        num_classes=10,
    ),
    local=28,
)
