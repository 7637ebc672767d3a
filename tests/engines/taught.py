"""What a rank does to show that a student learns the same of its teacher under every engine."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import tiny
import torch
from launched import Way, options, train
from safetensors.torch import save_file

from bigvit.checkpoint.teacher import TeacherWeights
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import build_engine
from bigvit.engines.teacher import Teaching
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Recipe, Run, SoftDistillation, StochasticDepth, Teacher
from bigvit.task import teacher_model

WAYS: tuple[Way, ...] = (1, 3, "fsdp2 full")
OTHERS: tuple[Way, ...] = (0, 2)
HALVES: tuple[Way, ...] = (1, 3)
HELD: tuple[Way, ...] = (1, 3)  # whose students' bytes are counted
CUT: Way = "fsdp2 full"  # whose teacher is cut, too
soft = SoftDistillation(weight=0.5, tau=2.0, mean="images", head="class")
wider = replace(tiny.adamw.model, embed_dim=30, depth=2, drop_path=StochasticDepth(0.0, 8))
recipe = replace(
    tiny.adamw,
    objectives=(*tiny.adamw.objectives, soft),
    schedule=replace(tiny.adamw.schedule, epochs=1, warmup_epochs=0),
    teacher=Teacher(model=wider, image_size=12, mean=(0.5,), std=(0.5,), precision="fp32"),
)


def weights(of: Recipe) -> dict[str, torch.Tensor]:
    """A teacher that nobody has trained."""
    assert of.teacher is not None
    generator, found = torch.Generator().manual_seed(5), teacher_model(of.teacher).state_dict()
    return {n: 0.2 * torch.randn(w.shape, generator=generator) for n, w in found.items()}


def taught_others(ranks: Ranks, folder: Path) -> None:
    """The other stages."""
    teacher = write(ranks, folder / "teacher_of_others.safetensors")
    for way in OTHERS:
        train(ranks, folder / f"taught {way}", recipe, teacher=teacher, **options(way))


def write(ranks: Ranks, path: Path, of: Recipe = recipe) -> str:
    """A file of a teacher's weights."""
    if ranks.rank == 0:
        save_file(weights(of), path)
    ranks.agree(0)
    return str(path)


def taught(ranks: Ranks, folder: Path) -> None:
    """Runs with a teacher, and others that stop in mid-epoch."""
    teacher = write(ranks, folder / "teacher.safetensors")
    for way in WAYS:
        cut = {"teacher_sharding": "host"} if way == CUT else {}
        train(ranks, folder / f"taught {way}", recipe, teacher=teacher, **options(way), **cut)
    for way in HALVES:
        path, how = folder / f"taught halves {way}", options(way)
        train(ranks, path, recipe, teacher=teacher, stop_after=tiny.STOP, **how)
    asked(ranks, folder, teacher)


def taught_halves(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed, with the same weights under another name."""
    teacher = write(ranks, folder / "elsewhere.safetensors")
    for way in HALVES:
        path = folder / f"taught halves {way}"
        train(ranks, path, recipe, teacher=teacher, resume="auto", **options(way))


def asked(ranks: Ranks, folder: Path, path: str) -> None:
    """What a teacher answers and holds, whole and cut; and what a student holds without one."""
    sys.path.insert(0, str(Path(__file__).parents[2]))  # fairscale installs benchmarks of its own
    from benchmarks.plan import Memory

    assert recipe.teacher is not None
    found: dict[str, object] = {}
    images = torch.from_numpy(DigitsSource("train").images[:24]).float().view(24, 1, 8, 8) / 16
    for sharding in ("none", "host"):
        memory = Memory() if sharding == "host" else None
        teaching = Teaching(recipe, ranks, sharding == "host")
        run = Run(teacher=path)
        digest = TeacherWeights(run, recipe.teacher, teaching.model, ranks).each(teaching.put)
        logits = [teaching(images.to(ranks.device)).tolist() for _ in range(2)]
        held = 0 if memory is None else memory.held()
        found[sharding] = {"digest": digest, "bytes": held, "logits": logits}
    for way in HELD:
        layout, each = tiny.cut(recipe, ranks.world), list[int]()
        for student in (replace(recipe, teacher=None), recipe):
            memory = Memory()
            engine = build_engine(student, Run(**options(way)), layout, ranks)
            each.append(memory.held())
            del engine
        found[str(way)] = each
    (folder / f"asked_{ranks.rank}.json").write_text(json.dumps(found))


SCENARIOS = (taught, taught_halves, taught_others)
