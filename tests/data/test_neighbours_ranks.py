"""`bigvit neighbours`, `probe` and `retrieve` over ranks that torchrun launches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bigvit.train import main as train

ASK = {
    "neighbours": ("--batch-size", "100"),
    "probe": ("--batch-size", "100", "--epochs", "2"),
    "retrieve": ("--batch-size", "100", "--map"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("parity") / "run"
    short = ["--schedule.epochs", "1", "--schedule.warmup-epochs", "0"]
    how = ["--engine", "single", "--workers", "0", "--run-dir", str(run)]
    assert train(["coarse_digits_grafit", *short, *how]) == 0
    return run


def over(ranks: int, command: str, run: Path, keep: Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [command, str(run), "--keep", str(keep), *ASK[command]]
    return subprocess.run(
        [*launcher, "--nproc-per-node", str(ranks), "-m", "bigvit.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", ASK)
def test_any_number_of_ranks_keeps_and_says_the_same(
    run: Path, tmp_path: Path, command: str
) -> None:
    found: dict[int, tuple[str, dict[str, bytes]]] = {}
    for ranks in (1, 3):
        keep = tmp_path / str(ranks)
        done = over(ranks, command, run, keep)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
        found[ranks] = done.stdout, {file.name: file.read_bytes() for file in keep.iterdir()}
    assert found[1] == found[3] and len(found[1][1]) == 2
    (tmp_path / "more").mkdir()
    for name, content in found[3][1].items():
        (tmp_path / "more" / name).write_bytes(content)
    assert over(2, command, run, tmp_path / "more").stdout == found[1][0]
