"""Mask R-CNN on COCO, 3x schedule (thesis section 5.3.3, table 5.6): PatchConvNet, and Swin-T that
it is compared with. Weights to start from: `--init`, of the recipe that is named, or
`--init timm:swin_tiny_patch4_window7_224.ms_in1k`.

The thesis says the head, the schedule, and that PatchConvNet's last map alone is used. All else is
the procedure of Swin's repository (SwinTransformer/Swin-Transformer-Object-Detection,
mask_rcnn_swin_tiny_patch4_window7_mstrain_480-800_adamw_3x), which XCiT's took over: mmdetection's
Mask R-CNN. Ours are: no crops (theirs: half the images, resized to 400, 500 or 600, are cropped
before they are resized), one canvas for all that lie and one for all that stand (theirs: as large
as a micro-batch needs), masks compared at two points of each cell along each axis, bf16 (theirs:
fp16), uniform stochastic depth and its groups, and the norm of the neck.
"""

from dataclasses import replace

from bigvit.recipe import (
    AdamW,
    AveragePooling,
    Detection,
    MaskRCNN,
    Model,
    PaddedSwin,
    Recipe,
    Steps,
    StochasticDepth,
    patchconvnet,
)

TABLE_5_6 = "Mask R-CNN 3x, thesis section 5.3.3, table 5.6; arXiv:2103.14030, section 4.2"

COCO = Detection(
    dataset="COCO 2017",
    train_images=117_266,  # of 118,287: those with objects that are no crowds
    test_images=5_000,
    classes=80,
    image_size=(800, 1344),  # multiples of 32 that hold 800 and 1333
    shortest=(480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
    longest=1333,
    flip=0.5,
    repeats=1,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_shortest=800,
)

HEAD = MaskRCNN(
    weight=1.0,
    normalised=False,
    channels=256,
    anchors=(32, 64, 128, 256, 512),
    ratios=(0.5, 1.0, 2.0),
    anchor_samples=256,
    candidates=(2000, 1000),
    proposals=(1000, 1000),
    proposal_overlap=0.7,
    samples=512,
    hidden_dim=1024,
    mask_layers=4,
    beta=0.0,
    sampling=0,
    aligned=True,
    least_score=0.05,
    overlap=0.5,
)


def mask_rcnn_3x(model: Model, starts_from: str, normalised: bool) -> Recipe:
    """36 epochs on COCO by the procedure of Swin's repository."""
    return Recipe(
        source=TABLE_5_6,
        model=model,
        data=COCO,
        objectives=(replace(HEAD, normalised=normalised),),
        teacher=None,
        optim=AdamW(
            lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        ),
        clip_norm=None,
        schedule=Steps(
            epochs=36, warmup_updates=500, warmup_ratio=0.001, steps=(27, 33), factor=0.1
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


def of_patchconvnet(size: str) -> Recipe:
    """PatchConvNet as it was trained on ImageNet-1k; its stochastic depth is ours to say."""
    model = patchconvnet(size, group=1, num_classes=COCO.classes, in_chans=3)
    return mask_rcnn_3x(model, f"patchconvnet_{size}_in1k_224", normalised=True)


mask_rcnn_patchconvnet_s60 = of_patchconvnet("s60")
mask_rcnn_patchconvnet_s120 = of_patchconvnet("s120")
mask_rcnn_swin_t = mask_rcnn_3x(
    PaddedSwin(
        patch_size=4,
        embed_dim=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
        mlp_ratio=4.0,
        pooling=AveragePooling(),
        drop_path=StochasticDepth(rate=0.2, group=1),
        in_chans=3,
        num_classes=COCO.classes,
    ),
    "swin_tiny_patch4_window7_224.ms_in1k, timm",
    normalised=True,
)

# scenes of four kinds of things, in minutes (benchmarks/scenes_detection.py)
scenes_mask_rcnn = replace(
    mask_rcnn_swin_t,
    source="bigvit: Mask R-CNN made small, no paper",
    model=PaddedSwin(
        patch_size=4,
        embed_dim=24,
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        window_size=4,
        mlp_ratio=2.0,
        pooling=AveragePooling(),
        drop_path=StochasticDepth(rate=0.0, group=4),
        in_chans=3,
        num_classes=4,
    ),
    data=replace(
        COCO,
        dataset="scenes",
        train_images=480,
        test_images=64,
        classes=4,
        image_size=96,
        shortest=(64, 80, 96),
        longest=96,
        test_shortest=96,
    ),
    objectives=(
        replace(
            HEAD,
            normalised=True,
            channels=32,
            anchors=(12, 24, 36, 48, 72),
            anchor_samples=64,
            candidates=(100, 100),
            proposals=(60, 60),
            samples=32,
            hidden_dim=128,
            mask_layers=2,
            sampling=2,
        ),
    ),
    optim=replace(mask_rcnn_swin_t.optim, lr=2e-3),
    schedule=Steps(epochs=10, warmup_updates=30, warmup_ratio=0.001, steps=(7, 9), factor=0.1),
    starts_from=None,
    precision="fp32",
)
