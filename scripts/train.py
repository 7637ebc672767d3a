#!/usr/bin/env python
"""Train a recipe: deepspeed scripts/train.py RECIPE [--field.of.recipe VALUE] [--option VALUE]."""

from bigvit.train import run_and_end

if __name__ == "__main__":
    run_and_end()
