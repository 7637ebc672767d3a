"""Looks at many folders or files. Processes of their own run this file, by its path: threads of one
would wait for each other, and only the standard library is loaded. Their input is paths from the
folder they run in, with zero bytes between them."""

import os
import stat
import sys
from array import array

ENDINGS = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")
"""torchvision's; upper case counts too."""


def images(folder: bytes) -> list[bytes]:
    """File names, sorted; but for what macOS leaves beside a file, ._NAME, with its name's end."""
    with os.scandir(folder) as entries:
        # a link that leads nowhere is listed, and found bad when it is read
        found = [e.name for e in entries if e.name.lower().endswith(ENDINGS) and _no_folder(e)]
    return sorted(name for name in found if not name.startswith(b"._"))


def _no_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return not entry.is_dir()
    except OSError:  # a link in a circle
        return True


def size(path: bytes) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def answer(what: str, paths: list[bytes], before: bytes = b"") -> bytes:
    """The sizes of files, 8 bytes each; or how many images each folder has, and then their paths.

    Args:
        before: all paths, where they do not lead from the folder that this runs in.
    """
    if what == "sizes":
        return array("q", [size(before + path) for path in paths]).tobytes()
    found = [[path + b"/" + name for name in images(before + path)] for path in paths]
    counts = array("q", map(len, found)).tobytes()
    return counts + b"\0".join(name for names in found for name in names)


if __name__ == "__main__":
    asked = sys.stdin.buffer.read().split(b"\0")
    sys.stdout.buffer.write(answer(sys.argv[1], asked))
