"""What a rehearsal says that ranks hold and save is what real ones held and saved."""

from pathlib import Path

import pytest

from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.rows import key_of
from bigvit.checkpoint.run import checkpoints_of
from bigvit.recipe import Command, Run, batch_layout
from bigvit.recipe.store import recipe_from_json
from bigvit.recipe.words import read_json
from bigvit.rehearse.checkpoint import rehearse_checkpoint
from bigvit.rehearse.pieces import Pieces


@pytest.mark.parametrize(
    ("ranks", "least"), [("two_ranks", 4), ("lamb_ranks", 1), ("muon_ranks", 1)]
)
def test_a_checkpoints_pieces_and_files_are_those_of_real_ranks(ranks, least, request):
    folder: Path = request.getfixturevalue(ranks)
    ways = set[tuple[str, str]]()
    for described in sorted(folder.glob("*/recipe.json")):
        said, checkpoints = read_json(described), checkpoints_of(described.parent)
        engine, sharding = said["run"]["engine"], said["run"]["sharding"]
        recipe = recipe_from_json(said["recipe"])
        if not checkpoints or said["world"] == 1 or Path(sharding).suffix:
            continue
        run, world = Run(engine=engine, sharding=sharding), said["world"]
        pieces = Pieces(recipe, batch_layout(recipe, world, None), run, world)
        manifest = read_manifest(checkpoints[-1])
        rank_of = {file.name: rank for rank, file in enumerate(manifest.files)}
        assert list(rank_of) == [f"rank_{rank:05d}.safetensors" for rank in range(world)]
        saved = {
            (file, key, start, stop)
            for key, row in manifest.by_key().items()
            for file, start, stop in row.pieces(0, row.size)
        }
        assert saved == {
            (rank, key_of(piece.kind, piece.name), piece.start, piece.stop)
            for rank in range(world)
            for piece in pieces.of(rank)
            if piece.writer
        }, described
        rows = manifest.tensors
        dtypes = {(row.name, kind): dtype for row in rows for kind, dtype in row.kinds.items()}
        found = rehearse_checkpoint(Command("", recipe, run, ()), pieces, dtypes, world)
        # headers say places, which have more digits or fewer by the order of the tensors
        held = sum(file.bytes for file in manifest.files)
        assert found["bytes"] - found["manifest"] == pytest.approx(held, rel=1e-3), described
        ways.add((engine, sharding))
    assert len(ways) >= least
