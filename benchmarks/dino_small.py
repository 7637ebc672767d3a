"""DINO made small: what its features are worth over the epochs, against random weights.

    python -m benchmarks.dino_small FASHION_MNIST RUNS [--only RECIPE ...]

Trains `dino_fashion_vit` and `dino_fashion_resmlp` of `recipes/coarse.py` on the images alone, in
one process each, and keeps every checkpoint. Prints top-1 of the weighted kNN (k 10, temperature
0.07) and of a linear classifier (`bigvit probe`, 20 epochs) on the test images: of the initial
weights, and of the follower's features after each of some epochs.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.coarse_to_fine import first_images, trained
from bigvit.checkpoint.asked import Model
from bigvit.checkpoint.run import checkpoints_of
from bigvit.neighbours.classify import neighbours
from bigvit.neighbours.given import Given, given
from bigvit.neighbours.probe import probe
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

RECIPES = ("dino_fashion_vit", "dino_fashion_resmlp")
EPOCHS = 10


@dataclass(frozen=True)
class Beginning(Given):
    """The same images, embedded by the recipe's model as it begins."""

    recipe: str = ""

    def model(self) -> Model:
        """With its initial weights."""
        task = Task(find_recipe(self.recipe)[1])
        task.init_weights()
        task.eval()
        return Given.model(self)._replace(embed=task.model.embed, module=task.model)


def row(recipe: str, epochs: int, asked: Given) -> str:
    """A line of the table."""
    near = neighbours(asked, 10, 0.07, 250, 0)["top1"]
    linear = probe(asked, 20, 256, 250, 0)["top1"]
    return f"| {recipe} | {epochs or 'random weights'} | {near:.1f} | {linear:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="DINO on Fashion-MNIST, made small.")
    parser.add_argument("root", type=Path, help="Fashion-MNIST's IDX files")
    parser.add_argument("runs", type=Path, help="the runs' folders")
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--every", type=int, default=2, help="epochs between measurements")
    args = parser.parse_args()
    images = first_images(args.root, args.runs / "images")
    print("| model | epochs | kNN | linear |\n|---|---|---|---|", flush=True)
    for recipe in args.only:
        each = find_recipe(recipe)[1].updates_per_epoch
        often = ["--checkpoint-every", str(args.every * each), "--keep", str(EPOCHS)]
        folder = args.runs / recipe
        trained(recipe, folder, "--data-root", str(images), *often)
        found = [
            replace(given(str(path), images, True, None, None, None, False), folder=None)
            for path in checkpoints_of(folder)
        ]
        fields = {name: getattr(found[0], name) for name in Given.__dataclass_fields__}
        print(row(recipe, 0, Beginning(**fields, recipe=recipe)), flush=True)
        for path, asked in zip(checkpoints_of(folder), found, strict=True):
            epochs = int(path.name.partition("_")[2]) // each
            print(row(recipe, epochs, asked), flush=True)


if __name__ == "__main__":
    main()
