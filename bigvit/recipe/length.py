"""Refuse trainings of a length, and schedules, that cannot be. No torch here."""

from itertools import pairwise

from bigvit.recipe.bounds import MOST_UPDATES, allow
from bigvit.recipe.optim import Polynomial, Steps, WarmupStableDecay
from bigvit.recipe.recipe import Recipe


def check_length(recipe: Recipe) -> None:
    """Check an epoch, the updates, and what the schedule says of them.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    batch, schedule, data = recipe.batch_size, recipe.schedule, recipe.data
    epochs = recipe.epochs
    match schedule:
        case Polynomial():
            warmup, most = schedule.warmup_updates, schedule.updates
            allowed = f"0 to schedule.updates ({most})"
            allow("schedule.warmup_updates", warmup, warmup <= most, allowed)
        case Steps():
            warmup, most = schedule.warmup_updates, recipe.updates
            allowed = f"0 to {most}, the updates of schedule.epochs ({epochs})"
            allow("schedule.warmup_updates", warmup, warmup <= most, allowed)
            rising = all(a < b for a, b in pairwise((*schedule.steps, epochs)))
            allow("schedule.steps", schedule.steps, rising, f"epochs that rise, below {epochs}")
        case _:
            warmup, allowed = schedule.warmup_epochs, f"0 to schedule.epochs ({epochs})"
            allow("schedule.warmup_epochs", warmup, warmup <= epochs, allowed)
    if isinstance(schedule, WarmupStableDecay):
        decay, most = schedule.decay_epochs, epochs - schedule.warmup_epochs
        allowed = f"0 to {most}, what the warm-up leaves of schedule.epochs ({epochs})"
        allow("schedule.decay_epochs", decay, decay <= most, allowed)
    if recipe.updates_per_epoch == 0:
        raise ValueError(
            f"batch_size: {batch} is larger than an epoch ({data.train_images} images); choose a "
            "smaller batch"
        )
    if recipe.updates > MOST_UPDATES:
        raise ValueError(
            f"schedule.epochs: {epochs:,} epochs of {recipe.updates_per_epoch:,} updates are "
            f"{recipe.updates:,}; choose fewer, as checkpoints count to {MOST_UPDATES:,}"
        )
    if data.repeats > 1 and (group := data.mixing_group) and batch // data.repeats < group:
        raise ValueError(
            f"batch_size: {batch} with data.repeats {data.repeats} would mix copies of one image "
            f"with each other in groups of {group}; choose at least {group * data.repeats}"
        )
