"""`bigvit report`: runs on one page."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bigvit.cli import arguments
from bigvit.recipe.bounds import Batch, Workers

if TYPE_CHECKING:
    from bigvit.report.blocks import Section
    from bigvit.report.told import Told

NAMES = {"html": "report.html", "markdown": "report.md"}
ENDINGS = {"html": (".html", ".htm"), "markdown": (".md", ".markdown")}


def add(add: arguments.Add) -> None:
    """Add the command."""
    text = "tell runs on one HTML page: curves, provenance, speed, samples, mistakes"
    command = add("report", _report, text)
    text = "run folders; several are drawn over each other"
    command.add_argument("paths", type=Path, nargs="+", metavar="RUN", help=text)
    text = "file to write (default: report.html, or report.md)"
    command.add_argument("--out", type=Path, help=text)
    text = "html (default), or markdown, as for a model's card, its pictures in a folder beside it"
    command.add_argument("--format", choices=NAMES, default="html", help=text)
    text = "leave out what a model or the data must be read for"
    command.add_argument("--no-model", action="store_true", help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    text = "test images that the model is asked about, at most, evenly spaced (default 1000)"
    command.add_argument("--images", number=Batch, default=1000, help=text)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    command.add_argument("--workers", number=Workers, help="processes that decode")


def _report(options: argparse.Namespace) -> None:
    from bigvit.report.html import to_html
    from bigvit.report.make import make_report, read_runs
    from bigvit.report.markdown import to_markdown

    out: Path = options.out or Path(NAMES[options.format])
    paths = [arguments.run_folder_of(path) for path in options.paths]
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise ValueError(f"{paths[place]} is given twice; give each run once")
    runs = read_runs(paths)
    arguments.refuse_unwritable(out)
    arguments.refuse_other_kind(out, ENDINGS[options.format])

    def computed(runs: "Sequence[Told]") -> "Iterator[Section]":
        if not options.no_model:
            from bigvit.report.computed import Asked, computed

            asked = Asked(options.data_root, options.images, options.batch_size, options.workers)
            yield from computed(runs, asked)

    report = make_report(runs, computed)
    if options.format == "html":
        out.write_text(to_html(report), encoding="utf-8")
    else:
        beside = out.with_name(f"{out.stem}_pictures")
        text, pictures = to_markdown(report, beside.name)
        for name, content in pictures.items():
            beside.mkdir(exist_ok=True)
            (beside / name).write_bytes(content)
        out.write_text(text, encoding="utf-8")
    print(out)
