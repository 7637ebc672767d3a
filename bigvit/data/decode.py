"""Bytes of an image file -> RGB pixels, as the reference does it: PIL's `convert("RGB")`, which is
torchvision's `pil_loader`.

What that makes of unusual files, left as it is: a palette is looked up; transparency is dropped,
not blended; CMYK goes by PIL's plain formula, without a colour profile; 16-bit gray is clipped at
255, not scaled; an EXIF orientation is not applied. A file whose pixels were damaged without
breaking its format cannot be told from a sound one. Deviation: only the formats below are opened,
as others start programs (EPS) or are no photographs.

What is no file (a pipe, a device) is no image, and is not waited for. What is too large is none
either: a file above 1 GiB, or pixels above 179 million (PIL's limit, 512 MiB of them).
"""

import errno
import io
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data import photo
from bigvit.data.photo import Part
from bigvit.recipe import Data, Digits

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")
LARGEST = 1 << 30  # bytes of a file
MACHINES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # what is no image's fault


class BadImage(Exception):
    """An image that cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class Unread(OSError):
    """Images cannot be read here and now, through no fault of theirs."""


def content_of(path: str | bytes | Path, name: str) -> bytes:
    """A file's content.

    Raises:
        BadImage: it is no file, too large, or cannot be read.
        Unread: this machine cannot open any file.
    """
    try:
        # non-blocking: to open a pipe is to wait for who writes into it
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadImage(name, "not a file")
            if status.st_size > LARGEST:
                raise BadImage(name, f"{status.st_size:,} bytes, more than {LARGEST:,}")
            return file.read(status.st_size)
    except OSError as error:
        if error.errno in MACHINES:
            raise Unread(f"{name}: {error.strerror}") from None
        raise BadImage(name, error.strerror or "cannot be read") from None
    except ValueError:  # a name with a zero byte
        raise BadImage(name, "no file has such a name") from None


class Photo:
    """The image in a file's content, of which only the header was read."""

    def __init__(self, content: bytes, name: str) -> None:
        """
        Raises:
            BadImage: it is empty, not an image, or so large that it may be an attack (PIL's
                DecompressionBombError: above 179 million pixels).
        """
        if not content:
            raise BadImage(name, "empty")
        self.content, self.name = content, name
        self._opened: Image.Image | None = None
        fast = photo.extension()
        self.size: tuple[int, int]  # width, height
        if fast is not None and (size := fast.size(content)):
            self.size, self._in_parts = size, True
        else:
            opened = self._opened = self._judged(self._open)
            self.size = opened.size
            self._in_parts = (opened.format, opened.mode) in (("JPEG", "RGB"), ("JPEG", "L"))

    def image(self, shrink: int = 1) -> Image.Image:
        """All of it, mode RGB; a JPEG as many times smaller, rounded up.

        Raises:
            BadImage: it is cut off or damaged.
        """

        def read() -> Image.Image:
            opened, self._opened = self._opened or self._open(), None
            if shrink > 1 and opened.format == "JPEG":
                opened.draft(opened.mode, (self.size[0] // shrink, self.size[1] // shrink))
            return opened.convert("RGB")

        return self._judged(read)

    def part(self, part: Part) -> NDArray[np.uint8] | None:
        """A part (H, W, 4), if it can be had by itself."""
        made = self.parts([part])
        return None if made is None else made[0]

    def parts(self, parts: Sequence[Part]) -> list[NDArray[np.uint8]] | None:
        """Parts, each (H, W, 4), if they can be had by themselves: decoded once, as small as all of
        them say."""
        return photo.parts_of(self.content, parts) if self._in_parts else None

    def _open(self) -> Image.Image:
        Image.init()  # once: `formats` must be registered
        return Image.open(io.BytesIO(self.content), formats=FORMATS)

    def _judged(self, read: Callable[[], Image.Image]) -> Image.Image:
        try:
            with warnings.catch_warnings():
                # of odd metadata, of palettes, of more than 89 million pixels: all of them decode
                warnings.simplefilter("ignore")
                return read()
        except Exception as error:  # PIL raises what it meets: OSError, SyntaxError, ...
            text = str(error).replace("\n", " ")
            if isinstance(error, Image.UnidentifiedImageError):
                text = "not an image"  # its own text is the address of a buffer
            raise BadImage(self.name, text or type(error).__name__) from None


def decode(content: bytes, name: str) -> Image.Image:
    """The image in a file's content, mode RGB.

    Raises:
        BadImage: there is none.
    """
    return Photo(content, name).image()


def image_of(path: Path, data: Data) -> Image.Image:
    """The image in a user's own file, in the mode of a data set's images; in their size, where they
    have one.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        image = decode(content_of(path, str(path)), str(path))
    except BadImage as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if isinstance(data, Digits):
        size = (data.image_size, data.image_size)
        return image.convert("L").resize(size, Image.Resampling.BICUBIC)
    return image.convert("RGB" if data.channels == 3 else "L")
