"""Boxes and masks of shapes in scenes (`benchmarks/scenes.py`), learned through `deepspeed` on two
ranks from random weights and from a trunk that was trained to tell photographs apart.

    python -m benchmarks.scenes_detection [--seeds 0 1 2] [--epochs N]

The budget is the recipe's (`scenes_mask_rcnn`), the same for both. Average precision as COCO
measures it, on scenes of photographs that no training scene shows.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.scenes import CLASSES, Split, make, write_crops
from bigvit.ranks.launched import free_port
from bigvit.recipe import Detection

LISTED: dict[Split, str] = {"train": "train2017", "test": "val2017"}
PRETRAINED = 64  # crops of a photograph


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


def launched(*words: Any) -> None:
    """A training on two ranks under the launcher.

    Raises:
        RuntimeError: it failed.
    """
    command = [
        "deepspeed",
        "--num_accelerators",
        "2",
        "--master_port",
        str(free_port()),
        "scripts/train.py",
        *map(str, words),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def last(run: Path) -> dict[str, Any]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "evaluation"][-1]


def pretrain(folder: Path, seed: int) -> Path:
    """The recipe's trunk, trained on crops of the training photographs: which one each is of."""
    root = write_crops(folder / "crops", PRETRAINED, 8)
    recipe = folder / "crops.py"
    recipe.write_text(
        "from dataclasses import replace\n"
        "from bigvit.recipes.detection import scenes_mask_rcnn\n"
        "from bigvit.recipes.photos import photos_vit_64\n"
        f"classes, images = {len(list((root / 'train').iterdir()))}, "
        f"{sum(1 for _ in root.glob('train/*/*'))}\n"
        "data = replace(photos_vit_64.data, classes=classes, train_images=images, image_size=64,\n"
        "               test_images=None, mean=scenes_mask_rcnn.data.mean,\n"
        "               std=scenes_mask_rcnn.data.std)\n"
        "model = replace(scenes_mask_rcnn.model, num_classes=classes)\n"
        "crops = replace(photos_vit_64, model=model, data=data,\n"
        "                schedule=replace(photos_vit_64.schedule, epochs=8, warmup_epochs=1))\n"
    )
    run = folder / f"trunk_{seed}"
    launched(recipe, "--seed", seed, "--data-root", root, "--run-dir", run, "--workers", 0)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=0, help="another budget than the recipe's")
    parser.add_argument("--folder", type=Path, help="keep the runs there")
    options = parser.parse_args()
    from bigvit.recipes.detection import scenes_mask_rcnn as recipe

    assert isinstance(recipe.data, Detection)

    with TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        data = recipe.data
        root = write_coco(folder / "scenes", data.train_images, data.test_images or 0)
        print(f"{data.train_images} training and {data.test_images} test scenes", flush=True)
        print("weights       seed  box AP   AP50   AP75  mask AP   AP50   AP75  seconds")
        for seed in options.seeds:
            for weights in ("random", "pre-trained"):
                began, more = time.perf_counter(), list[Any]()
                if weights == "pre-trained":
                    more = ["--init", pretrain(folder, seed), "--starts-from", "crops"]
                if options.epochs:
                    steps = [str(max(1, options.epochs * n // 12)) for n in (9, 11)]
                    more += ["--schedule.epochs", options.epochs, "--schedule.steps", *steps]
                run = folder / f"{weights}_{seed}"
                every = ["--evaluate-every", options.epochs or recipe.epochs, "--workers", 0]
                words = ["scenes_mask_rcnn", "--seed", seed, "--data-root", root, "--run-dir", run]
                launched(*words, *every, *more)
                found = last(run)
                names = [
                    f"{kind}_{name}" for kind in ("box", "mask") for name in ("ap", "ap50", "ap75")
                ]
                numbers = "  ".join(f"{found[name]:6.2f}" for name in names)
                seconds = time.perf_counter() - began
                print(f"{weights:12} {seed:5}  {numbers}  {seconds:7.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
