"""PatchConvNet (arXiv:2112.13692; thesis chapter 5): on ImageNet-1k at 224 and fine-tuned at higher
resolutions, on ImageNet-21k and fine-tuned from there, with BatchNorm (table 5.8), and with one
part changed (table 5.7).

The procedure is section 5.2.3's. Where the thesis is silent the value is that of the authors'
repository (facebookresearch/deit): betas, eps, warm-up, first and last learning rate, RandAugment,
label smoothing, crop ratio. Drop-path is table 5.8's, and 0.1 lower where a model is fine-tuned at
a higher resolution or from ImageNet-21k (section 5.3.4); their code drops at one rate in each block
of the column, and nothing in the pooling. Ours are: the groups of mixing and
stochastic depth (theirs is a micro-batch), bf16 (theirs is fp16), drop-path of L60 and L120 (as B60
and B120 have it), LayerScale of S20, S36 and B36 (as all but S60 have it), that fine-tuning keeps
augmentation and warm-up, its weight decay from ImageNet-21k, and what is marked so.
"""

from dataclasses import replace

from bigvit.recipe import (
    AttentionPooling,
    AveragePooling,
    Cosine,
    CrossEntropy,
    Images,
    Lamb,
    Mix,
    PatchConvNet,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    patchconvnet,
)

TABLE_5_1 = "PatchConvNet, thesis section 5.2.3, tables 5.1, 5.8"
TABLE_5_2 = "PatchConvNet, thesis section 5.2.3, tables 5.2, 5.8"
TABLE_5_7 = "PatchConvNet, thesis section 5.2.3, tables 5.7, 5.8"
TABLE_5_8 = "PatchConvNet, thesis section 5.2.3, table 5.8"
HIGHER = "PatchConvNet, thesis sections 5.2.3, 5.3.4, tables 5.2, 5.8"
TO_CLASSES = (
    "PatchConvNet, thesis sections 5.2.1, 5.2.3; facebookresearch/deit README_patchconvnet.md"
)
RESNET_STRIKES_BACK = f"{TABLE_5_1}; its [215], arXiv:2110.00476, table 2"

IMAGES = Images(
    dataset="ImageNet-1k",
    train_images=1_281_167,
    test_images=None,
    classes=1000,
    image_size=224,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=RandAugment(  # rand-m9-mstd0.5-inc1, as in chapter 3 and the repository
        operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True
    ),
    erasing=0.0,  # section 5.2.3
    repeats=3,  # section 5.2.3: with this data set alone
    mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),  # section 5.2.3; the group is ours
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop_ratio=0.875,  # repository
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)
# the release of fall 2011, as in deit3.py; it has no test images
IMAGES_21K = replace(
    IMAGES,
    dataset="ImageNet-21k",
    train_images=14_197_122,
    test_images=0,
    classes=21_841,
    repeats=1,
)


def of_size(size: str, num_classes: int = 1000) -> PatchConvNet:
    """A model of section 5.2.2; the group is ours."""
    return patchconvnet(size, group=8, num_classes=num_classes, in_chans=3)


def pretrain(source: str, model: PatchConvNet) -> Recipe:
    """From scratch on ImageNet-1k at 224: section 5.2.3."""
    return Recipe(
        source=source,
        model=model,
        data=IMAGES,
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=Lamb(
            lr=3e-3,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.01 if model.embed_dim == 384 else 0.05,
        ),
        clip_norm=None,
        schedule=Cosine(epochs=400, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",  # there are no positions
        batch_size=2048,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def pretrain_21k(size: str) -> Recipe:
    """On ImageNet-21k at 224, by batches of 2048: section 5.2.3."""
    recipe = pretrain(TABLE_5_2, of_size(size, IMAGES_21K.classes))
    return replace(
        recipe,
        data=IMAGES_21K,
        optim=replace(recipe.optim, weight_decay=0.01),
        schedule=replace(recipe.schedule, epochs=90),
    )


def larger_batches(recipe: Recipe) -> Recipe:
    """The same by batches of 4096: section 5.2.3."""
    return replace(recipe, batch_size=4096, optim=replace(recipe.optim, lr=4e-3))


def less_dropped(model: PatchConvNet) -> PatchConvNet:
    """Drop-path 0.1 lower: section 5.3.4; but not below 0."""
    rate = max(0.0, round(model.drop_path.rate - 0.1, 2))
    return replace(model, drop_path=replace(model.drop_path, rate=rate))


def higher(size: str, image_size: int, starts_from: str) -> Recipe:
    """At a higher resolution: section 5.2.3; that the learning rate is constant after the warm-up
    follows from the repository's last one, 1e-5."""
    recipe = pretrain(HIGHER, less_dropped(of_size(size)))
    return replace(
        recipe,
        data=replace(IMAGES, image_size=image_size),
        optim=replace(recipe.optim, lr=1e-5, weight_decay=0.01),
        schedule=replace(recipe.schedule, epochs=10),
        starts_from=starts_from,
        batch_size=1024,
    )


def from_21k(size: str, image_size: int) -> Recipe:
    """From ImageNet-21k to ImageNet-1k: section 5.2.3; weight decay: ours, as at higher ones."""
    recipe = pretrain(TABLE_5_2, less_dropped(of_size(size)))
    return replace(
        recipe,
        data=replace(IMAGES, image_size=image_size),
        optim=replace(recipe.optim, lr=5e-4, weight_decay=0.01),
        schedule=replace(recipe.schedule, epochs=100),
        starts_from=f"patchconvnet_{size}_in21k_224",
        batch_size=1024,
    )


def at_224(size: str) -> Recipe:
    return pretrain(TABLE_5_1, of_size(size))


def at_higher(size: str, image_size: int) -> Recipe:
    return higher(size, image_size, f"patchconvnet_{size}_in1k_224")


def with_batch_norm(size: str) -> Recipe:
    """BatchNorm before the column's branches (table 5.8); the pooling and the last norm keep
    LayerNorm (ours: the thesis does not say)."""
    return pretrain(TABLE_5_8, replace(of_size(size), norm="batch"))


S60 = of_size("s60")
EIGHT_HEADS = AttentionPooling(heads=8, queries="one", mlp_ratio=3.0, layer_scale=1e-4)
PER_CLASS = AttentionPooling(heads=1, queries="classes", mlp_ratio=3.0, layer_scale=1e-4)


patchconvnet_s20_in1k_224 = at_224("s20")
patchconvnet_s36_in1k_224 = at_224("s36")
patchconvnet_s60_in1k_224 = at_224("s60")
patchconvnet_s120_in1k_224 = at_224("s120")
patchconvnet_b36_in1k_224 = at_224("b36")
patchconvnet_b60_in1k_224 = at_224("b60")
patchconvnet_b120_in1k_224 = at_224("b120")

patchconvnet_s20_in1k_224_ft384 = at_higher("s20", 384)
patchconvnet_s36_in1k_224_ft384 = at_higher("s36", 384)
patchconvnet_s60_in1k_224_ft384 = at_higher("s60", 384)
patchconvnet_s60_in1k_224_ft512 = at_higher("s60", 512)
patchconvnet_s120_in1k_224_ft384 = at_higher("s120", 384)
patchconvnet_b36_in1k_224_ft384 = at_higher("b36", 384)
patchconvnet_b60_in1k_224_ft384 = at_higher("b60", 384)
patchconvnet_b120_in1k_224_ft384 = at_higher("b120", 384)

# Table 5.2: at 384 and below from ImageNet-21k, above from 384 (section 5.3.2).
patchconvnet_s60_in21k_224 = pretrain_21k("s60")
patchconvnet_b60_in21k_224 = pretrain_21k("b60")
patchconvnet_b120_in21k_224 = pretrain_21k("b120")
patchconvnet_l60_in21k_224 = pretrain_21k("l60")
patchconvnet_l120_in21k_224 = pretrain_21k("l120")
patchconvnet_s60_in21k_224_ft224 = from_21k("s60", 224)
patchconvnet_s60_in21k_224_ft288 = from_21k("s60", 288)
patchconvnet_s60_in21k_224_ft384 = from_21k("s60", 384)
patchconvnet_s60_in21k_224_ft512 = higher("s60", 512, "patchconvnet_s60_in21k_224_ft384")
patchconvnet_b60_in21k_224_ft224 = from_21k("b60", 224)
patchconvnet_b60_in21k_224_ft288 = from_21k("b60", 288)
patchconvnet_b60_in21k_224_ft384 = from_21k("b60", 384)
patchconvnet_b120_in21k_224_ft224 = from_21k("b120", 224)
patchconvnet_b120_in21k_224_ft288 = from_21k("b120", 288)
patchconvnet_b120_in21k_224_ft384 = from_21k("b120", 384)
patchconvnet_l60_in21k_224_ft224 = from_21k("l60", 224)
patchconvnet_l60_in21k_224_ft288 = from_21k("l60", 288)
patchconvnet_l60_in21k_224_ft384 = from_21k("l60", 384)
patchconvnet_l120_in21k_224_ft224 = from_21k("l120", 224)
patchconvnet_l120_in21k_224_ft288 = from_21k("l120", 288)
patchconvnet_l120_in21k_224_ft384 = from_21k("l120", 384)
patchconvnet_s60_in21k_224_4096 = larger_batches(patchconvnet_s60_in21k_224)
patchconvnet_b60_in21k_224_4096 = larger_batches(patchconvnet_b60_in21k_224)
patchconvnet_b120_in21k_224_4096 = larger_batches(patchconvnet_b120_in21k_224)
patchconvnet_l60_in21k_224_4096 = larger_batches(patchconvnet_l60_in21k_224)
patchconvnet_l120_in21k_224_4096 = larger_batches(patchconvnet_l120_in21k_224)

patchconvnet_s20_bn_in1k_224 = with_batch_norm("s20")
patchconvnet_s36_bn_in1k_224 = with_batch_norm("s36")
patchconvnet_s60_bn_in1k_224 = with_batch_norm("s60")
patchconvnet_s120_bn_in1k_224 = with_batch_norm("s120")
patchconvnet_b36_bn_in1k_224 = with_batch_norm("b36")
patchconvnet_b60_bn_in1k_224 = with_batch_norm("b60")
patchconvnet_b120_bn_in1k_224 = with_batch_norm("b120")

# Table 5.7; its row of BatchNorm is table 5.8's. Eight heads are CaiT's 48 channels each (ours).
patchconvnet_s60_average_in1k_224 = pretrain(TABLE_5_7, replace(S60, pooling=AveragePooling()))
patchconvnet_s60_linear_in1k_224 = pretrain(TABLE_5_7, replace(S60, stem="linear"))
patchconvnet_s60_heads_in1k_224 = pretrain(TABLE_5_7, replace(S60, pooling=EIGHT_HEADS))
patchconvnet_s60_classes_in1k_224 = pretrain(TABLE_5_7, replace(S60, pooling=PER_CLASS))
# "... in a fine-tuning stage with a lower learning rate and smaller batch size" (section 5.2.1): as
# at a higher resolution (ours); --init takes the one query for every class's.
patchconvnet_s60_in1k_224_classes = replace(
    patchconvnet_s60_in1k_224_ft384,
    source=TO_CLASSES,
    data=IMAGES,
    model=replace(less_dropped(S60), pooling=PER_CLASS),
)
# The thesis says "the RandAugment variant by Wightman et al.", whose longest procedures (A1, A2)
# have magnitude 7.
patchconvnet_s60_in1k_224_m7 = replace(
    patchconvnet_s60_in1k_224,
    source=RESNET_STRIKES_BACK,
    data=replace(
        IMAGES,
        augment=RandAugment(operations=2, magnitude=7.0, magnitude_std=0.5, increasing=True),
    ),
)
