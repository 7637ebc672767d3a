"""Boxes and masks of shapes in made scenes, through `deepspeed` on two ranks, with a fixed budget:
from random weights, and from a trunk that learned to tell the training photographs apart.

    python -m benchmarks.scenes_detection FOLDER [--seed 0]

Writes 480 training and 64 test scenes in COCO's form (`benchmarks/scenes.py`), trains
`scenes_mask_rcnn` from both, and prints average precision as COCO measures it on the test scenes,
whose photographs occur in no training scene or crop. A run that is done is not trained again.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.scenes import CLASSES, Split, make, write_crops
from benchmarks.scenes_recipes import EACH, boxes, trunk_of_boxes
from benchmarks.scenes_runs import train

TEST = 64
LISTED: dict[Split, str] = {"train": "train2017", "test": "val2017"}


def write_coco(root: Path, train: int, test: int, seed: int = 0) -> Path:
    """Scenes in COCO's form, masks as runs: exact."""
    from pycocotools import mask as coder

    (root / "annotations").mkdir(parents=True, exist_ok=True)
    each: tuple[tuple[Split, int], ...] = (("train", train), ("test", test))
    for split, count in each:
        folder = LISTED[split]
        (root / folder).mkdir(exist_ok=True)
        images, annotations = list[Any](), list[Any]()
        for number in range(count):
            scene, name = make(split, number, seed), f"{number:012d}.jpg"
            height, width = scene.labels.shape
            Image.fromarray(scene.pixels).save(root / folder / name, quality=92)
            images.append({"id": number, "file_name": name, "height": height, "width": width})
            for mask, of in zip(scene.masks, scene.classes, strict=True):
                if not mask.any():
                    continue
                runs: Any = coder.encode(np.asfortranarray(mask.astype(np.uint8)))
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": of,
                        "bbox": coder.toBbox(runs).tolist(),
                        "area": int(mask.sum()),
                        "iscrowd": 0,
                        "segmentation": runs | {"counts": runs["counts"].decode()},
                    }
                )
        categories = [{"id": i, "name": CLASSES[i]} for i in range(1, len(CLASSES))]
        listed = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{folder}.json").write_text(json.dumps(listed))
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description="Boxes and masks of made scenes.")
    parser.add_argument("folder", type=Path, help="of the scenes and the runs")
    parser.add_argument("--seed", type=int, default=boxes.seed)
    args = parser.parse_args()
    root, crops = args.folder / "coco", args.folder / "crops"
    if not (root / "annotations" / "instances_val2017.json").is_file():
        write_crops(crops, EACH, 10)
        write_coco(root, boxes.data.train_images, TEST)
    runs, seed = args.folder / f"boxes_{args.seed}", ("--seed", args.seed)
    often = ("--evaluate-every", boxes.epochs)  # once, at its end
    last = ("--evaluate-every", trunk_of_boxes.epochs)
    trunk, seconds = train("trunk_of_boxes", runs / "trunk", crops, *seed, *last)
    print(f"trunk: top-1 {trunk['top1']:.1f} % of crops, {seconds:.0f} s", file=sys.stderr)
    names = [f"{kind}_{name}" for kind in ("box", "mask") for name in ("ap", "ap50", "ap75")]
    print(f"| from | {' | '.join(names)} | seconds |")
    print("|---" * (2 + len(names)) + "|", flush=True)
    for name, more in (("boxes", ()), ("boxes_pretrained", ("--init", runs / "trunk"))):
        found, seconds = train(name, runs / name, root, *seed, *often, *more)
        cells = " | ".join(f"{found[each]:.1f}" for each in names)
        print(f"| {name} | {cells} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
