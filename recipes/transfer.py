"""Transfer (thesis sections 3.4.4, 3.7.1.3, 4.3.4, 5.3.2, 6.3.5.1): models of ImageNet-1k tuned on
smaller data sets: DeiT (table 3.7), CaiT (3.19), ResMLP (4.4), PatchConvNet (5.5), DeiT III (6.11).

A name is that of the recipe whose weights it starts from, `_ft_` and the data set's; `_ft320_` is
at 320 pixels. Grafit's (table 2.16) and dense relative localization's (table 4 of the paper) are in
grafit.py and drloc.py.

Section 3.7.1.3 has the procedure: all as in training on ImageNet-1k, the learning rate a tenth
(Cars, Flowers-102, iNaturalist) or a hundredth (CIFAR), 1000 epochs (iNaturalist 360), no teacher.
DeiT's is what its authors say in issues 45 and 105 of facebookresearch/deit. Section 5.3.2 refers
to chapter 3; of ResMLP and DeiT III the thesis says nothing more, and here they follow it, too
(ours), DeiT III with attention alone trained on Flowers-102 (section 6.3.5.1). Ours are also: a
batch of 1024 where training had 2048, which is more than Flowers-102 has images; first and last
learning rate as in training, so that a hundredth of 1e-3 is constant after the warm-up; 5 epochs of
warm-up throughout; that at 320 or 384 all else is as at 224; and what is marked so.

DeiT's and CaiT's distilled rows: CaiT's start from weights of hard distillation (`_hard_ft_`), and
are tuned without a teacher (section 3.7.1.3); DeiT's (`_token_ft_`) keep "the distillation signal"
(issues 45 and 82). Its teacher is RegNetY-16GF, tuned on the same data set (ours: it is not told).
"""

from dataclasses import replace

from bigvit.recipe import (
    SGD,
    AdamW,
    BinaryCrossEntropy,
    Cosine,
    CrossEntropy,
    DistillationToken,
    HardDistillation,
    Images,
    Lamb,
    LinearStochasticDepth,
    Mix,
    Model,
    Optimizer,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    Teacher,
    ThreeAugment,
    Timm,
    TimmSizes,
    cait,
    deit,
    patchconvnet,
    resmlp,
    vit,
)

DEIT = "Transfer of DeiT, thesis tables 3.6, 3.7, 3.9; facebookresearch/deit, issues 45, 105"
DISTILLED = f"{DEIT}, 82; equation 3.3"
CAIT = "Transfer of CaiT, thesis section 3.7.1.3, tables 3.9, 3.16, 3.18, 3.19"
RESMLP = "Transfer of ResMLP, thesis sections 3.7.1.3, 4.3.1, tables 3.9, 3.18, 4.4"
PATCHCONVNET = "Transfer of PatchConvNet, thesis sections 3.7.1.3, 5.2.3, 5.3.2, tables 5.4, 5.5"
DEIT3 = "Transfer of DeiT III, thesis sections 3.7.1.3, 6.3.5.1, tables 6.1, 6.10, 6.11"
NO_PAPER = "bigvit: DeiT III, thesis table 6.1, tuned by its section 3.7.1.3, no paper"

DATASETS = {
    # name: data set, training and test images, classes (tables 3.6, 3.18, 5.4, 6.10); by how much
    # the learning rate is divided, epochs (section 3.7.1.3)
    "cifar10": ("CIFAR-10", 50_000, 10_000, 10, 100, 1000),
    "cifar100": ("CIFAR-100", 50_000, 10_000, 100, 100, 1000),
    "flowers102": ("Oxford Flowers-102, train and val", 2_040, 6_149, 102, 10, 1000),
    "cars196": ("Stanford Cars", 8_144, 8_041, 196, 10, 1000),
    "inat18": ("iNaturalist-2018", 437_513, 24_426, 8_142, 10, 360),
    # The tables say 265,240 and 3,003. The published lists have three images of each of the 1,010
    # species for validation, and 268,243 in all, as those have together.
    "inat19": ("iNaturalist-2019", 265_213, 3_030, 1_010, 10, 360),
}
OTHERS = {
    # Of no table of the thesis's chapters 3 to 6. Images: table 2.3 (Food-101), the publishers'
    # lists (Pets), table 1 of arXiv:2106.03746 (the others). Divided as small photographs' (ours);
    # epochs: section 2.5.4 (Food-101), as Flowers-102's (Pets: ours), 5.3 of arXiv:2106.03746.
    "food101": ("Food-101", 75_750, 25_250, 101, 10, 300),
    "pets": ("Oxford-IIIT Pets", 3_680, 3_669, 37, 10, 1000),
    "svhn": ("SVHN", 73_257, 26_032, 10, 10, 100),
    "clipart": ("DomainNet ClipArt", 33_525, 14_604, 345, 10, 100),
    "infograph": ("DomainNet Infograph", 36_023, 15_582, 345, 10, 100),
    "painting": ("DomainNet Painting", 50_416, 21_850, 345, 10, 100),
    "quickdraw": ("DomainNet Quickdraw", 120_750, 51_750, 345, 10, 100),
    "real": ("DomainNet Real", 120_906, 52_041, 345, 10, 100),
    "sketch": ("DomainNet Sketch", 48_212, 20_916, 345, 10, 100),
}
ALL = {**DATASETS, **OTHERS}

RAND_AUGMENT = RandAugment(  # table 3.9: 9/0.5; rand-m9-mstd0.5-inc1
    operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True
)
SMOOTHED = CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None)  # table 3.9
BINARY = BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None)


def images(dataset: str, image_size: int = 224) -> Images:
    """A data set as table 3.9 augments it, in repeats of 3, without erasing."""
    name, train_images, test_images, classes, *_ = ALL[dataset]
    return Images(
        dataset=name,
        train_images=train_images,
        test_images=test_images,
        classes=classes,
        image_size=image_size,
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=RAND_AUGMENT,
        erasing=0.0,
        repeats=3,
        mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),  # table 3.9; the group is ours
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=0.875,  # table 3.19
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    )


def tuned(
    source: str, model: Model, data: Images, optim: Optimizer, epochs: int, starts_from: str
) -> Recipe:
    """What all share; warm-up, first and last learning rate: repository."""
    return Recipe(
        source=source,
        model=model,
        data=data,
        objectives=(SMOOTHED,),
        teacher=None,
        optim=optim,
        clip_norm=None,
        schedule=Cosine(epochs=epochs, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=starts_from,
        resampling="antialiased",
        batch_size=1024,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def adamw(lr: float, weight_decay: float) -> AdamW:
    return AdamW(
        lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay, weight_decay_end=None
    )


def lamb(lr: float, weight_decay: float) -> Lamb:
    return Lamb(lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)


def of_deit(dataset: str, image_size: int, starts_from: str) -> Recipe:
    """DeiT-B (table 3.7). Issue 45, of CIFAR-10 and Cars, here also of CIFAR-100 and Flowers-102
    (ours): SGD at 0.01, weight decay 1e-4, neither erasing nor stochastic depth; momentum:
    repository. Issue 105, of iNaturalist: AdamW at 7.5e-5, erasing 0.1. Both: batch 768."""
    *_, classes, _, epochs = ALL[dataset]
    inaturalist = dataset.startswith("inat")
    model = deit(
        "b16",
        distillation=None,
        drop_path=LinearStochasticDepth(rate=0.1 if inaturalist else 0.0, group=8),
        num_classes=classes,
        in_chans=3,
    )
    sgd = SGD(lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    optim = adamw(7.5e-5, 0.05) if inaturalist else sgd
    data = replace(images(dataset, image_size), erasing=0.1 if inaturalist else 0.0)
    recipe = tuned(DEIT, model, data, optim, epochs, starts_from)
    return replace(recipe, batch_size=768)


def regnety_16gf(classes: int, image_size: int) -> Teacher:
    """A teacher at the student's resolution (section 3.3), as deit.py's but for its last layer."""
    sizes = TimmSizes(
        parameters=80_565_140 + 3_025 * classes,
        macs={224: 15_908_486_272, 384: 46_731_873_152}[image_size] + 3_024 * classes,
        branches=18,
    )
    model = Timm(
        architecture="regnety_160",
        arguments=(),
        sizes=sizes,
        drop_path=StochasticDepth(rate=0.05, group=8),
        in_chans=3,
        num_classes=classes,
    )
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return Teacher(model, image_size=image_size, mean=mean, std=std, precision="bf16")


def of_distilled_deit(dataset: str, image_size: int, starts_from: str) -> Recipe:
    """DeiT-B with its token: the label and the teacher's answer, half each, as in training."""
    recipe = of_deit(dataset, image_size, starts_from)
    token = DistillationToken(prediction="softmax", decayed=False)
    return replace(
        recipe,
        source=DISTILLED,
        model=replace(recipe.model, distillation=token),
        objectives=(
            replace(SMOOTHED, weight=0.5),
            HardDistillation(weight=0.5, head="distillation"),
        ),
        teacher=regnety_16gf(recipe.data.classes, image_size),
    )


def of_cait(dataset: str, size: str, starts_from: str) -> Recipe:
    """CaiT (table 3.19): lr 1e-3 divided, weight decay 0.05, erasing 0.25 (table 3.9)."""
    *_, classes, divided, epochs = ALL[dataset]
    model = cait(size, group=8, num_classes=classes, in_chans=3)
    data = replace(images(dataset), erasing=0.25)
    return tuned(CAIT, model, data, adamw(1e-3 / divided, 0.05), epochs, starts_from)


def of_resmlp(dataset: str, size: str, starts_from: str) -> Recipe:
    """ResMLP (table 4.4): lr 5e-3 divided and weight decay 0.2 by LAMB (section 4.3.1), stochastic
    depth and erasing of table 3.9, its own crop ratio (repository)."""
    *_, classes, divided, epochs = ALL[dataset]
    model = resmlp(
        size,
        patch_size=16,
        shift=True,
        drop_path=StochasticDepth(rate=0.1, group=8),
        num_classes=classes,
        in_chans=3,
    )
    data = replace(images(dataset), erasing=0.25, test_crop_ratio=0.9)
    return tuned(RESMLP, model, data, lamb(5e-3 / divided, 0.2), epochs, starts_from)


def of_patchconvnet(dataset: str, size: str, image_size: int, starts_from: str) -> Recipe:
    """PatchConvNet (table 5.5): lr 3e-3 divided, weight decay 0.01 (S) or 0.05, neither erasing nor
    repeats, which are for ImageNet-1k alone (section 5.2.3)."""
    *_, classes, divided, epochs = ALL[dataset]
    model = patchconvnet(size, group=8, num_classes=classes, in_chans=3)
    decay = 0.01 if model.embed_dim == 384 else 0.05
    data = replace(images(dataset, image_size), repeats=1)
    return tuned(PATCHCONVNET, model, data, lamb(3e-3 / divided, decay), epochs, starts_from)


def of_deit3(dataset: str, size: str, drop_path: float, starts_from: str) -> Recipe:
    """DeiT III (table 6.11): lr 3e-3 divided, the rest of table 6.1 with the drop-path of 6.14;
    Flowers-102 with attention alone trained (section 6.3.5.1), a crop ratio of 1.0 (table 6.11)."""
    *_, classes, divided, epochs = ALL[dataset]
    model = vit(
        size,
        layer_scale=1e-4,
        drop_path=StochasticDepth(rate=drop_path, group=8),
        num_classes=classes,
        in_chans=3,
    )
    data = replace(images(dataset), augment=ThreeAugment(color_jitter=0.3), test_crop_ratio=1.0)
    source = DEIT3 if dataset in DATASETS else NO_PAPER
    recipe = tuned(source, model, data, lamb(3e-3 / divided, 0.02), epochs, starts_from)
    return replace(
        recipe,
        objectives=(BINARY,),
        clip_norm=1.0,
        trainable="attention" if dataset == "flowers102" else "all",
    )


def recipes() -> dict[str, Recipe]:
    """Every recipe by its name, a row of a table after the other."""
    made: dict[str, Recipe] = {}
    for start, size in (("deit_b16_in1k_224", 224), ("deit_b16_in1k_224_ft384", 384)):
        made |= {f"{start}_ft_{each}": of_deit(each, size, start) for each in DATASETS}
    for start, size in (("deit_b16_in1k_224_token", 224), ("deit_b16_in1k_224_token_ft384", 384)):
        for each in DATASETS:
            made[f"{start}_ft_{each}"] = of_distilled_deit(each, size, start)
    for end in ("", "_hard"):
        for size in ("s36", "m36"):
            start = f"cait_{size}_in1k_224{end}"
            made |= {f"{start}_ft_{each}": of_cait(each, size, start) for each in DATASETS}
    for size in ("s12", "s24"):
        start = f"resmlp_{size}_in1k_224"
        made |= {f"{start}_ft_{each}": of_resmlp(each, size, start) for each in DATASETS}
    for side, ft in ((224, "ft"), (320, "ft320")):
        for size in ("s60", "b120"):
            start = f"patchconvnet_{size}_in1k_224"
            for each in DATASETS:
                made[f"{start}_{ft}_{each}"] = of_patchconvnet(each, size, side, start)
    for size, drop_path in (("s16", 0.0), ("b16", 0.1), ("l16", 0.4)):
        start = f"deit3_{size}_in1k_224"
        made |= {f"{start}_ft_{each}": of_deit3(each, size, drop_path, start) for each in ALL}
    return made


globals().update(recipes())
