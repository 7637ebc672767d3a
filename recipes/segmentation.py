"""UperNet (arXiv:1807.10221) on ADE20K, for the backbones of the thesis's tables 4.6, 5.3 and 6.12;
and two small recipes of the same kind, for scenes of shapes.

"We adopt the same schedule as in Swin: 160k iterations" (sections 5.3.3, 6.3.5.2): AdamW, betas,
weight decay, warm-up, linear decay, batch and crops are Swin's (arXiv:2103.14030, appendix A.2.3;
its code is mmsegmentation's). "Our implementation is based on the XCiT repository" (6.3.5.2):
facebookresearch/xcit, semantic_segmentation/ at 9a7df94 says which blocks maps are of, how a trunk
of one stride becomes a pyramid, and that stochastic depth stays that of pre-training; where the
thesis is silent, the value is of there. Section 4.3.6 says "the x3 schedule" of table 4.6, which we
read as the same 160,000 updates.

Ours are: bf16 (theirs is fp32), stochastic depth by single samples, uniform where theirs is linear,
biases that are not decayed, windows of the crop's size at a stride of two thirds (BEiT's; Swin's
and XCiT's code sees a test image whole), and what is marked so. The thesis counts 5,000 test
images; ADE20K has 2,000. Weights of another trunk are given by --init; the rows that the thesis
takes from other papers start there from those papers' weights. Not here: XCiT and CSWin, which are
no models of bigvit's, and MAE's ViT-B, which MAE's authors train otherwise.

Dense relative localization's (tables 12 and 13 of the supplement of arXiv:2106.03746, and table 6
of the paper) are Swin-T by the same procedure, with and without the loss in pre-training.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    ClassToken,
    Distortion,
    LinearStochasticDepth,
    Model,
    PaddedSwin,
    Polynomial,
    Recipe,
    ResNet,
    Segmentation,
    StochasticDepth,
    UperNet,
    ViT,
    deit,
    patchconvnet,
    resmlp,
    vit,
)

TABLE_4_6 = "UperNet, thesis table 4.6, section 4.3.6; arXiv:2103.14030; facebookresearch/xcit"
TABLE_5_3 = "UperNet, thesis table 5.3, section 5.3.3; arXiv:2103.14030; facebookresearch/xcit"
TABLE_6_12 = "UperNet, thesis table 6.12, section 6.3.5.2; arXiv:2103.14030; facebookresearch/xcit"
DRLOC = "UperNet, arXiv:2106.03746, supplement, section 4.2, table {}; arXiv:2103.14030"

ADE20K = Segmentation(
    dataset="ADE20K",
    train_images=20_210,
    test_images=2_000,
    classes=150,
    zero="not told",
    image_size=512,
    longest=2048,
    shortest=512,
    factor=(0.5, 2.0),
    most_of_one=0.75,  # mmsegmentation
    flip=0.5,
    distortion=Distortion(  # mmsegmentation
        brightness=32.0, contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=18.0
    ),
    repeats=1,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    stride=341,
)
AT_224 = replace(  # section 4.3.6: "we resize images at resolution 896 x 224"
    ADE20K, image_size=224, longest=896, shortest=224, stride=149
)
AT_640 = replace(  # A.2.3, of models of ImageNet-21k; the stride as BEiT's
    ADE20K, image_size=640, longest=2560, shortest=640, stride=426
)
UPERNET = UperNet(
    weight=1.0,
    blocks=(3, 5, 7, 11),
    normalised=False,
    channels=512,
    scales=(1, 2, 3, 6),
    auxiliary=0.4,
    auxiliary_channels=256,
    dropout=0.1,
    norm="batch",
)


def on_ade20k(
    source: str,
    model: Model,
    starts_from: str,
    blocks: tuple[int, ...],
    *,
    data: Segmentation = ADE20K,
    channels: int = 512,  # section 6.3.5.2
    normalised: bool = False,
) -> Recipe:
    """Swin's procedure (A.2.3)."""
    return Recipe(
        source=source,
        model=model,
        data=data,
        objectives=(replace(UPERNET, blocks=blocks, channels=channels, normalised=normalised),),
        teacher=None,
        optim=AdamW(
            lr=6e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Polynomial(
            updates=160_000, warmup_updates=1_500, warmup_ratio=1e-6, power=1.0, min_lr=0.0
        ),
        trainable="all",
        layer_decay=1.0,
        starts_from=starts_from,
        resampling="antialiased",
        batch_size=16,
        precision="bf16",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=0,
    )


def thirds(depth: int) -> tuple[int, ...]:
    """The blocks of XCiT's code: 3, 5, 7, 11 of 12, and 7, 11, 15, 23 of 24."""
    return depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1


def of_deit(source: str, size: str, starts_from: str, data: Segmentation) -> Recipe:
    """DeiT; stochastic depth: table 3.9, of pre-training."""
    drop_path = LinearStochasticDepth(rate=0.1, group=1)
    model = deit(size, distillation=None, drop_path=drop_path, num_classes=150, in_chans=3)
    return on_ade20k(source, model, starts_from, thirds(12), data=data)


def of_resmlp(size: str, depth: int) -> Recipe:
    """ResMLP, at its own size alone (section 4.3.6); stochastic depth: table 3.9, of
    pre-training."""
    drop_path = StochasticDepth(rate=0.1, group=1)
    model = resmlp(
        size, patch_size=16, shift=True, drop_path=drop_path, num_classes=150, in_chans=3
    )
    starts_from = f"resmlp_{size}_in1k_224"
    return on_ade20k(TABLE_4_6, model, starts_from, thirds(depth), data=AT_224)


def of_patchconvnet(size: str, starts_from: str) -> Recipe:
    """PatchConvNet: "we only use the final output" (section 5.3.3); stochastic depth: table 5.8."""
    model = patchconvnet(size, group=1, num_classes=150, in_chans=3)
    return on_ade20k(TABLE_5_3, model, starts_from, (model.depth - 1,) * 4)


def of_vit(size: str, depth: int, drop_path: float, starts_from: str, channels: int) -> Recipe:
    """ViT; stochastic depth: table 6.14, of pre-training."""
    model = vit(
        size,
        layer_scale=1e-4,
        drop_path=StochasticDepth(rate=drop_path, group=1),
        num_classes=150,
        in_chans=3,
    )
    return on_ade20k(TABLE_6_12, model, starts_from, thirds(depth), channels=channels)


SWIN_SIZES = {
    # embed_dim, depths, num_heads (arXiv:2103.14030, section 3.3)
    "t": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "b": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "l": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


def of_swin(
    source: str, size: str, starts_from: str, drop_path: float = 0.3, data: Segmentation = ADE20K
) -> Recipe:
    """Swin; stochastic depth: the configuration that its authors published, linear there (A.2.3
    says 0.2)."""
    embed_dim, depths, heads = SWIN_SIZES[size]
    model = PaddedSwin(
        patch_size=4,
        embed_dim=embed_dim,
        depths=depths,
        num_heads=heads,
        window_size=7,
        mlp_ratio=4.0,
        pooling=AveragePooling(),
        drop_path=StochasticDepth(rate=drop_path, group=1),
        in_chans=3,
        num_classes=150,
    )
    ends = tuple(sum(depths[: i + 1]) - 1 for i in range(4))
    return on_ade20k(source, model, starts_from, ends, data=data, normalised=True)


# Table 4.6: all at 224.
ade20k_deit_s16_224 = of_deit(TABLE_4_6, "s16", "deit_s16_in1k_224", AT_224)
ade20k_deit_b16_224 = of_deit(TABLE_4_6, "b16", "deit_b16_in1k_224", AT_224)
ade20k_resmlp_s12_224 = of_resmlp("s12", 12)
ade20k_resmlp_s24_224 = of_resmlp("s24", 24)
ade20k_resmlp_s36_224 = of_resmlp("s36", 36)
ade20k_resmlp_b24_224 = of_resmlp("b24", 24)

# Table 5.3. The rows of ResNet-50, DeiT-S and Swin are other papers': ours is that all are trained
# alike here, and that ResNet-50 starts from Grafit's baseline.
ade20k_r50_512 = on_ade20k(
    TABLE_5_3,
    ResNet(
        depths=(3, 4, 6, 3),
        pooling=AveragePooling(),
        head_hidden_dim=None,
        frozen_statistics=False,
        in_chans=3,
        num_classes=150,
    ),
    "grafit_baseline_r50_in1k_224",
    (2, 6, 12, 15),
)
ade20k_deit_s16_512 = of_deit(TABLE_5_3, "s16", "deit_s16_in1k_224", ADE20K)
ade20k_swin_t_512 = of_swin(TABLE_5_3, "t", "swin_t_in1k_300e")
ade20k_swin_b_512 = of_swin(TABLE_5_3, "b", "swin_b_in1k_224")
ade20k_patchconvnet_s60_512 = of_patchconvnet("s60", "patchconvnet_s60_in1k_224")
ade20k_patchconvnet_b60_512 = of_patchconvnet("b60", "patchconvnet_b60_in1k_224")
ade20k_patchconvnet_b120_512 = of_patchconvnet("b120", "patchconvnet_b120_in1k_224")
# ... and of ImageNet-21k: Swin's as its authors published them, at 640 pixels;
ade20k_swin_b_in21k_640 = of_swin(
    TABLE_5_3, "b", "swin_base_patch4_window7_224.ms_in22k, timm", data=AT_640
)
# PatchConvNet's fine-tuned on ImageNet-1k before (ours: it is not told).
ade20k_patchconvnet_s60_in21k_512 = of_patchconvnet("s60", "patchconvnet_s60_in21k_224_ft224")
ade20k_patchconvnet_b60_in21k_512 = of_patchconvnet("b60", "patchconvnet_b60_in21k_224_ft224")
ade20k_patchconvnet_b120_in21k_512 = of_patchconvnet("b120", "patchconvnet_b120_in21k_224_ft224")
ade20k_patchconvnet_l120_in21k_512 = of_patchconvnet("l120", "patchconvnet_l120_in21k_224_ft224")

# Table 6.12: after 400 epochs on ImageNet-1k, or 90 on ImageNet-21k and fine-tuned on ImageNet-1k
# (ours: it is not told), that at 384 pixels after 240 (ours). As wide as the small models
# (section 6.3.5.2).
ade20k_deit3_t16_512 = of_vit("t16", 12, 0.0, "deit3_t16_in1k_224", channels=192)
ade20k_deit3_s16_512 = of_vit("s16", 12, 0.0, "deit3_s16_in1k_224", channels=384)
ade20k_deit3_b16_512 = of_vit("b16", 12, 0.1, "deit3_b16_in1k_224", channels=512)
ade20k_deit3_l16_512 = of_vit("l16", 24, 0.4, "deit3_l16_in1k_224", channels=512)
ade20k_deit3_b16_in21k_512 = of_vit("b16", 12, 0.1, "deit3_b16_in21k_224_ft224", channels=512)
ade20k_deit3_b16_in21k_384_512 = of_vit(
    "b16", 12, 0.1, "deit3_b16_in21k_224_240e_ft384", channels=512
)
ade20k_deit3_l16_in21k_512 = of_vit("l16", 24, 0.3, "deit3_l16_in21k_224_ft224", channels=512)
# ... that at 320 after the fine-tuning at 384 (ours), which the thesis describes, at 320.
ade20k_deit3_l16_in21k_320_512 = of_vit(
    "l16", 24, 0.3, "deit3_l16_in21k_224_240e_ft384, with --data.image-size 320", channels=512
)
ade20k_swin_l_in21k_640 = of_swin(
    TABLE_6_12, "l", "swin_large_patch4_window7_224.ms_in22k, timm", data=AT_640
)

# Dense relative localization in pre-training alone; stochastic depth: section 4.2.
ade20k_swin_t_in1k_300e_512 = of_swin(DRLOC.format(12), "t", "swin_t_in1k_300e", 0.2)
ade20k_drloc_swin_t_in1k_300e_512 = of_swin(DRLOC.format(12), "t", "drloc_swin_t_in1k_300e", 0.2)
ade20k_swin_t_in100_300e_512 = of_swin(DRLOC.format(13), "t", "swin_t_in100_300e", 0.2)
ade20k_drloc_swin_t_in100_300e_512 = of_swin(DRLOC.format(13), "t", "drloc_swin_t_in100_300e", 0.2)

# Made small, for scenes of shapes cut out of photographs (benchmarks/scenes.py): no paper.
scenes_vit_64 = Recipe(
    source="bigvit: UperNet on a small ViT, no paper",
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
        num_classes=5,
    ),
    data=Segmentation(
        dataset="shapes cut out of photographs",
        train_images=480,
        test_images=None,
        classes=5,
        zero="class",
        image_size=64,
        longest=96,
        shortest=64,
        factor=(0.75, 1.5),
        most_of_one=0.9,
        flip=0.5,
        distortion=Distortion(
            brightness=16.0, contrast=(0.75, 1.25), saturation=(0.75, 1.25), hue=9.0
        ),
        repeats=1,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        stride=48,
    ),
    objectives=(
        UperNet(
            weight=1.0,
            blocks=(0, 1, 2, 3),
            normalised=True,
            channels=96,
            scales=(1, 2, 3),
            auxiliary=0.4,
            auxiliary_channels=32,
            dropout=0.1,
            norm="group",
        ),
    ),
    teacher=None,
    optim=AdamW(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, weight_decay_end=None),
    clip_norm=1.0,
    schedule=Polynomial(updates=300, warmup_updates=20, warmup_ratio=1e-6, power=1.0, min_lr=0.0),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=16,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=0,
)

scenes_swin_64 = replace(
    scenes_vit_64,
    source="bigvit: UperNet on a small Swin, no paper",
    model=PaddedSwin(
        patch_size=4,
        embed_dim=48,
        depths=(1, 1, 2),
        num_heads=(2, 4, 8),
        window_size=6,
        mlp_ratio=3.0,
        pooling=AveragePooling(),
        drop_path=StochasticDepth(rate=0.05, group=4),
        in_chans=3,
        num_classes=5,
    ),
    objectives=(replace(scenes_vit_64.objectives[0], blocks=(0, 1, 3)),),
)
