"""One launch a world size runs everything that needs it; the tests read what it left."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny.py, which the ranks import too
import guards  # noqa: E402

RANKS = Path(__file__).with_name("ranks.py")
SPOILED = Path(__file__).with_name("spoiled.py")


@pytest.fixture(scope="session")
def two_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the runs on two ranks, none of them resumed yet in new processes."""
    folder = tmp_path_factory.mktemp("ranks")
    names = (
        "whole",
        "frozen",
        "first_half",
        "half_precision",
        "half_precision_halves",
        "accumulated",
    )
    done = warm(
        *(2, RANKS, folder, *names, "planned"),
        *("agree_on_error", "not_finite", "counts", "chain", "taught", "labelled"),
        *("segmented", "detected"),
        timeout=600,
    )
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def three_ranks(warm, two_ranks, one_rank) -> Path:
    """The same folder, after one rank and then three went on with runs of two."""
    shutil.copytree(two_ranks / "halves_1", two_ranks / "halves_elsewhere")
    done = warm(3, RANKS, two_ranks, "other_world", "counts", "chain", timeout=600)
    assert done.code == 0, done.output
    return two_ranks


@pytest.fixture(scope="session")
def fp16_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the runs in fp16 on two ranks."""
    folder = tmp_path_factory.mktemp("fp16")
    done = warm(2, RANKS, folder, "fp16", "fp16_not_a_number", timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def lamb_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the runs with LAMB on two and three ranks."""
    folder = tmp_path_factory.mktemp("lamb")
    more = ("lamb_halves", "lamb_half_precision", "lamb_secondary_shards")
    for world, others in ((2, more), (3, ("initial_weights",))):
        done = warm(world, RANKS, folder, "lamb_updates", "lamb_runs", *others, timeout=600)
        assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def more_lamb_ranks(warm, tmp_path_factory) -> Path:
    """Folder of LAMB's runs of the slow tests on two ranks."""
    folder = tmp_path_factory.mktemp("more_lamb")
    done = warm(2, RANKS, folder, "lamb_more_runs", timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def muon_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the run with Muon on two ranks."""
    folder = tmp_path_factory.mktemp("muon")
    done = warm(2, RANKS, folder, "muon_chain", timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def four_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the runs with LAMB on four ranks."""
    folder = tmp_path_factory.mktemp("four")
    names = ("initial_weights", "lamb_updates", "lamb_runs")
    done = warm(4, RANKS, folder, *names, timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def cait_ranks(warm, tmp_path_factory) -> Path:
    """Folder of CaiT's and ResMLP's runs on two ranks."""
    folder = tmp_path_factory.mktemp("cait")
    done = warm(2, RANKS, folder, "cait_runs", "resmlp_runs", timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def drloc_ranks(warm, tmp_path_factory) -> Path:
    """Folder of the runs with dense relative localization on two ranks."""
    folder = tmp_path_factory.mktemp("drloc")
    names = ("localization", "statistics", "statistics_bf16", "backbones", "frozen_statistics")
    done = warm(2, RANKS, folder, *names, timeout=600)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def resumed(warm, two_ranks, three_ranks) -> Path:
    """The same folder, after new processes went on with the stopped runs."""
    names = "second_half", "chain", "taught_halves", "labelled_halves"
    names = (*names, "segmented_halves", "detected_halves")
    done = warm(2, RANKS, two_ranks, *names, timeout=600)
    assert done.code == 0, done.output
    return two_ranks


@pytest.fixture(scope="session")
def guard_ranks(warm, tmp_path_factory) -> Path:
    """Folder of what two ranks show of weights and guards, and of runs that stopped themselves."""
    folder = tmp_path_factory.mktemp("guards")
    names = ("initial_weights", "given_weights", "held", "jumped", "norms", "averages")
    done = warm(2, RANKS, folder, *names)
    assert done.code == 0, done.output
    for how, stage in (("infinite", "zero3"), ("jump", "zero2")):
        words = (*guards.ARGS, *guards.OPTIONS, "--sharding", stage, "--loss-jump", 3)
        done = warm(2, SPOILED, how, *words, "--run-dir", folder / how)
        (folder / f"{how}.txt").write_text(done.output)
        assert done.codes == (3, 3), done.output
    return folder


@pytest.fixture(scope="session")
def one_rank(warm, two_ranks) -> Path:
    """The same folder, after one rank under DeepSpeed showed its weights and went on with runs."""
    folder = two_ranks
    done = warm(1, RANKS, folder, "initial_weights", "chain")
    assert done.code == 0, done.output
    return folder
