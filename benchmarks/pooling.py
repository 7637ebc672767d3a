"""How the patches are pooled: by their mean, by class-MLP, by attention with one query, and with a
query a class (thesis tables 4.3, 5.7 made small).

    python -m benchmarks.pooling FASHION_MNIST FOLDER [--seeds 0 1 2] [--sets photos fashion]

Cuts the photographs into FOLDER/photographs, and trains `recipes/pooling.py` by `deepspeed`, two
models at a time on one rank each, from every seed. What is done there already is not done again.
Prints the table of top-1 on the 240 test photographs, and on Fashion-MNIST's 10,000.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.distillation import shown, trained

MODELS = {
    "resmlp_mean": "ResMLP, mean",
    "resmlp_class_mlp": "ResMLP, class-MLP",
    "pcn_mean": "PatchConvNet, mean",
    "pcn_attention": "PatchConvNet, attention",
    "pcn_classes": "PatchConvNet, a query a class",
    "resnet_mean": "ResNet, mean",
    "resnet_attention": "ResNet, attention",
}
SETS = {"photos": "photographs", "fashion": "Fashion-MNIST"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Pooling on little data.")
    parser.add_argument("fashion", type=Path, help="Fashion-MNIST's IDX files")
    parser.add_argument("folder", type=Path, help="for the images and the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", choices=SETS, nargs="+", default=[*SETS])
    args = parser.parse_args()
    began = time.perf_counter()
    photographs = args.folder / "photographs"
    if not photographs.exists():
        subprocess.run([sys.executable, "scripts/photos.py", str(photographs)], check=True)
    roots = {"photos": photographs, "fashion": args.fashion}

    def one(of: str, name: str, seed: int) -> dict[str, Any]:
        recipe = f"pooled_{of}_{name}"
        options = ["--evaluate-every", "100", "--seed", str(seed)]
        return trained(recipe, args.folder / f"{recipe}_{seed}", roots[of], *options, ranks=1)

    done = dict[tuple[str, str], list[Future[dict[str, Any]]]]()
    with ThreadPoolExecutor(2) as both:
        for of in args.sets:
            for name in MODELS:
                done[of, name] = [both.submit(one, of, name, seed) for seed in args.seeds]
    print(f"| model | {' | '.join(SETS[of] for of in args.sets)} |")
    print(f"{'|---' * (1 + len(args.sets))}|")
    for name, what in MODELS.items():
        cells = [shown([each.result()["top1"] for each in done[of, name]]) for of in args.sets]
        print(f"| {what} | {' | '.join(cells)} |")
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
