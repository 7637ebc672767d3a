"""Grafit (thesis chapter 2; arXiv:2011.12982): ResNet-50 by coarse labels and by fine ones, and
what it is compared with.

A name says the method, the data, the level of its classes and the side of its images. Methods:
`grafit` (projector an MLP), `grafit_fc` (linear), `grafit_snca` (SNCA+: no instance loss),
`grafit_snca_fc` (SNCA), `grafit_baseline` (cross-entropy), `grafit_inst` (instance loss alone) and
`grafit_ce_inst` (cross-entropy and instance loss, without projector): the rows of table 2.7.

Values are those of sections 2.4.3 and 2.5.1. What the thesis leaves open is cited where it stands:
BYOL (arXiv:2006.07733), which it follows; the bag of tricks (arXiv:1812.01187) and Goyal et al.
(arXiv:1706.02677), which it borrows from. Ours are: RandAugment's N and M (its paper's for
ResNet-50), the probability of erasing, no label smoothing, ImageNet's mean and deviation
everywhere, bf16, and that images of CIFAR-100 go through ResNet-50 as it is published.

Table 2.3 has 265,240 training and 3,003 test images of iNaturalist 2019. Here they are 265,213 and
3,030, as the published lists have them: three images of each of 1,010 species for validation, and
268,243 in all, as those have together.
"""

from dataclasses import replace

from bigvit.recipe import (
    SGD,
    AveragePooling,
    Cosine,
    CrossEntropy,
    Grafit,
    Images,
    Mix,
    Objective,
    Predictor,
    Projector,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    ResNet,
    Views,
)

SOURCE = "Grafit, thesis sections 2.3, 2.4.3, 2.5.1, tables 2.4, 2.7, 2.8, 2.14; BYOL, appendix"
TRANSFER = "Grafit, thesis sections 2.4.6, 2.5.4, tables 2.9, 2.10, 2.16"

CROP = RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
RAND = RandAugment(operations=2, magnitude=9.0, magnitude_std=0.0, increasing=False)
ERASING = 0.25

IMAGENET = Images(
    dataset="ImageNet-1k",
    train_images=1_281_167,
    test_images=None,
    held_out=0.0,
    classes=1000,
    image_size=224,
    crop=CROP,
    flip=0.5,
    augment=RAND,
    erasing=ERASING,
    views=(),
    level="own",
    repeats=1,
    mix=None,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop_ratio=0.875,
    decode="exact",
)
IMAGENET_127 = replace(IMAGENET, classes=127, level="map")  # of Huh et al., by --classes-map
CIFAR = replace(
    IMAGENET,
    dataset="CIFAR-100",
    train_images=50_000,
    classes=100,
    image_size=32,
    test_crop_ratio=1.0,
)
CIFAR_20 = replace(CIFAR, classes=20, level="cifar100")

PROJECTOR = Projector(hidden_dim=4096, norm="batch", dim=256)  # BYOL; 256: section 2.3.1
LINEAR = Projector(hidden_dim=None, norm="none", dim=256)
PREDICTOR = Predictor(hidden_dim=4096, norm="batch")  # BYOL
GRAFIT = Grafit(
    weight=1.0,
    knn=1.0,  # equation 2.4
    instance=1.0,
    sigma=0.05,  # section 2.4.3
    projector=PROJECTOR,
    predictor=PREDICTOR,
    views=1,
)
METHODS: dict[str, tuple[Objective, ...]] = {
    "grafit": (GRAFIT,),
    "grafit_fc": (replace(GRAFIT, projector=LINEAR),),
    "grafit_snca": (replace(GRAFIT, instance=0.0, predictor=None),),
    "grafit_snca_fc": (replace(GRAFIT, instance=0.0, projector=LINEAR, predictor=None),),
    "grafit_baseline": (CrossEntropy(weight=1.0, smoothing=0.0, class_weights=None),),
    "grafit_inst": (replace(GRAFIT, knn=0.0, projector=None),),
    "grafit_ce_inst": (
        CrossEntropy(weight=1.0, smoothing=0.0, class_weights=None),
        replace(GRAFIT, knn=0.0, projector=None),
    ),
}
COMPARED = ("grafit", "grafit_fc", "grafit_snca", "grafit_baseline")


def trained(method: str, data: Images, views: int) -> Recipe:
    """Section 2.5.1: 600 epochs, batch 1024, lr 0.1 x batch / 256. Momentum 0.9, weight decay 1e-4
    of matrices alone and 5 epochs of warm-up: bag of tricks; tau 0.996, rising to 1: BYOL.

    Args:
        views: that the instance loss compares (T), varied as the images are.
    """
    objectives = METHODS[method]
    compared = any(isinstance(each, Grafit) and each.instance for each in objectives)
    classified = any(isinstance(each, CrossEntropy) for each in objectives)
    group = Views(views, data.image_size, data.crop, data.flip, data.augment, data.erasing)
    return Recipe(
        source=SOURCE,
        model=ResNet(
            depths=(3, 4, 6, 3),
            pooling=AveragePooling(),
            head_hidden_dim=None,
            frozen_statistics=False,
            in_chans=3,
            num_classes=data.classes,
        ),
        data=replace(
            data,
            views=(group,) if compared else (),
            test_images=data.test_images if classified else 0,  # of a head that nothing trains
        ),
        objectives=objectives,
        teacher=None,
        optim=SGD(lr=0.1 * 1024 / 256, momentum=0.9, nesterov=True, weight_decay=1e-4),
        clip_norm=None,
        schedule=Cosine(epochs=600, warmup_epochs=5, warmup_lr=0.0, min_lr=0.0),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=1024,
        precision="bf16",
        gradient_precision="fp32",
        ema=0.996 if compared else None,
        ema_end=1.0 if compared else None,
        seed=0,
    )


# Tables 2.4, 2.7, 2.8, 2.13: CIFAR-100 and ImageNet by coarse classes, and by their own.
globals().update({f"{m}_r50_cifar100_coarse_32": trained(m, CIFAR_20, 8) for m in METHODS})
globals().update({f"{m}_r50_cifar100_32": trained(m, CIFAR, 8) for m in COMPARED})
globals().update({f"{m}_r50_in127_224": trained(m, IMAGENET_127, 4) for m in METHODS})
globals().update({f"{m}_r50_in1k_224": trained(m, IMAGENET, 4) for m in COMPARED})

# Tables 2.5, 2.6, 2.14: iNaturalist at each level; images of table 2.3, classes of table 2.14.
INATURALIST = {"inat18": ("iNaturalist-2018", 437_513), "inat19": ("iNaturalist-2019", 265_213)}
LEVELS = {
    "kingdom": (replace(IMAGENET, level="kingdom"), 6, 3),
    "phylum": (replace(IMAGENET, level="phylum"), 25, 4),
    "class": (replace(IMAGENET, level="class"), 57, 9),
    "order": (replace(IMAGENET, level="order"), 272, 34),
    "family": (replace(IMAGENET, level="family"), 1118, 57),
    "genus": (replace(IMAGENET, level="genus"), 4401, 72),
    "species": (replace(IMAGENET, level="own"), 8142, 1010),
}


def inaturalist(year: str, level: str) -> Images:
    """A year's images at a level."""
    (dataset, images), (data, of_18, of_19) = INATURALIST[year], LEVELS[level]
    classes = of_18 if year == "inat18" else of_19
    return replace(data, dataset=dataset, train_images=images, classes=classes)


globals().update(
    {
        f"{method}_r50_{year}_{level}_224": trained(method, inaturalist(year, level), 4)
        for method in COMPARED
        for year in INATURALIST
        for level in LEVELS
    }
)
# The column without labels: with one class the kNN loss is 0, and so is its gradient.
globals().update(
    {
        f"{method}_r50_{year}_none_224": replace(
            trained(method, inaturalist(year, "species"), 4),
            objectives=(replace(GRAFIT, knn=0.0, projector=projector),),
        )
        for method, projector in (("grafit", PROJECTOR), ("grafit_fc", LINEAR))
        for year in INATURALIST
    }
)


# Transfer, tables 2.9 and 2.16: from the fine-tuned trunk, whose projector is left behind. Images
# and classes: table 2.3. Epochs of table 2.10: section 2.5.4.
DATASETS = {
    "flowers102": ("Oxford Flowers-102, train and val", 2_040, 6_149, 102, 1000),
    "cars196": ("Stanford Cars", 8_144, 8_041, 196, 1000),
    "food101": ("Food-101", 75_750, 25_250, 101, 300),
    "inat18": ("iNaturalist-2018", 437_513, 24_426, 8_142, 300),
    "inat19": ("iNaturalist-2019", 265_213, 3_030, 1_010, 300),
}
HEADS = {"": None, "_mlp": 2048}  # FC and MLP; the MLP's width is ours: that of the features


def transferred(method: str, dataset: str, head: str, longer: bool) -> Recipe:
    """Section 2.5.4: 240 epochs, cosine from 0.01, batch 512. No warm-up, and all else as before:
    ours; the section says that the trunk is kept, here that it is tuned with the new head.

    Args:
        head: of `HEADS`: section 2.4.6, "Classifier".
        longer: with table 2.10's more epochs and CutMix (alpha 1: its paper's). Without FixRes
            (arXiv:1906.06423), by which classifier and last norm would be tuned once more at the
            384 pixels of the test: bigvit has no such stage. Nor is it that table's RegNetY-8GF,
            of which only timm knows the layers: Grafit cannot train it here.
    """
    name, images, test_images, classes, epochs = DATASETS[dataset]
    mix = Mix(mixup=0.0, cutmix=1.0, switch=0.5, group=8) if longer else None
    data = replace(
        IMAGENET,
        dataset=name,
        train_images=images,
        test_images=test_images,
        classes=classes,
        mix=mix,
    )
    before = trained("grafit_baseline", data, 4)
    return replace(
        before,
        source=TRANSFER,
        model=replace(before.model, head_hidden_dim=HEADS[head]),
        optim=replace(before.optim, lr=0.01),
        schedule=Cosine(epochs if longer else 240, warmup_epochs=0, warmup_lr=0.01, min_lr=0.0),
        batch_size=512,
        starts_from=f"{method}_r50_in1k_224",
    )


globals().update(
    {
        f"{method}_r50_in1k_224_ft_{dataset}{head}": transferred(method, dataset, head, False)
        for method in COMPARED
        for dataset in DATASETS
        for head in HEADS
    }
)
globals().update(
    {
        f"grafit_r50_in1k_224_ft_{dataset}{head}_long": transferred("grafit", dataset, head, True)
        for dataset in DATASETS
        for head in HEADS
    }
)
