"""Dense relative localization (arXiv:2106.03746): tables 2, 3, 4 of the paper and 7, 8, 9 of its
supplement, each model with the loss (`drloc_...`) and without.

`swin_t_cifar100` and `drloc_swin_t_cifar100` are trained for 100 epochs from scratch; `_300e` for
300; `_ft` starts from the same model's weights of ImageNet-1k, which the authors of each model
published (`--init timm:swin_tiny_patch4_window7_224.ms_in1k`, or T2T-ViT's file). Where the paper
is silent, the value is that of its repository (yhlleo/VTs-Drloc at 007265c); in supplement table 7,
which takes each model's own defaults, that of the model's authors. Ours are: the groups of mixing
and stochastic depth, uniform stochastic depth (theirs: linear), and no clipping (theirs: 5) but in
that table. Their CvT is lucidrains', without a class token; ours is that of CvT's authors.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    Cosine,
    CrossEntropy,
    CvT,
    DRLoc,
    Images,
    Mix,
    Model,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    vit,
)

PAPER = "arXiv:2106.03746, table {}; yhlleo/VTs-Drloc"
SUPPLEMENT = "arXiv:2106.03746, supplement, table {}; yhlleo/VTs-Drloc"
TABLE_7 = (
    "arXiv:2106.03746, supplement, table 7; yitu-opensource/T2T-ViT, microsoft/Swin-Transformer"
)

DATASETS = {  # name: data set, training and test images, classes (table 1a, without ImageNet-1k)
    "cifar10": ("CIFAR-10", 50_000, 10_000, 10),
    "cifar100": ("CIFAR-100", 50_000, 10_000, 100),
    "flowers102": ("Oxford Flowers-102, train and val", 2_040, 6_149, 102),
    "svhn": ("SVHN", 73_257, 26_032, 10),
    "clipart": ("DomainNet ClipArt", 33_525, 14_604, 345),
    "infograph": ("DomainNet Infograph", 36_023, 15_582, 345),
    "painting": ("DomainNet Painting", 50_416, 21_850, 345),
    "quickdraw": ("DomainNet Quickdraw", 120_750, 51_750, 345),
    "real": ("DomainNet Real", 120_906, 52_041, 345),
    "sketch": ("DomainNet Sketch", 48_212, 20_916, 345),
    "in100": ("ImageNet-100", 126_689, 5_000, 100),
    "in1k": ("ImageNet-1k", 1_281_167, None, 1000),
}
TEN = tuple(name for name in DATASETS if not name.startswith("in1"))

LAMBDA = {  # section 4, and section 3 of the supplement; ResNet-50's is not said: T2T's and CvT's
    "swin_t": 0.5,
    "t2t_vit_14": 0.1,
    "cvt_13": 0.1,
    "resnet50": 0.1,
    "vit_b16": 0.01,
}
WITHOUT = StochasticDepth(rate=0.0, group=8)  # their models have none but Swin

TABLE: tuple[tuple[str, tuple[str, ...], tuple[str, ...], int, bool], ...] = (
    # source, models, data sets, epochs, whether fine-tuned
    (PAPER.format("2b"), ("cvt_13", "swin_t", "t2t_vit_14"), ("in100",), 100, False),
    (PAPER.format("2b"), ("cvt_13", "swin_t", "t2t_vit_14"), ("in100",), 300, False),
    (PAPER.format("3"), ("cvt_13", "swin_t", "t2t_vit_14"), TEN, 100, False),
    (PAPER.format("4"), ("swin_t", "t2t_vit_14"), TEN, 100, True),
    (TABLE_7, ("swin_t", "t2t_vit_14"), ("in1k",), 300, False),
    (SUPPLEMENT.format("8"), tuple(LAMBDA)[:4], ("infograph",), 300, False),
    (SUPPLEMENT.format("9"), ("vit_b16",), ("cifar10", "cifar100", "infograph"), 100, False),
)


def model(name: str, num_classes: int) -> Model:
    """A model of the paper, of ResNet-50's size but for ViT-B/16."""
    match name:
        case "swin_t":
            return Swin(
                patch_size=4,
                embed_dim=96,
                depths=(2, 2, 6, 2),
                num_heads=(3, 6, 12, 24),
                window_size=7,
                mlp_ratio=4.0,
                pooling=AveragePooling(),
                drop_path=StochasticDepth(rate=0.2, group=8),
                in_chans=3,
                num_classes=num_classes,
            )
        case "t2t_vit_14":
            return T2TViT(
                token_dim=64,
                embed_dim=384,
                depth=14,
                num_heads=6,
                mlp_ratio=3.0,
                drop_path=WITHOUT,
                in_chans=3,
                num_classes=num_classes,
            )
        case "cvt_13":
            return CvT(
                embed_dims=(64, 192, 384),
                depths=(1, 2, 10),
                num_heads=(1, 3, 6),
                mlp_ratio=4.0,
                drop_path=WITHOUT,
                in_chans=3,
                num_classes=num_classes,
            )
        case "resnet50":
            return ResNet(
                depths=(3, 4, 6, 3),
                pooling=AveragePooling(),
                head_hidden_dim=None,
                frozen_statistics=False,
                in_chans=3,
                num_classes=num_classes,
            )
        case _:
            # theirs has neither LayerScale nor a stochastic depth; one of 1 begins as none
            return vit(
                "b16", layer_scale=1.0, drop_path=WITHOUT, num_classes=num_classes, in_chans=3
            )


def images(dataset: str) -> Images:
    """A data set at 224 pixels, augmented as in the repository's config.py."""
    name, train_images, test_images, classes = DATASETS[dataset]
    return Images(
        dataset=name,
        train_images=train_images,
        test_images=test_images,
        classes=classes,
        image_size=224,
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=RandAugment(operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True),
        erasing=0.25,
        repeats=1,
        mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=0.875,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    )


def localization(weight: float) -> DRLoc:
    """The loss of equation 2 on a grid of 7 x 7, 64 pairs an image (section 5.1, table 15)."""
    return DRLoc(
        weight=weight,
        ramp=None,
        offsets="absolute",
        unit="grid",
        alpha=0.001,
        blocks="last",
        normalised=True,
        pairs=64,
        grid=7,
        pooling="mean",
        hidden_dim=512,
        hidden_layers=2,
    )


def baseline(source: str, name: str, dataset: str, epochs: int, finetuned: bool) -> Recipe:
    """A model without the loss: section 6 of the supplement; betas, eps, first and last lr and
    precision: repository."""
    return Recipe(
        source=source,
        model=model(name, DATASETS[dataset][3]),
        data=images(dataset),
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=AdamW(
            lr=5e-4 if finetuned else 1e-3,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.05,
            weight_decay_end=None,
        ),
        clip_norm=None,
        schedule=Cosine(
            epochs=epochs, warmup_epochs=10 if finetuned else 20, warmup_lr=1e-6, min_lr=1e-5
        ),
        trainable="all",
        layer_decay=1.0,
        starts_from=f"{name}_in1k_300e" if finetuned else None,
        resampling="antialiased",
        batch_size=1024,
        precision="fp32",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def with_its_defaults(recipe: Recipe, name: str) -> Recipe:
    """A recipe of supplement table 7: "the default hyperparameters of each corresponding VT
    baseline". Of T2T-ViT-14 those of its main.py and of its README's command for 8 GPUs with 64
    images each, where 10 epochs more at the last lr follow, and bilinear and bicubic crops take
    turns at random (ours: neither); of Swin-T those of its config.py, which are the others' but for
    the clipping."""
    if name == "swin_t":
        return replace(recipe, clip_norm=5.0)
    return replace(
        recipe,
        model=replace(recipe.model, drop_path=StochasticDepth(rate=0.1, group=8)),
        data=replace(recipe.data, test_crop_ratio=0.9),
        optim=replace(recipe.optim, lr=5e-4),
        schedule=replace(recipe.schedule, warmup_epochs=10),
        batch_size=512,
        ema=0.99996,
    )


def with_localization(recipe: Recipe, weight: float, pairs: int | None = 64) -> Recipe:
    """The same with the loss."""
    loss = replace(localization(weight), pairs=pairs)
    return replace(recipe, objectives=(*recipe.objectives, loss))


def recipes() -> dict[str, Recipe]:
    """Every recipe of the table by its name, the baseline before the one with the loss."""
    made: dict[str, Recipe] = {}
    for source, names, datasets, epochs, finetuned in TABLE:
        for name in names:
            for dataset in datasets:
                recipe = baseline(source, name, dataset, epochs, finetuned)
                recipe = with_its_defaults(recipe, name) if source == TABLE_7 else recipe
                ending = "_ft" if finetuned else "_300e" if epochs == 300 else ""
                made[f"{name}_{dataset}{ending}"] = recipe
                with_loss = with_localization(recipe, LAMBDA[name])
                made[f"drloc_{name}_{dataset}{ending}"] = with_loss
    swin = baseline(PAPER.format("2a"), "swin_t", "cifar100", 100, False)
    for pairs in (32, 128, 256):
        made[f"drloc_swin_t_cifar100_m{pairs}"] = with_localization(swin, 0.5, pairs)
    return made


globals().update(recipes())
