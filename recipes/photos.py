"""A small ViT and a small CaiT in two stages, as DeiT III trains its large ones: at a low
resolution, then briefly at a higher one; and token labelling made small: a ResNet whose label maps
a small LV-ViT learns from. On crops of twelve photographs, which `scripts/photos.py` cuts."""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    BinaryCrossEntropy,
    CaiT,
    ClassAttention,
    ClassToken,
    Cosine,
    CrossEntropy,
    Images,
    LayerScale,
    LinearStochasticDepth,
    LVViT,
    Mix,
    MixToken,
    RandomResizedCrop,
    Recipe,
    ResNet,
    StochasticDepth,
    ThreeAugment,
    TokenLabeling,
    ViT,
)

photos_vit_64 = Recipe(
    source="bigvit: DeiT III's procedure made small, no paper",
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
    optim=AdamW(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
    clip_norm=1.0,
    schedule=Cosine(epochs=12, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
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

photos_vit_64_ft96 = replace(
    photos_vit_64,
    data=replace(photos_vit_64.data, image_size=96),
    optim=AdamW(lr=5e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
    schedule=Cosine(epochs=4, warmup_epochs=0, warmup_lr=1e-6, min_lr=1e-5),
    starts_from="photos_vit_64",
)

photos_cait_64 = replace(
    photos_vit_64,
    source="bigvit: CaiT (thesis section 3.7) made small",
    model=CaiT(
        patch_size=8,
        embed_dim=96,
        depth=4,
        num_heads=2,
        mlp_ratio=3.0,
        talking_heads=True,
        residual=LayerScale(init=1e-1),
        pooling=ClassAttention(depth=2, keys="class and patches"),
        distillation=None,
        dense_head=False,
        drop_path=StochasticDepth(rate=0.05, group=4),
        in_chans=3,
        num_classes=12,
    ),
)

photos_cait_64_ft64x96 = replace(
    photos_vit_64_ft96,
    source=photos_cait_64.source,
    model=photos_cait_64.model,
    data=replace(photos_vit_64.data, image_size=(64, 96)),
    starts_from="photos_cait_64",
)

photos_cait_64_ft96 = replace(
    photos_vit_64_ft96,
    source=photos_cait_64.source,
    model=photos_cait_64.model,
    starts_from="photos_cait_64",
)

photos_resnet_64 = replace(
    photos_vit_64,
    source="bigvit: the teacher of photos_lv_vit_64_tokens, no paper",
    model=ResNet(
        depths=(1, 1),
        pooling=AveragePooling(),
        head_hidden_dim=None,
        frozen_statistics=False,
        in_chans=3,
        num_classes=12,
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
    schedule=Cosine(epochs=8, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
)

LABELS = CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None)
MODEL = LVViT(
    kernels=(7, 3, 4),
    strides=(2, 1, 4),
    filters=12,
    embed_dim=64,
    depth=4,
    num_heads=2,
    mlp_ratio=3.0,
    divisor=2.0,
    dense_head=False,
    drop_path=LinearStochasticDepth(rate=0.05, group=4),
    in_chans=3,
    num_classes=12,
)

photos_lv_vit_64 = replace(
    photos_vit_64,
    source="bigvit: LV-ViT made small, no paper",
    model=MODEL,
    data=replace(photos_vit_64.data, mix=None),
    objectives=(LABELS,),
    schedule=Cosine(epochs=10, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
)

photos_lv_vit_64_tokens = replace(
    photos_lv_vit_64,
    model=replace(MODEL, dense_head=True),
    objectives=(LABELS, TokenLabeling(weight=1.0, smoothing=0.1, labels="map")),
)

photos_lv_vit_64_tokens_mix = replace(
    photos_lv_vit_64_tokens,
    data=replace(photos_vit_64.data, mix=MixToken(alpha=1.0, cell=8, group=4)),
)
