"""Mask R-CNN on COCO, 3x schedule (thesis section 5.3.3, table 5.6): PatchConvNet, and Swin-T and
ResNet that it is compared with. Weights to start from: `--init`, of the recipe that is named, or
`--init timm:swin_tiny_patch4_window7_224.ms_in1k`, `--init timm:resnet50.tv_in1k`.

The thesis says the head, the schedule, and that PatchConvNet's last map alone is used. All else is
the procedure of Swin's repository (SwinTransformer/Swin-Transformer-Object-Detection,
mask_rcnn_swin_tiny_patch4_window7_mstrain_480-800_adamw_3x), which XCiT's took over: mmdetection's
Mask R-CNN. Ours are: no crops (theirs: half the images, resized to 400, 500 or 600, are cropped
before they are resized), one canvas for all that lie and one for all that stand (theirs: as large
as a micro-batch needs), masks compared at two points of each cell along each axis, bf16 (theirs:
fp16), uniform stochastic depth and its groups, and the norm of the neck.

ResNet's is mmdetection's (open-mmlab/mmdetection, mask_rcnn_r50_fpn_mstrain-poly_3x_coco and
mask_rcnn_r101_...), as in the tables that table 5.6 took its baselines from: SGD, float32, shorter
sides of 640 to 800, torchvision's weights. Stem and first stage are frozen (`frozen_stages=1`), and
so are the statistics of BatchNorm (`norm_eval=True`), whose weights are trained behind them
(`requires_grad=True`; torchvision and detectron2 freeze these, too). The table's 44.2 and 63.2
million parameters are what is trained so. Ours is that vectors are not decayed (theirs: they are).

The 1x schedule is that of dense relative localization's supplement (arXiv:2106.03746, section 4.1,
tables 10 and 11): Swin-T trained with that loss and without, tuned without; what is not said there
is Swin's repository, ..._adamw_1x, whose stochastic depth is 0.1.
"""

from dataclasses import replace

from bigvit.recipe import (
    SGD,
    AdamW,
    AveragePooling,
    Detection,
    MaskRCNN,
    Model,
    PaddedSwin,
    Recipe,
    ResNet,
    Steps,
    StochasticDepth,
    patchconvnet,
)

TABLE_5_6 = "Mask R-CNN 3x, thesis section 5.3.3, table 5.6; arXiv:2103.14030, section 4.2"
MMDETECTION = "Mask R-CNN 3x, thesis table 5.6; mmdetection, mask_rcnn_r{}_fpn_mstrain-poly_3x_coco"
DRLOC = "Mask R-CNN 1x, arXiv:2106.03746, supplement, section 4.1, table {}"

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


def of_resnet(layers: int, depths: tuple[int, ...]) -> Recipe:
    """ResNet by mmdetection's procedure."""
    model = ResNet(
        depths=depths,
        pooling=AveragePooling(),
        head_hidden_dim=None,
        frozen_statistics=True,
        in_chans=3,
        num_classes=COCO.classes,
    )
    recipe = mask_rcnn_3x(model, f"resnet{layers}.tv_in1k, timm", normalised=False)
    return replace(
        recipe,
        source=MMDETECTION.format(layers),
        data=replace(recipe.data, shortest=tuple(range(640, 801))),
        optim=SGD(lr=0.02, momentum=0.9, nesterov=False, weight_decay=1e-4),
        trainable="later_stages",
        precision="fp32",
    )


mask_rcnn_resnet50 = of_resnet(50, (3, 4, 6, 3))
mask_rcnn_resnet101 = of_resnet(101, (3, 4, 23, 3))


def mask_rcnn_1x(table: int, starts_from: str) -> Recipe:
    """12 epochs of Swin-T."""
    return replace(
        mask_rcnn_swin_t,
        source=DRLOC.format(table),
        model=replace(mask_rcnn_swin_t.model, drop_path=StochasticDepth(rate=0.1, group=1)),
        schedule=replace(mask_rcnn_swin_t.schedule, epochs=12, steps=(8, 11)),
        starts_from=starts_from,
    )


mask_rcnn_swin_t_1x = mask_rcnn_1x(10, "swin_t_in1k_300e")
mask_rcnn_drloc_swin_t_1x = mask_rcnn_1x(10, "drloc_swin_t_in1k_300e")
mask_rcnn_swin_t_in100_1x = mask_rcnn_1x(11, "swin_t_in100_300e")
mask_rcnn_drloc_swin_t_in100_1x = mask_rcnn_1x(11, "drloc_swin_t_in100_300e")

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
    schedule=Steps(epochs=8, warmup_updates=30, warmup_ratio=0.001, steps=(6, 7), factor=0.1),
    starts_from=None,
    precision="fp32",
)
