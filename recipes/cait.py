"""CaiT (arXiv:2103.17239; thesis chapter 3), the path from DeiT-S, and CaiT by DeiT III's way.

The procedure is DeiT's (thesis tables 3.9, 3.16, section 3.7). Where the thesis is silent the value
is that of the authors' repository (facebookresearch/deit). Ours are: the groups of mixing and
stochastic depth (theirs is a micro-batch), bf16 (theirs is fp16), and what is marked so. Gradients
are float32, as theirs are: torch.cuda.amp keeps weights, and so gradients, in float32. The
distilled models (`_hard`; `_token`: table 3.14) learn from RegNetY-16GF, whose recipe is
`regnety_16gf_in1k_224`. Token labelling (`_tokens`) is ours: no paper has trained these models so.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    BinaryCrossEntropy,
    CaiT,
    ClassAttention,
    ClassToken,
    Cosine,
    CrossEntropy,
    DistillationToken,
    HardDistillation,
    Images,
    Lamb,
    LayerScale,
    Mix,
    MixToken,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    Teacher,
    ThreeAugment,
    Timm,
    TimmSizes,
    TokenLabeling,
    Unscaled,
    cait,
)

TABLE_3_16 = "CaiT, thesis tables 3.9, 3.15, 3.16, section 3.7"
TABLE_3_14 = "CaiT, thesis tables 3.9, 3.14, 3.15, 3.16, sections 3.6.3, 3.7"
TABLE_3_20 = "CaiT, thesis tables 3.9, 3.20"
FINETUNE = "CaiT, thesis tables 3.15, 3.17, section 3.7; facebookresearch/deit, its issues"
TOKENS = "bigvit: CaiT, thesis tables 3.9, 3.16, with LV-ViT's token labelling, no paper"
TABLE_6_13 = "CaiT by DeiT III's procedure, thesis tables 6.1, 6.13, section 6.3.5.3"

REGNETY_16GF = Timm(  # the teacher
    architecture="regnety_160",
    arguments=(),
    sizes=TimmSizes(parameters=83_590_140, macs=15_911_510_272, branches=18),
    drop_path=StochasticDepth(rate=0.05, group=8),
    in_chans=3,
    num_classes=1000,
)
HARD = HardDistillation(weight=0.5, head="class")  # equation 3.3
IMAGES = Images(
    dataset="ImageNet-1k",
    train_images=1_281_167,
    test_images=None,
    classes=1000,
    image_size=224,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=RandAugment(  # rand-m9-mstd0.5-inc1
        operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True
    ),
    erasing=0.25,
    repeats=3,
    mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=8),  # the group is ours
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop_ratio=1.0,  # section 3.7.2.3
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)


def pretrain(source: str, model: CaiT, *, epochs: int, test_crop_ratio: float) -> Recipe:
    """From scratch at 224: section 3.7 and table 3.9; betas, eps, first and last lr: repository."""
    return Recipe(
        source=source,
        model=model,
        data=replace(IMAGES, test_crop_ratio=test_crop_ratio),
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=AdamW(
            lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Cosine(epochs=epochs, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=1024,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def finetune(
    model: CaiT, image_size: int, starts_from: str, *, drop_path: float, crop_ratio: float
) -> Recipe:
    """At a higher resolution, as the authors say they trained M-48 at 448: batch 256, lr 5e-6, 60
    epochs, weight decay 0.05. That the lr is constant after the warm-up is the repository's way
    with DeiT; the rest is as in pre-training."""
    return Recipe(
        source=FINETUNE,
        model=replace(model, drop_path=replace(model.drop_path, rate=drop_path)),
        data=replace(IMAGES, image_size=image_size, test_crop_ratio=crop_ratio),
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=AdamW(
            lr=5e-6, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Cosine(epochs=60, warmup_epochs=5, warmup_lr=1e-6, min_lr=5e-6),
        trainable="all",
        layer_decay=1.0,
        starts_from=starts_from,
        resampling="antialiased",
        batch_size=256,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def of_size(size: str, distillation: DistillationToken | None = None) -> CaiT:
    """A model of table 3.15 with the values of table 3.16; the group is ours."""
    model = cait(size, group=8, num_classes=1000, in_chans=3)
    return replace(model, distillation=distillation)


def at_224(size: str) -> Recipe:
    return pretrain(TABLE_3_16, of_size(size), epochs=400, test_crop_ratio=1.0)


def higher(size: str, image_size: int, *, drop_path: float) -> Recipe:
    starts_from = f"cait_{size}_in1k_224"
    return finetune(of_size(size), image_size, starts_from, drop_path=drop_path, crop_ratio=1.0)


def hard(recipe: Recipe, taught: HardDistillation = HARD) -> Recipe:
    """The same by hard distillation (section 3.7; equation 3.3), from RegNetY-16GF at the same
    resolution (section 3.3), with weights and products in bf16 (ours)."""
    half = CrossEntropy(weight=0.5, smoothing=0.1, class_weights=None)
    starts_from = recipe.starts_from and f"{recipe.starts_from}_hard"
    size = recipe.data.image_size
    return replace(
        recipe,
        objectives=(half, taught),
        teacher=Teacher(REGNETY_16GF, size, IMAGES.mean, IMAGES.std, precision="bf16"),
        starts_from=starts_from,
    )


def with_token(size: str) -> Recipe:
    """Distilled by a token at the class token's place (table 3.14). That both heads predict by the
    sum of their softmaxes is DeiT's way (section 3.3); that the token is not decayed is ours."""
    token = DistillationToken(prediction="softmax", decayed=False)
    recipe = pretrain(TABLE_3_14, of_size(size, token), epochs=400, test_crop_ratio=1.0)
    return hard(recipe, replace(HARD, head="distillation"))


def tokens(size: str) -> Recipe:
    """The same by label maps (`--label-maps`), with MixToken in place of mixup and CutMix (ours):
    losses, smoothing and MixToken's alpha as LV-ViT's (recipes/lv_vit.py)."""
    before = at_224(size)
    return replace(
        before,
        source=TOKENS,
        model=replace(of_size(size), dense_head=True),
        data=replace(before.data, mix=MixToken(alpha=1.0, cell=16, group=8)),
        objectives=(
            CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
            TokenLabeling(weight=1.0, smoothing=0.1, labels="map"),
        ),
    )


cait_xxs24_in1k_224 = at_224("xxs24")
cait_xxs36_in1k_224 = at_224("xxs36")
cait_xs24_in1k_224 = at_224("xs24")
cait_xs36_in1k_224 = at_224("xs36")
cait_s24_in1k_224 = at_224("s24")
cait_s36_in1k_224 = at_224("s36")
cait_s48_in1k_224 = at_224("s48")
cait_m24_in1k_224 = at_224("m24")
cait_m36_in1k_224 = at_224("m36")
cait_m48_in1k_224 = at_224("m48")

# ... and then at a higher resolution. Drop-path: of M-48 as the authors say, 0.1 below that of
# pre-training; the others' the same way (ours), but not below 0.
cait_xxs24_in1k_224_ft384 = higher("xxs24", 384, drop_path=0.0)
cait_xxs36_in1k_224_ft384 = higher("xxs36", 384, drop_path=0.0)
cait_xs24_in1k_224_ft384 = higher("xs24", 384, drop_path=0.0)
cait_xs36_in1k_224_ft384 = higher("xs36", 384, drop_path=0.0)
cait_s24_in1k_224_ft384 = higher("s24", 384, drop_path=0.0)
cait_s36_in1k_224_ft384 = higher("s36", 384, drop_path=0.1)
cait_s48_in1k_224_ft384 = higher("s48", 384, drop_path=0.2)
cait_m24_in1k_224_ft384 = higher("m24", 384, drop_path=0.1)
cait_m36_in1k_224_ft384 = higher("m36", 384, drop_path=0.2)
cait_m36_in1k_224_ft448 = higher("m36", 448, drop_path=0.2)
cait_m48_in1k_224_ft448 = higher("m48", 448, drop_path=0.3)

# The distilled models (table 3.15; M-48: section 3.7.1.2), and those of table 3.14 with a token.
cait_xxs24_in1k_224_hard = hard(cait_xxs24_in1k_224)
cait_xxs36_in1k_224_hard = hard(cait_xxs36_in1k_224)
cait_xs24_in1k_224_hard = hard(cait_xs24_in1k_224)
cait_xs36_in1k_224_hard = hard(cait_xs36_in1k_224)
cait_s24_in1k_224_hard = hard(cait_s24_in1k_224)
cait_s36_in1k_224_hard = hard(cait_s36_in1k_224)
cait_s48_in1k_224_hard = hard(cait_s48_in1k_224)
cait_m24_in1k_224_hard = hard(cait_m24_in1k_224)
cait_m36_in1k_224_hard = hard(cait_m36_in1k_224)
cait_m48_in1k_224_hard = hard(cait_m48_in1k_224)
cait_xxs24_in1k_224_hard_ft384 = hard(cait_xxs24_in1k_224_ft384)
cait_xxs36_in1k_224_hard_ft384 = hard(cait_xxs36_in1k_224_ft384)
cait_xs24_in1k_224_hard_ft384 = hard(cait_xs24_in1k_224_ft384)
cait_xs36_in1k_224_hard_ft384 = hard(cait_xs36_in1k_224_ft384)
cait_s24_in1k_224_hard_ft384 = hard(cait_s24_in1k_224_ft384)
cait_s36_in1k_224_hard_ft384 = hard(cait_s36_in1k_224_ft384)
cait_s48_in1k_224_hard_ft384 = hard(cait_s48_in1k_224_ft384)
cait_m24_in1k_224_hard_ft384 = hard(cait_m24_in1k_224_ft384)
cait_m36_in1k_224_hard_ft384 = hard(cait_m36_in1k_224_ft384)
cait_m36_in1k_224_hard_ft448 = hard(cait_m36_in1k_224_ft448)
cait_m48_in1k_224_hard_ft448 = hard(cait_m48_in1k_224_ft448)
cait_xxs24_in1k_224_token = with_token("xxs24")
cait_m24_in1k_224_token = with_token("m24")

# Token labelling, which is ours.
cait_s24_in1k_224_tokens = tokens("s24")

# From DeiT-S to CaiT-S36, one change a step (table 3.20), at DeiT's crop ratio of 0.875. DeiT's
# drop-path is 0.05 where it is uniform (table 3.11). The step after the eighth, inference at 256,
# is `bigvit evaluate --image-size 256`; the last, a crop ratio of 1.0, is cait_s36_in1k_224_ft384.
STEP_1 = CaiT(
    patch_size=16,
    embed_dim=384,
    depth=12,
    num_heads=6,
    mlp_ratio=4.0,
    talking_heads=False,
    residual=Unscaled(),
    pooling=ClassToken(layer=0),
    distillation=None,
    dense_head=False,
    drop_path=StochasticDepth(rate=0.05, group=8),
    in_chans=3,
    num_classes=1000,
)
STEP_2 = replace(STEP_1, num_heads=8)
STEP_3 = replace(STEP_2, talking_heads=True)
STEP_4 = replace(STEP_3, depth=36)
STEP_5 = replace(STEP_4, residual=LayerScale(init=1e-6))
STEP_6 = replace(STEP_5, drop_path=StochasticDepth(rate=0.2, group=8))
STEP_7 = replace(STEP_6, pooling=ClassAttention(depth=2, keys="class and patches"))
cait_step1_deit_s_in1k_224 = pretrain(TABLE_3_20, STEP_1, epochs=300, test_crop_ratio=0.875)
cait_step2_heads_in1k_224 = pretrain(TABLE_3_20, STEP_2, epochs=300, test_crop_ratio=0.875)
cait_step3_talking_in1k_224 = pretrain(TABLE_3_20, STEP_3, epochs=300, test_crop_ratio=0.875)
cait_step4_depth_in1k_224 = pretrain(TABLE_3_20, STEP_4, epochs=300, test_crop_ratio=0.875)
cait_step5_layerscale_in1k_224 = pretrain(TABLE_3_20, STEP_5, epochs=300, test_crop_ratio=0.875)
cait_step6_droppath_in1k_224 = pretrain(TABLE_3_20, STEP_6, epochs=300, test_crop_ratio=0.875)
cait_step7_cait_in1k_224 = pretrain(TABLE_3_20, STEP_7, epochs=300, test_crop_ratio=0.875)
cait_step8_longer_in1k_224 = pretrain(TABLE_3_20, STEP_7, epochs=400, test_crop_ratio=0.875)
cait_step9_in1k_224_ft384 = finetune(
    STEP_7, 384, "cait_step8_longer_in1k_224", drop_path=0.1, crop_ratio=0.875
)

# By DeiT III's procedure (table 6.1): 12 blocks of CaiT-M's width (table 6.13: 100 M parameters),
# LayerScale and drop-path as its ViT-B has them (ours: table 6.13 does not say).
cait_b12_deit3_in1k_224 = Recipe(
    source=TABLE_6_13,
    model=replace(
        of_size("m24"),
        depth=12,
        residual=LayerScale(init=1e-4),
        drop_path=StochasticDepth(rate=0.1, group=8),
    ),
    data=replace(IMAGES, augment=ThreeAugment(color_jitter=0.3), erasing=0.0),
    objectives=(BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None),),
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
