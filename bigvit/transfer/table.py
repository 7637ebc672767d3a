"""The table of a transfer: `transfer.json`, from which it goes on, and `transfer.md`. No torch
here."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bigvit.checkpoint.files import write_bytes, write_json
from bigvit.recipe.store import build
from bigvit.recipe.words import read_json

JSON, MARKDOWN = "transfer.json", "transfer.md"
HEADS = ("data set", "recipe", "trained", "top-1", "paper", "its table", "state")
AS_SAID = "as recipes say"


@dataclass(frozen=True)
class Row:
    """What came of a data set."""

    name: str
    dataset: str  # as its recipe calls it
    recipe: str  # its name
    trained: str  # all, attention or head
    state: str = "to do"  # running, done, failed or stopped
    top1: float | None = None  # of the last evaluation, percent
    published: float | None = None  # percent
    source: str | None = None  # of what is published
    changed: tuple[str, ...] = ()  # in the recipe, `path: its own -> this`
    reason: str = ""  # why it failed or was stopped
    exit_code: int | None = None


@dataclass(frozen=True)
class Table:
    """A transfer."""

    of: str  # what is transferred, as it was named
    weights: str  # the very weights that all start from
    recipes: str  # their pattern
    trained: str  # all, attention, head, or AS_SAID
    rows: dict[str, Row]  # by the data set's name


def read_table(folder: Path) -> Table | None:
    """The table of an earlier call in a folder, if there is one.

    Raises:
        ValueError: it is damaged.
    """
    file = folder / JSON
    if not file.exists():
        return None
    try:
        value: dict[str, Any] = read_json(file)
        rows = {each["name"]: build(Row, each, "rows") for each in value.pop("rows")}
        return Table(**value, rows=rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is damaged ({type(error).__name__}: {error}); choose another --run-dir, or "
            "remove it: the runs beside it are kept"
        ) from None


def write_table(folder: Path, table: Table) -> None:
    """Write both files, each in one piece."""
    value = {**asdict(table), "rows": [asdict(row) for row in table.rows.values()]}
    write_json(folder / JSON, value)
    write_bytes(folder / MARKDOWN, markdown(table).encode())


def cells(row: Row) -> list[str]:
    """A row below `HEADS`; a star stands at what a changed recipe came to."""
    top1 = "-" if row.top1 is None else f"{row.top1:.2f}{'*' * bool(row.changed)}"
    paper = "-" if row.published is None else f"{row.published:g}"
    state = f"{row.state}: {row.reason}" if row.reason else row.state
    return [row.name, row.recipe, row.trained, top1, paper, row.source or "-", state]


def markdown(table: Table) -> str:
    """The table as Markdown, with what was changed in recipes below it."""
    lines = [
        f"# Transfer of `{table.of}`",
        "",
        f"Weights: `{table.weights}`. Recipes: `{table.recipes}`. Trained: {table.trained}. Top-1 "
        "is that of the last evaluation, in percent.",
        "",
        _line(HEADS),
        _line(["---"] * len(HEADS)),
        *(_line(cells(row)) for row in table.rows.values()),
    ]
    changed = [row for row in table.rows.values() if row.changed]
    if changed:
        lines += ["", "* The recipe was changed:", ""]
    lines += [f"- {row.name}: {'; '.join(f'`{each}`' for each in row.changed)}" for row in changed]
    return "\n".join(lines) + "\n"


def _line(words: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(' '.join(word.split()).replace('|', '/') for word in words)} |"
