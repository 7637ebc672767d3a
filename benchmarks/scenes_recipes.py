"""The recipes of `scenes_segmentation.py`: a small Swin that tells the training photographs apart,
and the same with UperNet, from random weights or from that trunk."""

from dataclasses import replace

from bigvit.recipe import Cosine
from bigvit.recipes.photos import photos_vit_64
from bigvit.recipes.segmentation import scenes_swin_64

PHOTOGRAPHS = 8  # to train on: as `scenes.PHOTOGRAPHS`
EACH = 60  # crops of each

trunk = replace(
    photos_vit_64,
    source="bigvit: a small Swin told photographs apart, no paper",
    model=replace(scenes_swin_64.model, num_classes=PHOTOGRAPHS),
    data=replace(
        photos_vit_64.data,
        dataset="crops of eight photographs",
        classes=PHOTOGRAPHS,
        train_images=PHOTOGRAPHS * EACH,
    ),
    schedule=Cosine(epochs=10, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
)

random = scenes_swin_64
pretrained = replace(random, starts_from="trunk")
