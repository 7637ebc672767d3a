"""The recipes of `scenes_segmentation.py` and `scenes_detection.py`: a small Swin that tells the
training photographs apart, and the same with UperNet or Mask R-CNN, from random weights or from
that trunk."""

from dataclasses import replace

from bigvit.recipe import Cosine
from bigvit.recipes.detection import scenes_mask_rcnn
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

boxes = scenes_mask_rcnn
trunk_of_boxes = replace(
    trunk,
    model=replace(boxes.model, num_classes=PHOTOGRAPHS),
    data=replace(trunk.data, mean=boxes.data.mean, std=boxes.data.std),
)
boxes_pretrained = replace(boxes, starts_from="trunk_of_boxes")
