"""Attention as pictures (thesis figures 3.9 and 3.10): a PNG an image, and one page of them all."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from bigvit.visualize.attention import Look
from bigvit.visualize.drawing import FLOATS, cividis, enlarged, page, to_unit

SIDE = 160  # least height of a picture, pixels


def write(looks: Sequence[Look], folder: Path, title: str) -> Path:
    """Write the pictures and index.html, which shows them, into a folder; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>"]
    parts.append(f"<h1>{escape(title)}</h1><p>A row an attention layer: what the class token ")
    parts.append("attends to, the mean over the heads upon the image, then each head.</p>")
    for number, look in enumerate(looks):
        name = f"{number:03d}_{Path(look.name).stem}.png"
        picture(look).save(folder / name)
        shown = "".join(f"<li>{100 * p:.1f} % {escape(c)}</li>" for p, c in look.predictions)
        parts.append(f'<h2>{escape(look.name)}</h2><img src="{escape(name)}" alt="attention">')
        parts.append(f"<ol>{shown}</ol>")
    path = folder / "index.html"
    path.write_text("\n".join(parts) + "\n")
    return path


def picture(look: Look) -> Image.Image:
    """A row a layer: the mean of its heads over the image, then each head; on the left the image
    and, below it, what it was taken for."""
    factor = max(1, -(-SIDE // look.pixels.shape[0]))
    size = look.pixels.shape[0] * factor, look.pixels.shape[1] * factor
    image = Image.fromarray(look.pixels).resize(size[::-1], Image.Resampling.BICUBIC)
    said = Image.new("RGB", image.size, "white")
    lines = (f"{100 * share:5.1f} %  {name}" for share, name in look.predictions)
    ImageDraw.Draw(said).multiline_text((0, 4), "\n".join(lines), fill="black")
    gray = np.asarray(image.convert("L")) / 255
    rows = [[(look.name, image)], [("taken for", said)]]
    for layer, (name, maps_Hhw) in enumerate(zip(look.layers, look.maps.numpy(), strict=True)):
        if layer == len(rows):
            rows.append([("", Image.new("RGB", image.size, "white"))])
        mean = to_unit(enlarged(maps_Hhw.mean(axis=0), size))
        rows[layer].append((f"{name}: mean", _coloured(gray * mean)))
        for head, map_hw in enumerate(maps_Hhw):
            rows[layer].append((f"head {head}", _coloured(to_unit(enlarged(map_hw, size)))))
    return page(rows)


def _coloured(values: FLOATS) -> Image.Image:
    return Image.fromarray(cividis(values))
