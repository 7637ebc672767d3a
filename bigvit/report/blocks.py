"""What a report is made of, whatever it is written as. Every text is plain: a writer escapes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["plain", "good", "warning", "bad"]
Cell = str | float | int | None


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Code:
    """Lines to be copied."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows below their heads. The first column names the row."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False  # shown on demand
    # columns whose numbers (0 to 1) shade their cells, and are shown as they are
    shares: Sequence[Sequence[float | None]] | None = None


@dataclass(frozen=True)
class Figure:
    """A number that matters."""

    label: str
    value: str
    detail: str = ""
    share: float | None = None  # 0 to 1, drawn as a bar


@dataclass(frozen=True)
class Figures:
    """A run's numbers at a glance."""

    name: str
    state: str
    tone: Tone
    figures: Sequence[Figure]
    run: int | None = None  # its place among several


@dataclass(frozen=True)
class Series:
    """A curve, or dots. Shapes: as many x as y, finite, x not falling."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0  # place in the palette
    kind: Literal["line", "faint", "dashed", "dots", "diagonal"] = "line"


@dataclass(frozen=True)
class Chart:
    """Curves over one axis."""

    title: str
    series: Sequence[Series]
    unit: str = ""  # of y
    across: str = "epoch"
    described: str = ""  # what to see in it
    marks: Sequence[tuple[float, str]] = ()  # places on the x axis, and what happened there
    log: bool = False
    from_zero: bool = False
    square: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts, or tables of what is in them, side by side where there is room."""

    charts: Sequence[Chart | Table]


@dataclass(frozen=True)
class Picture:
    """An image with what is said of it."""

    content: bytes  # WebP
    size: tuple[int, int]  # (width, height) in pixels
    alt: str
    lines: Sequence[tuple[str, Tone]] = ()


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side."""

    pictures: Sequence[Picture]
    wide: bool = False


Block = Text | Code | Table | Figures | Charts | Gallery


@dataclass(frozen=True)
class Section:
    """A chapter."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    subtitle: str
    made: str  # when and by what
    overview: Sequence[Block]
    sections: Sequence[Section] = field(default_factory=tuple)
