"""Commands about the hosts that train together."""

import argparse
import sys
from pathlib import Path
from typing import Annotated

from bigvit.cli.arguments import A_RECIPE, Add, add_classes_map, add_data_root
from bigvit.recipe.bounds import Bound

Port = Annotated[int, Bound(1, 65_535)]


def add(add: Add) -> None:
    """Add the commands."""
    command = add("hosts", _hosts, "print a hostfile of those that answer and can share the batch")
    command.add_argument("--hostfile", type=Path, required=True, help="lines HOST slots=N")
    command.add_argument("--ssh-port", number=Port, help="ssh's port on the hosts")
    command.add_argument("training", nargs=argparse.REMAINDER, help="a recipe and its options")
    text = "run `deepspeed ARGUMENTS`, passing on signals as requests to stop"
    command = add("launch", _launch, text, prefix_chars="\0", add_help=False)  # all are deepspeed's
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="as `deepspeed` takes them")
    command = add("env", _env, "write .deepspeed_env, which carries variables to every host")
    command.add_argument("given", nargs="*", metavar="NAME=VALUE", help="more than is set here")
    command.add_argument("--interface", help="the network that gloo and NCCL use, such as eth0")
    text = "examine hosts before a run: is all the same, do they connect?"
    command = add("doctor", _doctor, text)
    command.add_argument("recipe", nargs="?", help=f"also its data: {A_RECIPE}")
    command.add_argument("--hostfile", type=Path, help="as DeepSpeed's (default: this machine)")
    add_data_root(command)
    add_classes_map(command)
    command.add_argument("--run-dir", type=Path, help="run folder that is meant to be used")
    text = "compare the run in --run-dir with what `bigvit rehearse` found, and do nothing else"
    command.add_argument("--certificate", type=Path, metavar="FILE", help=text)
    command.add_argument("--ssh-port", number=Port, help="as DeepSpeed's --ssh_port")
    command.add_argument("--master-addr", help="as DeepSpeed's --master_addr")
    command.add_argument("--master-port", number=Port, default=29500, help="as DeepSpeed's (29500)")


def _hosts(options: argparse.Namespace) -> int:
    from bigvit.hosts.hostfile import CONNECT, read_hostfile, run_on
    from bigvit.recipe import batch_layout
    from bigvit.recipe.parse import parse

    slots = read_hostfile(options.hostfile)
    command = parse(options.training)
    done = run_on(list(slots), ["true"], CONNECT, options.ssh_port)
    left = [(host, count) for host, count in slots.items() if done[host].code == 0]
    for host in slots.keys() - dict(left):
        print(f"warning: {host} does not answer", file=sys.stderr)
    while left:
        world = sum(count for _, count in left)
        try:
            batch_layout(command.recipe, world, command.run.micro_batch)
        except ValueError as error:
            print(f"warning: not {len(left)} hosts: {error}", file=sys.stderr)
            left.pop()
            continue
        for host, count in left:
            print(f"{host} slots={count}")
        return 0
    return 1


def _launch(options: argparse.Namespace) -> int:
    from bigvit.hosts.launch import launch

    return launch(options.arguments)


def _env(options: argparse.Namespace) -> None:
    from bigvit.hosts.environment import NAMES, write_variables

    path, variables, left_out = write_variables(options.given, options.interface)
    print(f"{path.absolute()}:")
    for name, value in variables.items():
        print(f"{name}={value}" if name in NAMES else f"{name}=(not shown)")
    if left_out:
        print(f"left out, NAME=VALUE adds one: {', '.join(left_out)}", file=sys.stderr)


def _doctor(options: argparse.Namespace) -> int:
    from bigvit.cli.doctor import compare_with_rehearsal, examine

    return examine(options) if options.certificate is None else compare_with_rehearsal(options)
