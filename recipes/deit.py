"""DeiT (arXiv:2012.12877; thesis sections 3.3, 3.4), without a teacher and distilled, and the
teacher, RegNetY-16GF.

A name without a word for it is trained by labels alone; `_soft` learns from the teacher's softmax
(equation 3.2), `_hard` from its decision (equation 3.3), `_token` from its decision by a token of
its own. The names omit the usual 300 epochs. Where the thesis is silent, the value is that of the
repository (facebookresearch/deit, README_deit.md at 7e160fe); where the two differ, the
repository's is a recipe of its own, named `_repo`. Ours are: the groups of mixing and stochastic
depth (theirs is a micro-batch), bf16 (theirs is fp16), also the teacher's, that the distillation
token is not decayed (theirs is), that positions are resampled with antialiasing (theirs, and the
`_repo` recipes', without), and what is marked so. Gradients are float32, as theirs are.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    Cosine,
    CrossEntropy,
    DeiT,
    DistillationToken,
    HardDistillation,
    Images,
    LinearStochasticDepth,
    Mix,
    Objective,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    SoftDistillation,
    StochasticDepth,
    Teacher,
    Timm,
    TimmSizes,
    deit,
)

TABLE_3_9 = "DeiT, thesis tables 3.1, 3.3, 3.5, 3.9, section 3.4.5; facebookresearch/deit"
FINETUNE = "DeiT, thesis tables 3.3, 3.9, 3.10, section 3.4.5; facebookresearch/deit"
REPO = "DeiT, facebookresearch/deit README_deit.md, main.py, losses.py"
TEACHER = "the teacher of DeiT, thesis section 3.4.2, tables 3.2, 3.9"

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = Images(
    dataset="ImageNet-1k",
    train_images=1_281_167,
    test_images=None,
    classes=1000,
    image_size=224,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=RandAugment(  # table 3.9: 9/0.5; rand-m9-mstd0.5-inc1
        operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True
    ),
    erasing=0.25,  # table 3.9
    repeats=3,  # section 3.4.5
    mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),  # table 3.9; the group is ours
    mean=MEAN,
    std=STD,
    test_crop_ratio=0.875,  # repository
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)

# Counted of timm's model. Its stochastic depth is DeiT's where that is uniform (table 3.11); for
# the teacher's own training alone (ours: the thesis says "the same data and data-augmentation").
REGNETY_16GF = Timm(
    architecture="regnety_160",
    arguments=(),
    sizes=TimmSizes(parameters=83_590_140, macs=15_911_510_272, branches=18),
    drop_path=StochasticDepth(rate=0.05, group=8),
    in_chans=3,
    num_classes=1000,
)

TOKEN = DistillationToken(prediction="softmax", decayed=False)  # section 3.3
TOKEN_REPO = DistillationToken(prediction="logits", decayed=True)
LABELS = CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None)  # table 3.9
HALF = replace(LABELS, weight=0.5)  # equation 3.3; the repository's alpha of 0.5

METHODS: dict[str, tuple[tuple[Objective, ...], DistillationToken | None]] = {
    "labels": ((LABELS,), None),
    # lambda 0.1, tau 3 (section 3.4.5)
    "soft": (
        (
            replace(LABELS, weight=0.9),
            SoftDistillation(weight=0.1, tau=3.0, mean="images", head="class"),
        ),
        None,
    ),
    "hard": ((HALF, HardDistillation(weight=0.5, head="class")), None),
    "token": ((HALF, HardDistillation(weight=0.5, head="distillation")), TOKEN),
    # the repository distills nothing but the token's head
    "token_repo": ((HALF, HardDistillation(weight=0.5, head="distillation")), TOKEN_REPO),
    "token_soft_repo": (
        (
            HALF,
            SoftDistillation(weight=0.5, tau=1.0, mean="images and classes", head="distillation"),
        ),
        TOKEN_REPO,
    ),
}


def teacher(image_size: int) -> Teacher:
    """RegNetY-16GF at the student's resolution (section 3.3), weights and products in bf16."""
    return Teacher(REGNETY_16GF, image_size=image_size, mean=MEAN, std=STD, precision="bf16")


def model(size: str, method: str, drop_path: float) -> DeiT:
    """A model of table 3.1."""
    return deit(
        size,
        distillation=METHODS[method][1],
        drop_path=LinearStochasticDepth(rate=drop_path, group=8),
        num_classes=1000,
        in_chans=3,
    )


def pretrain(size: str, method: str, epochs: int = 300, source: str = TABLE_3_9) -> Recipe:
    """From scratch at 224: table 3.9; betas, eps, first and last lr: repository."""
    return Recipe(
        source=source,
        model=model(size, method, drop_path=0.1),
        data=IMAGES,
        objectives=METHODS[method][0],
        teacher=None if method == "labels" else teacher(224),
        optim=AdamW(
            lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),  # 5e-4 x 1024 / 512
        clip_norm=None,
        schedule=Cosine(epochs=epochs, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="plain" if source == REPO else "antialiased",
        batch_size=1024,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def finetune(
    size: str,
    method: str,
    image_size: int,
    starts_from: str,
    *,
    epochs: int = 25,
    source: str = FINETUNE,
) -> Recipe:
    """At another resolution, with the augmentation of pre-training and a teacher of the same
    resolution: section 3.4.5, 25 epochs; batch, lr and weight decay: repository. Its model is in
    evaluation mode then, so nothing is dropped; its lr is constant after the warm-up."""
    return Recipe(
        source=source,
        model=model(size, method, drop_path=0.0),
        data=replace(IMAGES, image_size=image_size),
        objectives=METHODS[method][0],
        teacher=None if method == "labels" else teacher(image_size),
        optim=AdamW(
            lr=5e-6, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-8, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Cosine(epochs=epochs, warmup_epochs=5, warmup_lr=1e-6, min_lr=5e-6),
        trainable="all",
        layer_decay=1.0,
        starts_from=starts_from,
        resampling="plain" if source == REPO else "antialiased",
        batch_size=512,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


# The teacher, by DeiT's procedure, as its authors trained it (section 3.4.2).
regnety_16gf_in1k_224 = replace(pretrain("b16", "labels", source=TEACHER), model=REGNETY_16GF)

# Table 3.3 at 224, and 1,000 epochs (table 3.5, figure 3.2).
deit_ti16_in1k_224 = pretrain("ti16", "labels")
deit_ti16_in1k_224_soft = pretrain("ti16", "soft")
deit_ti16_in1k_224_hard = pretrain("ti16", "hard")
deit_ti16_in1k_224_token = pretrain("ti16", "token")
deit_ti16_in1k_224_1000e = pretrain("ti16", "labels", 1000)
deit_ti16_in1k_224_1000e_soft = pretrain("ti16", "soft", 1000)
deit_ti16_in1k_224_1000e_hard = pretrain("ti16", "hard", 1000)
deit_ti16_in1k_224_1000e_token = pretrain("ti16", "token", 1000)
deit_s16_in1k_224 = pretrain("s16", "labels")
deit_s16_in1k_224_soft = pretrain("s16", "soft")
deit_s16_in1k_224_hard = pretrain("s16", "hard")
deit_s16_in1k_224_token = pretrain("s16", "token")
deit_s16_in1k_224_1000e = pretrain("s16", "labels", 1000)
deit_s16_in1k_224_1000e_soft = pretrain("s16", "soft", 1000)
deit_s16_in1k_224_1000e_hard = pretrain("s16", "hard", 1000)
deit_s16_in1k_224_1000e_token = pretrain("s16", "token", 1000)
deit_b16_in1k_224 = pretrain("b16", "labels")
deit_b16_in1k_224_soft = pretrain("b16", "soft")
deit_b16_in1k_224_hard = pretrain("b16", "hard")
deit_b16_in1k_224_token = pretrain("b16", "token")
deit_b16_in1k_224_1000e = pretrain("b16", "labels", 1000)
deit_b16_in1k_224_1000e_soft = pretrain("b16", "soft", 1000)
deit_b16_in1k_224_1000e_hard = pretrain("b16", "hard", 1000)
deit_b16_in1k_224_1000e_token = pretrain("b16", "token", 1000)

# ... and then at 384 (tables 3.3, 3.5), and at table 3.10's other sizes.
deit_b16_in1k_224_ft160 = finetune("b16", "labels", 160, "deit_b16_in1k_224")
deit_b16_in1k_224_ft320 = finetune("b16", "labels", 320, "deit_b16_in1k_224")
deit_b16_in1k_224_ft384 = finetune("b16", "labels", 384, "deit_b16_in1k_224")
deit_b16_in1k_224_soft_ft384 = finetune("b16", "soft", 384, "deit_b16_in1k_224_soft")
deit_b16_in1k_224_hard_ft384 = finetune("b16", "hard", 384, "deit_b16_in1k_224_hard")
deit_b16_in1k_224_token_ft384 = finetune("b16", "token", 384, "deit_b16_in1k_224_token")
deit_b16_in1k_224_1000e_ft384 = finetune("b16", "labels", 384, "deit_b16_in1k_224_1000e")
deit_b16_in1k_224_1000e_soft_ft384 = finetune("b16", "soft", 384, "deit_b16_in1k_224_1000e_soft")
deit_b16_in1k_224_1000e_hard_ft384 = finetune("b16", "hard", 384, "deit_b16_in1k_224_1000e_hard")
deit_b16_in1k_224_1000e_token_ft384 = finetune("b16", "token", 384, "deit_b16_in1k_224_1000e_token")

# Table 3.8's row that is not one option more (docs/distillation.md has the others).
deit_b16_in1k_224_no_randaugment = replace(
    deit_b16_in1k_224,
    source="DeiT, thesis tables 3.8, 3.9; facebookresearch/deit",
    data=replace(IMAGES, augment=None),
)

# The repository's commands, whose --distillation-type may also be soft. Without a teacher they
# agree with the thesis. They refuse to distill while fine-tuning.
deit_b16_in1k_224_token_repo = pretrain("b16", "token_repo", source=REPO)
deit_b16_in1k_224_token_soft_repo = pretrain("b16", "token_soft_repo", source=REPO)
deit_b16_in1k_224_ft384_repo = finetune(
    "b16", "labels", 384, "deit_b16_in1k_224", epochs=30, source=REPO
)
