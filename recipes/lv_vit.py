"""LV-ViT (arXiv:2104.10858; supplement, tables 1 to 4): table 1's columns "Standard", "ReLabel"
(`_relabel`) and "Token labeling" (`_tokens`) at 224, the first and the last fine-tuned at 288, 384
and 448, table 2's path from DeiT-S, and table 3's patch embeddings.

Where the supplement is silent, the value is that of the authors' repository
(zihangJiang/TokenLabeling, main.py and README.md): the last and the warm-up's learning rate, linear
stochastic depth (0.2 for M as table 5 says, too, and 0.3 for L), RandAugment's deviation, crop
ratios, no repeated augmentation, an average of the weights of 0.99992, a constant learning rate
after the warm-up where it is fine-tuned. Table 1 names MixUp and no CutMix, and the repository's
default is none. Ours are: the groups of mixing and stochastic depth (theirs is a micro-batch), bf16
(theirs is fp16), bicubic crops (theirs draws bicubic or bilinear), that the 10 epochs at the last
rate which the repository adds are left out, and of fine-tuning that L is trained at 224 first.

With token labelling the class token learns the true label, as in the paper's equations. The
repository has it learn what the map says of the crop: `_tokens_repo`. Both weights are 1 there.
Label maps are given by `--label-maps`: those of an NFNet-F6 at 576, 18 x 18 cells, are the
authors'; a fine-tuning may have its own.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    Cosine,
    CrossEntropy,
    Images,
    LinearStochasticDepth,
    LVViT,
    Mix,
    MixToken,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    ReLabel,
    TokenLabeling,
    lv_vit,
)

TABLE_1 = "LV-ViT, supplement table 1, Standard; zihangJiang/TokenLabeling"
RELABEL = "LV-ViT, supplement table 1, ReLabel; zihangJiang/TokenLabeling"
TOKENS = "LV-ViT, supplement table 1, Token labeling; zihangJiang/TokenLabeling"
REPOSITORY = "zihangJiang/TokenLabeling, README.md and main.py"
TABLE_2 = "LV-ViT, supplement tables 1, 2; zihangJiang/TokenLabeling"
TABLE_3 = "LV-ViT, supplement tables 1, 3; zihangJiang/TokenLabeling"
FINETUNE = "LV-ViT, supplement section 1, table 1; zihangJiang/TokenLabeling"

IMAGES = Images(
    dataset="ImageNet-1k",
    train_images=1_281_167,
    test_images=None,
    classes=1000,
    image_size=224,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=RandAugment(  # table 1: 9/0.5; rand-m9-mstd0.5-inc1
        operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True
    ),
    erasing=0.25,  # table 1
    repeats=1,  # repository
    mix=Mix(mixup=0.8, cutmix=0.0, switch=0.5, group=8),  # table 1; the group is ours
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop_ratio=0.9,  # repository, T and S
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)

DROP_PATH = {"t": 0.1, "s": 0.1, "m": 0.2, "l": 0.3}  # table 1, table 5 (M), repository (M, L)
CROP_RATIO = {"t": 0.9, "s": 0.9, "m": 1.0, "l": 1.0}  # repository


def model(size: str) -> LVViT:
    """A model of the paper without its head on patches, which this column does not train."""
    drop_path = LinearStochasticDepth(rate=DROP_PATH[size], group=8)
    return lv_vit(size, dense_head=False, drop_path=drop_path, num_classes=1000, in_chans=3)


def pretrain(size: str) -> Recipe:
    """From scratch at 224: table 1; betas, eps, first and last lr, average: repository."""
    return Recipe(
        source=TABLE_1,
        model=model(size),
        data=replace(IMAGES, test_crop_ratio=CROP_RATIO[size]),
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=AdamW(
            lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Cosine(epochs=300, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="plain",  # repository: bicubic, not antialiased
        batch_size=1024,
        precision="bf16",
        gradient_precision="fp32",
        ema=0.99992,
        ema_end=None,
        seed=0,
    )


def finetune(before: Recipe, name: str, image_size: int) -> Recipe:
    """A recipe of that name at another resolution: section 1, and all else as before; last lr:
    repository."""
    return replace(
        before,
        source=FINETUNE,
        data=replace(before.data, image_size=image_size),
        optim=replace(before.optim, lr=5e-6, weight_decay=1e-8),
        schedule=Cosine(epochs=30, warmup_epochs=5, warmup_lr=1e-6, min_lr=5e-6),
        starts_from=name,
        batch_size=512,
    )


def finetune_tokens(size: str, image_size: int, repo: str = "") -> Recipe:
    """The same after token labelling, by label maps on its own grid; without an average of the
    weights: repository."""
    before = tokens_repo(size) if repo else tokens(size)
    after = finetune(before, f"lv_vit_{size}_in1k_224_tokens{repo}", image_size)
    return replace(after, source=REPOSITORY if repo else FINETUNE, ema=None)


def relabel(size: str) -> Recipe:
    """What the map says of the crop, in place of the true label; no MixUp: table 1."""
    before = pretrain(size)
    return replace(
        before,
        source=RELABEL,
        data=replace(before.data, mix=None),
        objectives=(ReLabel(weight=1.0, smoothing=0.1),),
    )


def tokens(size: str) -> Recipe:
    """Token labelling with MixToken; the learning rate for a batch of 1,024: table 1. Weights of
    the losses, MixToken's alpha (`beta`) and smoothing: repository."""
    before = pretrain(size)
    return replace(
        before,
        source=TOKENS,
        model=replace(before.model, dense_head=True),
        data=replace(before.data, mix=MixToken(alpha=1.0, cell=16, group=8)),
        objectives=(
            CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
            TokenLabeling(weight=1.0, smoothing=0.1, labels="map"),
        ),
        optim=replace(before.optim, lr=1.6e-3),
    )


def tokens_repo(size: str) -> Recipe:
    """As the repository's README runs it: the class token learns from the map, too; L with another
    learning rate and three operations."""
    before = tokens(size)
    before = replace(
        before,
        source=REPOSITORY,
        objectives=(ReLabel(weight=1.0, smoothing=0.1), before.objectives[1]),
    )
    if size != "l":
        return before
    more = RandAugment(operations=3, magnitude=9.0, magnitude_std=0.5, increasing=True)
    return replace(
        before,
        data=replace(before.data, augment=more),
        optim=replace(before.optim, lr=1e-3),
    )


def changed(
    source: str,
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    mlp_ratio: float = 3.0,
    divisor: float = 1.0,
) -> Recipe:
    """LV-ViT-S before all its parts were found."""
    own = replace(
        model("s"), kernels=kernels, strides=strides, mlp_ratio=mlp_ratio, divisor=divisor
    )
    return replace(pretrain("s"), source=source, model=own)


lv_vit_t_in1k_224 = pretrain("t")
lv_vit_s_in1k_224 = pretrain("s")
lv_vit_m_in1k_224 = pretrain("m")
lv_vit_l_in1k_224 = pretrain("l")

lv_vit_t_in1k_224_ft288 = finetune(lv_vit_t_in1k_224, "lv_vit_t_in1k_224", 288)
lv_vit_t_in1k_224_ft384 = finetune(lv_vit_t_in1k_224, "lv_vit_t_in1k_224", 384)
lv_vit_t_in1k_224_ft448 = finetune(lv_vit_t_in1k_224, "lv_vit_t_in1k_224", 448)
lv_vit_s_in1k_224_ft288 = finetune(lv_vit_s_in1k_224, "lv_vit_s_in1k_224", 288)
lv_vit_s_in1k_224_ft384 = finetune(lv_vit_s_in1k_224, "lv_vit_s_in1k_224", 384)
lv_vit_s_in1k_224_ft448 = finetune(lv_vit_s_in1k_224, "lv_vit_s_in1k_224", 448)
lv_vit_m_in1k_224_ft288 = finetune(lv_vit_m_in1k_224, "lv_vit_m_in1k_224", 288)
lv_vit_m_in1k_224_ft384 = finetune(lv_vit_m_in1k_224, "lv_vit_m_in1k_224", 384)
lv_vit_m_in1k_224_ft448 = finetune(lv_vit_m_in1k_224, "lv_vit_m_in1k_224", 448)
lv_vit_l_in1k_224_ft288 = finetune(lv_vit_l_in1k_224, "lv_vit_l_in1k_224", 288)
lv_vit_l_in1k_224_ft384 = finetune(lv_vit_l_in1k_224, "lv_vit_l_in1k_224", 384)
lv_vit_l_in1k_224_ft448 = finetune(lv_vit_l_in1k_224, "lv_vit_l_in1k_224", 448)

lv_vit_t_in1k_224_relabel = relabel("t")
lv_vit_s_in1k_224_relabel = relabel("s")
lv_vit_m_in1k_224_relabel = relabel("m")
lv_vit_l_in1k_224_relabel = relabel("l")

lv_vit_t_in1k_224_tokens = tokens("t")
lv_vit_s_in1k_224_tokens = tokens("s")
lv_vit_m_in1k_224_tokens = tokens("m")
lv_vit_l_in1k_224_tokens = tokens("l")

lv_vit_t_in1k_224_tokens_ft288 = finetune_tokens("t", 288)
lv_vit_t_in1k_224_tokens_ft384 = finetune_tokens("t", 384)
lv_vit_t_in1k_224_tokens_ft448 = finetune_tokens("t", 448)
lv_vit_s_in1k_224_tokens_ft288 = finetune_tokens("s", 288)
lv_vit_s_in1k_224_tokens_ft384 = finetune_tokens("s", 384)
lv_vit_s_in1k_224_tokens_ft448 = finetune_tokens("s", 448)
lv_vit_m_in1k_224_tokens_ft288 = finetune_tokens("m", 288)
lv_vit_m_in1k_224_tokens_ft384 = finetune_tokens("m", 384)
lv_vit_m_in1k_224_tokens_ft448 = finetune_tokens("m", 448)
lv_vit_l_in1k_224_tokens_ft288 = finetune_tokens("l", 288)
lv_vit_l_in1k_224_tokens_ft384 = finetune_tokens("l", 384)
lv_vit_l_in1k_224_tokens_ft448 = finetune_tokens("l", 448)

lv_vit_t_in1k_224_tokens_repo = tokens_repo("t")
lv_vit_s_in1k_224_tokens_repo = tokens_repo("s")
lv_vit_m_in1k_224_tokens_repo = tokens_repo("m")
lv_vit_l_in1k_224_tokens_repo = tokens_repo("l")
lv_vit_s_in1k_224_tokens_repo_ft384 = finetune_tokens("s", 384, "_repo")

# Table 2's path from DeiT-S (`deit_s16_in1k_224`): 16 blocks, narrower MLPs, convolutions; its
# fourth step, divided branches, is `lv_vit_s_in1k_224`, its last ones are
# `lv_vit_s_in1k_224_tokens` and `lv_vit_s_in1k_224_tokens_ft384`.
lv_vit_step1_16_blocks = changed(TABLE_2, (16,), (16,), mlp_ratio=4.0)
lv_vit_step2_mlp_ratio_3 = changed(TABLE_2, (16,), (16,))
lv_vit_step3_convolutions = changed(TABLE_2, (7, 3, 3, 8), (2, 1, 1, 8))

# Table 3's patch embeddings; its first row is step 2, and its fifth step 3.
lv_vit_patches_7_8 = changed(TABLE_3, (7, 8), (2, 8))
lv_vit_patches_7_3_8_strides_2_2_4 = changed(TABLE_3, (7, 3, 8), (2, 2, 4))
lv_vit_patches_7_3_8 = changed(TABLE_3, (7, 3, 8), (2, 1, 8))
lv_vit_patches_7_3_3_3_3_8 = changed(TABLE_3, (7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8))
