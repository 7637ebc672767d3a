"""DeiT III's ViT-H/14 at 126 px on a handful of images, for `benchmarks/billion.py`: the published
model, loss and LAMB, with a head of four classes, without what a batch of four cannot have (mixing,
repeats, groups of 8), and without a warm-up, as three updates have to show that the loss falls."""

from dataclasses import replace

from bigvit.recipe import Cosine
from bigvit.recipes.deit3 import deit3_h14_in1k_126 as published

IMAGES = 4

vit_h14_126 = replace(
    published,
    source="DeiT III's H/14 at 126 px, on four images",
    model=replace(
        published.model,
        drop_path=replace(published.model.drop_path, group=2),
        num_classes=IMAGES,
    ),
    data=replace(
        published.data,
        dataset="four crops",
        train_images=IMAGES,
        classes=IMAGES,
        mix=None,
        repeats=1,
    ),
    optim=replace(published.optim, lr=1e-4),  # what the warm-up has at the fourth percent
    schedule=Cosine(epochs=100, warmup_epochs=0, warmup_lr=1e-6, min_lr=1e-5),
    batch_size=IMAGES,
    precision="fp32",  # as bf16 is ten times slower on a CPU
)
