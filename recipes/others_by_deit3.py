"""Other transformers, as DeiT III trains ViT (thesis table 6.13: 400 epochs at 224, ImageNet-1k).

The models are timm's, with the initial weights that its code gives them. "We have not performed an
extensive grid search to adapt the hyper-parameters to each architecture": all values are those of
`deit3.py`'s recipes at 224. The thesis does not say the stochastic depth; ours is that of ViT-S for
the small models and of ViT-B for the base ones (table 6.14), uniform over depth. Parameters and
multiply-accumulates are counted, as `tests/numerics/test_timm.py` says; the thesis has (millions,
and 10^9): PiT 23.5, 2.9 and 73.8, 12.5; TNT 23.8, 5.2 and 65.6, 14.1; ConViT 27.8, 5.8 and 86.5,
17.5; Swin 49.6, 8.7 and 87.8, 15.4. Ours are the groups and bf16, as there.
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
    Timm,
    TimmSizes,
)

SOURCE = "DeiT III's procedure, thesis tables 6.1, 6.13, 6.14"
SMALL, BASE = 0.0, 0.1  # table 6.14, of ViT-S and ViT-B


def trained(architecture: str, drop_path: float, sizes: TimmSizes) -> Recipe:
    """From scratch on ImageNet-1k: table 6.1; betas, eps, first and last lr: repository."""
    return Recipe(
        source=SOURCE,
        model=Timm(
            architecture=architecture,
            arguments=(),
            sizes=sizes,
            drop_path=StochasticDepth(rate=drop_path, group=8),
            in_chans=3,
            num_classes=1000,
        ),
        data=Images(
            dataset="ImageNet-1k",
            train_images=1_281_167,
            test_images=None,
            classes=1000,
            image_size=224,
            crop=RandomResizedCrop(
                scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"
            ),
            flip=0.5,
            augment=ThreeAugment(color_jitter=0.3),
            erasing=0.0,
            repeats=3,
            mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            test_crop_ratio=1.0,
            decode="exact",
            held_out=0.0,
            views=(),
            level="own",
        ),
        objectives=(
            BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None),
        ),
        teacher=None,
        optim=Lamb(lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.02),
        clip_norm=1.0,
        schedule=Cosine(epochs=400, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=2048,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


pit_s_in1k_224 = trained("pit_s_224", SMALL, TimmSizes(23_461_912, 2_870_796_096, 24))
pit_b_in1k_224 = trained("pit_b_224", BASE, TimmSizes(73_764_840, 12_401_916_928, 26))
tnt_s_in1k_224 = trained("tnt_s_patch16_224", SMALL, TimmSizes(23_768_584, 5_216_875_008, 48))
tnt_b_in1k_224 = trained("tnt_b_patch16_224", BASE, TimmSizes(65_428_680, 14_049_082_880, 48))
convit_s_in1k_224 = trained("convit_small", SMALL, TimmSizes(27_777_322, 5_746_563_360, 24))
convit_b_in1k_224 = trained("convit_base", BASE, TimmSizes(86_540_040, 17_505_452_544, 24))
swin_s_in1k_224 = trained(
    "swin_small_patch4_window7_224", SMALL, TimmSizes(49_606_258, 8_740_875_264, 48)
)
swin_b_in1k_224 = trained(
    "swin_base_patch4_window7_224", BASE, TimmSizes(87_768_224, 15_430_946_816, 48)
)
