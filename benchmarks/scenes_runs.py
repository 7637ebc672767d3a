"""Trainings on scenes, through `deepspeed` on two ranks."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bigvit.ranks.launched import free_port

RANKS = 2
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
