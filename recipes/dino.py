"""DINO (arXiv:2104.14294): training without labels, of ViTs as published and of ResMLP (thesis
section 4.3.2, table 4.2).

Values are those of the authors' repository (facebookresearch/dino: main_dino.py and README.md),
which go by the paper's section 3.2. `_100` is "Vanilla DINO", `_300` "Boosting DINO performance";
others are the paper's epochs. Crops: two of 224 pixels, of which the first is the image itself, and
eight of 96; the table of the ten is the `--help` of local_crops_number.

Their ViT is DeiT's. Ours are: bf16 (theirs is fp16), stochastic depth of groups, and that the norm
of all gradients is clipped (theirs is each parameter's). While the last layer is held, its
gradients are in that norm and in the moments (theirs are not).
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    Cosine,
    Dino,
    Images,
    LinearStochasticDepth,
    Model,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ViewAugment,
    Views,
    deit,
    resmlp,
)

SOURCE = "DINO, arXiv:2104.14294, section 3.2; facebookresearch/dino main_dino.py, README.md"
THESIS = "DINO of ResMLP, thesis section 4.3.2, table 4.2; facebookresearch/dino main_dino.py"


def crop(low: float, high: float) -> RandomResizedCrop:
    return RandomResizedCrop(scale=(low, high), ratio=(3 / 4, 4 / 3), interpolation="bicubic")


def varied(blur: float, solarize: float) -> ViewAugment:
    """DataAugmentationDINO."""
    return ViewAugment(
        jitter=0.8,
        brightness=0.4,
        contrast=0.4,
        saturation=0.2,
        hue=0.1,
        grayscale=0.2,
        blur=blur,
        solarize=solarize,
    )


def images(local: int) -> Images:
    """Args: local: side of the small crops, pixels."""
    large, small = crop(0.4, 1.0), crop(0.05, 0.4)
    return Images(
        dataset="ImageNet-1k",
        train_images=1_281_167,
        test_images=0,  # nothing is classified
        held_out=0.0,
        classes=1000,
        image_size=224,
        crop=large,
        flip=0.5,
        augment=varied(blur=1.0, solarize=0.0),
        erasing=0.0,
        views=(
            Views(1, 224, large, flip=0.5, augment=varied(0.1, 0.2), erasing=0.0),
            Views(8, local, small, flip=0.5, augment=varied(0.5, 0.0), erasing=0.0),
        ),
        level="own",
        repeats=1,
        mix=None,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=0.875,
        decode="exact",
    )


DINO = Dino(
    weight=1.0,
    outputs=65_536,
    hidden_dim=2048,
    hidden_layers=2,
    bottleneck_dim=256,
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
WARM = replace(DINO, teacher_temperature=(0.04, 0.07), warmup_epochs=30)


def pretrain(
    model: Model, epochs: int, dino: Dino, batch: int, local: int = 96, source: str = SOURCE
) -> Recipe:
    """lr 5e-4 x batch / 256; weight decay from 0.04 to 0.4."""
    return Recipe(
        source=source,
        model=model,
        data=images(local),
        objectives=(dino,),
        teacher=None,
        optim=AdamW(
            lr=5e-4 * batch / 256,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.04,
            weight_decay_end=0.4,
        ),
        clip_norm=3.0,
        schedule=Cosine(epochs=epochs, warmup_epochs=10, warmup_lr=0.0, min_lr=1e-6),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=batch,
        precision="bf16",
        gradient_precision="fp32",
        ema=0.996,
        ema_end=1.0,
        seed=0,
    )


S16, B16 = (
    deit(
        size,
        distillation=None,
        drop_path=LinearStochasticDepth(rate=0.1, group=8),
        num_classes=1000,
        in_chans=3,
    )
    for size in ("s16", "b16")
)
dino_vit_s16_in1k_224_100 = pretrain(S16, 100, DINO, batch=512)  # 8 devices of 64
dino_vit_s16_in1k_224_300 = pretrain(S16, 300, replace(WARM, gain="trained"), batch=1024)
dino_vit_s16_in1k_224_800 = pretrain(S16, 800, replace(WARM, gain="trained"), batch=1024)
dino_vit_b16_in1k_224_100 = pretrain(B16, 100, DINO, batch=1024)
dino_vit_b16_in1k_224_300 = pretrain(B16, 300, WARM, batch=1024)

# ResMLP sees images of one size alone, so that its small crops are resized to it: ours, as neither
# the thesis nor the paper says how. All else is ViT-S's of 300 epochs.
DROP = StochasticDepth(rate=0.1, group=8)
S12, S24 = (
    resmlp(size, patch_size=16, shift=True, drop_path=DROP, num_classes=1000, in_chans=3)
    for size in ("s12", "s24")
)
dino_resmlp_s12_in1k_224 = pretrain(S12, 300, WARM, 1024, local=224, source=THESIS)
dino_resmlp_s24_in1k_224 = pretrain(S24, 300, WARM, 1024, local=224, source=THESIS)
