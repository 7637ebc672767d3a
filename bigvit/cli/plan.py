"""`bigvit plan`: what a run needs and takes, before it starts. No torch here."""

import argparse
import json
from typing import Annotated

from bigvit.cli.arguments import A_RECIPE, Add
from bigvit.cli.table import print_table
from bigvit.recipe.bounds import Bound

Gpus = Annotated[int, Bound(1, 2**17)]
Network = Annotated[float, Bound(0.01, 1e6)]
Price = Annotated[float, Bound(0.0, 1e6)]


def add(add: Add) -> None:
    """Add the command."""
    text = "say what a run needs and takes, on devices that need not be there"
    command = add("plan", _plan, text, allow_abbrev=False)
    command.add_argument("recipe", help=f"{A_RECIPE}; then overrides as in training")
    command.add_argument(
        "--gpus", number=Gpus, help="devices in all (the fewest of up to 8 that do)"
    )
    command.add_argument("--per-node", number=Gpus, help="devices of a node (8, or all)")
    command.add_argument("--gpu", help="kind of device, such as a100-80gb (h100-80gb)")
    text = "bandwidth of a node's network, all links, Gb/s (400)"
    command.add_argument("--network", number=Network, default=400.0, metavar="GBITS", help=text)
    text = "price of a device's hour, in any unit"
    command.add_argument("--per-gpu-hour", number=Price, metavar="PRICE", help=text)
    text = "first measure the device that is there, two minutes; later plans take what was found"
    command.add_argument("--calibrate", action="store_true", help=text)
    command.add_argument("--json", action="store_true", help="as JSON: bytes, seconds, FLOPs")
    command.set_defaults(overrides=[])


def _plan(options: argparse.Namespace) -> int:
    from bigvit.plan import report
    from bigvit.plan.make import make_plan

    words = [options.recipe, *options.overrides]
    gpu = options.gpu
    if options.calibrate:
        from bigvit.plan.measure import calibrate

        gpu = calibrate(words, gpu)
    price = options.per_gpu_hour
    plan = make_plan(words, options.gpus, options.per_node, gpu, options.network, price)
    if options.json:
        print(json.dumps(report.as_json(plan), indent=2))
        return 0 if plan.choices else 1
    for line in report.lines(plan):
        print(line)
    if plan.choices:
        print_table(report.HEADS, report.rows(plan))
    for line in report.details(plan):
        print(line)
    return 0 if plan.choices else 1
