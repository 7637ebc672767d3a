"""What a teacher adds to a rank's update: its bytes, and the recipe that it is planned as.
docs/plan.md has the formulas. No torch here."""

from dataclasses import replace
from typing import Any

from bigvit.plan.activations import parts
from bigvit.plan.cuts import elements, rows, units
from bigvit.plan.weights import BYTES, WIDE, weights_of
from bigvit.recipe import Layout, Recipe, Run
from bigvit.recipe.depth import sides


def asked(recipe: Recipe) -> Recipe | None:
    """A recipe whose model is the teacher, None where there is no teacher; nothing else counts."""
    if (teacher := recipe.teacher) is None:
        return None
    size: dict[str, Any] = {"image_size": teacher.image_size}
    return replace(
        recipe,
        model=teacher.model,
        data=replace(recipe.data, **size),
        objectives=(),
        teacher=None,
        trainable="all",
        precision=teacher.precision,
    )


def _shards(layout: Layout, run: Run, per_node: int) -> int:
    return min(per_node, layout.world) if run.teacher_sharding == "host" else 1


def weights_bytes(recipe: Recipe, layout: Layout, run: Run, per_node: int) -> int:
    """Bytes of a teacher's weights that stay on a rank, and its statistics."""
    if (its := asked(recipe)) is None:
        return 0
    shards = _shards(layout, run, per_node)
    if not its.model.described:
        return BYTES[its.precision] * -(-its.model.parameters(its.data.image_size) // shards)
    weights = weights_of(its)
    held = rows(weights.all, shards) if shards > 1 else elements(weights.all)
    return BYTES[its.precision] * held + WIDE * weights.statistics


def temporary_bytes(recipe: Recipe, layout: Layout, run: Run, per_node: int) -> int:
    """Bytes that are there while it is asked: its images, what a block makes of them, and where its
    weights are cut what is gathered."""
    if (its := asked(recipe)) is None:
        return 0
    height, width = sides(its.data.image_size)
    images = (WIDE + BYTES[its.precision]) * its.data.channels * height * width
    if not its.model.described:
        return layout.micro_batch * images
    made = layout.micro_batch * (images + max(part.passing for part in parts(its, 0.0)))
    if _shards(layout, run, per_node) == 1:
        return made
    rest, *blocks = map(elements, units(weights_of(its).all))
    return made + BYTES[its.precision] * (rest + 3 * max(blocks, default=0))
