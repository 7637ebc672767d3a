"""Files as they come: decoded as PIL's convert("RGB") does it, or bad."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import bad_contents, crop, encoded, equal
from PIL import Image

from bigvit.data.decode import BadImage, decode

PHOTO = crop(1)


def reference(content: bytes) -> Image.Image:
    """torchvision's pil_loader."""
    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def interlaced() -> bytes:
    """The photograph as a PNG in Adam7's seven passes, which PIL reads but does not write."""
    pixels = np.asarray(PHOTO)
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2))
    rows = b"".join(
        b"\0" + row.tobytes()
        for y, x, down, right in (*passes, (1, 0, 2, 1))
        for row in pixels[y::down, x::right]
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", *PHOTO.size, 8, 2, 0, 0, 1)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def see_through(mode: str) -> Image.Image:
    image = PHOTO.convert(mode)
    image.putalpha(Image.fromarray(np.arange(40 * 32, dtype=np.uint8).reshape(32, 40)))
    return image


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown a quarter turn to the right
    return encoded(PHOTO, "JPEG", exif=exif.tobytes())


def gray16() -> Image.Image:
    return Image.fromarray(np.asarray(PHOTO.convert("L")).astype(np.uint16) * 6)


def palette_with_transparency() -> bytes:
    return encoded(PHOTO.convert("P"), transparency=bytes(range(256)))


KINDS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(PHOTO, "JPEG"),
    "progressive jpeg": lambda: encoded(PHOTO, "JPEG", progressive=True),
    "gray jpeg": lambda: encoded(PHOTO.convert("L"), "JPEG"),
    "cmyk jpeg": lambda: encoded(PHOTO.convert("CMYK"), "JPEG"),
    "png": lambda: encoded(PHOTO),
    "interlaced png": interlaced,
    "interlaced gif": lambda: encoded(PHOTO.convert("P"), "GIF", interlace=1),
    "gray png": lambda: encoded(PHOTO.convert("L")),
    "bilevel png": lambda: encoded(PHOTO.convert("1")),
    "16-bit gray": lambda: encoded(gray16()),
    "16-bit tiff": lambda: encoded(gray16(), "TIFF"),
    "palette": lambda: encoded(PHOTO.convert("P")),
    "rgba": lambda: encoded(see_through("RGBA")),
    "gray with alpha": lambda: encoded(see_through("LA")),
    "turned by exif": turned,
    "webp": lambda: encoded(PHOTO, "WEBP"),
    "bmp": lambda: encoded(PHOTO, "BMP"),
    "ppm": lambda: encoded(PHOTO, "PPM"),
    "mpo": lambda: encoded(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_decoded_as_the_reference_does_it(kind: str) -> None:
    content = KINDS[kind]()
    image = decode(content, kind)
    assert image.mode == "RGB" and image.size == PHOTO.size
    assert equal(image, reference(content))
    assert np.asarray(image).std() > 2


def test_what_decoding_does_to_unusual_images_is_as_documented() -> None:
    assert equal(decode(interlaced(), ""), PHOTO)
    gray: NDArray[np.integer] = np.minimum(np.asarray(PHOTO.convert("L")).astype(int) * 6, 255)
    assert equal(np.asarray(decode(encoded(gray16()), "")), np.stack([gray] * 3, axis=2))
    assert equal(decode(encoded(see_through("RGBA")), ""), PHOTO)
    plain = decode(encoded(PHOTO, "JPEG"), "")
    assert equal(decode(turned(), ""), plain)


def test_a_palette_with_transparency_does_not_warn() -> None:
    content = palette_with_transparency()
    with pytest.warns(UserWarning, match="Transparency"):
        wanted = reference(content)
    assert equal(decode(content, ""), wanted)


def test_size_is_bounded_as_pil_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(PHOTO)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 32 - 1)
    assert equal(decode(content, ""), PHOTO)  # PIL warns
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 32 // 2 - 1)
    with pytest.raises(BadImage, match="a/b.png: .*exceeds limit"):
        decode(content, "a/b.png")


@pytest.mark.parametrize("kind", [kind for kind, c in bad_contents().items() if c is not None])
def test_a_bad_image_says_its_name_and_why(kind: str) -> None:
    content = bad_contents()[kind]
    assert content is not None
    with pytest.raises(BadImage) as caught:
        decode(content, f"train/{kind}")
    assert caught.value.name == f"train/{kind}"
    assert caught.value.reason and "\n" not in caught.value.reason
    assert str(caught.value) == f"train/{kind}: {caught.value.reason}"


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "interlaced gif", "16-bit tiff", "mpo"])
def test_no_damage_raises_anything_else(kind: str) -> None:
    content, random = KINDS[kind](), np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 5):
            damaged[place] = random.integers(256)
        try:
            assert decode(bytes(damaged[: random.integers(len(content) + 1)]), "x").mode == "RGB"
        except BadImage:
            pass


def test_formats_that_start_programs_are_not_opened() -> None:
    with pytest.raises(BadImage, match="not an image"):
        decode(encoded(PHOTO, "EPS"), "x.jpg")
