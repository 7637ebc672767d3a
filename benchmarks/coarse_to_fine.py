"""Learn coarse classes, and be asked for fine ones: the form of thesis table 2.4, made small.

    python -m benchmarks.coarse_to_fine FASHION_MNIST RUNS [--seeds 0 1 2] [--only DATA ...]

Trains `recipes/coarse.py` from every seed, each into a folder of RUNS, in one process each; what is
done there already is not done again. Prints, of the test images by their fine classes, top-1 of the
weighted kNN (equation 2.6; k 10, temperature 0.07) and the mean average precision (section 2.3.2):
of the trunk's features, and of what the projector makes of them.
"""

import argparse
import gzip
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from bigvit.neighbours.classify import neighbours
from bigvit.neighbours.given import given
from bigvit.neighbours.retrieve import Retrieval

METHODS = {
    "baseline": "cross-entropy",
    "snca": "SNCA+",
    "grafit_fc": "Grafit FC",
    "grafit": "Grafit",
}
TRAIN, TEST = 6_000, 2_000
SHOES, BAGS = (5, 7, 9), (8,)  # IDX files number their classes, and name none
MAPS: dict[str, dict[str, str]] = {
    "fashion_groups": {
        str(n): "shoes" if n in SHOES else "bags" if n in BAGS else "clothes" for n in range(10)
    },
    "fashion_clothes": {str(n): "other" if n in (*SHOES, *BAGS) else "clothes" for n in range(10)},
}
DATA = ("digits", *MAPS)


def first_images(root: Path, folder: Path) -> Path:
    """The first images of Fashion-MNIST's IDX files, as such files again."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", TRAIN), ("t10k", TEST)):
        for kind, header, each in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            name = f"{split}-{kind}-ubyte"
            found = root / name
            whole = found.read_bytes() if found.exists() else gzip.open(f"{found}.gz").read()
            start = whole[:4] + struct.pack(">I", count) + whole[8:header]
            (folder / name).write_bytes(start + whole[header : header + count * each])
    return folder


def trained(recipe: str, folder: Path, *options: str) -> Path:
    """A run, which is begun or gone on with where it is not done."""
    status = folder / "status.json"
    if not status.is_file() or json.loads(status.read_text())["state"] != "done":
        how = ["--engine", "single", "--workers", "0", "--log-every", "100", "--resume", "auto"]
        command = [sys.executable, "scripts/train.py", recipe, "--run-dir", str(folder)]
        subprocess.run([*command, *how, *options], check=True, stdout=sys.stderr)
    return folder


def measured(folder: Path, root: Path, projected: bool) -> tuple[float, float]:
    """kNN top-1 and mean average precision, percent, on the fine classes."""
    asked = given(str(folder), root, False, "own", None, None, False, trunk=not projected)
    found = Retrieval(replace(asked, folder=None), 250, 0).mean_average_precision()["map"]
    return neighbours(replace(asked, folder=None), 10, 0.07, 250, 0)["top1"], found


def shown(values: list[float]) -> str:
    """Mean and deviation, or the one that there is."""
    if len(values) < 2:
        return "".join(f"{value:.1f}" for value in values) or "-"
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Coarse classes to fine ones, made small.")
    parser.add_argument("root", type=Path, help="Fashion-MNIST's IDX files")
    parser.add_argument("runs", type=Path, help="the runs' folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    args = parser.parse_args()
    images = first_images(args.root, args.runs / "images")
    print("| data | method | kNN, features | mAP, features | kNN, projected | mAP, projected |")
    print("|---" * 6 + "|", flush=True)
    for data in args.only:
        options: list[str] = []
        if data in MAPS:
            file = args.runs / f"{data}.json"
            file.write_text(json.dumps(MAPS[data], indent=1))
            options = ["--data-root", str(images), "--classes-map", str(file)]
        for method, called in METHODS.items():
            recipe, columns = f"coarse_{data}_{method}", list[list[float]]([[], [], [], []])
            for seed in args.seeds:
                folder = args.runs / f"{recipe}_{seed}"
                trained(recipe, folder, "--seed", str(seed), *options)
                found = list(measured(folder, images, projected=False))
                if method != "baseline":
                    found += measured(folder, images, projected=True)
                for column, value in zip(columns, found, strict=False):
                    column.append(value)
            print(f"| {data} | {called} | {' | '.join(map(shown, columns))} |", flush=True)


if __name__ == "__main__":
    main()
