"""Whether hosts can connect to each other: `python bigvit/hosts/doctor meet NAME
'{"addresses": ...}'` listens on this host, tries every other, and prints one line of JSON."""

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

AGAIN = 0.2  # seconds between tries: another host may not listen yet
ONE = 3.0  # seconds that one try may take


@dataclass(frozen=True)
class Meeting:
    """Who meets where."""

    doors: dict[str, list[tuple[str, int]]]  # addresses and ports by host; the first host's first
    seconds: float  # within which all connect


@dataclass(frozen=True)
class Met:
    """How it went, for one host."""

    occupied: list[int]  # ports on which something else listens
    failed: list[tuple[str, str, int, str]]  # host, address, port, and why
    by: str  # its address on the way to the first host


def meet(name: str, meeting: Meeting) -> Met:
    """Listen, and connect to every door of the others."""
    deadline = time.monotonic() + meeting.seconds
    occupied: list[int] = []
    came: set[str] = set()
    with contextlib.ExitStack() as stack:
        for port in {port for _, port in meeting.doors[name]}:
            server = stack.enter_context(socket.socket())
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("", port))
                server.listen(512)
            except OSError:
                occupied.append(port)
                continue
            threading.Thread(target=_receive, args=(server, came), daemon=True).start()
        others = [
            (host, address, port)
            for host, doors in meeting.doors.items()
            if host != name
            for address, port in doors
        ]
        with ThreadPoolExecutor(32) as pool:
            whys = list(pool.map(lambda door: _connect(name, door[1], door[2], deadline), others))
        # those whose tries may yet come
        while len(came) < len(meeting.doors) - 1 and time.monotonic() < deadline + 1:
            time.sleep(AGAIN)
    failed = [(*door, why) for door, why in zip(others, whys, strict=True) if why]
    return Met(occupied, failed, _way_to(next(iter(meeting.doors.values()))[0]))


def _connect(name: str, address: str, port: int, deadline: float) -> str:
    """Try until it works or time is over; and why it did not."""
    while True:
        try:
            with socket.create_connection((address, port), ONE) as door:
                door.sendall(name.encode())
            return ""
        except TimeoutError:
            why = "timed out"
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() > deadline:
            return why
        time.sleep(AGAIN)


def _receive(server: socket.socket, came: set[str]) -> None:
    with contextlib.suppress(OSError):
        while True:
            visitor, _ = server.accept()
            with visitor:
                visitor.settimeout(ONE)
                with contextlib.suppress(OSError):
                    came.add(visitor.recv(1000).decode(errors="replace"))


def _way_to(door: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way, contextlib.suppress(OSError):
        way.connect(tuple(door))  # sends nothing
        return way.getsockname()[0]
    return ""


if __name__ == "__main__":
    print(json.dumps(asdict(meet(sys.argv[1], Meeting(**json.loads(sys.argv[2]))))), flush=True)
