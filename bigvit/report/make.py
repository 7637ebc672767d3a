"""A report of run folders."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from bigvit import __version__
from bigvit.report import curves, sections
from bigvit.report.beside import on_course
from bigvit.report.blocks import Report, Section
from bigvit.report.provenance import provenance
from bigvit.report.told import Told, distinct, read_run
from bigvit.report.words import counted, spoken


def read_runs(paths: Sequence[Path]) -> list[Told]:
    """What run folders tell.

    Raises:
        ValueError: one is no run folder.
    """
    return [read_run(path, name) for path, name in zip(paths, distinct(paths), strict=True)]


def make_report(
    runs: Sequence[Told],
    computed: Callable[[Sequence[Told]], Iterable[Section]] = lambda _: (),
) -> Report:
    """The report of runs.

    Args:
        computed: the sections that a model has to be asked for.
    """
    first = runs[0]
    if len(runs) == 1:
        title = first.name
        name = first.described.get("name")
        source = spoken(first.values["source"]) if first.values.get("source") else ""
        said = [f"Recipe {name}" if name else "Its recipe is not known", source]
        subtitle = " · ".join(filter(None, said))
    else:
        title = counted(len(runs), "run")
        subtitle = ", ".join(told.name for told in runs)
    told = (
        on_course(runs),
        curves.curves(runs),
        curves.by_class(runs),
        sections.recipes_apart(runs),
        curves.throughput(runs),
        *computed(runs),
        provenance(runs),
        sections.recipe_values(runs),
    )
    now = datetime.now(timezone.utc)
    made = f"Made by bigvit {__version__} at {now:%Y-%m-%d %H:%M} UTC."
    kept = [section for section in told if section is not None]
    return Report(title, subtitle, made, list(sections.overview(runs)), kept)
