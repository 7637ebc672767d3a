"""PatchConvNet, ResMLP and ResNet made small, pooled in several ways (thesis sections 4.2, 5.2.1):
on crops of twelve photographs, which `scripts/photos.py` cuts, and on Fashion-MNIST. A model takes
about a minute on one core; `benchmarks/pooling.py` trains them all."""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AttentionPooling,
    AveragePooling,
    ClassMlp,
    Cosine,
    CrossEntropy,
    Images,
    Mix,
    Model,
    PatchConvNet,
    RandomResizedCrop,
    Recipe,
    ResMLP,
    ResNet,
    StochasticDepth,
)

DROP_PATH = StochasticDepth(rate=0.05, group=8)
ONE = AttentionPooling(heads=1, queries="one", mlp_ratio=3.0, layer_scale=0.1)
CLASSES = replace(ONE, queries="classes")


def of_photographs(model: Model) -> Recipe:
    """At 64 pixels, 12 classes of 50 images."""
    return Recipe(
        source="bigvit: thesis chapters 4 and 5 made small, no paper",
        model=model,
        data=Images(
            dataset="crops of twelve photographs",
            train_images=600,
            test_images=None,
            classes=12,
            image_size=64,
            crop=RandomResizedCrop(scale=(0.3, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
            flip=0.5,
            augment=None,
            erasing=0.0,
            repeats=1,
            mix=None,
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
        optim=AdamW(
            lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=1.0,
        schedule=Cosine(epochs=10, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
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


def of_fashion(model: Model) -> Recipe:
    """At 28 pixels, 10 classes of 6,000 images, one epoch."""
    before = of_photographs(model)
    return replace(
        before,
        data=replace(
            before.data,
            dataset="Fashion-MNIST",
            train_images=60_000,
            test_images=10_000,
            classes=10,
            image_size=28,
            crop=RandomResizedCrop(scale=(0.5, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
            mix=Mix(mixup=0.2, cutmix=0.0, switch=0.5, group=8),
            mean=(0.286, 0.286, 0.286),
            std=(0.353, 0.353, 0.353),
        ),
        schedule=Cosine(epochs=1, warmup_epochs=0, warmup_lr=1e-6, min_lr=1e-5),
        batch_size=128,
    )


def resmlp(patch: int, pooling: AveragePooling | ClassMlp, num_classes: int) -> ResMLP:
    """Six blocks, 64 channels."""
    return ResMLP(
        patch_size=patch,
        embed_dim=64,
        depth=6,
        mlp_ratio=2.0,
        norm="affine",
        communication="linear",
        layer_scale=0.1,
        shift=True,
        pooling=pooling,
        drop_path=DROP_PATH,
        in_chans=3,
        num_classes=num_classes,
    )


def patchconvnet(
    patch: int, pooling: AveragePooling | AttentionPooling, num_classes: int
) -> PatchConvNet:
    """Six blocks, 64 channels."""
    return PatchConvNet(
        patch_size=patch,
        stem="convolutions",
        embed_dim=64,
        depth=6,
        norm="layer",
        layer_scale=0.1,
        pooling=pooling,
        drop_path=DROP_PATH,
        in_chans=3,
        num_classes=num_classes,
    )


def resnet(pooling: AveragePooling | AttentionPooling, num_classes: int) -> ResNet:
    """Two bottleneck blocks."""
    return ResNet(
        depths=(1, 1),
        pooling=pooling,
        head_hidden_dim=None,
        frozen_statistics=False,
        in_chans=3,
        num_classes=num_classes,
    )


pooled_photos_resmlp_mean = of_photographs(resmlp(8, AveragePooling(), 12))
pooled_photos_resmlp_class_mlp = of_photographs(resmlp(8, ClassMlp(depth=2), 12))
pooled_photos_pcn_mean = of_photographs(patchconvnet(8, AveragePooling(), 12))
pooled_photos_pcn_attention = of_photographs(patchconvnet(8, ONE, 12))
pooled_photos_pcn_classes = of_photographs(patchconvnet(8, CLASSES, 12))
pooled_photos_resnet_mean = of_photographs(resnet(AveragePooling(), 12))
pooled_photos_resnet_attention = of_photographs(resnet(ONE, 12))

pooled_fashion_resmlp_mean = of_fashion(resmlp(4, AveragePooling(), 10))
pooled_fashion_resmlp_class_mlp = of_fashion(resmlp(4, ClassMlp(depth=2), 10))
pooled_fashion_pcn_mean = of_fashion(patchconvnet(4, AveragePooling(), 10))
pooled_fashion_pcn_attention = of_fashion(patchconvnet(4, ONE, 10))
pooled_fashion_pcn_classes = of_fashion(patchconvnet(4, CLASSES, 10))
pooled_fashion_resnet_mean = of_fashion(resnet(AveragePooling(), 10))
pooled_fashion_resnet_attention = of_fashion(resnet(ONE, 10))
