"""Train a recipe: deepspeed scripts/train.py RECIPE [--field.of.recipe VALUE] [--option VALUE]."""

import sys

from bigvit.train import main

if __name__ == "__main__":
    sys.exit(main())
