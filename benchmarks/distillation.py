"""A student taught by labels, by a teacher's softmax, by its decision, and by that with a token:
table 3.3 of the thesis made small.

    python -m benchmarks.distillation FASHION_MNIST RUNS [--seeds 0 1 2] [--only NAME ...]

Trains `recipes/fashion.py` by `deepspeed` on two ranks, the ResNet once and each student from every
seed, each into a folder of RUNS; what is done there already is not done again. Prints the table of
top-1 on the 10,000 test images.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bigvit.ranks.launched import free_port

TEACHER = "fashion_resnet"
STUDENTS = {  # what the table calls them
    "fashion_deit": "labels alone",
    "fashion_deit_soft": "soft",
    "fashion_deit_hard": "hard",
    "fashion_deit_token": "token",
}
HEADS = ("class_head", "distillation_head")


def trained(recipe: str, folder: Path, root: Path, *options: str, ranks: int = 2) -> dict[str, Any]:
    """The last evaluation of a run, which is begun or gone on with where it is not done."""
    status = folder / "status.json"
    if not status.is_file() or json.loads(status.read_text())["state"] != "done":
        launch = ["deepspeed", "--num_accelerators", str(ranks), "--master_port", str(free_port())]
        run = ["--data-root", str(root), "--run-dir", str(folder), "--resume", "auto"]
        how = ["--sharding", "zero1", "--workers", "0", "--log-every", "200"]
        subprocess.run(
            [*launch, "scripts/train.py", recipe, *run, *how, *options],
            check=True,
            stdout=sys.stderr,
        )
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "top1" in line][-1]


def shown(values: list[float]) -> str:
    """Mean and deviation, or the one that there is."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values) or "-"
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Distillation on Fashion-MNIST.")
    parser.add_argument("root", type=Path, help="Fashion-MNIST's IDX files")
    parser.add_argument("runs", type=Path, help="the runs' folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    args = parser.parse_args()
    teacher = args.runs / TEACHER
    print(f"teacher: {trained(TEACHER, teacher, args.root)['top1']:.2f} %", flush=True)
    rows = ["| student | class head | distillation head | prediction |", "|---" * 4 + "|"]
    for name in args.only:
        taught = [] if name == "fashion_deit" else ["--teacher", str(teacher)]
        found = [
            trained(name, args.runs / f"{name}_{seed}", args.root, "--seed", str(seed), *taught)
            for seed in args.seeds
        ]
        heads = [shown([line[head]["top1"] for line in found if head in line]) for head in HEADS]
        cells = [STUDENTS[name], *heads, shown([line["top1"] for line in found])]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr, flush=True)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
