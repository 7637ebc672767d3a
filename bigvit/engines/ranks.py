# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportPrivateImportUsage=false
"""This process among the others: joining them, agreeing with them, leaving them."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

MARGIN = 30.0  # seconds by which a collective outlasts the time after which a rank is called silent
GATHERED = 2000  # bytes of a rank's text


DOCTOR = (
    "see what its host says, and whether `bigvit doctor --hostfile` finds what keeps them apart"
)
PROBLEM = "!"  # before one, where the host's name is expected
TELLING = 30.0  # seconds
APART = "bigvit/apart"  # where a rank says that it cannot connect with the others
ASK = 1.0  # seconds between looks at that
_ROOTS: list[dist.Store] = []  # where the ranks met, kept open


class NotMet(Exception):
    """The ranks of a run did not come together, or one brought a problem with it."""

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
    cpu_group: dist.ProcessGroup | None  # None: one process that joined nobody
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
        return int(os.environ.get("LOCAL_RANK", "0")) == 0

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
        """The text of the first rank that has any, at most 1,000 bytes of it. Collective."""
        first = self.world - self.agree(self.world - self.rank if text else 0)
        if first == self.world:
            return ""
        said = torch.zeros(1000, dtype=torch.uint8)
        if self.rank == first:
            encoded = text.encode()[:1000]
            said[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        return bytes(self.sum(said).tolist()).rstrip(b"\0").decode(errors="replace")

    def texts(self, text: str) -> list[str]:
        """The text of every rank, at most 2,000 bytes each. Collective."""
        encoded = text.encode()[:GATHERED]
        said = torch.zeros(self.world, GATHERED, dtype=torch.uint8)
        said[self.rank, : len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        rows = self.sum(said)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]

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
    return Ranks(0, 1, _device(), None)


def join(timeout: float) -> Ranks:
    """Connect to the other ranks, through DeepSpeed. Also works for one process by itself.

    Args:
        timeout: seconds after which a rank that does not come is given up; collectives wait a
            little longer.

    Raises:
        NotMet: not all came, and who did not.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "RANK" not in os.environ:
        single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": _free_port()}
        os.environ.update(single)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed's own calls, which torch 2.14 warns of by the hundred
    old = r"`torch\.distributed\.\w+` is deprecated"
    warnings.filterwarnings("ignore", message=old, category=FutureWarning)
    import deepspeed

    from bigvit.engines.deepspeed_inside import build_no_ops

    build_no_ops()
    device = _device()
    hosts = _meet(timeout)
    patience = timedelta(seconds=timeout + MARGIN)
    with _connecting(timeout):
        deepspeed.init_distributed(
            dist_backend="nccl" if device.type == "cuda" else "gloo",
            auto_mpi_discovery=False,
            timeout=patience,
            verbose=False,
        )
        group: Any = dist.new_group(backend="gloo", timeout=patience)
    return Ranks(dist.get_rank(), dist.get_world_size(), device, group, hosts)


def tell(problem: str) -> str:
    """Bring a problem that was found before anything else to the ranks of other hosts, which may
    have none and would wait: all end with code 2. Returns what is left to say here."""
    rank, first = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]) == 0
    try:
        store, keys = _store(TELLING)
        store.set(keys[rank], f"{PROBLEM}{socket.gethostname()}: {problem}")
        store.wait(keys[:1] if rank else keys, timedelta(seconds=TELLING))
        if rank > 0 and store.get(keys[0]).decode().endswith(f": {problem}"):
            return ""
    except (NotMet, dist.DistError):
        pass
    time.sleep(1)  # the others read it
    return problem if first else ""


def _meet(timeout: float) -> tuple[str, ...]:
    """Wait until every rank has come to rank 0's address, and return their hosts' names."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, keys = _store(timeout)
    store.set(keys[rank], socket.gethostname())
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except dist.DistStoreError:
        absent = [str(r) for r in range(world) if not store.check([keys[r]])]
        ranks = f"rank{'s' * (len(absent) > 1)} {', '.join(absent)} of {world}"
        address = os.environ["MASTER_ADDR"]
        raise NotMet(f"{ranks} did not come to {address} in {timeout:g} s; {DOCTOR}") from None
    told = [value.decode() for value in store.multi_get(keys)]
    for r, text in enumerate(told):
        if text.startswith(PROBLEM):
            raise NotMet(f"rank {r} on {text.removeprefix(PROBLEM)}", code=2)
    return tuple(told)


@contextmanager
def _connecting(timeout: float) -> Generator[None]:
    """While the ranks connect with each other: one that cannot tells the others, which would wait
    for it, some of them for ever."""
    done = threading.Event()
    threading.Thread(target=_wait_connected, args=(done, timeout), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        reason = (
            f"rank {os.environ['RANK']} on {socket.gethostname()} met the others, and could not "
            f"connect with them ({_first_line(error)}); {DOCTOR}"
        )
        done.set()
        with contextlib.suppress(dist.DistError):
            _ROOTS[0].set(APART, reason)
        time.sleep(ASK + 1)  # the others read it
        raise NotMet(reason) from None
    finally:
        done.set()


def _wait_connected(done: threading.Event, timeout: float) -> None:
    """End this process where another could not connect, or none says why in the time there is."""
    reason, began = "", time.monotonic()
    try:
        store, _ = _store(timeout, serve=False)
        while not reason and not done.wait(ASK):
            if store.check([APART]):
                reason = store.get(APART).decode()
            elif time.monotonic() - began > timeout + MARGIN:
                reason = f"the ranks met, and did not connect in {timeout:g} s; {DOCTOR}"
    except (NotMet, dist.DistError):
        reason = f"rank 0 ended while the ranks connected with each other; {DOCTOR}"
    if not done.is_set():
        if int(os.environ["LOCAL_RANK"]) == 0:
            print(f"error: {reason}", file=sys.stderr, flush=True)
        else:
            time.sleep(2)  # the launcher ends a host's ranks once one has ended
        os._exit(1)


def _store(timeout: float, serve: bool = True) -> tuple[dist.TCPStore, list[str]]:
    """The store at rank 0's address, where the ranks meet, and each rank's key there."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun's own process serves it; torch meets at this very store afterwards
    serves = serve and rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = dist.TCPStore(
            address,
            port,
            is_master=serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        here = f"rank {rank} on {socket.gethostname()}"
        if serves:
            raise NotMet(
                f"{here} cannot open port {port} ({_first_line(error)}); if another job uses it, "
                "give this one a --master_port of its own"
            ) from None
        raise NotMet(
            f"{here} could not reach rank 0 at {address}, port {port}, in {timeout:g} s; {DOCTOR}"
        ) from None
    _ROOTS.append(store)
    return store, [f"bigvit/host/{r}" for r in range(world)]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def end(code: int) -> NoReturn:
    """End this process now. Shutting down the interpreter, or the process groups, aborts now and
    then, as threads of the collectives still run: a finished run would end as a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])
