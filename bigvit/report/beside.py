"""Runs beside the authors' log of the same recipe. No torch here."""

from collections.abc import Iterator, Sequence

from bigvit.report import published
from bigvit.report.blocks import Block, Chart, Charts, Section, Series, Table, Text, Tone
from bigvit.report.published import NOISE, Compared, Published
from bigvit.report.told import Told, number
from bigvit.report.words import percent

FEW = 6  # rows up to which a table is shown at once
SOON = 20  # epochs that are drawn at least


def on_course(runs: Sequence[Told]) -> Section | None:
    """Whether each run that has a published log goes as that went."""
    blocks: list[Block] = []
    curves: dict[str, list[Series]] = {}
    logs: dict[str, Published] = {}
    tables: list[Table] = []
    for place, told in enumerate(runs):
        if not told.values or (log := published.published_for(told.values)) is None:
            continue
        x, y = told.curve(told.evaluations, lambda line: number(line, "top1"))
        found = published.compared(log, x, y)
        blocks += _said(told, log, found)
        logs[log.recipe] = log
        ours = curves.setdefault(log.recipe, [])
        if x:
            ours.append(Series(told.name, x, y, place))
        if found:
            tables.append(_table(told, found))
    if not blocks:
        return None
    for name, log in logs.items():
        blocks.append(Charts(list(_charts(log, curves[name]))))
    about = (
        "On course is what the log has from one epoch earlier to one later, and "
        f"{NOISE} points either way: three standard deviations over seeds of a trained model. "
        "Early epochs vary more."
    )
    return Section("On course", [*blocks, *tables, Text(about)])


def _said(told: Told, log: Published, found: Sequence[Compared]) -> Iterator[Block]:
    if found:
        last = found[-1]
        tone: Tone = "warning" if last.said == "behind" else "good"
        yield Text(
            f"{told.name} is {last.said} at epoch {last.epoch:g}: top-1 {percent(last.top1)}, "
            f"the authors' log {percent(last.published)} (on course is {last.low:.2f} to "
            f"{last.high:.2f}).",
            tone,
        )
    else:
        yield Text(
            f"{told.name} has no evaluation after epoch {published.FIRST} yet; from there on it "
            "can be compared with the authors' log."
        )
    if log.differs:
        differs = "; ".join(log.differs)
        text = f"{told.name} is not quite that recipe ({log.recipe} -> {told.name}): {differs}."
        yield Text(text, "warning")


def _charts(log: Published, ours: Sequence[Series]) -> Iterator[Chart]:
    """The whole log, and the part of it that runs have come to."""
    end = max((series.x[-1] for series in ours), default=0.0)
    count = sum(epoch <= max(2 * end, SOON) for epoch in log.epochs)
    if ours and 1 < count < len(log.epochs):
        part = Series("authors' log", log.epochs[:count], log.top1[:count], 5, "dashed")
        yield Chart("Top-1 beside the authors' log", [part, *ours], "%")
    whole = Series("authors' log", log.epochs, log.top1, 5, "dashed")
    described = f"Log of {log.recipe}: {log.source}."
    yield Chart("To its end", [whole, *ours], "%", described=described)


def _table(told: Told, found: Sequence[Compared]) -> Table:
    rows = [
        (f"{each.epoch:g}", *(f"{value:.2f}" for value in each[1:]), each.said) for each in found
    ]
    heads = ("epoch", "top-1, %", "log, %", "from", "to", "so it is")
    return Table(f"{told.name} and the log, epoch by epoch", heads, rows, len(rows) > FEW)
