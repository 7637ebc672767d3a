"""ViT-H/14 on two processes of this machine, under 16 GiB: LAMB under ZeRO-3,
three updates on the same real images, a checkpoint saved, and resumed for a fourth.

    bash benchmarks/billion.sh [--check] [--precision bf16]

It takes minutes in float32, and most of an hour in bf16. Memory is the sum of the proportional set
sizes of every process, launchers too, twice a second; above the limit the run is ended.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row, report
from benchmarks.vit_h import IMAGES, vit_h14_126
from bigvit.checkpoint import metrics
from scripts.photos import cut, photographs

LIMIT = 16 * 2**30
ROOT = Path(__file__).resolve().parent.parent
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""glibc keeps freed blocks of up to 32 MB once it has seen some: this returns them."""


def images(folder: Path) -> None:
    """Crops of four photographs, each a class."""
    for split in ("train", "val"):
        for name, photograph in list(photographs().items())[:IMAGES]:
            (folder / split / name).mkdir(parents=True)
            cut(photograph, split, name, 0).save(folder / split / name / "0.jpg", quality=90)


def train(folder: Path, precision: str, stop: int) -> tuple[int, int, float]:
    """One launch, until this many updates are done: exit code, peak bytes, seconds."""
    command = ["deepspeed", "--num_accelerators", "2", str(ROOT / "scripts" / "train.py")]
    command += [f"{ROOT / 'benchmarks' / 'vit_h.py'}:vit_h14_126", "--precision", precision]
    command += ["--data-root", str(folder / "images"), "--run-dir", str(folder / "run")]
    command += ["--sharding", str(ROOT / "benchmarks" / "billion.json"), "--workers", "0"]
    command += [
        "--log-every",
        "1",
        "--stop-after",
        str(stop),
        "--resume",
        "auto",
        "--keep",
        "1",
        "--no-background-save",
    ]
    command += ["--evaluate-every", "1000"]
    began, peak = time.monotonic(), 0
    process = subprocess.Popen(
        command, env={**os.environ, **MALLOC, "OMP_NUM_THREADS": "1"}, start_new_session=True
    )
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        if peak > LIMIT:
            os.killpg(process.pid, 9)
        time.sleep(0.5)
    return process.returncode, peak, time.monotonic() - began


def resident(session: int) -> int:
    """Bytes of memory that the processes of a session hold, shared pages divided among them."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(1024 * int(line.split()[1]) for line in lines if line[:4] == "Pss:")
        except (OSError, ValueError):
            continue  # ended while it was looked at
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="billion", dir=os.environ.get("BILLION_DIR")))
    try:
        images(folder / "images")
        peaks: list[int] = []
        for stop in (3, 4):
            code, peak, took = train(folder, options.precision, stop)
            peaks.append(peak)
            print(f"until update {stop}: code {code}, {peak / 2**30:.2f} GiB, {took:.0f} s")
            if code != 85:
                break
        logged = folder / "run" / metrics.NAME
        lines = list(metrics.read_metrics(logged)) if logged.exists() else []
        losses = [line.values["loss"] for line in lines if line.kind == metrics.UPDATE]
    finally:
        shutil.rmtree(folder)
    parameters = vit_h14_126.model.parameters(126)
    shown, each = ", ".join(f"{loss:.4f}" for loss in losses), max(peaks) / parameters
    rows = [
        Row(
            "peak memory, GiB",
            f"{max(peaks) / 2**30:.2f}",
            f"{each:.1f} bytes a parameter",
            "<= 16",
            max(peaks) <= LIMIT,
        ),
        Row(
            "losses",
            shown,
            "",
            "the third below the first",
            len(losses) > 2 and losses[2] < losses[0],
        ),
        Row(
            "updates after the checkpoint was resumed",
            f"{len(losses) - 3}",
            "",
            "1",
            len(losses) == 4,
        ),
    ]
    what = f"ViT-H/14, {parameters:,} parameters, LAMB, ZeRO-3, two processes, {options.precision}"
    return report(what, rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
