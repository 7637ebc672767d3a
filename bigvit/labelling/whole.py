"""How images of which no recipe says anything are read: whole."""

from bigvit.recipe import Images, RandomResizedCrop

WHOLE = Images(
    dataset="images",
    train_images=1,
    test_images=0,
    classes=1,
    image_size=1,
    crop=RandomResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0), interpolation="bicubic"),
    flip=0.0,
    augment=None,
    erasing=0.0,
    repeats=1,
    mix=None,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    test_crop_ratio=1.0,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)
"""Of any size, mean and deviation; these are replaced."""
