"""DeiT III (arXiv:2204.07118; thesis chapter 6).

Where the thesis is silent, the value is that of the authors' repository (facebookresearch/deit).
"""

from bigvit.recipe import (
    BinaryCrossEntropy,
    Cosine,
    Images,
    Lamb,
    Mix,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ThreeAugment,
    vit,
)

deit3_h14_in1k_126 = Recipe(
    source="DeiT III, thesis tables 6.1, 6.6, 6.14",
    model=vit(
        "h14",
        layer_scale=1e-4,  # table 6.1
        drop_path=StochasticDepth(rate=0.5, group=8),  # table 6.14, uniform; the group is ours
        num_classes=1000,
        in_chans=3,
    ),
    data=Images(
        dataset="ImageNet-1k",
        train_images=1_281_167,
        classes=1000,
        image_size=126,  # table 6.6
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=ThreeAugment(color_jitter=0.3),  # table 6.1
        erasing=0.0,
        repeats=3,  # table 6.1, repeated augmentation
        mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),  # table 6.1; the group is ours
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=1.0,  # table 6.1
    ),
    objectives=(BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0),),  # table 6.1
    optim=Lamb(
        lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.02
    ),  # table 6.1; betas, eps: repo
    clip_norm=1.0,  # table 6.1
    schedule=Cosine(
        epochs=400, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5
    ),  # table 6.1; lrs: repo
    trainable="all",
    layer_decay=1.0,
    init=None,
    batch_size=2048,  # table 6.1
    precision="bf16",  # ours; the authors train in fp16
    seed=0,
)
