"""What a network that follows costs, beside a plain loop with a whole copy.

    python -m benchmarks.follower [--small] [--check]

DINO of a small ViT on noise at one thread, two large crops and two small ones: the time of an
update over one in which nobody is asked, and over a plain loop whose copy is averaged parameter by
parameter after torch's AdamW, as the authors' code does it; and the bytes that the follower holds
beside the average. Rows of docs/performance.md.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data.batch import Batch
from bigvit.data.prepare import Inputs, Prepare
from bigvit.engines.build import build_engine, outline
from bigvit.ranks.joining import alone
from bigvit.recipe import AdamW, Dino, Images, Layout, Rates, Recipe, Run, Views, ViT
from bigvit.recipes.photos import photos_vit_64
from bigvit.task import Task

BATCH, CLIP, MOMENTUM, LR = 16, 3.0, 0.996, 1e-4


def recipe_of(small: bool) -> Recipe:
    """DINO on crops of 64 and 32 pixels."""
    data, model = photos_vit_64.data, photos_vit_64.model
    assert isinstance(data, Images) and isinstance(model, ViT)
    if not small:
        model = replace(model, embed_dim=192, depth=12, num_heads=3)
    large = Views(1, 64, data.crop, 0.5, None, 0.0)
    dino = Dino(
        weight=1.0,
        outputs=256 if small else 4096,
        hidden_dim=64 if small else 512,
        hidden_layers=2,
        bottleneck_dim=64,
        norm="none",
        gain="one",
        student_temperature=0.1,
        teacher_temperature=(0.04, 0.04),
        warmup_epochs=0,
        centre_momentum=0.9,
        held_epochs=0,
        large=(0, 1),
        small=(2,),
    )
    return replace(
        photos_vit_64,
        model=model,
        data=replace(data, mix=None, views=(large, replace(large, count=2, image_size=32))),
        objectives=(dino,),
        optim=AdamW(LR, (0.9, 0.999), 1e-8, 0.04, None),
        batch_size=BATCH,
        clip_norm=CLIP,
        ema=MOMENTUM,
    )


def batch_of(recipe: Recipe) -> Batch:
    """Noise."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    places, real = torch.arange(BATCH), torch.ones(BATCH, dtype=torch.bool)
    views = tuple(noise(BATCH, g.count, 3, *[int(g.image_size)] * 2) for g in recipe.data.groups)  # pyright: ignore
    draws = outline(recipe).draws(0, (0, BATCH))
    images = noise(BATCH, 3, 64, 64)
    return Batch(
        *(images, places % 2, places, places, 0, 0, real, places[:0], None, draws), views=views
    )


class Plain:
    """A loop as one writes it: the same forward pass, a whole copy, averaged in Python's loop."""

    def __init__(self, recipe: Recipe) -> None:
        self.task = Task(recipe)
        self.task.init_weights()
        for each in self.task.objectives.values():
            each.meet(0, 1, torch.device("cpu"))
        following = self.task.following()
        own = self.task.own_parameters()
        self.pairs = [(following[name], own[name]) for name in following]
        self.trained = [p for p in own.values() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=LR, weight_decay=0.04)

    def update(self, inputs: Inputs) -> None:
        self.optimizer.zero_grad()
        sum(self.task(inputs).values()).backward()  # pyright: ignore
        nn.utils.clip_grad_norm_(self.trained, CLIP)
        self.optimizer.step()
        for each in self.task.objectives.values():
            each.applied()
        self.average()

    @torch.no_grad()
    def average(self) -> None:
        for copy, own in self.pairs:
            copy.mul_(MOMENTUM).add_((1 - MOMENTUM) * own)


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    recipe = recipe_of(options.small)
    layout, run, rates = Layout(1, BATCH, 1), Run(engine="single"), Rates(LR)
    prepare, one = Prepare(recipe), [batch_of(recipe)]
    engines: dict[str, Any] = {
        kind: build_engine(replace(recipe, precision=kind), run, layout, alone())  # pyright: ignore
        for kind in ("fp32", "bf16")
    }
    engine, plain = engines["fp32"], Plain(recipe)
    inputs = prepare(one[0])
    told = engine.task.follower({g: engine.task._to_model(v) for g, v in _asked(inputs).items()})
    asked = engine.task.follower.forward

    def alone_() -> None:
        engine.task.follower.forward = lambda _: told
        engine.update(prepare.later(one), rates)
        engine.task.follower.forward = asked

    rounds = 3 if options.small else 15
    runs = {
        "with": lambda: engine.update(prepare.later(one), rates),
        "nobody asked": alone_,
        "plain": lambda: plain.update(prepare(one[0])),
    }
    seconds = interleaved(runs, rounds)
    weights = [own for _, own in plain.pairs]
    averages = [copy for copy, _ in plain.pairs]
    averaging = _averaged(plain, averages, weights, rounds)
    over_nobody = ratio(seconds["with"], seconds["nobody asked"])
    over_plain = ratio(seconds["with"], seconds["plain"])
    of_average = ratio(averaging["ours"], averaging["plain"])
    size = sum(p.nbytes for p in engine.task.following().values())
    optimizer = engine.masters.optimizer
    kept = {
        optimizer.state[p]["ema"].data_ptr()
        for group in optimizer.param_groups
        for p in group["params"]
    }
    beside = sum(p.nbytes for p in engine.task.following().values() if p.data_ptr() not in kept)
    half = sum(p.nbytes for p in engines["bf16"].task.following().values())
    rows = [
        Row(
            "update over one in which nobody is asked",
            f"{over_nobody.value:.3f}",
            f"{over_nobody.low:.3f} to {over_nobody.high:.3f}",
        ),
        Row(
            "update over a plain loop's",
            f"{over_plain.value:.3f}",
            f"{over_plain.low:.3f} to {over_plain.high:.3f}",
            "1.1",
            over_plain.low <= 1.1,
        ),
        Row(
            "averaging over parameter by parameter",
            f"{of_average.value:.3f}",
            f"{of_average.low:.3f} to {of_average.high:.3f}",
            "1",
            of_average.low <= 1,
        ),
        Row("a follower's weights: MB", f"{size / 1e6:.2f}"),
        Row(
            "beside the average, fp32: MB",
            f"{beside / 1e6:.2f}",
            "",
            "of the head",
            beside < size / 2,
        ),
        Row("beside the average, bf16: MB", f"{half / 1e6:.2f}", "", "", None),
    ]
    title = f"A follower of {size // 4 / 1e6:.1f} M parameters, fp32, one thread"
    return report(title, rows, options.check)


def _asked(inputs: Inputs) -> dict[int, Tensor]:
    return {0: inputs.images[:, None], 1: inputs.views[0]}


@torch.no_grad()
def _averaged(plain: Plain, averages: list[Any], weights: list[Any], rounds: int) -> dict[str, Any]:
    runs = {
        "ours": lambda: torch._foreach_lerp_(averages, weights, 1 - MOMENTUM),  # pyright: ignore
        "plain": plain.average,
    }
    return interleaved(runs, rounds)


if __name__ == "__main__":
    sys.exit(main())
