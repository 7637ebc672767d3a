"""A command by the ranks that were launched: they meet, work, and end together with one message."""

import sys
import time
import traceback
from collections.abc import Callable

from bigvit.ranks.joining import NotMet, Ranks, alone, connect, end, meet
from bigvit.ranks.launched import launched
from bigvit.ranks.memory import wanting
from bigvit.ranks.stopping import StopRequest
from bigvit.ranks.watching import Watch

TIMEOUT = 600.0  # seconds after which a rank that does not answer ends all
DONE, CRASHED, BAD_INPUT, AGAIN = 0, 1, 2, 85


class Stopped(Exception):
    """Asked to stop, by a signal or the end of what launched this rank."""


def together(work: Callable[[Ranks, StopRequest | None], None], kept: str) -> int:
    """Work with the ranks that were launched; the exit code. With others, it is the process that
    ends. ValueError and OSError are bad input, and Stopped is none; rank 0 says the reason.

    Args:
        work: of this rank; with others it may be asked to stop. One that returns leaves the others
            to what they still do.
        kept: what stays where it is stopped, for the message.
    """
    world, rank = launched().world, launched().rank
    watch, code, reason, stop = None, DONE, "", StopRequest() if world > 1 else None
    try:
        ranks = meet(TIMEOUT) if world > 1 else alone()
        if world > 1:
            watch = Watch(ranks, TIMEOUT)
            ranks = connect(ranks, TIMEOUT)
        work(ranks, stop)
    except NotMet as error:
        code, reason = error.code, str(error)
    except Stopped as error:
        code, reason = AGAIN, f"{error}; {kept}"
    except (ValueError, OSError) as error:
        code, reason = BAD_INPUT, str(error)
    except BaseException as error:
        said = wanting(error)
        if watch is None and not said:
            raise
        way_out = f"{said}; use a smaller --batch-size, or --image-size where there is one"
        code, reason = CRASHED, way_out if said else f"{type(error).__name__}: {error}"
        if watch is not None:
            watch.failed(reason if said else f"crashed: {reason}")
        if not said:
            traceback.print_exc()
    if watch is not None:
        watch.ending()
        watch.leave(reason, code)
    if reason and rank == 0:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    if world > 1:
        if reason and rank > 0:
            time.sleep(2)  # the launcher ends all of its host once one has ended
        end(code)
    return code
