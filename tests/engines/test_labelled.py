"""Labels of patches and crops are learned alike under every engine, and after a resume."""

import json
from dataclasses import replace
from pathlib import Path

import labelled
import pytest
import tiny
from mapped import write_maps
from reference import distance, train_single, trained
from test_equality import ALLOWED, YARDSTICK
from test_resume import assert_equal

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.data.label_maps.maps import LabelMaps


@pytest.fixture(scope="module")
def reference(two_ranks):
    maps = LabelMaps(two_ranks / "maps")
    return train_single(labelled.recipe, source=labelled.source(two_ranks), maps=maps)[0]


@pytest.mark.parametrize("way", labelled.WAYS)
def test_an_engine_equals_single(way, two_ranks, reference):
    assert_single(way, two_ranks, reference)


@pytest.mark.slow
def test_the_other_stages_equal_single(two_ranks, reference, warm):
    done = warm(2, Path(__file__).with_name("ranks.py"), two_ranks, "labelled_others")
    assert done.code == 0, done.output
    for way in labelled.OTHERS:
        assert_single(way, two_ranks, reference)


def assert_single(way, two_ranks, reference):
    run = trained(two_ranks / f"labelled {way}", tiny.SHORT)
    # BatchNorm's statistics are of the ranks' last micro-batches, one after the other in `single`
    found = distance({name: run[name] for name in reference}, reference)
    print(f"{way}: {found:.2e}, {found / YARDSTICK:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICK


def test_a_hundredth_more_weight_on_patches_lies_far_away(two_ranks, reference):
    crop, patches, drloc = labelled.recipe.objectives
    other = replace(
        labelled.recipe, objectives=(crop, replace(patches, weight=1.01 * patches.weight), drloc)
    )
    maps = LabelMaps(two_ranks / "maps")
    weights = train_single(other, source=labelled.source(two_ranks), maps=maps)[0]
    apart = distance(weights, reference)
    print(f"a hundredth more: {apart / YARDSTICK:.0f} yardsticks")
    assert apart > 100 * YARDSTICK


@pytest.mark.parametrize("way", labelled.HALVES)
def test_resumed_with_the_same_maps(way, resumed):
    assert_equal(resumed / f"labelled halves {way}", resumed / f"labelled {way}", tiny.SHORT)


def test_which_maps_is_kept(two_ranks, tmp_path):
    """By their content: the same maps in other files are other files alone."""
    digest = LabelMaps(two_ranks / "maps").digest
    run = two_ranks / "labelled 3"
    assert json.loads((run / "recipe.json").read_text())["label_maps"] == digest
    assert read_manifest(run / "checkpoints" / step_name(tiny.SHORT)).label_maps == digest
    again = write_maps(labelled.source(two_ranks), tmp_path / "again", 64)
    assert again.digest == digest
