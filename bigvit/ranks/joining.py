# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportPrivateImportUsage=false
"""This process among the others: joining them, agreeing with them, leaving them."""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.ranks.launched import free_port, launched

MARGIN = 30.0  # seconds by which a collective outlasts the time after which a rank is called silent
GATHERED = 2000  # bytes of a rank's text


DOCTOR = (
    "see what its host says, and whether `bigvit doctor --hostfile` finds what keeps them apart"
)
TELLING = 30.0  # seconds in which other hosts come to be told of bad input,
ENDED = 12.0  # or that the run has ended
ASK = 0.05  # seconds between rank 0's looks at who has come
OTHERS = 5.0  # seconds in which somebody else says why a rank is gone
VERDICT = "bigvit/verdict"  # the ranks' hosts when all have come, or why they will not; said once


class NotMet(Exception):
    """The ranks of a run did not come together, or one brought a problem with it (code 2)."""

    def __init__(self, reason: str, code: int = 1) -> None:
        super().__init__(reason)
        self.code = code  # to end with


@dataclass
class Whereabouts:
    """How far a rank has come: every rank counts the same steps, and so who is behind is seen."""

    count: int = 0
    place: str = "the start"


@dataclass(frozen=True)
class Ranks:
    """What a rank knows of the others. Collectives here are over a CPU group, or over nobody."""

    rank: int
    world: int
    device: torch.device  # this rank's
    cpu_group: dist.ProcessGroup | None  # None: nobody was joined, or not yet
    store: dist.TCPStore | None = None  # where the ranks met
    hosts: tuple[str, ...] = ()  # each rank's, by name
    whereabouts: Whereabouts = field(default_factory=Whereabouts)

    def at(self, place: str) -> None:
        """Every rank comes here before its next collective; said of the one that stays."""
        self.whereabouts.place = place
        self.went_on()

    def went_on(self) -> None:
        """Every rank has done a part of what it is at."""
        self.whereabouts.count += 1

    def name(self, rank: int) -> str:
        """A rank, and where it is."""
        return f"rank {rank} on {self.hosts[rank]}"

    @property
    def first_on_host(self) -> bool:
        """Whether this rank is the first one of its host."""
        return launched().local == 0

    def agree(self, flag: int) -> int:
        """The largest of the ranks' flags. Collective."""
        return self.agree_each([flag])[0]

    def agree_each(self, flags: Sequence[int]) -> list[int]:
        """The largest of the ranks' flags, for each of several. Collective."""
        return self.agree_later(flags)()

    def agree_later(self, flags: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to agree on flags, as `agree_each` does; calling what is returned waits for it, on
        every rank, once. Collective, but goes on beside others meanwhile."""
        values = torch.tensor(flags)
        self.went_on()
        if self.cpu_group is None:
            return values.tolist
        op = dist.ReduceOp.MAX
        work = dist.all_reduce(values, op=op, group=self.cpu_group, async_op=True)
        assert work is not None

        def agreed() -> list[int]:
            work.wait()
            self.went_on()
            return values.tolist()

        return agreed

    def first_text(self, text: str) -> str:
        """The text of the first rank that has any, at most 2,000 bytes of it. Collective."""
        return next(filter(None, self.texts(text)), "") if self.agree(bool(text)) else ""

    @contextlib.contextmanager
    def agree_on_error(
        self, *met: type[Exception], raised: Callable[[str], Exception]
    ) -> Generator[None]:
        """What a rank meets in here, all raise: by their own words, or the first one's. Collective.

        Args:
            raised: makes of the words what is raised.
        """
        reason = ""
        try:
            yield
        except met as error:
            reason = str(error) or repr(error)
        if first := self.first_text(reason):
            raise raised(reason or first)

    def texts(self, text: str) -> list[str]:
        """The text of every rank, at most 2,000 bytes each. Collective."""
        encoded = text.encode()[:GATHERED]
        said = torch.zeros(self.world, GATHERED, dtype=torch.uint8)
        said[self.rank, : len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        rows = self.sum(said)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]

    def handed(self, text: str) -> str:
        """Rank 0's text, of any length. Collective."""
        encoded = bytearray(text.encode() if self.rank == 0 else b"")
        data = torch.zeros(self.agree(len(encoded)), dtype=torch.uint8)
        data[: len(encoded)] = torch.tensor(encoded, dtype=torch.uint8)
        return self.sum(data).numpy().tobytes().decode()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which lie on the CPU. Collective."""
        total = values.clone()
        self.went_on()
        if self.cpu_group is not None:
            dist.all_reduce(total, group=self.cpu_group)
        self.went_on()
        return total


def alone() -> Ranks:
    """One process that joins nobody."""
    return Ranks(0, 1, _device(), None, hosts=(socket.gethostname(),))


def meet(timeout: float) -> Ranks:
    """Wait until every rank has come to rank 0's address. There are no collectives yet. Also works
    for one process by itself.

    Args:
        timeout: seconds after which a rank that does not come is given up.

    Raises:
        NotMet: not all came, and who did not.
    """
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "RANK" not in os.environ:
        single = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_PORT": str(free_port()),
        }
        os.environ.update(single)
    device = _device()
    rank, _, world, _ = launched()
    store, keys = _store(timeout)
    store.set(keys[rank], socket.gethostname())
    try:
        verdict = _verdict(store, keys, timeout)
    except dist.DistStoreError:
        absent = [str(r) for r in range(world) if not store.check([keys[r]])]
        ranks = f"rank{'s' * (len(absent) > 1)} {', '.join(absent)} of {world}"
        address = os.environ["MASTER_ADDR"]
        raise NotMet(f"{ranks} did not come to {address} in {timeout:g} s; {DOCTOR}") from None
    except dist.DistNetworkError:
        time.sleep(OTHERS)
        raise NotMet(f"rank 0 ended before the ranks met; {DOCTOR}") from None
    if "hosts" not in verdict:
        _read(store, TELLING if verdict["code"] == 2 else ENDED)
        raise NotMet(verdict["reason"], verdict["code"])
    return Ranks(rank, world, device, None, store, tuple(verdict["hosts"]))


def connect(ranks: Ranks, timeout: float) -> Ranks:
    """Make the collectives of ranks that have met; none for one that is alone.

    Args:
        timeout: seconds after which a silent rank ends the run; collectives wait a little longer.

    Raises:
        RuntimeError: this rank cannot connect with the others.
    """
    if ranks.store is None:
        return ranks
    ranks.at("connecting with the others")
    patience = timedelta(seconds=timeout + MARGIN)
    # NCCL is bound to its device; one rank has no peer, and each new group would be a split of it
    device = ranks.device if ranks.device.type != "cpu" and ranks.world > 1 else None
    backend = dist.get_default_backend_for_device(ranks.device)
    dist.init_process_group(backend, timeout=patience, device_id=device)
    group: Any = dist.new_group(backend="gloo", timeout=patience)
    return replace(ranks, cpu_group=group)


def could_not_connect(ranks: Ranks, error: Exception) -> str:
    """Why a rank that has met the others ends."""
    return (
        f"{ranks.name(ranks.rank)} met the others, and could not connect with them "
        f"({_first_line(error)}); {DOCTOR}"
    )


def announce_bad_input(problem: str) -> str:
    """Bring a problem that was found before anything else to the ranks of other hosts, which may
    have none and would wait: all end with code 2. Returns what is left to say here."""
    rank, local, *_ = launched()
    here = socket.gethostname()
    with contextlib.suppress(NotMet, dist.DistError):
        store, keys = _store(TELLING)
        _judge(store, {"reason": f"rank {rank} on {here}: {problem}", "code": 2})
        store.set(keys[rank], f"{here}: {problem}")
        store.wait(keys[:1] if rank else keys, timedelta(seconds=TELLING))
        if rank > 0 and store.get(keys[0]).decode().endswith(f": {problem}"):
            return ""
    time.sleep(1)  # the others read it
    return "" if local else problem


def announce_end(reason: str, code: int) -> None:
    """Tell the ranks of other hosts, which wait, that the run has ended. Where rank 0 was on this
    host, and is gone, this process takes its place."""
    address = os.environ["MASTER_ADDR"]
    with contextlib.suppress(NotMet, dist.DistError, OSError):
        try:
            store, _ = _store(ENDED / 2, serve=_is_here(address))
        except NotMet:  # rank 0 still serves it
            store, _ = _store(ENDED / 2, serve=False)
        _judge(store, {"reason": reason, "code": code})
        _read(store, ENDED)


def _is_here(address: str) -> bool:
    """Whether an address is this host's."""
    with contextlib.suppress(OSError), socket.socket() as door:
        door.bind((address, 0))
        return True
    return False


def _judge(store: dist.TCPStore, verdict: dict[str, Any]) -> None:
    """Say whether the ranks meet, where nobody has yet."""
    store.compare_set(VERDICT, "", json.dumps(verdict))


def _verdict(store: dist.TCPStore, keys: list[str], timeout: float) -> dict[str, Any]:
    """Wait for what is said; rank 0 says it when all have come."""
    if launched().rank == 0:
        deadline = time.monotonic() + timeout
        while not store.check([VERDICT]):
            if store.check(keys):
                _judge(store, {"hosts": [name.decode() for name in store.multi_get(keys)]})
            elif time.monotonic() > deadline:
                raise dist.DistStoreError
            else:
                time.sleep(ASK)
    else:
        store.wait([VERDICT], timedelta(seconds=timeout))
    return json.loads(store.get(VERDICT))


def _read(store: dist.TCPStore, seconds: float) -> None:
    """This rank has read why they do not meet; the one that serves it stays for the others."""
    rank, _, world, _ = launched()
    with contextlib.suppress(dist.DistError):
        store.set(f"bigvit/read/{rank}", "")
        if _is_here(os.environ["MASTER_ADDR"]):
            others = [f"bigvit/read/{r}" for r in range(world) if r != rank]
            store.wait(others, timedelta(seconds=seconds))


def _store(timeout: float, serve: bool | None = None) -> tuple[dist.TCPStore, list[str]]:
    """The store at rank 0's address, which serves it, and each rank's key there."""
    rank, _, world, _ = launched()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun's own process serves it; torch meets at this very store afterwards
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = not agent and (rank == 0 if serve is None else serve)
    try:
        if not serves:
            _reach(address, port, timeout)
        store = dist.TCPStore(
            address,
            port,
            is_master=serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (dist.DistNetworkError, dist.DistStoreError, OSError) as error:
        here = f"rank {rank} on {socket.gethostname()}"
        if serves:
            raise NotMet(
                f"{here} cannot open port {port} ({_first_line(error)}); if another job uses it, "
                "give this one a --master_port of its own"
            ) from None
        raise NotMet(
            f"{here} could not reach rank 0 at {address}, port {port}, in {timeout:g} s; {DOCTOR}"
        ) from None
    return store, [f"bigvit/host/{r}" for r in range(world)]


def _reach(address: str, port: int, timeout: float) -> None:
    """Wait until somebody listens there: torch's own wait tells of each try that a signal
    interrupts, and of its end, with the stack of its C++.

    Raises:
        OSError: nobody does in so many seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            left = max(ASK, deadline - time.monotonic())
            return socket.create_connection((address, port), timeout=left).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(ASK)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def end(code: int) -> NoReturn:
    """End this process now. Shutting down the interpreter, or the process groups, aborts now and
    then, as threads of the collectives still run: a finished run would end as a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device() -> torch.device:
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return torch.device("cpu")
    device = torch.device(kind.type, launched().local)
    torch.accelerator.set_device_index(device)
    return device
