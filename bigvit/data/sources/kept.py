"""What was found of a data set, kept in a file of XDG_CACHE_HOME/bigvit (or ~/.cache/bigvit): it is
looked for once a host, and not by each rank at each start. It counts while what was looked into
bears the same marks. Where nothing can be kept, each looks for itself."""

import fcntl
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bigvit.data.cache import cache_folder

Arrays = dict[str, NDArray[Any]]

SETTLED = 10 * 10**9  # nanoseconds after which a change would show in a time of change
FRESH = 60 * 10**9  # nanoseconds for which what was found counts though it had not settled
WAIT = 600.0  # seconds for which another process may be looking
OLD = 30 * 86400.0  # seconds after which what was kept of another state goes
DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)


def marks_of(paths: Sequence[bytes], look: Callable[..., Any] = map) -> NDArray[np.int64]:
    """What changes with a folder's entries, or a file's content (paths, 4): both times of change,
    in nanoseconds, the size in bytes, the number on the disk."""

    def mark(path: bytes) -> tuple[int, int, int, int]:
        status = os.stat(path)
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino

    return np.array(list(look(mark, paths)), np.int64).reshape(-1, 4)


def kept(
    kind: str,
    place: bytes,
    names: Sequence[bytes],
    marks: NDArray[np.int64],
    find: Callable[[], Arrays],
) -> Arrays:
    """Arrays that were found at a place, or are now; one process at a time looks for them.

    Args:
        kind: how they were found.
        names: of what is looked into, whose marks these are.
    """
    cache = cache_folder()
    where = f"{kind}-{xxhash.xxh3_64_hexdigest(os.path.abspath(place))}"
    state = xxhash.xxh3_128_hexdigest(b"\0".join(names) + b"\0" + marks.tobytes())
    file = cache / f"{where}-{state}.npz"
    newest = int(marks[:, :2].max(initial=0))
    with suppress(*DAMAGED):
        return _read(file, newest)
    with _alone(cache / f"{where}.lock"):
        with suppress(*DAMAGED):  # it was found by another meanwhile
            return _read(file, newest)
        began = time.time_ns()
        arrays = find()
        with suppress(OSError):  # a full disk, or one that is read only
            for other in cache.glob(f"{where}-*.npz"):
                if time.time() - other.stat().st_mtime > OLD:
                    other.unlink()
            aside = cache / f".{file.stem}-{os.getpid()}-{os.urandom(4).hex()}.npz"
            try:
                np.savez(aside, **arrays | {"began": np.array(began)})  # pyright: ignore
                aside.replace(file)  # whole or absent, whoever else writes it
            finally:
                aside.unlink(missing_ok=True)
    return arrays


def _read(file: Path, newest: int) -> Arrays:
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as values:
        arrays = {name: values[name] for name in values.files}
    began = int(arrays.pop("began"))
    if began < newest + SETTLED and not 0 <= time.time_ns() - began < FRESH:
        raise ValueError("a change at that time need not show in the times")
    return arrays


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time, as far as there are locks."""
    with ExitStack() as held:
        with suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            opened = held.enter_context(lock.open("a"))
            until = time.monotonic() + WAIT
            while time.monotonic() < until:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        yield
