"""Ranks that die or fall silent: the others learn of it, and the run ends on every host.

A collective does not tell who is missing, and may wait for half an hour. So rank 0 holds a
connection with every other rank, and both ends send how far they have come, every few seconds. One
that closes without a word is a rank that died: its kernel closed it. One that is silent, or a rank
that stays where the others wait for it, has as long as the run's `--timeout`. Then a line says who,
on each host, and every rank ends with code 1. No collective and no device is used here.
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

from bigvit.engines.ranks import Ranks, Whereabouts

BEAT = 2.0  # seconds between messages, at most
GREETING = 5.0  # seconds that a new connection has to say which rank it is
GATHER = 1.0  # seconds in which ranks that die are named together
SECOND = 4.0  # seconds that an error waits for the reason behind it
ALL = 3  # times the time limit that all ranks may stay at one place, as they do when they compile
CRASHED = 1


@dataclass
class _Peer:
    """The other end of a connection."""

    rank: int
    socket: socket.socket
    whereabouts: Whereabouts
    heard: float  # when
    unread: bytes = b""
    state: str = "here"  # or "left", "died", or why it crashed
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
        """Connect the ranks. Collective.

        Args:
            timeout: seconds after which a silent rank ends the run.
        """
        self.ranks, self.timeout = ranks, timeout
        self.on_end: Callable[[str], None] = lambda reason: None  # told before the process ends
        self.beat = min(BEAT, timeout / 5)
        self.peers: dict[int, _Peer] = {}
        self.selector = selectors.DefaultSelector()
        self.leaving = False
        self.died_at = self.sent = 0.0
        if ranks.world > 1:
            self._connect()
            self.moved, self.least = time.monotonic(), -1
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def leave(self) -> None:
        """This rank ends as all do, and its silence means nothing from now on."""
        self.leaving = True
        for peer in list(self.peers.values()):
            peer.send(bye=True)

    def crashed(self, reason: str) -> None:
        """This rank ends with an error. Where it is but what another's end brought about, that one
        is named instead, and this does not return."""
        if not self.peers:
            return
        time.sleep(SECOND)
        self.leaving = True
        if self.ranks.rank == 0:
            self._tell([0], f"{self.ranks.name(0)} crashed: {reason}")
        else:
            self.peers[0].send(crash=reason)

    def _connect(self) -> None:
        ranks = self.ranks
        if ranks.rank == 0:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            with socket.create_server(
                ("", 0), family=family, backlog=ranks.world, dualstack_ipv6=both
            ) as server:
                ranks.first_text(str(server.getsockname()[1]))
                server.settimeout(self.timeout)
                while len(self.peers) < ranks.world - 1:
                    self._greet(server.accept()[0])
        else:
            port = int(ranks.first_text(""))
            address = (os.environ["MASTER_ADDR"], port)
            connection = socket.create_connection(address, self.timeout)
            connection.sendall(ranks.rank.to_bytes(4, "big"))
            self._add(0, connection)
        ranks.agree(0)  # all are connected, or the collective fails

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
        peer = _Peer(rank, connection, Whereabouts(), time.monotonic())
        self.peers[rank] = peer
        self.selector.register(connection, selectors.EVENT_READ, peer)

    def _watch(self) -> None:
        while not self.leaving:
            for key, _ in self.selector.select(self.beat / 4):
                self._hear(key.data)
            now = time.monotonic()
            if now - self.sent > self.beat:
                self.sent = now
                mine = self.ranks.whereabouts
                for peer in self.peers.values():
                    peer.send(count=mine.count, place=mine.place)
            if not self.leaving:
                self._judge(now)

    def _hear(self, peer: _Peer) -> None:
        messages = peer.receive()
        if messages is None:
            self.selector.unregister(peer.socket)
            if peer.state == "here":
                peer.state = "died"
                self.died_at = self.died_at or time.monotonic()
            return
        peer.heard = time.monotonic()
        for message in messages:
            if "end" in message:
                self._end(message["named"], message["end"])
            elif "bye" in message:
                peer.state = "left"
            elif "crash" in message:
                peer.state = f"crashed: {message['crash']}"
                reason = f"{self.ranks.name(peer.rank)} {peer.state}"
                self._tell([peer.rank], reason)
                self._end([peer.rank], reason)
            else:
                peer.whereabouts = Whereabouts(message["count"], message["place"])

    def _judge(self, now: float) -> None:
        """End the run where somebody died, is silent, or stays behind."""
        here = [peer for peer in self.peers.values() if peer.state == "here"]
        if died := [peer.rank for peer in self.peers.values() if peer.state == "died"]:
            if now - self.died_at > GATHER or self.ranks.rank > 0:
                self._over(died, "died, or was killed; what its host says comes first")
        elif silent := [peer.rank for peer in here if now - peer.heard > self.timeout]:
            self._over(silent, f"did not answer for {self.timeout:g} s (--timeout)")
        elif self.ranks.rank == 0 and here:
            self._judge_progress(now, here)

    def _judge_progress(self, now: float, here: list[_Peer]) -> None:
        counts = {peer.rank: peer.whereabouts.count for peer in here}
        counts[0] = self.ranks.whereabouts.count
        least = min(counts.values())
        behind = [rank for rank, count in counts.items() if count == least]
        if least != self.least:
            self.least, self.moved = least, now
        alike = len(behind) == len(counts)
        if now - self.moved <= self.timeout * (ALL if alike else 1):
            return
        place = self.ranks.whereabouts.place
        if 0 not in behind:
            place = self.peers[behind[0]].whereabouts.place
        waited = f"for {now - self.moved:.0f} s (--timeout {self.timeout:g})"
        if alike:
            self._over(behind, f"did not go on from {place} {waited}, like all others")
        self._over(behind, f"did not go on from {place} {waited}, and the others wait")

    def _over(self, named: Collection[int], what: str) -> NoReturn:
        names = [self.ranks.name(rank) for rank in sorted(named)]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        reason = f"{', '.join(names[:4])}{more} {what}"
        self._tell(named, reason)
        self._end(named, reason)

    def _tell(self, named: Collection[int], reason: str) -> None:
        if self.ranks.rank == 0:
            for peer in list(self.peers.values()):
                peer.send(end=reason, named=list(named))

    def _end(self, named: Collection[int], reason: str) -> NoReturn:
        """End this process; one rank of each host says why."""
        hosts, here = self.ranks.hosts, self.ranks.hosts[self.ranks.rank]
        able = [rank for rank, host in enumerate(hosts) if host == here and rank not in named]
        if able[:1] == [self.ranks.rank]:
            print(f"error: {reason}", file=sys.stderr, flush=True)
        telling = threading.Thread(target=self._tell_run, args=(reason,), daemon=True)
        telling.start()
        telling.join(5)  # a file system may hang, too
        if able[:1] != [self.ranks.rank]:
            time.sleep(2)  # the launcher ends a host's ranks once one has ended
        os._exit(CRASHED)

    def _tell_run(self, reason: str) -> None:
        with contextlib.suppress(OSError):
            self.on_end(reason)
