"""ResMLP made small, on Fashion-MNIST, by the procedure of `recipes/fashion.py`: average pooling,
class-MLP and LayerNorm (thesis table 4.3). A model takes a minute or two on two cores."""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    ClassMlp,
    Cosine,
    CrossEntropy,
    Images,
    Mix,
    RandomResizedCrop,
    Recipe,
    ResMLP,
    StochasticDepth,
)

MEAN, STD = (0.286, 0.286, 0.286), (0.353, 0.353, 0.353)

fashion_resmlp = Recipe(
    source="bigvit: ResMLP (thesis tables 3.9, 4.3) made small, no paper",
    model=ResMLP(
        patch_size=4,
        embed_dim=64,
        depth=6,
        mlp_ratio=2.0,
        norm="affine",
        communication="linear",
        layer_scale=0.1,
        shift=True,
        pooling=AveragePooling(),
        drop_path=StochasticDepth(rate=0.05, group=8),
        in_chans=3,
        num_classes=10,
    ),
    data=Images(
        dataset="Fashion-MNIST",
        train_images=60_000,
        test_images=10_000,
        held_out=0.0,
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
fashion_resmlp_class_mlp = replace(
    fashion_resmlp, model=replace(fashion_resmlp.model, pooling=ClassMlp(depth=2))
)
fashion_resmlp_layernorm = replace(
    fashion_resmlp, model=replace(fashion_resmlp.model, norm="layer_norm")
)
fashion_resmlp_56 = replace(  # at twice the resolution, from what it learned at 28
    fashion_resmlp,
    data=replace(fashion_resmlp.data, image_size=56),
    schedule=Cosine(epochs=1, warmup_epochs=0, warmup_lr=1e-6, min_lr=1e-5),
    starts_from="fashion_resmlp",
)
