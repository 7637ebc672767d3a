"""What is on the page, from what run folders tell. No torch here: what a model has to be asked for
is in `computed.py`."""

from collections.abc import Callable, Iterator, Sequence

from bigvit.checkpoint.metrics import Line
from bigvit.recipe.store import differences
from bigvit.report import course, published
from bigvit.report.blocks import (
    Block,
    Chart,
    Charts,
    Figure,
    Figures,
    Section,
    Series,
    Table,
    Text,
    Tone,
)
from bigvit.report.chart import smoothed
from bigvit.report.told import Told, number
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
LOG = 30  # times that values differ where an axis is logarithmic
BLOCKS = 6  # whose norms are drawn
NORMS = {"gradient": "Gradient", "weight": "Weights", "layer_scale": "LayerScale"}
FOLDED = 30  # rows from which on a table is shown on demand


def overview(runs: Sequence[Told]) -> Iterator[Block]:
    """Each run at a glance, and what is wrong."""
    for place, told in enumerate(runs):
        said, tone = STATES.get(told.state, (told.state, "warning"))
        several = place if len(runs) > 1 else None
        yield Figures(told.name, said, tone, list(_figures(told)), several)
        reason = str(told.status.get("reason") or "")
        if reason and told.state != "done":
            yield Text(f"{told.name}: {reason}", "bad" if told.state == "error" else "warning")
        for fault in told.faults:
            yield Text(f"{told.name}: {fault}; the rest is shown", "warning")
        if not told.lines:
            yield Text(f"{told.name}: no update was logged yet.", "warning")


def _figures(told: Told) -> Iterator[Figure]:
    recipe, best, pace = told.recipe, course.best(told), course.pace(told)
    if best is not None:
        where = f"epoch {best.epoch:g}"
        top5 = [number(line, "top5") for line in told.evaluations if line.update == best.update]
        if top5 and top5[-1] is not None:
            where += f" · top-5 {percent(top5[-1])}"
        yield Figure("Best top-1", percent(best.top1), where)
    average = course.best(told, "ema_top1")
    if average is not None:
        yield Figure("Best of the average", percent(average.top1), f"epoch {average.epoch:g}")
    losses = [value for line in told.updates if (value := number(line, "loss")) is not None]
    if losses:
        yield Figure("Training loss", f"{losses[-1]:.4g}", f"at first {losses[0]:.4g}")
    if recipe is not None:
        share = told.batch / max(1, recipe.updates)
        done = f"{told.batch:,} of {recipe.updates:,} updates"
        epoch = f"{told.batch / max(1, recipe.updates_per_epoch):.4g}"
        yield Figure("Epochs", f"{epoch} / {recipe.schedule.epochs}", done, share)
    elif told.batch:
        yield Figure("Updates", f"{told.batch:,}")
    if pace is not None:
        detail = f"waiting for images {100 * pace.waiting:.1f} % of the time"
        yield Figure("Images a second", f"{pace.images_per_second:,.0f}", detail)
        hours = pace.device_seconds / 3600
        detail = f"{hours:.3g} device-hours"
        if (seconds := course.left(told)) is not None:
            detail += f" · {duration(seconds)} left"
        yield Figure("In training", duration(pace.seconds), detail)
    if recipe is not None:
        model, side = recipe.model, recipe.data.image_size
        pixels = f"{side[0]} × {side[1]}" if isinstance(side, tuple) else f"{side}"
        detail = f"{type(model).__name__} · {model.macs(side) / 1e9:.3g} GMAC at {pixels} px"
        yield Figure("Parameters", f"{model.parameters(side) / 1e6:,.4g} M", detail)


def on_course(runs: Sequence[Told]) -> Section | None:
    """A run beside the authors' log of the same recipe."""
    blocks: list[Block] = []
    for place, told in enumerate(runs):
        if not told.values or (log := published.published_for(told.values)) is None:
            continue
        x, y = told.curve(told.evaluations, lambda line: number(line, "top1"))
        found = published.compared(log, x, y)
        if found:
            last = found[-1]
            tone: Tone = "warning" if last.said == "behind" else "good"
            text = (
                f"{told.name} is {last.said} at epoch {last.epoch:g}: top-1 {percent(last.top1)}, "
                f"the authors' log {percent(last.published)} (on course is {last.low:.2f} to "
                f"{last.high:.2f})."
            )
            blocks.append(Text(text, tone))
        else:
            text = f"{told.name} has no evaluation after epoch {published.FIRST} yet; from there on"
            blocks.append(Text(f"{text} it can be compared."))
        if log.differs:
            text = f"It is not quite the same recipe ({log.recipe} -> {told.name}): "
            blocks.append(Text(text + "; ".join(log.differs), "warning"))
        curves = [Series("authors' log", log.epochs, log.top1, 5, "dashed")]
        curves += [Series(told.name, x, y, place)] if x else []
        end = max(2 * x[-1], 20) if x else log.epochs[-1]
        near = [i for i, epoch in enumerate(log.epochs) if epoch <= end]
        part = Series("authors' log", log.epochs[: len(near)], log.top1[: len(near)], 5, "dashed")
        described = f"Log of {log.recipe}: {log.source}."
        charts = [Chart("Top-1 beside the authors' log", curves, "%", described=described)]
        if len(part.x) < len(log.epochs) and len(part.x) > 1:
            charts.append(Chart("The same, so far", [part, *curves[1:]], "%"))
        blocks.append(Charts(charts))
        rows = [
            (f"{each.epoch:g}", each.top1, each.published, each.low, each.high, each.said)
            for each in found
        ]
        heads = ("epoch", "top-1, %", "log, %", "from", "to", "")
        if rows:
            caption = f"{told.name} and the log"
            blocks.append(Table(caption, heads, rows, folded=len(rows) > FOLDED))
            blocks.append(
                Text(
                    "On course is what the log has one epoch earlier to one later, and "
                    f"{published.NOISE} points either way: three standard deviations over seeds "
                    "of a trained model. Early epochs vary more."
                )
            )
    return Section("On course", blocks) if blocks else None


def curves(runs: Sequence[Told]) -> Section | None:
    """Losses, accuracies, learning rate and norms; the runs over each other."""
    charts = [
        _chart(runs, "Training loss", _updates, {"": ("loss",)}),
        _chart(runs, "Test accuracy", _evaluations, _accuracies(runs), "%"),
        _chart(runs, "Test loss", _evaluations, {"": ("test_loss",)}),
        *_parts(runs),
        _chart(runs, "Learning rate", _updates, {"": ("lr",)}),
        _chart(
            runs,
            "Gradient norm",
            _updates,
            {"": ("grad_norm",)},
            described="Before it is clipped.",
        ),
        _chart(runs, "Loss scale", _updates, {"": ("loss_scale",)}, log=True),
    ]
    blocks: list[Block] = []
    if any(charts):
        blocks.append(Charts([chart for chart in charts if chart is not None]))
    for told in runs:
        if norms := list(_norms(told)):
            if len(runs) > 1:
                blocks.append(Text(f"Norms by block of {told.name}:"))
            blocks.append(Charts(norms))
    return Section("Curves", blocks) if blocks else None


def _updates(told: Told) -> list[Line]:
    return told.updates


def _evaluations(told: Told) -> list[Line]:
    return told.evaluations


def _accuracies(runs: Sequence[Told]) -> dict[str, tuple[str, ...]]:
    """Of several runs top-1 alone; of one also what else was counted."""
    if len(runs) > 1:
        return {"": ("top1",)}
    named: dict[str, tuple[str, ...]] = {"top-1": ("top1",), "top-5": ("top5",)}
    named["top-1 of the average"] = ("ema_top1",)
    for line in runs[0].evaluations:
        for head, value in line.values.items():
            if isinstance(value, dict) and "top1" in value:
                named[f"top-1, {head.replace('_', ' ')}"] = (head, "top1")
    return named


def _parts(runs: Sequence[Told]) -> Iterator[Chart | None]:
    """Each objective's own loss, where there are several."""
    names: dict[str, None] = {}
    for told in runs:
        for line in told.updates[:1]:
            known = ("loss", "lr", "grad_norm", "loss_scale", "waiting", "teacher", "batch")
            for key, value in line.values.items():
                of_speed = key.startswith("images_per") or key.endswith("flops_use")
                if key not in (*known, "update", "epoch") and not of_speed:
                    names |= {key: None} if type(value) is float else {}
    for name in names:
        title = f"Loss: {name.replace('_', ' ')}"
        described = "With its weight." if len(names) > 1 else ""
        yield _chart(runs, title, _updates, {"": (name,)}, described=described)


def _chart(
    runs: Sequence[Told],
    title: str,
    of: Callable[[Told], list[Line]],
    keys: dict[str, tuple[str, ...]],
    unit: str = "",
    described: str = "",
    log: bool | None = None,
    from_zero: bool = False,
    scale: float = 1.0,
) -> Chart | None:
    """A chart of what lines say under some keys, by what to call them; None where none says it."""
    series: list[Series] = []
    for place, told in enumerate(runs):
        for number_, (name, path) in enumerate(keys.items()):

            def value(line: Line, path: tuple[str, ...] = path) -> float | None:
                found = number(line, *path)
                return None if found is None else scale * found

            x, y = told.curve(of(told), value)
            if x:
                label = " ".join(filter(None, (told.name if len(runs) > 1 else "", name)))
                series += smoothed(Series(label or title, x, y, place + number_))
    if not series:
        return None
    every = [value for each in series for value in each.y]
    if log is None:
        log = 0 < min(every) < max(every) / LOG and title.endswith("norm")
    marks = list(runs[0].restarts()) if len(runs) == 1 else []
    return Chart(title, series, unit, _across(runs), described, marks, log, from_zero)


def _across(runs: Sequence[Told]) -> str:
    known = all(told.epoch_at(1) != 1.0 for told in runs if told.lines)
    return "epoch" if known else "update"


def _norms(told: Told) -> Iterator[Chart]:
    """Norms by block, of a few blocks from the first to the last."""
    lines = [line for line in told.updates if isinstance(line.values.get("norms"), dict)]
    if not lines:
        return
    blocks = list(lines[-1].values["norms"])
    for kind, name in NORMS.items():
        having = [block for block in blocks if number(lines[-1], "norms", block, kind) is not None]
        most = min(BLOCKS, len(having))
        chosen = [having[i * (len(having) - 1) // max(1, most - 1)] for i in range(most)]
        series: list[Series] = []
        for place, block in enumerate(dict.fromkeys(chosen)):
            x, y = told.curve(lines, lambda line, b=block, k=kind: number(line, "norms", b, k))
            series += smoothed(Series(block, x, y, place))[-1:]
        every = [value for each in series for value in each.y]
        if every:
            log = 0 < min(every) < max(every) / LOG
            some = "" if len(having) == most else f"{most} of {len(having)} blocks."
            title = f"{name} norm by block"
            yield Chart(title, series, "", _across([told]), some, log=log)


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


def throughput(runs: Sequence[Told]) -> Section | None:
    """Speed and waiting, and what was planned beside what was measured."""
    charts = [
        _chart(runs, "Images a second", _updates, {"": ("images_per_second",)}, from_zero=True),
        _chart(
            runs,
            "Waiting for images",
            _updates,
            {"": ("waiting",)},
            "% of the time",
            from_zero=True,
            scale=100,
        ),
        _chart(
            runs,
            "Images a second and core",
            _updates,
            {"": ("images_per_core_second",)},
            described="What a core of the data processes makes.",
            from_zero=True,
        ),
        _chart(
            runs,
            "Time of the teacher",
            _updates,
            {"": ("teacher",)},
            "% of the time",
            from_zero=True,
            scale=100,
        ),
        _chart(
            runs,
            "Use of the peak FLOPs",
            _updates,
            {"": ("flops_use",)},
            "%",
            from_zero=True,
            scale=100,
        ),
    ]
    blocks: list[Block] = []
    rows: list[tuple[str, ...]] = []
    for told in runs:
        if (pace := course.pace(told)) is not None:
            elapsed = course.elapsed(told)
            rows.append(
                (
                    told.name,
                    f"{pace.images_per_second:,.0f}",
                    f"{pace.slowest:,.0f}",
                    percent(100 * pace.waiting, 1),
                    "–" if pace.flops_use is None else percent(100 * pace.flops_use, 1),
                    f"{pace.images:,}",
                    duration(pace.seconds),
                    f"{pace.device_seconds / 3600:.3g} h",
                    "–" if elapsed is None else duration(elapsed),
                )
            )
    if rows:
        heads = ("run", "images/s", "slowest tenth", "waiting", "peak FLOPs", "images seen")
        heads += ("in training", "device-hours", "begin to end")
        blocks.append(Table("Speed and time", heads, rows))
    if any(charts):
        blocks.append(Charts([chart for chart in charts if chart is not None]))
    if not blocks:
        return None
    return Section("Throughput", [*blocks, *_planned(runs)])


def _planned(runs: Sequence[Told]) -> Iterator[Block]:
    rows: list[tuple[str, ...]] = []
    for told in runs:
        for line in told.planned[-1:]:
            for key, said, scale in (
                ("seconds", "an update, ms", 1e3),
                ("memory", "memory, GB", 1e-9),
            ):
                planned = number(line, "planned", key)
                measured = number(line, "measured", key)
                if planned is not None:
                    off = "–" if measured is None else f"{100 * (measured / planned - 1):+.0f} %"
                    found = "–" if measured is None else f"{scale * measured:.4g}"
                    rows.append((told.name, said, f"{scale * planned:.4g}", found, off))
    if rows:
        yield Table(
            "Planned and measured, of the first updates",
            ("run", "", "planned", "measured", "off by"),
            rows,
        )
    elif any(told.lines for told in runs):
        yield Text(
            "Nothing was planned for this device, so there is nothing to compare with what was "
            "measured: bigvit plan knows GPUs, and --calibrate measures any other device."
        )


def recipe_values(runs: Sequence[Told]) -> Section | None:
    """Every value of the recipes."""
    blocks: list[Block] = []
    for told in runs:
        if told.values:
            source = spoken(told.values.get("source"))
            caption = f"Every value of {told.described.get('name', told.name)}"
            rows = list(_leaves(told.values))
            blocks.append(Text(f"{told.name} is after: {source}"))
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
