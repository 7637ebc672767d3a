"""One checkpoint of an engine, written at once, and read back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bigvit.checkpoint import manifest as manifests
from bigvit.checkpoint.load import fill, verified
from bigvit.checkpoint.manifest import MANIFEST, Manifest
from bigvit.checkpoint.rows import Row
from bigvit.checkpoint.save import Saver
from bigvit.engines.engine import Engine


def save(
    engine: Engine, folder: Path, batch: int, recipe: dict[str, Any], keep: int, skipped: int = 0
) -> Path:
    """Write one checkpoint, and return when it is whole; arguments as `Saver`'s."""
    return Saver(engine, folder, recipe, keep, background=False).save(batch, skipped)


def load(engine: Engine, folder: Path) -> Manifest:
    """Fill an engine from a checkpoint, after every file was verified."""
    _, manifest = verified([folder], engine.ranks)
    fill(engine, folder, manifest)
    return manifest


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a manifest says, with a digest of itself that fits."""
    path = checkpoint / MANIFEST
    written = json.loads(path.read_text())
    change(written["body"])
    written["digest"] = manifests._digest_of(written["body"])
    path.write_text(json.dumps(written))


def as_format_1(checkpoint: Path) -> None:
    """Write a manifest as bigvit did before format 2: a row for each piece of each kind."""

    def change(body: dict[str, Any]) -> None:
        names = [file["name"] for file in body["files"]]
        body["pieces"] = []
        for row in body.pop("tensors"):
            whole = Row(row["name"], tuple(row["shape"]), row["kinds"], tuple(row["cuts"]))
            for kind, dtype in whole.kinds.items():
                of = {"name": whole.name, "kind": kind, "dtype": dtype, "shape": row["shape"]}
                for number, start, stop in whole.pieces(0, whole.size):
                    piece = {"start": start, "stop": stop, "file": names[number]}
                    body["pieces"].append(of | piece)

    rewrite(checkpoint, change)
    path = checkpoint / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
