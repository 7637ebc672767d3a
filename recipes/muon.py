"""Muon and warm-up-stable-decay, on ViTs: ours, no paper. One is made small, on crops of the twelve
photographs that `scripts/photos.py` cuts; the other has not been trained.

Muon's values are those that its authors give (Jordan et al.: momentum 0.95, Nesterov, five steps,
coefficients, bf16). The factor of the learning rate is Moonlight's (arXiv:2502.16982), with which
matrices move as far as under AdamW: learning rate and weight decay are AdamW's on the same model.
The last part of the training decays, a fifth (arXiv:2405.18392, section 3) or a little more.
"""

from bigvit.recipe import (
    BinaryCrossEntropy,
    ClassToken,
    CrossEntropy,
    Images,
    Mix,
    Muon,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ThreeAugment,
    ViT,
    WarmupStableDecay,
)


def muon(lr: float, weight_decay: float) -> Muon:
    """Both as AdamW has them."""
    return Muon(
        lr=lr,
        momentum=0.95,
        nesterov=True,
        ns_steps=5,
        coefficients=(3.4445, -4.7750, 2.0315),
        ns_precision="bf16",
        adjust_lr="match_rms_adamw",
        qkv="split",
        weight_decay=weight_decay,
        adamw_lr_ratio=1.0,
        betas=(0.9, 0.95),  # arXiv:2502.16982, section 2.2
        eps=1e-8,
    )


muon_photos_vit_64 = Recipe(  # all else is photos_vit_64's
    source="bigvit: photos_vit_64 with Muon and warm-up-stable-decay, no paper",
    model=ViT(
        patch_size=8,
        embed_dim=96,
        depth=4,
        num_heads=3,
        mlp_ratio=3.0,
        layer_scale=1e-1,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=StochasticDepth(rate=0.05, group=4),
        in_chans=3,
        num_classes=12,
    ),
    data=Images(
        dataset="crops of twelve photographs",
        train_images=600,
        test_images=None,
        classes=12,
        image_size=64,
        crop=RandomResizedCrop(scale=(0.3, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=ThreeAugment(color_jitter=0.3),
        erasing=0.0,
        repeats=1,
        mix=Mix(mixup=0.2, cutmix=0.0, switch=0.5, group=4),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=1.0,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    ),
    objectives=(BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None),),
    teacher=None,
    optim=muon(lr=2e-3, weight_decay=0.05),
    clip_norm=1.0,
    schedule=WarmupStableDecay(
        epochs=12, warmup_epochs=1, warmup_lr=1e-6, decay_epochs=3, decay="1-sqrt", min_lr=1e-5
    ),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=24,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=0,
)

muon_vit_b16_in1k_224 = Recipe(
    source="bigvit: ViT-B/16 with Muon and warm-up-stable-decay, no paper; not trained so far",
    model=ViT(
        patch_size=16,
        embed_dim=768,
        depth=12,
        num_heads=12,
        mlp_ratio=4.0,
        layer_scale=1e-4,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=StochasticDepth(rate=0.1, group=8),
        in_chans=3,
        num_classes=1000,
    ),
    data=Images(
        dataset="ImageNet-1k",
        train_images=1_281_167,
        test_images=None,
        classes=1000,
        image_size=224,
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=ThreeAugment(color_jitter=0.3),
        erasing=0.0,
        repeats=1,
        mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        test_crop_ratio=1.0,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
    teacher=None,
    optim=muon(lr=2e-3, weight_decay=0.05),  # DeiT's 5e-4 a 512 images, and its decay
    clip_norm=1.0,
    schedule=WarmupStableDecay(
        epochs=300, warmup_epochs=5, warmup_lr=1e-6, decay_epochs=60, decay="1-sqrt", min_lr=1e-5
    ),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=2048,
    precision="bf16",
    gradient_precision="fp32",
    ema=0.9999,
    ema_end=None,
    seed=0,
)
