"""A small run to break, and how a folder looks."""

from pathlib import Path

TINY = ("--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2")


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
