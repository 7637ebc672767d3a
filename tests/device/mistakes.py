"""Mistakes put into bigvit's code on purpose, one at a time: what a run is like with each.

One process trains, saves and evaluates with the code as it is, and with every mistake in turn; it
writes what each run found to mistakes.json in the folder that it is given.
"""

import contextlib
import importlib
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))

import tiny  # noqa: E402
import torch  # noqa: E402

from bigvit.checkpoint.load import read_weights  # noqa: E402
from bigvit.checkpoint.save import Saver  # noqa: E402
from bigvit.data import loader, prepare  # noqa: E402
from bigvit.data.sources import DigitsSource  # noqa: E402
from bigvit.engines.build import build_engine, meet_ranks  # noqa: E402
from bigvit.evaluate import evaluate_checkpoint  # noqa: E402
from bigvit.ranks import joining  # noqa: E402
from bigvit.recipe import Rates, Run, batch_layout  # noqa: E402
from bigvit.recipe.store import to_json  # noqa: E402

RECIPE = replace(
    tiny.adamw,
    model=replace(tiny.adamw.model, depth=1),
    schedule=replace(tiny.adamw.schedule, epochs=1),
)
UPDATES = 2
LR = 1e-3


@dataclass(frozen=True)
class Mistake:
    """A change of a function's source that a CPU does not mind."""

    what: str
    where: str  # MODULE:NAME
    right: str  # stands there once
    wrong: str
    shows: str  # on the device: words of an error, or the name of what is found otherwise


MISTAKES = (
    Mistake(
        "tensors left on the host",
        "bigvit.data.prepare:Normalise.__init__",
        "torch.tensor(values, device=device)",
        "torch.tensor(values)",
        "pretend:1 and cpu",
    ),
    Mistake(
        "a batch without .to",
        "bigvit.data.prepare:Prepare.__call__",
        "batch = self.ahead.take(batch)",
        "pass",
        "pretend:1 and cpu",
    ),
    Mistake(
        "memory of the device read by NumPy",
        "bigvit.checkpoint.save:_bytes",
        ".cpu()",
        "",
        "can't convert pretend:1",
    ),
    Mistake(
        "the first device in place of this rank's",
        "bigvit.data.prepare:Prepare.__init__",
        "device=device)",
        "device=torch.device(device.type, 0))",
        "pretend:1 and pretend:0",
    ),
    Mistake(
        "a copy to the host read too early",
        "bigvit.checkpoint.save:Saver._slices",
        "torch.accelerator.synchronize()",
        "pass",
        "saved True",
    ),
    Mistake(
        "a host's tensor given to a collective",
        "bigvit.engines.deepspeed.engine:mean_over_ranks",
        "means = mean_losses(losses)",
        "means = mean_losses(losses).cpu()",
        "No backend type associated with device type cpu",
    ),
    Mistake(
        "a copy that the host waits for in an update",
        "bigvit.data.batch:Batch.to",
        "x.to(device, non_blocking=True)",
        "x.to(device)",
        "waits",
    ),
    Mistake(
        "a number of the device read in an update",
        "bigvit.engines.deepspeed.engine:DeepSpeedEngine._backward",
        "self.ranks.went_on()\n    losses = self.engine(inputs())",
        "self.ranks.went_on()\n    losses = self.engine(inputs())\n"
        "    assert all(float(loss) >= 0 for loss in losses.values())",
        "waits",
    ),
    Mistake(
        "CUDA by name",
        "bigvit.ranks.joining:_device",
        "torch.accelerator.current_accelerator(check_available=True)",
        "torch.device('cuda') if torch.cuda.is_available() else None",
        "pretend:1 and cpu",
    ),
    Mistake(
        "a prediction without .to",
        "bigvit.evaluate:evaluate",
        "predict(normalise(batch.images))",
        "predict(Normalise(data)(batch.images))",
        "pretend:1 and cpu",
    ),
    Mistake(
        "a collective that nobody waits for",
        "bigvit.engines.deepspeed.engine:mean_over_ranks",
        "dist.all_reduce(means)",
        "dist.all_reduce(means, async_op=True)",
        "loss",
    ),
    Mistake(
        "a source overwritten during its copy",
        "bigvit.data.prepare:Prepare.__call__",
        "return Inputs(",
        "given.images.zero_()\n    return Inputs(",
        "written while a copy",
    ),
    Mistake(
        "a copy on another stream that is not waited for",
        "bigvit.data.prepare:Ahead.take",
        "current.wait_stream(self.stream)",
        "pass",
        "did not wait for its copy",
    ),
)
CODE = "the code as it is"
# the last one keeps the host's batch, whatever `batch` becomes
GIVEN = (
    "batch = self.ahead.take(batch)",
    "given, batch = batch, batch._replace(\n"
    "        images=torch.empty_like(batch.images, device=self.classes.device).copy_(\n"
    "            batch.images, non_blocking=True\n        )\n    ).to(self.classes.device)",
)


@contextlib.contextmanager
def put_in(mistake: Mistake) -> Generator[None]:
    """Inside, the function is the mistaken one."""
    name, path = mistake.where.split(":")
    module = importlib.import_module(name)
    *outer, last = path.split(".")
    owner: Any = module
    for part in outer:
        owner = getattr(owner, part)
    right = inspect.getattr_static(owner, last)
    source = textwrap.dedent(inspect.getsource(right))
    assert source.count(mistake.right) == 1, f"{mistake.where} is another one: {mistake.what}"
    source = source.replace(mistake.right, mistake.wrong)
    if "given." in mistake.wrong:
        assert source.count(GIVEN[0]) == 1
        source = source.replace(*GIVEN)
    made: dict[str, Any] = {}
    exec(compile(source, str(module.__file__), "exec"), inspect.unwrap(right).__globals__, made)
    setattr(owner, last, made[last])
    try:
        yield
    finally:
        setattr(owner, last, right)


def run(ranks: joining.Ranks, folder: Path) -> dict[str, Any]:
    """Train a little, save and evaluate: what was found."""
    joined = replace(ranks, device=joining._device())
    layout = batch_layout(RECIPE, 1, RECIPE.batch_size // 2)
    engine = build_engine(RECIPE, Run(sharding="zero1"), layout, joined)
    made = prepare.Prepare(RECIPE, joined.device)
    source, draws = DigitsSource("train"), engine.task.draws
    batches = loader.train_batches(source, RECIPE, layout, 0, 0, 0, draws)
    found: dict[str, Any] = {"device": str(joined.device)}
    for _ in range(UPDATES):
        with watching() as waits:
            info = engine.update(made.later(next(batches)), Rates(LR))
        found["waits"] = waits
        found["loss"] = info.loss
    weights = {part.name: part.view.cpu() for part in engine.slices() if part.kind == "weight"}
    found["weights"] = [float(w.double().square().sum()) for w in weights.values()]
    for background in (True, False):
        where = folder / str(background)
        saver = Saver(engine, where, to_json(RECIPE), keep=1, background=background)
        checkpoint = saver.save(UPDATES)
        saver.wait()
        _, saved = read_weights(checkpoint)
        found[f"saved {background}"] = [
            torch.equal(saved[name].view(-1), weight) for name, weight in weights.items()
        ]
    counted = evaluate_checkpoint(checkpoint, 100)
    found["evaluated"] = {key: counted[key] for key in ("images", "top1_correct", "test_loss")}
    return found


@contextlib.contextmanager
def watching() -> Generator[list[str]]:
    """Our own waits inside, where they can be seen."""
    waits: list[str] = []
    if not os.environ.get("PRETEND"):
        yield waits
        return
    from pretend.watch import watch

    with watch() as seen:
        yield waits
    waits += [f"{wait.kind}, {wait.where}" for wait in seen if wait.who == "ours"]


def main(folder: Path) -> None:
    os.environ.update(LOCAL_RANK="1", LOCAL_SIZE="2")  # the one rank has its host's second device
    ranks = joining.connect(meet_ranks(Run(timeout=60)), 60)
    found: dict[str, Any] = {}
    for i, mistake in enumerate((None, *MISTAKES)):
        with contextlib.nullcontext() if mistake is None else put_in(mistake):
            try:
                seen = run(ranks, folder / str(i))
            except Exception as error:
                seen = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        found[CODE if mistake is None else mistake.what] = seen
    (folder / "mistakes.json").write_text(json.dumps(found))
    joining.end(0)


if __name__ == "__main__":
    main(Path(next(word for word in sys.argv[1:] if not word.startswith("--local_rank"))))
