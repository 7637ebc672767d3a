"""Checkpoints that many ranks write: their manifest, and who names them."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.manifest import Cut, fsdp2, recipe, write, write_sides, zero3
from bigvit.checkpoint.manifest import (
    as_text,
    from_text,
    read_manifest,
    step_name,
)
from bigvit.checkpoint.save import write_side_file

MANIFEST = "manifest.json"


@pytest.mark.parametrize("cut", [zero3, fsdp2])
def test_a_manifest_at_512_ranks_is_small_and_read_as_it_was_written(
    tmp_path: Path, cut: Cut
) -> None:
    of = replace(recipe(), model=replace(recipe().model, depth=2))
    folder = tmp_path / step_name(1)
    folder.mkdir()
    written = write(folder, of, write_sides(folder, of, cut, 512))
    assert read_manifest(folder) == from_text(as_text(written)) == written
    for row in written.tensors:
        held = [cut(row.shape, rank, 512) for rank in range(512)]
        wanted = [(rank, r.start, r.stop) for rank, r in enumerate(held) if r]
        assert list(row.pieces(0, row.size)) == wanted
    size = (folder / MANIFEST).stat().st_size
    assert size < 512 * 120 + 300 * len(written.tensors) + 5000  # 0.2 MB at 32 blocks


def test_rank_0_may_name_a_checkpoint_as_soon_as_the_last_side_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, whole = tmp_path / "aside", tmp_path / "whole"
    aside.mkdir()
    rename = Path.rename

    def rename_and_be_late(path: Path, target: Path) -> None:
        rename(path, target)
        rename(aside, whole)  # as rank 0 does on another core

    monkeypatch.setattr(Path, "rename", rename_and_be_late)
    write_side_file(aside / "rank_00001.json", {"file": 1})
    assert [path.name for path in whole.iterdir()] == ["rank_00001.json"]
    assert (whole / "rank_00001.json").read_text() == '{"file": 1}'
