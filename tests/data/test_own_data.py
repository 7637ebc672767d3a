"""docs/own-data.md typed as it stands: from images, as people have them, to an exported model."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forms
import pyarrow as pa
import pytest
import timm
from pyarrow import parquet
from transformers import pipeline

from bigvit.scripts.photos import cut, photographs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-data.md").read_text()
COMMANDS = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]

EACH = 8


def images() -> list[tuple[str, bytes]]:
    """Class and JPEG of each of 96 cuts of twelve photographs, sorted by class."""
    found = []
    for name, photograph in photographs().items():
        for i in range(EACH):
            cut(photograph, "train", name, i).save(file := io.BytesIO(), "JPEG", quality=90)
            found.append((name, file.getvalue()))
    return sorted(found, key=lambda each: each[0])


def folders(root: Path) -> None:
    for i, (name, content) in enumerate(images()):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"IMG {i}.JPG").write_bytes(content)


def table(root: Path) -> None:
    root.mkdir()
    names, contents = zip(*images(), strict=True)
    parquet.write_table(pa.table({"image": contents, "label": names}), root / "flowers.parquet")


def shards(root: Path) -> None:
    root.mkdir()
    names = sorted(photographs())
    found = [
        (f"{i:04d}.jpg", names.index(name), content) for i, (name, content) in enumerate(images())
    ]
    forms.write_shard(root / "train-0.tar", forms.members(found[::2]))
    forms.write_shard(root / "train-1.tar", forms.members(found[1::2]))
    (root / "classnames.txt").write_text("\n".join(names) + "\n")


@pytest.mark.parametrize(
    "form", [folders, *(pytest.param(f, marks=pytest.mark.slow) for f in (table, shards))]
)
def test_from_nothing_to_an_exported_model(form, tmp_path: Path) -> None:
    form(tmp_path / "flowers")
    work = tmp_path / "work"
    (work / "scans").mkdir(parents=True)
    for name, target in (("cat", "photo.jpg"), ("coins", "scans/1.jpg"), ("rocket", "scans/2.jpg")):
        cut(photographs()[name], "val", name, 0).save(work / target)
    folder = Path(sys.executable).parent
    environment = {
        **{**os.environ, "HOME": str(tmp_path), "PATH": f"{folder}:{os.environ['PATH']}"},
        **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "c")},
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", COMMANDS],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMANDS.count("\n") == 5
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"image"')]
    assert [Path(each["image"]).name for each in said] == ["photo.jpg", "1.jpg", "2.jpg"]
    page = (work / "report.html").read_text()
    assert "<svg" in page and "flowers" in page
    export = work / "runs" / "flowers" / "export"
    model = timm.create_model(f"local-dir:{export}", pretrained=True)
    assert model.num_classes == 12
    best = pipeline("image-classification", model=str(export))(str(work / "photo.jpg"))
    assert best[0]["label"] == said[0]["classes"][0]["class"]
