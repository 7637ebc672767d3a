"""The recipe of the run that stands beside this file."""

from dataclasses import replace

from bigvit.recipe import BinaryCrossEntropy, DRLoc, Lamb, Ramp, StochasticDepth
from bigvit.recipes.digits import digits_vit

small = replace(
    digits_vit,
    model=replace(
        digits_vit.model,
        embed_dim=8,
        depth=2,
        num_heads=2,
        drop_path=StochasticDepth(rate=0.3, group=4),
    ),
    objectives=(
        BinaryCrossEntropy(weight=1.0, threshold=0.0, smoothing=0.0, class_weights=None),
        DRLoc(
            weight=0.1,
            ramp=Ramp(warmup_epochs=1, last=0.5),
            offsets="signed",
            unit="grid",
            alpha=0.001,
            blocks="all",
            normalised=True,
            pairs=6,
            grid=None,
            pooling="mean",
            hidden_dim=8,
            hidden_layers=2,
        ),
    ),
    optim=Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    schedule=replace(digits_vit.schedule, epochs=2, warmup_epochs=1),
    batch_size=144,
    ema=0.9,
)
