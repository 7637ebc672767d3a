"""A small recipe with everything on that could go wrong between engines: uneven sizes, decay
groups, clipping, samples dropped by groups, accumulation, and an epoch that ends midway."""

from dataclasses import replace

from bigvit.recipe import (
    SGD,
    AdamW,
    CaiT,
    ClassAttention,
    ClassMlp,
    ClassToken,
    Cosine,
    CrossEntropy,
    Digits,
    Lamb,
    LayerScale,
    Layout,
    Muon,
    Recipe,
    ResMLP,
    Shift,
    StochasticDepth,
    ViT,
    batch_layout,
)

UPDATES = 12  # of a recipe with two epochs of ten: the first is evaluated, and passed
SHORT = 6  # of a recipe with one epoch
STOP = 4  # in mid-epoch
SMALLEST = 8  # micro-batch: one group
MICRO_BATCH = 24  # three accumulation steps on two ranks

adamw = Recipe(
    source="a test",
    model=ViT(
        patch_size=2,
        embed_dim=36,  # 36 * 36 divides over neither 5 nor 7, the vectors not over 8
        depth=3,
        num_heads=3,
        mlp_ratio=2.5,
        layer_scale=0.1,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=StochasticDepth(rate=0.3, group=8),
        in_chans=1,
        num_classes=10,
    ),
    data=Digits(
        image_size=8,
        augment=Shift(1),
        repeats=1,
        mean=(0.305,),
        std=(0.376,),
        views=0,
        level="digit",
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
    teacher=None,
    optim=AdamW(lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, weight_decay_end=None),
    clip_norm=0.5,  # always smaller than the norm
    schedule=Cosine(epochs=2, warmup_epochs=1, warmup_lr=1e-4, min_lr=1e-5),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=144,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=1,
)
# in groups that 2, 3 and 4 ranks can cut its batches into, with an average of the weights
lamb = replace(
    adamw,
    model=replace(adamw.model, drop_path=StochasticDepth(rate=0.3, group=4)),
    optim=Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    ema=0.9,
)
lamb_short = replace(lamb, schedule=replace(lamb.schedule, epochs=1, warmup_epochs=0))
muon = replace(  # with classes that count by their images, too
    lamb,
    objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights="inverse"),),
    optim=Muon(
        lr=3e-3,
        momentum=0.95,
        nesterov=True,
        ns_steps=5,
        coefficients=(3.4445, -4.7750, 2.0315),
        ns_precision="fp32",
        adjust_lr="match_rms_adamw",
        qkv="split",
        weight_decay=0.1,
        adamw_lr_ratio=0.5,
        betas=(0.9, 0.95),
        eps=1e-8,
    ),
)
muon_short = replace(muon, schedule=lamb_short.schedule)
sgd_short = replace(
    lamb_short, optim=SGD(lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.05), clip_norm=1.0
)
cait_adamw = replace(
    adamw,
    model=CaiT(
        patch_size=2,
        embed_dim=36,
        depth=2,
        num_heads=3,
        mlp_ratio=2.5,
        talking_heads=True,
        residual=LayerScale(init=0.1),
        pooling=ClassAttention(depth=2, keys="class and patches"),
        distillation=None,
        dense_head=False,
        drop_path=StochasticDepth(rate=0.3, group=4),
        in_chans=1,
        num_classes=10,
    ),
    schedule=replace(adamw.schedule, epochs=1, warmup_epochs=0),
)
cait_lamb = replace(cait_adamw, optim=lamb.optim)
resmlp_adamw = replace(
    cait_adamw,
    model=ResMLP(
        patch_size=2,
        embed_dim=36,
        depth=2,
        mlp_ratio=2.5,
        norm="affine",
        communication="linear",
        layer_scale=0.1,
        shift=True,
        pooling=ClassMlp(depth=2),
        drop_path=StochasticDepth(rate=0.3, group=4),
        in_chans=1,
        num_classes=10,
    ),
)
resmlp_lamb = replace(resmlp_adamw, optim=lamb.optim)
attention = replace(
    adamw, trainable="attention", layer_decay=0.75, schedule=replace(adamw.schedule, epochs=1)
)
bf16 = replace(adamw, precision="bf16", schedule=replace(adamw.schedule, epochs=1))
fp16 = replace(adamw, precision="fp16")
many = replace(  # for an update of many micro-batches
    bf16, model=replace(bf16.model, depth=1), clip_norm=None, batch_size=384
)


def updates(recipe: Recipe) -> int:
    """How many of a recipe's updates the tests make."""
    return UPDATES if recipe.epochs > 1 else SHORT


def cut(recipe: Recipe, world: int) -> Layout:
    """The recipe's batch in micro-batches of the same images, on up to three ranks."""
    return batch_layout(recipe, world, MICRO_BATCH if world < 4 else MICRO_BATCH // 2)
