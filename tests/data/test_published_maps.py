"""The authors' label maps, packed as their script packs them, converted."""

from pathlib import Path

import numpy as np
import pictures
import pytest
import torch

from bigvit.cli import main
from bigvit.data.label_maps.form import BadMaps
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.labelling.published import read

IMAGES = 20


def packed(path: Path, logits: torch.Tensor, top: int) -> None:
    """As generate_label.py does: logits (h, w, K)."""
    value, indices = logits.topk(top)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.stack([value.half(), indices.half()]).permute(0, 3, 1, 2), path)


def logits(number: int, classes: int = 2) -> torch.Tensor:
    return torch.randn(3, 4, classes, generator=torch.Generator().manual_seed(number))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    root, labels = tmp_path / "photographs", tmp_path / "labels"
    pictures.write_folders(root, "train", pictures.jpegs(IMAGES))
    for number, path in enumerate(sorted((root / "train").rglob("*.*"))):
        packed(labels / path.parent.name / f"{path.stem}.pt", logits(number), 2)
    return root, labels


def convert(root: Path, labels: Path, out: Path) -> int:
    words = ["label-maps", f"published:{labels}", "--data-root", str(root), "--out", str(out)]
    return main([*words, "--top", "2"])


def test_all_are_converted(folders: tuple[Path, Path], tmp_path: Path) -> None:
    root, labels = folders
    assert convert(root, labels, tmp_path / "maps") == 0
    maps = LabelMaps(tmp_path / "maps")
    assert len(maps) == IMAGES and maps.form.cells == (3, 4)
    for number, path in enumerate(sorted((root / "train").rglob("*.*"))):
        classes, scores = maps.read(str(path.relative_to(root)))
        best = logits(number).topk(2)
        assert np.array_equal(classes, best.indices)
        assert np.array_equal(scores, best.values.half())


def test_one_that_is_missing_or_damaged_is_named(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, labels = folders
    one = sorted(labels.rglob("*.pt"))[7]
    content = one.read_bytes()
    for spoil, why in (
        (lambda: one.unlink(), "there is no"),
        (lambda: one.write_bytes(content[:200]), "damaged"),
        (lambda: torch.save(torch.zeros(2, 2, 3, 3), one), "3 x 3 cells, and the first"),
        (lambda: torch.save({"a": 1}, one), "no tensor"),
    ):
        spoil()
        assert convert(root, labels, tmp_path / "maps") == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and one.name in said and why in said
    one.write_bytes(content)
    assert convert(root, labels, tmp_path / "maps") == 0


def test_class_numbers_of_16_bits_are_taken_where_they_can_be_told(tmp_path: Path) -> None:
    for largest, classes, fine in (
        (999, 1000, True),
        (2047, 21_841, True),
        (2048, 2049, True),
        (2048, 2050, False),
        (4099, 21_841, False),
    ):
        scores = torch.zeros(1, 2, classes)
        scores[..., largest], scores[..., 3] = 9, 8
        packed(tmp_path / "a" / "b.pt", scores, 2)
        if fine:
            found, _ = read(tmp_path, "train/a/b.c.JPEG", classes, 2)
            assert found.tolist() == [[[largest, 3]] * 2]
        else:
            with pytest.raises(BadMaps, match="16-bit float"):
                read(tmp_path, "train/a/b.c.JPEG", classes, 2)
    with pytest.raises(BadMaps, match="of class 4,100, and the images have 1,000"):
        read(tmp_path, "train/a/b.JPEG", 1000, 2)
