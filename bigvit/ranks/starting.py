"""The ranks of this host while they start: one that dies before all have met ends the run here, and
is named; so does the end of what launched them. No torch here: that is where the time goes.

Until the ranks are connected, none of them can see another's end but on its own host, where a
thread looks for them among the processes. One that leaves with a reason tells the others, by a
socket that is gone with it: so it is not taken for dead, and where it alone has the reason, all end
with it.
"""

import contextlib
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import psutil

from bigvit.ranks.launched import launched
from bigvit.ranks.stopping import ORPHANED, StopRequest, lives

LOOK = 0.5  # seconds between looks
GATHER = 1.0  # seconds in which ranks that die are named together
OWN = 4.0  # seconds that this rank has to find the reason itself for which another left
KNOWN = 10.0  # seconds until it must be clear where the run folder is
TELLING = 5.0  # seconds in which a status is written; a file system may hang
LAST = 2.0  # seconds by which the rank that speaks ends first: the launcher then ends the others
CRASHED, REQUEUE = 1, 85
MEETING = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # variables that ranks of a run share


class Starting:
    """Watches from a thread: the other ranks here until `met`, the launchers until `stop` is asked
    for the first time, as then the loop looks for their end, or knows of a signal."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.on_end: Callable[[str, int], None] | None = None  # before the end: why, and the code
        self.over: Callable[[str, int], NoReturn] | None = None  # ends all ranks, once they met
        self.known, self.closed = threading.Event(), threading.Event()
        self.rank, self.local, self.world, self.here = launched()
        self.host = socket.gethostname()
        self.parent = psutil.Process().parent()
        self.others: dict[int, psutil.Process] = {}  # of this host, by their number here
        self.left: dict[int, tuple[float, str, int]] = {}  # when, why, and with which code
        self.missed: float | None = None  # since when one is missing
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with contextlib.suppress(OSError):  # another run of this parent at the same address
            self.socket.bind(self._door(self.local))
        if self.world > 1:
            self._find()
        threading.Thread(target=self._watch, name="starting", daemon=True).start()

    def checked(self, on_end: Callable[[str, int], None]) -> None:
        """The run folder is known, and who ends a run can say why."""
        self.on_end = on_end
        self.known.set()

    def leave(self, reason: str, code: int) -> None:
        """This rank ends by itself, for a reason that others here may not have."""
        self.left[self.local] = (0.0, reason[:8000], code)
        self._find()
        self._inform_others()

    def met(self, over: Callable[[str, int], NoReturn]) -> None:
        """The ranks see each other's end from now on."""
        self.over = over

    def close(self) -> None:
        """Watch no more."""
        self.closed.set()

    def _door(self, number: int) -> str:
        """Where a rank of this host is told: no file, but an address that ends with its process."""
        parent = self.parent.pid if self.parent is not None else 0
        where = "/".join(os.environ.get(name, "") for name in MEETING).encode()
        return f"\0bigvit/{parent}/{hashlib.sha256(where).hexdigest()[:16]}/{number}"

    def _watch(self) -> None:
        while not self.closed.wait(LOOK) and not self.stop.looked:
            if self.over is None and self.world > 1:
                self._look()
            if self._goes_on() and self.stop.orphaned():
                self._end(f"{ORPHANED} before the ranks met", REQUEUE)
            if self.over is not None and not self.stop.requested and self.stop.orphaned():
                self.over(ORPHANED, REQUEUE)
        self.socket.close()

    def _look(self) -> None:
        """End this rank where another here has died, or left for a reason that this one lacks."""
        self._find()
        if self.local in self.left:
            self._inform_others()  # one that was found only now, too
            return
        self._hear()
        now = time.monotonic()
        for number, (when, reason, code) in list(self.left.items()):
            if now - when > OWN and self._goes_on():
                speaks = number != 0  # rank 0 of a host has said it itself
                self._end(f"{self._name(number)}: {reason}", code, speaks)
        dead = [n for n, process in self._others_here() if not lives(process)]
        if self.stop.requested:  # by a launcher, maybe, that has seen one end
            unseen = set(range(self.here or 0)) - self.others.keys() - self.left.keys()
            dead += sorted(unseen - {self.local})
        self.missed = (self.missed or now) if dead else None
        if self.missed is not None and now - self.missed > GATHER and self._goes_on():
            names = ", ".join(map(self._name, dead))
            self._end(f"{names} died before the ranks met; what its host says comes first", CRASHED)

    def _goes_on(self) -> bool:
        return self.over is None and self.local not in self.left

    def _inform_others(self) -> None:
        _, reason, code = self.left[self.local]
        word = json.dumps({"rank": self.local, "reason": reason, "code": code}).encode()
        for other in list(self.others):
            with contextlib.suppress(OSError):
                self.socket.sendto(word, self._door(other))

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, (sender, *_), *_ = self.socket.recvmsg(65536, socket.CMSG_SPACE(12))
                if struct.unpack("3i", sender[2])[1] == os.getuid():  # of process, user, group
                    word = json.loads(data)
                    when = (time.monotonic(), word["reason"], word["code"])
                    self.left.setdefault(word["rank"], when)

    def _find(self) -> None:
        """Ranks of the same parent that meet at the same address."""
        with contextlib.suppress(psutil.Error):
            for process in self.parent.children() if self.parent is not None else []:
                if process.pid == os.getpid() or process in self.others.values():
                    continue
                with contextlib.suppress(psutil.Error, ValueError):
                    theirs = process.environ()
                    if all(theirs.get(name) == os.environ.get(name) for name in MEETING):
                        self.others[int(theirs.get("LOCAL_RANK", ""))] = process

    def _others_here(self) -> list[tuple[int, psutil.Process]]:
        """Those that have not left."""
        return [(n, process) for n, process in list(self.others.items()) if n not in self.left]

    def _name(self, number: int) -> str:
        """A rank of this host; the first has the lowest number, and they follow each other."""
        return f"rank {self.rank - self.local + number} on {self.host}"

    def _end(self, reason: str, code: int, speaks: bool = True) -> NoReturn:
        """End this rank; the first that is left here says why, in the run folder and on others."""
        first = all(self.local < n for n, process in self._others_here() if lives(process))
        if first and speaks:
            print(f"error: {reason}", file=sys.stderr, flush=True)
        telling = threading.Thread(target=self._record_end, args=(reason, code, first), daemon=True)
        telling.start()
        telling.join(KNOWN + TELLING)
        if not first:
            time.sleep(LAST)
        if self.local in self.left:  # meanwhile this rank found a reason of its own
            time.sleep(2 * OWN)
        os._exit(code)

    def _record_end(self, reason: str, code: int, first: bool) -> None:
        self.known.wait(KNOWN)
        if self.on_end is not None:
            self.on_end(reason, code)
        if first and (self.here or self.world) < self.world:
            from bigvit.ranks.joining import announce_end

            announce_end(reason, code)
