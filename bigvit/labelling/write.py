"""Writing maps of labels: a file of them at a time, each whole or absent, by any number of ranks.

    M/job.json         what is being made, until the manifest takes its place
    M/.lock            held by rank 0 while it is made

What is there already is not made again, whatever number of ranks made it. Which images a file
holds depends on nothing but the data set.
"""

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from bigvit.checkpoint.files import write_bytes, write_json
from bigvit.data.label_maps.form import (
    LOOKUP,
    LOOKUP_BYTES,
    MANIFEST,
    NAMES,
    BadMaps,
    Form,
    Names,
    check_of,
    file_name,
    signed,
)
from bigvit.data.label_maps.maps import LabelMaps, digest_of
from bigvit.data.sources import Source
from bigvit.ranks.joining import Ranks
from bigvit.recipe.words import read_json

JOB, LOCK = "job.json", ".lock"
MOST, LEAST = 1024, 16  # images in a file


def shard_of(images: int) -> int:
    """Images in a file: so few that a kill costs little, and many ranks have work."""
    return max(LEAST, min(MOST, images // 64))


class Writer:
    """This rank's part in writing maps."""

    def __init__(self, folder: Path, form: Form, source: Source, ranks: Ranks) -> None:
        """Begin, or go on. Collective.

        Args:
            form: its `images` and `names` are found here.

        Raises:
            BadMaps: on every rank; others are there, or are being made, or there is no room.
        """
        self.folder, self.ranks = folder, ranks
        self._lock: int | None = None
        self.names = Names(b"".join(source.all_names()))
        self.form = replace(form, images=len(source), names=self.names.digest)
        missing = ""
        with ranks.agree_on_error(ValueError, OSError, raised=BadMaps):
            if len(self.names) != len(source):
                raise BadMaps("an image has no name; maps are found by it")
            if ranks.rank == 0:
                self._begin()
                there = [(folder / file_name(n)).exists() for n in range(self.form.files)]
                missing = " ".join(str(n) for n, is_there in enumerate(there) if not is_there)
        self.complete = bool(
            ranks.agree((folder / MANIFEST).exists() if ranks.rank == 0 else False)
        )
        missing = [int(n) for n in ranks.handed(missing).split()]
        rank, world = ranks.rank, ranks.world
        self.todo = missing[rank * len(missing) // world : (rank + 1) * len(missing) // world]
        """Files that this rank is to write: of those that are missing, its contiguous share."""

    def write(self, number: int, classes: NDArray[Any], scores: NDArray[np.floating[Any]]) -> None:
        """Write a file: class numbers and scores (images of it, h, w, k), best first.

        Raises:
            BadMaps: a score is none that a float16 holds.
        """
        rows = self.form.rows(number)
        records = np.zeros(len(rows), self.form.record)
        with np.errstate(over="ignore"):
            records["classes"], records["scores"] = classes, scores
        if not np.isfinite(records["scores"]).all():
            at = int(np.flatnonzero(~np.isfinite(records["scores"]).all(axis=(1, 2, 3)))[0])
            raise BadMaps(
                f"the teacher's scores of {self.names[rows[at]].decode()} are not finite, or "
                "beyond 65,504, which the maps hold; choose another teacher"
            )
        for row, record in zip(rows, records, strict=True):
            record["check"] = check_of(self.names[row], record)
        write_bytes(self.folder / file_name(number), records.tobytes())

    def finish(self) -> LabelMaps:
        """Read all files back, each rank a share, and write the manifest. Collective.

        Raises:
            BadMaps: on every rank; a file is missing or damaged: it is removed, to be made again.
        """
        try:
            if not self.complete:
                self._finish()
            else:
                with self.ranks.agree_on_error(BadMaps, OSError, raised=BadMaps):
                    LabelMaps(self.folder).verify(self.ranks.rank, self.ranks.world)
            if self.ranks.rank == 0:
                (self.folder / JOB).unlink(missing_ok=True)
                for left in self.folder.glob(".*.aside"):  # of those that were killed
                    left.unlink()
        finally:
            self.release()
        return LabelMaps(self.folder)

    def release(self) -> None:
        """Let others write into the folder."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _finish(self) -> None:
        self.ranks.agree(0)  # until all have written their files
        digests = torch.zeros(self.form.files, 16, dtype=torch.uint8)
        with self.ranks.agree_on_error(BadMaps, OSError, raised=BadMaps):
            for number in range(self.ranks.rank, self.form.files, self.ranks.world):
                digest = bytes.fromhex(self._read_back(number))
                digests[number] = torch.tensor(list(digest), dtype=torch.uint8)
        digests = self.ranks.sum(digests).numpy()
        with self.ranks.agree_on_error(BadMaps, OSError, raised=BadMaps):
            if self.ranks.rank == 0:
                self._complete([row.tobytes().hex() for row in digests])

    def _begin(self) -> None:
        """Rank 0: take the folder, and see what is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._look()
        except BlockingIOError:
            self.release()
            raise BadMaps(
                f"--out {self.folder}: another command makes maps there; wait for it, or choose "
                "another folder"
            ) from None
        except BaseException:
            self.release()
            raise

    def _look(self) -> None:
        """Rank 0: what is there must be of the same job."""
        job = self.form.as_json()
        there = next((p for n in (MANIFEST, JOB) if (p := self.folder / n).exists()), None)
        if there is None:
            names = sorted(path.name for path in self.folder.iterdir())
            if others := [name for name in names if not name.startswith(".")]:
                raise BadMaps(
                    f"--out {self.folder}: it holds {others[0]}, and no maps that were begun; "
                    "choose an empty folder"
                )
            if (free := shutil.disk_usage(self.folder).free) < self.form.nbytes:
                raise BadMaps(
                    f"--out {self.folder}: the maps take {self.form.nbytes / 1e9:.2f} GB, and "
                    f"{free / 1e9:.2f} GB are free there; choose another disk, or a smaller --top"
                )
            return write_json(self.folder / JOB, job)
        found: Any = read_json(there)
        plain = {**job, "cells": list(job["cells"]), "classes": list(job["classes"])}
        plain["teacher"] = {**job["teacher"], "image_size": list(job["teacher"]["image_size"])}
        for name, value in plain.items():
            if not isinstance(found, dict) or found.get(name) != value:
                was = "nothing" if not isinstance(found, dict) else found.get(name)
                shown = f": {was} there, {value} now" if len(f"{was}{value}") < 400 else ""
                raise BadMaps(
                    f"--out {self.folder}: maps were begun there with another {name}{shown}; go on "
                    "with the same, or choose another folder"
                )

    def _read_back(self, number: int) -> str:
        """The digest of a file, all of whose records are sound."""
        path = self.folder / file_name(number)
        rows, size = self.form.rows(number), self.form.record.itemsize
        content = path.read_bytes()
        records = np.frombuffer(content, self.form.record, len(content) // size)
        whole = len(content) == len(rows) * size and all(
            int(record["check"]) == check_of(self.names[row], record)
            for row, record in zip(rows, records, strict=True)
        )
        if not whole:
            path.unlink()
            raise BadMaps(
                f"{path}: it was damaged, and has been removed; run the command again to make it"
            )
        return xxhash.xxh3_128_hexdigest(content)

    def _complete(self, digests: list[str]) -> None:
        """Rank 0: write what finds the maps."""
        hashes = self.names.hashes()
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        high, low = hashes[order].T
        same = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
        if len(same):
            name = self.names[int(order[same[0]])].decode()
            raise BadMaps(f"two images are called {name}; maps are found by the images' names")
        parts = (high.astype("<u8"), low.astype("<u8"), order.astype("<u4"))
        lookup = b"".join(part.tobytes() for part in parts)
        assert len(lookup) == LOOKUP_BYTES * len(self.names)
        write_bytes(self.folder / NAMES, self.names.text)
        write_bytes(self.folder / LOOKUP, lookup)
        files = {"files": digests, "lookup": digest_of(self.folder / LOOKUP)}
        write_json(self.folder / MANIFEST, signed(self.form.as_json() | files))
