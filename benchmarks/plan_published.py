"""What others measured and published, beside what the planner's formulas say of it.

    python -m benchmarks.plan_published

docs/plan.md has the table, and what it teaches. Their code is not ours: timm's and the authors'
models have no fused attention, run under autocast, and skip no dropped samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bigvit.plan.activations import parts
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.clock import speed
from bigvit.plan.devices import DEVICES
from bigvit.recipe import Recipe, Run, StochasticDepth, ViT, batch_layout, vit
from bigvit.recipe.depth import sides
from bigvit.recipe.find import find_recipe

MIB = 2**20
MAPS = 26  # bytes read and written of an attention map's number, unfused, by autocast's softmax
HELD = 6  # bytes of it that are there at once: in half, and float32
AROUND = 20  # and of a token's: stream 4, norm 4 and in half 2, qkv 6, q and k once more 4
IMAGES_21K = 13_153_500  # of ImageNet-21k's winter 2021 release


@dataclass(frozen=True)
class Case:
    """A figure that was published."""

    what: str
    unit: str
    reported: float
    modelled: float
    source: str

    @property
    def error(self) -> float:
        """Of the model, relative."""
        return self.modelled / self.reported - 1


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _inference()
    yield from _deit3_training()
    yield from _nemo()


def _inference() -> Iterator[Case]:
    """Thesis table 6.7: batch 256, mixed precision, one V100-32GB."""
    for name, size, pixels, throughput, memory in (
        ("ViT-S", "s16", 224, 1891, 987),
        ("ViT-S", "s16", 384, 424, 4569),
        ("ViT-B", "b16", 224, 831, 2078),
        ("ViT-B", "b16", 384, 190, 8956),
        ("ViT-L", "l16", 224, 277, 3789),
        ("ViT-L", "l16", 384, 67, 12866),
        ("ViT-H", "h14", 224, 112, 6984),
    ):
        recipe, source = _vit(size, pixels), "thesis table 6.7, V100"
        what = f"{name} at {pixels} px, inference of 256"
        yield Case(what, "images/s", throughput, _throughput(recipe), source)
        yield Case(what, "MiB", memory, _inference_memory(recipe) / MIB, source)


def _vit(size: str, pixels: int) -> Recipe:
    """A ViT without drops, in fp16."""
    recipe = find_recipe("deit3_b16_in1k_192")[1]
    model = vit(
        size, layer_scale=1e-4, drop_path=StochasticDepth(0.0, 8), num_classes=1000, in_chans=3
    )
    data = replace(recipe.data, image_size=pixels)
    return replace(recipe, model=model, data=data, precision="fp16")


def _maps(recipe: Recipe) -> int:
    """Numbers of a block's attention maps, of an image."""
    model = recipe.model
    assert isinstance(model, ViT)
    h, w = model.grid(recipe.data.image_size)
    return model.num_heads * (h * w + 1) ** 2


def _throughput(recipe: Recipe) -> float:
    device, images = DEVICES["v100-32gb"], 256
    at, seconds = speed(device, "fp16", compiled=False), 0.0
    for part in parts(recipe, 0.0):
        for op, *_ in part.steps:
            once = at.forward(op, images, skips=False)
            seconds += len(part.shares) * (once.arithmetic + once.memory)
    seconds += recipe.model.depth * MAPS * images * _maps(recipe) / at.copies
    return images / seconds


def _inference_memory(recipe: Recipe) -> float:
    """Weights in float32 and, by autocast, in half; images; an attention before its product."""
    model, pixels = recipe.model, recipe.data.image_size
    assert isinstance(model, ViT)
    (h, w), (height, width) = model.grid(pixels), sides(pixels)
    block = AROUND * (h * w + 1) * model.embed_dim + HELD * _maps(recipe)
    return 6 * model.parameters(pixels) + 256 * (4 * 3 * height * width + block)


def _deit3_training() -> Iterator[Case]:
    """The authors' answer to facebookresearch/deit issue 198: seconds of an epoch of ImageNet-21k
    at 224 px, on V100s."""
    for name, size, gpus, seconds in (
        ("ViT-S", "s16", 32, 1548.6),
        ("ViT-B", "b16", 32, 2231.5),
        ("ViT-L", "l16", 32, 5976.1),
        ("ViT-H", "h14", 64, 8319.3),
    ):
        recipe = _vit(size, 224)
        recipe = replace(recipe, model=replace(recipe.model, num_classes=21_841))
        choice = _choice(recipe, "v100-32gb", gpus, 100, "zero0", 2048 // gpus)
        reported = IMAGES_21K / seconds
        what = f"{name}, training on {gpus} V100"
        yield Case(what, "images/s", reported, choice.images_per_second, "deit issue 198")


def _nemo() -> Iterator[Case]:
    """NVIDIA NeMo's user guide, "Vision Transformer, performance": ViT-g/14 at 224 px in bf16, 64
    images a GPU, DGX nodes of eight."""
    recipe = _vit("h14", 224)
    model = replace(recipe.model, embed_dim=1408, depth=40, mlp_ratio=6144 / 1408)
    recipe = replace(recipe, model=model, precision="bf16", ema=None)
    for device, nodes, reported in (
        ("a100-80gb", 1, 693),
        ("a100-80gb", 16, 10644),
        ("h100-80gb", 1, 1428),
        ("h100-80gb", 16, 21561),
    ):
        gpus = 8 * nodes
        network = 1600 if device.startswith("a100") else 3200
        own = replace(recipe, batch_size=64 * gpus)
        choice = _choice(own, device, gpus, network, "zero1", 64)
        what = f"ViT-g/14, training on {gpus} {device}"
        yield Case(what, "images/s", reported, choice.images_per_second, "NeMo's user guide")


def _choice(
    recipe: Recipe, device: str, gpus: int, network: float, sharding: str, micro_batch: int
) -> Choice:
    run = Run(engine="deepspeed", sharding=sharding, micro_batch=micro_batch)
    layout = batch_layout(recipe, gpus, micro_batch)
    return Choice(recipe, run, layout, Machines(DEVICES[device], gpus, 8, network * 1e9 / 8))


def main() -> None:
    print("| what | | reported | modelled | error | source |\n|---|---|---|---|---|---|")
    for case in cases():
        print(
            f"| {case.what} | {case.unit} | {case.reported:,.0f} | {case.modelled:,.0f} | "
            f"{100 * case.error:+.0f} % | {case.source} |"
        )


if __name__ == "__main__":
    main()
