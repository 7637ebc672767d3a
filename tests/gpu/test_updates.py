"""One process on one GPU, without DeepSpeed: no wait in our own code, kernels that sum in a fixed
order, and fused optimizers beside plain ones."""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.reads import waiting
from bigvit import optim
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines import deterministic
from bigvit.engines.build import fill, outline
from bigvit.engines.single import SingleEngine
from bigvit.optim.state import fresh_state
from bigvit.ranks.joining import alone
from bigvit.recipe import AdamW, Lamb, Layout, Optimizer, Rates, Recipe, StochasticDepth
from bigvit.recipes.digits import digits_vit
from bigvit.task import DTYPES, Task

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))
from reference import distance  # noqa: E402

pytestmark = pytest.mark.gpu

ADAMW = AdamW(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, weight_decay_end=None)
LAMB = Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
DROP = StochasticDepth(rate=0.3, group=4)
# no kernel has all of 257 tokens in one block
SIDE, UPDATES = (32, 12) if torch.cuda.is_available() else (8, 4)
RECIPE = replace(
    digits_vit,
    model=replace(digits_vit.model, drop_path=DROP),
    data=replace(digits_vit.data, image_size=SIDE),
    ema=0.9,
)
Weights = dict[str, torch.Tensor]


@contextmanager
def no_waiting() -> Generator[None]:
    """A wait of the host for the device is an error on a GPU; elsewhere, a read is one."""
    found: Counter[str] = Counter()
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("error")
    try:
        with waiting(found):
            yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
    assert not found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
def test_our_part_of_an_update_waits_nowhere(device, precision, optimizer: Optimizer):
    task = Task(RECIPE).to(device)
    task.init_weights()
    task.to(DTYPES[precision])
    groups = [{"params": [p], "weight_decay": 0.1, "lr_scale": 1.0} for p in task.parameters()]
    fused = device.type != "cpu" or optimizer is ADAMW  # LAMB's is compiled: not here as well
    stepped = optim.build(optimizer, None, groups, fused=fused)
    layout, prepare = Layout(1, 32, 2), Prepare(RECIPE, device)
    batches = train_batches(DigitsSource("train"), RECIPE, layout, 0, 0, 0, task.draws)

    def update(micro) -> None:
        for inputs in prepare.later(micro):
            torch.stack(list(task(inputs()).values())).sum().backward()
        if precision == "fp32":  # optimizers see master weights
            stepped.step()
        task.zero_grad()

    for _ in range(2):
        update(next(batches))
    pinned = next(batches)
    with no_waiting():
        update(pinned)


def trained(recipe: Recipe, stop: int | None = None) -> Weights:
    """Weights and moments after updates; stopped on the way, and taken over by a new engine."""
    ranks, layout = alone(), Layout(1, 32, 2)
    engines = [SingleEngine(lambda: Task(recipe), recipe, ranks) for _ in range(1 + bool(stop))]
    engine = engines[0]
    fill(engine, outline(recipe).initial_weight)
    prepare = Prepare(recipe, ranks.device)
    batches = train_batches(DigitsSource("train"), recipe, layout, 0, 0, 0, engine.task.draws)
    for number in range(UPDATES):
        if number == stop:
            engine = engines[1]
            for new, old in zip(engine.slices(), engines[0].slices(), strict=True):
                new.view.copy_(old.view)
            engine.loaded(engines[0].scalars())
        engine.update(prepare.later(next(batches)), Rates(1e-3))
    return {f"{part.kind}/{part.name}": part.view.clone().cpu() for part in engine.slices()}


@pytest.fixture
def fixed() -> Generator[None]:
    """Kernels that sum in a fixed order, for a test."""
    deterministic.fix_kernels()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_bits_again_and_resumed(device, fixed, precision, optimizer: Optimizer):
    recipe = replace(RECIPE, precision=precision, optim=optimizer)
    whole, again, resumed = trained(recipe), trained(recipe), trained(recipe, stop=UPDATES // 2)
    for other in (again, resumed):
        assert [name for name in whole if not torch.equal(whole[name], other[name])] == []


def test_how_far_apart_without(device, record_property: Callable[[str, object], None]):
    runs = (trained(RECIPE), trained(RECIPE))
    difference = distance(*({n: w[n] for n in w if n.startswith("weight/")} for w in runs))
    record_property("shown", f"{difference:.1e}")
    assert difference < 1e-2  # float32; AdamW makes much of gradients that are nothing but rounding


@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
def test_fused_optimizers_are_plain_ones(device, optimizer: Optimizer):
    if device.type != "cuda":
        pytest.skip("they are fused on a GPU only")
    steps: list[torch.Tensor] = []
    for fused in (False, True):
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(300, 70, generator=generator), torch.randn(70, generator=generator)]
        weights = [torch.nn.Parameter(weight.to(device)) for weight in weights]
        decays = zip(weights, (0.1, 0.0), strict=True)
        groups = [{"params": [p], "weight_decay": decay, "lr_scale": 1.0} for p, decay in decays]
        stepped = optim.build(optimizer, 0.9, groups, fused=fused)
        for weight in weights:
            fresh_state(stepped, weight)
        for group in stepped.param_groups:
            group["lr"] = 1e-3
        for _ in range(5):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator).to(device)
            stepped.step()
        steps.append(torch.cat([weight.detach().flatten() for weight in weights]))
    plain, fast = steps
    assert float((plain - fast).norm() / plain.norm()) < 1e-5
