"""Start a training run, and end it: `deepspeed scripts/train.py RECIPE ...` comes here.

The command line, the recipe, the data and the run folder are checked on every rank, checkpoints on
rank 0, before torch is imported. Exit codes: 0 done, 1 crash, 2 bad input, 3 stopped itself, 85
stopped on request.
"""

import contextlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from bigvit.checkpoint.manifest import Damaged
from bigvit.engines import check as engines
from bigvit.engines import deterministic
from bigvit.ranks.starting import Starting
from bigvit.ranks.stopping import StopRequest
from bigvit.recipe import Command, Layout
from bigvit.recipe.parse import parse
from bigvit.training.check import check
from bigvit.training.run_folder import STOPPED, RunFolder
from bigvit.training.spoken import ending
from bigvit.training.start import WAY_OUT, Refused, Start

AGAIN = 5  # times that a run folder is tried to be opened, to say how a run ended
DONE, CRASHED, BAD_INPUT, STOPPED_ITSELF, REQUEUE = 0, 1, 2, 3, 85


def main(args: Sequence[str] | None = None) -> int:
    """Run a training command, given without the program's name, and return its exit code."""
    stop = StopRequest()
    try:
        starting = Starting(stop)
    except ValueError as error:  # what the launcher says is none of a rank
        return _refuse(str(error), 0)
    try:
        return _main(args, stop, starting)
    finally:
        starting.close()


def _main(args: Sequence[str] | None, stop: StopRequest, starting: Starting) -> int:
    rank, world = starting.rank, starting.world
    try:
        with contextlib.nullcontext() if rank == 0 else _silence():
            command = parse(sys.argv[1:] if args is None else args)
        layout, start = check(command, world, rank)
    except (ValueError, OSError) as error:
        starting.leave(str(error), BAD_INPUT)
        return _refuse_early(str(error), starting)
    except SystemExit as done:  # tyro has printed a help (0) or an error (2)
        starting.leave("its command line is wrong", BAD_INPUT if done.code else DONE)
        return _refuse("", rank) if done.code else DONE
    stop.max_minutes = command.run.max_minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    if command.run.deterministic:
        deterministic.set_variables()
    starting.checked(partial(_record_end, command, start, world))
    return _train(command, layout, start, stop, starting)


def _train(
    command: Command, layout: Layout, start: Start, stop: StopRequest, starting: Starting
) -> int:
    from bigvit.checkpoint.save import NotSaved
    from bigvit.checkpoint.weights import Unfit
    from bigvit.data.bad import TooManyBad
    from bigvit.data.decode import Unread
    from bigvit.data.loader import lost
    from bigvit.engines.build import check_model, meet_ranks
    from bigvit.engines.engine import NotFinite
    from bigvit.ranks.joining import NotMet, connect, could_not_connect
    from bigvit.ranks.watching import Watch
    from bigvit.training.ahead import RankFailed
    from bigvit.training.loop import run
    from bigvit.training.loss_guard import LossJumped
    from bigvit.training.same_hosts import check_seen_by_all
    from bigvit.training.way_out import explained

    if command.run.deterministic:
        deterministic.fix_kernels()
    try:
        ranks = meet_ranks(command.run)
        watch = Watch(ranks, command.run.timeout)
    except NotMet as error:
        starting.leave(str(error), error.code)
        _record_end(command, start, layout.world, str(error), error.code)
        return _refuse(str(error), starting.local, error.code)
    watch.on_end = partial(_record_end, command, start, ranks.world)
    starting.met(watch.over)
    try:
        ranks = connect(ranks, command.run.timeout)
    except RuntimeError as error:
        reason = could_not_connect(ranks, error)
        watch.failed(reason.removeprefix(f"{ranks.name(ranks.rank)} "))
        _record_end(command, start, ranks.world, reason, CRASHED)
        return _refuse(reason, starting.local, CRASHED)
    folder, code, reason = None, DONE, ""
    try:
        with ranks.agree_on_error(ValueError, raised=Refused):
            engines.check_device(command.recipe, command.run, ranks.device.type)
            check_model(command.recipe)
            if ranks.rank == 0:
                folder = opened = RunFolder(start.folder, command, ranks.world)
                stop.asked_by_file = lambda: opened.asked_to_stop
                watch.on_end = lambda why, code: opened.write_status(code, why)
        check_seen_by_all(start.folder, ranks)
        if ranks.agree(folder is not None and folder.asked_to_stop):  # when no job had the folder
            code, reason = REQUEUE, f"{STOPPED}, before the start"
        elif run(command, layout, start, ranks, folder, stop.asked) == "requeue":
            asked = f"{stop.reason}, rank {ranks.rank}" if stop.reason else ""
            code, reason = REQUEUE, ranks.first_text(asked) or "--stop-after"
    except Damaged as error:
        code, reason = BAD_INPUT, f"--resume {command.run.resume}: {error}; {WAY_OUT}"
    except (Refused, Unfit) as error:
        code, reason = BAD_INPUT, str(error)
    except (NotFinite, LossJumped, TooManyBad) as error:
        code, reason = STOPPED_ITSELF, str(error)
    except (NotSaved, RankFailed) as error:
        if (cause := error.__cause__) is not None and not isinstance(cause, OSError):
            traceback.print_exception(cause)
        code, reason = CRASHED, str(error)
    except BaseException as error:
        way_out = ""
        if isinstance(error, RuntimeError):
            way_out = explained(error, command, layout, ranks.whereabouts.place)
            error = lost(error)
        said = isinstance(error, Unread) or bool(way_out)  # of this machine, and no bug
        reason = way_out or f"{'' if said else f'{type(error).__name__}: '}{error}"
        watch.failed(f"crashed: {reason}")
        if not said:
            traceback.print_exc()
        code = CRASHED
    watch.ending()
    if folder is not None:
        _end(folder, code, reason or folder.why, ranks.device.type)
    watch.leave("" if code in (DONE, REQUEUE) else reason, code)
    return _refuse(reason, ranks.rank) if code == BAD_INPUT else code


def _end(folder: RunFolder, code: int, reason: str, device: str) -> None:
    """Say in its folder, and to a person, how a run ended. What was refused changed nothing there:
    its status stays as it was."""
    if code != BAD_INPUT:
        try:
            folder.write_status(code, reason)
        except OSError as error:  # of a full disk: it ends like that, too
            print(f"warning: status.json cannot be written ({error})", file=sys.stderr, flush=True)
        if code in (DONE, REQUEUE):
            why = f" ({reason})" if reason else ""
            print(f"{folder.state}: update {folder.update}, {folder.path}{why}", flush=True)
            if folder.accepted and (said := ending(folder, device, code)):
                print(said, flush=True)
        else:
            print(f"error: {reason}", file=sys.stderr, flush=True)
    folder.close()


def _record_end(command: Command, start: Start, world: int, reason: str, code: int) -> None:
    """Say why a run ended, where rank 0, which has its folder open, died, or has not opened it yet.
    What was refused leaves nothing."""
    if code == BAD_INPUT:
        return
    for _ in range(AGAIN):  # another rank may be saying it, or the system still hold a dead one's
        with contextlib.suppress(ValueError, OSError):
            folder = RunFolder(start.folder, command, world)
            try:
                if folder.state != "done":
                    folder.write_status(code, reason)
            finally:
                folder.close()
            return
        time.sleep(0.2)


def _refuse_early(message: str, starting: Starting) -> int:
    """Refuse what this host's files or the command line show; another host may see no problem."""
    if (starting.here or starting.world) == starting.world:
        return _refuse(message, starting.rank)
    from bigvit.ranks.joining import announce_bad_input

    return _refuse(announce_bad_input(message), starting.local)


def _refuse(message: str, rank: int, code: int = BAD_INPUT) -> int:
    """Rank 0 says what is wrong; the others leave it time to, as the launcher ends all of its host
    once one has ended."""
    if rank > 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # with which the launcher ends the wait
        time.sleep(5)
    elif message:
        print(f"error: {message}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


class Unbroken:
    """A stream that drops text that cannot be written: a run outlives the pipe or terminal that it
    talks to, and the disk that its output fills."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.flush()


def run_and_end() -> NoReturn:
    """`main`, and the end of the process."""
    streams: Any = Unbroken(sys.stdout), Unbroken(sys.stderr)
    sys.stdout, sys.stderr = streams
    code = main()
    if "torch" not in sys.modules:
        sys.exit(code)
    from bigvit.ranks.joining import end

    end(code)


if __name__ == "__main__":
    run_and_end()
