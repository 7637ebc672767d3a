"""Curves of runs, over each other: losses, accuracies, norms, speed. No torch here."""

from collections.abc import Callable, Iterator, Sequence

from bigvit.checkpoint.metrics import Line
from bigvit.report import course
from bigvit.report.blocks import Block, Chart, Charts, Section, Series, Table, Text
from bigvit.report.chart import smoothed
from bigvit.report.skipped import rolled_back
from bigvit.report.told import Told, number
from bigvit.report.words import duration, percent

LOG = 30  # times that values differ where an axis is logarithmic
EXACT = ("Learning rate", "Loss scale", "Test accuracy", "Test IoU", "Test loss")  # without noise
CLASSES = 30  # up to which their table is shown at once
BLOCKS = 6  # whose norms are drawn
MOST = 2000  # lines of norms that are looked at
NORMS = {"gradient": "Gradient", "weight": "Weight", "layer_scale": "LayerScale"}
SPEED = (
    *("images a second", "in the slowest tenth", "waiting for images", "use of peak FLOPs"),
    *("images seen", "in training", "device-hours", "begin to end"),
)


def curves(runs: Sequence[Told]) -> Section | None:
    """Losses, accuracies, learning rate and norms; the runs over each other."""
    charts = [
        _chart(runs, "Training loss", _updates, {"": ("loss",)}),
        _chart(runs, "Test accuracy", _evaluations, _accuracies(runs), "%"),
        _chart(runs, "Test IoU", _evaluations, _overlaps(runs), "%"),
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
        blocks += _dotted(runs)
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


def _overlaps(runs: Sequence[Told]) -> dict[str, tuple[str, ...]]:
    """Of several runs the mean over classes alone; of one also what else was counted of pixels."""
    if len(runs) > 1:
        return {"": ("miou",)}
    also = {"mean accuracy of classes": ("mean_accuracy",), "pixels": ("pixel_accuracy",)}
    return {"mean over classes": ("miou",), "of the average": ("ema_miou",), **also}


def by_class(runs: Sequence[Told]) -> Section | None:
    """How well each class of pixels is found, in the last evaluation of each run."""
    last = {told.name: told.evaluations[-1] for told in runs if told.evaluations}
    found = {name: line.values.get("class_iou") for name, line in last.items()}
    found = {name: ious for name, ious in found.items() if isinstance(ious, dict)}
    classes = list(dict.fromkeys(label for ious in found.values() for label in ious))
    if not classes:
        return None

    def value(name: str, label: str) -> float | None:
        return number(last[name], "class_iou", label)

    first = next(iter(found))
    classes.sort(key=lambda label: -(value(first, label) or -1.0))
    rows = [(label, *(percent(value(name, label)) for name in found)) for label in classes]
    heads = ("class", *(found if len(found) > 1 else ("IoU",)))
    caption = "Intersection over union, last evaluation"
    return Section("Classes", [Table(caption, heads, rows, len(rows) > CLASSES)])


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
                found = Series(label or title, x, y, place + number_)
                series += [found] if title in EXACT else smoothed(found)
    if not series:
        return None
    every = [value for each in series for value in each.y]
    if log is None:
        log = 0 < min(every) < max(every) / LOG and title.endswith("norm")
    marks = _marks(runs)
    return Chart(title, series, unit, _across(runs), described, marks, log, from_zero)


def _marks(runs: Sequence[Told]) -> list[tuple[float, str]]:
    """Where a run went on or back; of several, none."""
    return [*runs[0].restarts(), *rolled_back(runs[0])] if len(runs) == 1 else []


def _dotted(runs: Sequence[Told]) -> Iterator[Text]:
    """What the dotted lines of charts mean."""
    if marks := _marks(runs):
        yield Text(f"Dotted lines are where the run {'; '.join(text for _, text in marks)}.")


def _across(runs: Sequence[Told]) -> str:
    known = all(told.epoch_at(1) != 1.0 for told in runs if told.lines)
    return "epoch" if known else "update"


def _norms(told: Told) -> Iterator[Chart]:
    """Norms by block, of a few blocks from the first to the last."""
    lines = [line for line in told.updates if isinstance(line.values.get("norms"), dict)]
    if not lines:
        return
    blocks = list(lines[-1].values["norms"])
    lines = [*lines[:: -(-len(lines) // MOST)], lines[-1]]
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
    rows = [(told.name, *_speed(told, pace)) for told in runs if (pace := course.pace(told))]
    if len(runs) > 1 and rows:
        blocks.append(Table("Speed and time", ("run", *SPEED), rows))
    elif rows:
        blocks.append(Table("Speed and time", ("", ""), list(zip(SPEED, rows[0][1:], strict=True))))
    if any(charts):
        blocks.append(Charts([chart for chart in charts if chart is not None]))
    if not blocks:
        return None
    return Section("Throughput", [*blocks, *_planned(runs)])


def _speed(told: Told, pace: course.Pace) -> tuple[str, ...]:
    elapsed, use = course.elapsed(told), pace.flops_use
    return (
        f"{pace.images_per_second:,.0f}",
        f"{pace.slowest:,.0f}",
        percent(100 * pace.waiting, 1),
        "–" if use is None else percent(100 * use, 1),
        f"{pace.images:,}",
        duration(pace.seconds),
        f"{pace.device_seconds / 3600:.3g}",
        "–" if elapsed is None else duration(elapsed),
    )


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
