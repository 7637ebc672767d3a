"""`scripts/train.py`, in which a request to stop comes in a chosen phase.

    deepspeed ... phases.py PHASE TARGET FILE RECIPE ...

PHASE: start, update, evaluation or save. TARGET: rank (SIGUSR1 to rank 1), launch.py (SIGTERM to
what started the ranks), group (SIGTERM to all), orphan (SIGKILL to launch.py), file (`bigvit
stop`). Rank 1 (for `file`, rank 0) does it the first time that it comes there, and writes FILE:
the batches that it had consumed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
phase, target, said, *rest = arguments
run = Path(rest[rest.index("--run-dir") + 1])
here = int(os.environ["RANK"]) == (0 if target == "file" else 1)
consumed = 0


def request() -> None:
    """Once, from here on."""
    if not here or Path(said).exists():
        return
    Path(said).write_text(str(consumed))
    match target:
        case "rank":
            os.kill(os.getpid(), signal.SIGUSR1)
        case "launch.py":
            os.kill(os.getppid(), signal.SIGTERM)
        case "group":
            os.killpg(0, signal.SIGTERM)
        case "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
        case _:
            command = [Path(sys.executable).with_name("bigvit"), "stop", str(run)]
            subprocess.run(command, check=True, capture_output=True)


def before(owner: Any, name: str, first: Callable[[], None]) -> None:
    """Do something before a function is called."""
    function = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return function(*args, **kwargs)

    setattr(owner, name, both)


def count() -> None:
    global consumed
    consumed += 1
    if phase == "update" and consumed == 5:
        request()


import bigvit.train  # noqa: E402
from bigvit.checkpoint.save import Saver  # noqa: E402
from bigvit.dense import evaluators  # noqa: E402
from bigvit.training import loop  # noqa: E402

PLACES: dict[str, tuple[Any, str]] = {
    "start": (loop, "build_engine"),
    "evaluation": (evaluators, "evaluate"),
    "save": (Saver, "_write"),
}
if phase in PLACES:
    owner, name = PLACES[phase]
    before(owner, name, request)
before(loop.Training, "_update", count)
sys.argv[1:] = rest
bigvit.train.run_and_end()
