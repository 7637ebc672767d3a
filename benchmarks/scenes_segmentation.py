"""Classes of pixels of made scenes, through `deepspeed` on two ranks, with a fixed budget: from
random weights, and from a trunk that learned to tell the training photographs apart.

    python -m benchmarks.scenes_segmentation FOLDER [--seed 0] [--updates 300]

Writes 480 training and 96 test scenes in ADE20K's form (`benchmarks/scenes.py`), trains the three
recipes of `benchmarks/scenes_recipes.py`, and prints each one's mean intersection over union on the
test scenes, whose photographs occur in no training scene or crop. A run that is done is not trained
again.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import scenes
from benchmarks.scenes_recipes import EACH, random
from bigvit.ranks.launched import free_port

RANKS = 2
TEST = 96
RECIPES = "benchmarks/scenes_recipes.py"


def train(name: str, run: Path, root: Path, *options: object) -> tuple[dict[str, Any], float]:
    """The last evaluation of a run that is done, and the seconds that it took now."""
    began = time.perf_counter()
    status = run / "status.json"
    if not status.is_file() or json.loads(status.read_text())["state"] != "done":
        launcher = [str(Path(sys.executable).with_name("deepspeed")), "--num_accelerators", RANKS]
        where = ["--data-root", root, "--run-dir", run, "--workers", 0, "--resume", "auto"]
        words = [*launcher, "--master_port", free_port(), "scripts/train.py", f"{RECIPES}:{name}"]
        command = [str(word) for word in (*words, *where, "--log-every", 50, *options)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "evaluation"][-1]
    return last, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes of pixels of made scenes.")
    parser.add_argument("folder", type=Path, help="of the scenes and the runs")
    parser.add_argument("--seed", type=int, default=random.seed)
    parser.add_argument("--updates", type=int, default=300, help="of each training with UperNet")
    args = parser.parse_args()
    root, crops = args.folder / "scenes", args.folder / "crops"
    if not (root / "objectInfo150.txt").is_file():
        scenes.write_crops(crops, EACH, 10)
        scenes.write_ade20k(root, random.data.train_images, TEST)
    often = args.updates // random.updates_per_epoch  # once, at its end
    options = ("--schedule.updates", args.updates, "--evaluate-every", max(1, often))
    runs = args.folder / f"seed_{args.seed}"
    seed = ("--seed", args.seed)
    trunk, seconds = train("trunk", runs / "trunk", crops, *seed, "--evaluate-every", 10)
    print(f"trunk: top-1 {trunk['top1']:.1f} % of crops, {seconds:.0f} s", file=sys.stderr)
    print(f"| from | mIoU | pixels | {' | '.join(scenes.CLASSES)} | seconds |")
    print("|---" * (4 + len(scenes.CLASSES)) + "|", flush=True)
    for name, more in (("random", ()), ("pretrained", ("--init", runs / "trunk"))):
        found, seconds = train(name, runs / name, root, *seed, *options, *more)
        shown = [found["miou"], found["pixel_accuracy"], *found["class_iou"].values()]
        cells = " | ".join("-" if value is None else f"{value:.1f}" for value in shown)
        print(f"| {name} | {cells} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
