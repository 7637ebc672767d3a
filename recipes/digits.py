"""Small models on scikit-learn's scanned digits: real training that takes a minute on a CPU."""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    ClassToken,
    Cosine,
    CrossEntropy,
    Digits,
    Recipe,
    StochasticDepth,
    ViT,
)

digits_vit = Recipe(
    source="bigvit: a first run on a CPU, no paper",
    model=ViT(
        patch_size=2,
        embed_dim=64,
        depth=4,
        num_heads=4,
        mlp_ratio=3.0,
        layer_scale=1e-1,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=StochasticDepth(rate=0.05, group=8),
        in_chans=1,
        num_classes=10,
    ),
    data=Digits(
        image_size=8, augment=None, repeats=1, mean=(0.305,), std=(0.376,), views=0, level="digit"
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
    teacher=None,
    optim=AdamW(lr=4e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
    clip_norm=1.0,
    schedule=Cosine(epochs=20, warmup_epochs=2, warmup_lr=1e-6, min_lr=1e-5),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=64,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=0,
)

digits_vit_ft_parity = replace(  # for `bigvit transfer`
    digits_vit,
    source="bigvit: whether a digit is odd or even, tuned from digits_vit, no paper",
    model=replace(digits_vit.model, num_classes=2),
    data=replace(digits_vit.data, level="parity"),
    optim=replace(digits_vit.optim, lr=4e-4),
    schedule=replace(digits_vit.schedule, epochs=5, warmup_epochs=1),
    starts_from="digits_vit",
)
