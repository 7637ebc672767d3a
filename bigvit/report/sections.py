"""What is on the page, from what run folders tell. No torch here: what a model has to be asked for
is in `computed.py`."""

from collections.abc import Iterator, Sequence

from bigvit.plan.weights import size_of
from bigvit.recipe.store import differences
from bigvit.report import course
from bigvit.report.blocks import (
    Block,
    Figure,
    Figures,
    Section,
    Table,
    Text,
    Tone,
)
from bigvit.report.told import MEASURES, Told, number
from bigvit.report.words import counted, duration, percent, spoken

STATES: dict[str, tuple[str, Tone]] = {
    "running": ("running", "plain"),
    "starting": ("starting", "plain"),
    "done": ("done", "good"),
    "requeue": ("stopped, can go on", "warning"),
    "error": ("ended by an error", "bad"),
    "killed": ("killed", "bad"),
    "unknown": ("state not known", "warning"),
}
FOLDED = 30  # rows from which on a table is shown on demand


def overview(runs: Sequence[Told]) -> Iterator[Block]:
    """Each run at a glance, and what is wrong."""
    several = len(runs) > 1
    for place, told in enumerate(runs):
        said, tone = STATES.get(told.state, (told.state, "warning"))
        figures = list(_figures(told))
        yield Figures(told.name if several else "", said, tone, figures, place if several else None)
        of = f"{told.name}: " if several else ""
        reason = str(told.status.get("reason") or "")
        if reason and told.state != "done":
            text = f"Why it ended, at update {told.batch:,}: {reason}"
            yield Text(of + text, "bad" if told.state == "error" else "warning")
        for fault in told.faults:
            yield Text(f"{of}{fault}; the rest is shown.", "warning")
        if not told.lines:
            yield Text(f"{of}no update was logged yet.".capitalize(), "warning")


def _figures(told: Told) -> Iterator[Figure]:
    recipe, best, pace = told.recipe, course.best(told), course.pace(told)
    if best is not None:
        where = f"epoch {best.epoch:g}"
        top5 = [number(line, "top5") for line in told.evaluations if line.update == best.update]
        if top5 and top5[-1] is not None:
            where += f" · top-5 {percent(top5[-1])}"
        pixels = [
            number(line, "pixel_accuracy")
            for line in told.evaluations
            if line.update == best.update
        ]
        if pixels and pixels[-1] is not None:
            where += f" · pixels {percent(pixels[-1])}"
        yield Figure(f"Best {MEASURES[told.measure]}", percent(best.value), where)
    average = course.best(told, "ema_")
    if average is not None:
        yield Figure("Best of the average", percent(average.value), f"epoch {average.epoch:g}")
    losses = [value for line in told.updates if (value := number(line, "loss")) is not None]
    if losses:
        yield Figure("Training loss", f"{losses[-1]:.4g}", f"at first {losses[0]:.4g}")
    if recipe is not None:
        share = told.batch / max(1, recipe.updates)
        done = f"{told.batch:,} of {recipe.updates:,} updates"
        epoch = f"{told.batch / max(1, recipe.updates_per_epoch):.4g}"
        yield Figure("Epochs", f"{epoch} / {recipe.epochs}", done, share)
    elif told.batch:
        yield Figure("Updates", f"{told.batch:,}")
    if pace is not None:
        detail = f"waiting for images {percent(100 * pace.waiting, 1)} of the time"
        yield Figure("Images a second", f"{pace.images_per_second:,.0f}", detail)
        hours = pace.device_seconds / 3600
        detail = f"{hours:.3g} device-hours"
        if (seconds := course.left(told)) is not None:
            detail += f" · {duration(seconds)} left"
        yield Figure("In training", duration(pace.seconds), detail)
    if recipe is not None:
        side = recipe.data.image_size
        pixels = f"{side[0]} × {side[1]}" if isinstance(side, tuple) else f"{side}"
        parameters, macs = size_of(recipe)
        unit, name = (1e9, "GMAC") if macs >= 1e8 else (1e6, "MMAC")
        kinds = [type(each).__name__ for each in (recipe.model, recipe.dense) if each is not None]
        detail = f"{' + '.join(kinds)} · {macs / unit:.3g} {name} at {pixels}\u00a0px"
        yield Figure("Parameters", _parameters(parameters), detail)


def _parameters(count: int) -> str:
    return f"{count / 1e6:,.4g} M" if count >= 1e6 else f"{count:,}"


def recipes_apart(runs: Sequence[Told]) -> Section | None:
    """In what the recipes of several runs differ."""
    known = [told for told in runs if told.values]
    if len(known) < 2:
        return None
    first = known[0]
    changed: dict[str, list[str]] = {}
    for place, told in enumerate(known[1:], 1):
        for line in differences(first.values, told.values):
            path, _, both = line.partition(": ")
            old, _, new = both.partition(" -> ")
            row = changed.setdefault(path, [old] * len(known))
            row[place] = new
    if not changed:
        return Section("Differences", [Text("Their recipes are the same in every value.")])
    heads = ("field", *(told.name for told in known))
    rows = [(path, *values) for path, values in sorted(changed.items())]
    folded = len(rows) > FOLDED
    title = counted(len(rows), "value") + " of their recipes differ"
    return Section("Differences", [Table(title, heads, rows, folded)])


def recipe_values(runs: Sequence[Told]) -> Section | None:
    """Every value of the recipes."""
    blocks: list[Block] = []
    for told in runs:
        if told.values:
            source = spoken(told.values.get("source"))
            caption = f"Every value of {told.described.get('name', told.name)}"
            rows = list(_leaves(told.values))
            blocks.append(Text(f"Its values are after: {source}."))
            blocks.append(Table(caption, ("field", "value"), rows, folded=True))
    return Section("Recipe", blocks) if blocks else None


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for i, below in enumerate(value):
            yield from _leaves(below, f"{path}.{i}")
    elif isinstance(value, list):
        yield path, ", ".join(map(spoken, value))
    else:
        yield path, spoken(value)
