"""Ranks that die or fall silent: the others learn of it, and the run ends on every host.

A collective does not tell who is missing, and may wait for half an hour. So rank 0 holds a
connection with every other rank, made before the collectives are, and both ends send how far they
have come, every few seconds. One that closes without a word is a rank that died: its kernel closed
it. One that leaves with a reason while others are at work ends the run for that reason. One that is
silent, or a rank that stays where the others wait for it, has as long as the run's `--timeout`.
Then a line says who, on each host, and every rank ends. No collective and no device is used here.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NoReturn

from bigvit.ranks.joining import DOCTOR, OTHERS, NotMet, Ranks, Whereabouts, could_not_connect

BEAT = 2.0  # seconds between messages, at most
GREETING = 5.0  # seconds that a new connection has to say which rank it is
GATHER = 1.0  # seconds in which ranks that die are named together
SECOND = 4.0  # seconds that an error, or a reason to leave, waits for the one behind it
ALL = 3  # times the time limit that all ranks may stay at one place, as they do when they compile
CRASHED = 1
APART = "bigvit/apart"  # where a rank says that it cannot reach that
READY = b"\n"  # what rank 0 says when all are connected: an empty message
GOODBYE = 10.0  # seconds that a rank waits for rank 0 to leave
DIED = "died, or was killed; what its host says comes first"
PORT = "bigvit/watch"  # rank 0's, in the store where the ranks met


def _clock() -> float:
    """Seconds, those in which the machine was suspended too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class _Peer:
    """The other end of a connection."""

    rank: int
    socket: socket.socket
    whereabouts: Whereabouts
    heard: float  # when
    unread: bytes = b""
    state: str = "here"  # or "left", "died"
    reason: str = ""  # of its own, for which it left
    code: int = 0  # that it ends with
    broken: bool = False  # nothing more can be sent
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, **message: Any) -> None:
        """Send a message; where the other end takes none, it will be found silent."""
        line = json.dumps(message).encode() + b"\n"
        with self.lock:
            if not self.broken:
                try:
                    self.broken = self.socket.send(line) < len(line)
                except OSError:
                    self.broken = True

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come, or None where the connection is closed."""
        try:
            taken = self.socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self.unread = (self.unread + taken).split(b"\n")
        return [json.loads(line) for line in lines] if taken else None


class Watch:
    """Watches the other ranks from a thread, until this one leaves."""

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        """Connect ranks that have met. Returns when all are connected.

        Args:
            timeout: seconds after which a silent rank ends the run.

        Raises:
            NotMet: rank 0 ended meanwhile, or a rank cannot connect with it.
        """
        self.ranks, self.timeout = ranks, timeout
        # told before the process ends: why, and its code
        self.on_end: Callable[[str, int], None] = lambda reason, code: None
        self.beat = min(BEAT, timeout / 5)
        self.peers: dict[int, _Peer] = {}
        self.selector = selectors.DefaultSelector()
        self.leaving = False
        self.ends = threading.Lock()  # taken on rank 0 by that of two threads that says why
        self.least: int = -1
        self.died_at = self.sent = self.stood = self.stood_at = 0.0
        if ranks.world > 1:
            self._connect()
            self.moved = _clock()
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def ending(self) -> None:
        """Nothing is left to do together: what becomes of the others means nothing from now on."""
        self.leaving = True

    def leave(self, reason: str = "", code: int = 0) -> None:
        """This rank ends, and its silence means nothing from now on. Without a reason all do; with
        one, those that are still at work some seconds later end with it, too. Rank 0 leaves when
        it has said how the run ended, and the others wait for that."""
        self.ending()
        for peer in list(self.peers.values()):
            peer.send(bye=reason, code=code)
        if self.ranks.rank > 0:  # rank 0 may die before it has
            rank_0, deadline = self.peers[0], _clock() + GOODBYE
            while rank_0.state == "here" and _clock() < deadline:
                time.sleep(0.02)
            if rank_0.state == "died":
                self._over([0], DIED)

    def failed(self, what: str) -> None:
        """This rank ends with an error. Where it is but what another's end brought about, that one
        is named instead, and this does not return."""
        if not self.peers:
            return
        time.sleep(SECOND)
        if self.ranks.rank == 0:
            self.ends.acquire()
        self.leaving = True
        self._inform([self.ranks.rank], f"{self.ranks.name(self.ranks.rank)} {what}", CRASHED)

    def over(self, reason: str, code: int) -> NoReturn:
        """End the run on every host."""
        self._end([], reason, code)

    def _connect(self) -> None:
        ranks, store = self.ranks, self.ranks.store
        assert store is not None, "ranks that have met"
        if ranks.rank == 0:
            self._receive_all()
            return
        try:
            port = int(store.get(PORT))
            try:
                connection = socket.create_connection(
                    (os.environ["MASTER_ADDR"], port), self.timeout
                )
            except OSError as error:
                reason = could_not_connect(ranks, error)
                store.set(APART, reason)
                raise NotMet(reason) from None
            connection.sendall(ranks.rank.to_bytes(4, "big"))
            if connection.recv(len(READY)) != READY:
                raise OSError
        except (RuntimeError, OSError):  # the first is torch's, of a store that is gone
            time.sleep(OTHERS)  # somebody on its host may know more
            raise NotMet(f"{ranks.name(0)} ended while the ranks met") from None
        self._add(0, connection)

    def _receive_all(self) -> None:
        """Rank 0's part: take every other rank's connection, and say so when all are there."""
        ranks, store, began = self.ranks, self.ranks.store, _clock()
        assert store is not None
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(
            ("", 0), family=family, backlog=ranks.world, dualstack_ipv6=both
        ) as server:
            store.set(PORT, str(server.getsockname()[1]))
            server.settimeout(self.beat)
            while absent := [rank for rank in range(1, ranks.world) if rank not in self.peers]:
                with contextlib.suppress(TimeoutError):
                    self._greet(server.accept()[0])
                    continue
                if store.check([APART]):
                    raise NotMet(store.get(APART).decode())
                if _clock() - began > self.timeout:
                    names = ", ".join(map(ranks.name, absent[:4]))
                    raise NotMet(f"{names} did not connect in {self.timeout:g} s; {DOCTOR}")
        for peer in self.peers.values():
            peer.socket.send(READY)

    def _greet(self, connection: socket.socket) -> None:
        """Take a connection that a rank opened; whatever else knocks here is sent away."""
        connection.settimeout(GREETING)
        with contextlib.suppress(OSError):
            rank = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            if 0 < rank < self.ranks.world and rank not in self.peers:
                self._add(rank, connection)
                return
        connection.close()

    def _add(self, rank: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        peer = _Peer(rank, connection, Whereabouts(), _clock())
        self.peers[rank] = peer
        self.selector.register(connection, selectors.EVENT_READ, peer)

    def _watch(self) -> None:
        before = _clock()
        while not self.leaving or self.ranks.rank > 0 and self.peers[0].state == "here":
            for key, _ in self.selector.select(self.beat / 4):
                self._hear(key.data)
            now = _clock()
            stood, before = now - before - self.beat, now
            if self.leaving:
                continue
            if stood > 0:  # it was this rank that was silent: its time does not count
                self.stood, self.stood_at = stood, now
                self.moved += stood
                for peer in self.peers.values():
                    peer.heard += stood
                continue
            if now - self.sent > self.beat:
                self.sent = now
                mine = self.ranks.whereabouts
                for peer in self.peers.values():
                    peer.send(count=mine.count, place=mine.place)
            self._judge(now)

    def _hear(self, peer: _Peer) -> None:
        messages = peer.receive()
        for message in messages or ():
            peer.heard = _clock()
            if "end" in message:
                said = message["named"] == [0]  # by rank 0, of itself
                self._end(message["named"], message["end"], message["code"], said)
            elif "bye" in message:
                peer.state, peer.reason, peer.code = "left", message["bye"], message["code"]
            else:
                peer.whereabouts = Whereabouts(message["count"], message["place"])
        if messages is None:
            self.selector.unregister(peer.socket)
            if peer.state == "here":
                peer.state = "died"
                self.died_at = self.died_at or _clock()

    def _judge(self, now: float) -> None:
        """End the run where somebody died, is silent, stays behind, or left by itself."""
        peers = self.peers.values()
        here = [peer for peer in peers if peer.state == "here"]
        left = [peer for peer in peers if peer.reason and now - peer.heard > SECOND]
        if died := [peer.rank for peer in peers if peer.state == "died"]:
            if now - self.died_at > GATHER or self.ranks.rank > 0:
                still = abs(self.died_at - self.stood_at) < self.beat
                here = f"{self.ranks.name(self.ranks.rank)} stood still for {self.stood:.0f} s"
                self._over(died, f"ended while {here}" if still else DIED)
        elif left:
            first = min(left, key=lambda peer: peer.heard)
            reason = f"{self.ranks.name(first.rank)}: {first.reason}"
            self._end([first.rank], reason, first.code, said=first.rank == 0)
        elif silent := [peer.rank for peer in here if now - peer.heard > self.timeout]:
            self._over(silent, f"did not answer for {self.timeout:g} s (--timeout)")
        elif self.ranks.rank == 0 and here:
            self._judge_progress(now, here)

    def _judge_progress(self, now: float, here: list[_Peer]) -> None:
        places = {0: self.ranks.whereabouts} | {peer.rank: peer.whereabouts for peer in here}
        least = min(each.count for each in places.values())
        behind = [rank for rank, each in places.items() if each.count == least]
        if least != self.least:
            self.least, self.moved = least, now
        alike = len(behind) == len(places)
        if now - self.moved > self.timeout * (ALL if alike else 1):
            waited = f"for {now - self.moved:.0f} s (--timeout {self.timeout:g})"
            others = "like all others" if alike else "and the others wait"
            self._over(behind, f"did not go on from {places[behind[0]].place} {waited}, {others}")

    def _over(self, named: Collection[int], what: str) -> NoReturn:
        names = [self.ranks.name(rank) for rank in sorted(named)]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        reason = f"{', '.join(names[:4])}{more} {what}"
        self._end(named, reason, CRASHED)

    def _inform(self, named: Collection[int], reason: str, code: int) -> None:
        """Tell what ends the run: rank 0 all, the others rank 0, which tells it on."""
        for peer in list(self.peers.values()):
            peer.send(end=reason, named=list(named), code=code)

    def _end(self, named: Collection[int], reason: str, code: int, said: bool = False) -> NoReturn:
        """End the run: tell the others, and end this process; one rank of each host says why."""
        if self.ranks.rank == 0:
            self.ends.acquire()
        self._inform(named, reason, code)
        hosts, here = self.ranks.hosts, self.ranks.hosts[self.ranks.rank]
        able = [rank for rank, host in enumerate(hosts) if host == here and rank not in named]
        first = able[:1] == [self.ranks.rank]
        if first and not (said and here == hosts[0]):
            print(f"error: {reason}", file=sys.stderr, flush=True)
        telling = threading.Thread(target=self._inform_run, args=(reason, code), daemon=True)
        if self.ranks.rank == 0 or 0 in named:  # which has the run folder
            telling.start()
            telling.join(5)  # a file system may hang, too
        if not first:
            time.sleep(2)  # the launcher ends a host's ranks once one has ended
        os._exit(code)

    def _inform_run(self, reason: str, code: int) -> None:
        with contextlib.suppress(OSError):
            self.on_end(reason, code)
