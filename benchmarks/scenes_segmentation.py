"""Classes of pixels of made scenes, through `deepspeed` on two ranks, with a fixed budget: from
random weights, and from a trunk that learned to tell the training photographs apart.

    python -m benchmarks.scenes_segmentation FOLDER [--seed 0] [--updates 300]

Writes 480 training and 96 test scenes in ADE20K's form (`benchmarks/scenes.py`), trains the three
recipes of `benchmarks/scenes_recipes.py`, and prints each one's mean intersection over union on the
test scenes, whose photographs occur in no training scene or crop. A run that is done is not trained
again.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import scenes
from benchmarks.scenes_recipes import EACH, random
from benchmarks.scenes_runs import train

TEST = 96


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
