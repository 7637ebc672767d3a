"""Distillation made small: a ResNet of Fashion-MNIST, and a DeiT that learns from labels, from the
ResNet's softmax, from its decision, and from that by a token. A model takes a minute or two on two
cores; `benchmarks/distillation.py` trains them all."""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    Cosine,
    CrossEntropy,
    DeiT,
    DistillationToken,
    HardDistillation,
    Images,
    LinearStochasticDepth,
    Mix,
    RandomResizedCrop,
    Recipe,
    ResNet,
    SoftDistillation,
    Teacher,
)

RESNET = ResNet(
    depths=(1, 1),
    pooling=AveragePooling(),
    head_hidden_dim=None,
    frozen_statistics=False,
    in_chans=3,
    num_classes=10,
)
MEAN, STD = (0.286, 0.286, 0.286), (0.353, 0.353, 0.353)

fashion_deit = Recipe(
    source="bigvit: DeiT's procedure (thesis table 3.9) made small, no paper",
    model=DeiT(
        patch_size=7,
        embed_dim=64,
        depth=6,
        num_heads=4,
        mlp_ratio=2.0,
        distillation=None,
        drop_path=LinearStochasticDepth(rate=0.1, group=8),
        in_chans=3,
        num_classes=10,
    ),
    data=Images(
        dataset="Fashion-MNIST",
        train_images=60_000,
        test_images=10_000,
        classes=10,
        image_size=28,
        crop=RandomResizedCrop(scale=(0.5, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bilinear"),
        flip=0.5,
        augment=None,
        erasing=0.0,
        repeats=1,
        mix=Mix(mixup=0.2, cutmix=1.0, switch=0.5, group=8),
        mean=MEAN,
        std=STD,
        test_crop_ratio=1.0,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
    teacher=None,
    optim=AdamW(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
    clip_norm=1.0,
    schedule=Cosine(epochs=3, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=128,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=0,
)

fashion_resnet = replace(fashion_deit, source="bigvit: the teacher of fashion_deit", model=RESNET)

# lambda and tau are DeiT's (thesis section 3.4.5), and so are the halves (equation 3.3)
TEACHER = Teacher(RESNET, image_size=28, mean=MEAN, std=STD, precision="fp32")
HALF = CrossEntropy(weight=0.5, smoothing=0.1, class_weights=None)
fashion_deit_soft = replace(
    fashion_deit,
    objectives=(
        CrossEntropy(weight=0.9, smoothing=0.1, class_weights=None),
        SoftDistillation(weight=0.1, tau=3.0, mean="images", head="class"),
    ),
    teacher=TEACHER,
)
fashion_deit_hard = replace(
    fashion_deit,
    objectives=(HALF, HardDistillation(weight=0.5, head="class")),
    teacher=TEACHER,
)
fashion_deit_token = replace(
    fashion_deit,
    model=replace(
        fashion_deit.model, distillation=DistillationToken(prediction="softmax", decayed=False)
    ),
    objectives=(HALF, HardDistillation(weight=0.5, head="distillation")),
    teacher=TEACHER,
)
