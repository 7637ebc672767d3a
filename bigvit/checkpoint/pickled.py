"""Tensors of a file that `torch.save` wrote, in its zip format or the one before, with nothing run.

Such a file is a pickle that names what it needs, beside the raw storages. Here every name gives an
inert stand-in but those that a tensor is made of, and those give descriptions: nothing is imported
or called, and only the storages of the tensors that are asked for are read. So a training
checkpoint with its optimizer, its yacs config or its argparse.Namespace is read like any other.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

LEGACY = 0x1950A86A20F9469CFC6C  # the first thing pickled in a file of the older format
TYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if type(d) is torch.dtype}
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}


@dataclass(frozen=True)
class Storage:
    """Elements of a type, as they lie in the file."""

    key: str
    dtype: torch.dtype
    count: int
    first: int = 0  # of a part of a storage, in the older format


@dataclass(frozen=True)
class Stored:
    """A tensor that has not been read."""

    storage: Storage
    dtype: torch.dtype
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Inert:
    """Takes the place of what no tensor needs: made, called, filled or given a state, it does
    nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> "Inert":
        return self

    append = extend = add = __setitem__ = __setstate__ = __init__


class TorchFile:
    """What a file holds, its tensors as `Stored`, which `read` reads."""

    def __init__(self, path: Path) -> None:
        """Read everything but the tensors.

        Raises:
            ValueError: `torch.save` did not write it, or it is damaged.
        """
        self._path = path
        try:
            with path.open("rb") as file:
                self._zipped = zipfile.is_zipfile(file)
                file.seek(0)
                self.content = self._open_zip(path) if self._zipped else self._open_older(file)
        except OSError:
            raise
        except Exception as error:  # a pickle may fail in any way
            raise ValueError(f"not a file that torch.save wrote, or damaged ({error!r})") from None

    def read(self, wanted: Mapping[str, Stored]) -> dict[str, Tensor]:
        """Tensors of this file; those that share a storage share it.

        Raises:
            ValueError: the file does not hold one whole; the message names it.
        """
        storages: dict[str, Tensor] = {}  # raw bytes
        read: dict[str, Tensor] = {}
        with self._path.open("rb") as file, ExitStack() as opened:
            archive = opened.enter_context(zipfile.ZipFile(file)) if self._zipped else None
            for name, stored in wanted.items():
                key = stored.storage.key
                try:
                    if key not in storages:
                        storages[key] = self._bytes(key, file, archive)
                    read[name] = _shaped(stored, storages[key])
                except OSError:
                    raise
                except Exception as error:  # wrong numbers may fail in any way
                    raise ValueError(f"{name} is damaged ({error})") from None
        return read

    def _open_zip(self, path: Path) -> Any:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise ValueError("a zip file without a data.pkl")
            self._folder = pickles[0].removesuffix("data.pkl")
            order = f"{self._folder}byteorder"
            if order in names and archive.read(order) != b"little":
                raise ValueError("its numbers are big-endian")
            with archive.open(pickles[0]) as file:
                return _Unpickler(file).load()

    def _open_older(self, file: BinaryIO) -> Any:
        if _Unpickler(file).load() != LEGACY:
            raise ValueError("it begins with something else")
        for _ in ("protocol", "system"):
            _Unpickler(file).load()
        unpickler = _Unpickler(file)
        content = unpickler.load()
        self._places: dict[str, tuple[int, int]] = {}  # start and length in the file
        for key in _Unpickler(file).load():
            count = int.from_bytes(file.read(8), "little")
            length = count * unpickler.widths[key]
            self._places[key] = (file.tell(), length)
            file.seek(length, 1)
        return content

    def _bytes(self, key: str, file: BinaryIO, archive: zipfile.ZipFile | None) -> Tensor:
        """A whole storage."""
        if archive is not None:
            info = archive.getinfo(f"{self._folder}data/{key}")
            with archive.open(info) as member:  # compares its CRC
                return _filled(member, info.file_size)
        start, length = self._places[key]
        if start + length > file.seek(0, 2):
            raise ValueError("it is cut short")
        file.seek(start)
        return _filled(file, length)


def _shaped(stored: Stored, raw: Tensor) -> Tensor:
    storage = stored.storage
    if len(raw) < storage.dtype.itemsize * (storage.first + storage.count):
        raise ValueError("it is cut short")
    first = storage.first + stored.offset
    return raw.view(stored.dtype).as_strided(stored.shape, stored.stride, first)


def _filled(file: Any, length: int) -> Tensor:
    """The next bytes of a file, as they are."""
    raw = torch.empty(length, dtype=torch.uint8)
    view, done = raw.numpy().data, 0
    while done < length:
        if not (got := file.readinto(view[done : done + (1 << 24)])):
            raise ValueError("it is cut short")
        done += got
    return raw


class _Unpickler(pickle.Unpickler):
    """Makes plain containers, `Stored` tensors, and stand-ins for all else."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="latin-1")
        self.widths: dict[str, int] = {}  # bytes of an element by a storage's key

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name == "collections.OrderedDict":
            return OrderedDict
        if module_name in ("torch", "torch.storage") and global_name in STORAGES:
            return STORAGES[global_name]
        if module_name == "torch" and global_name in TYPES:
            return TYPES[global_name]
        made: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": _tensor,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_tensor_v3": lambda *args: replace(_tensor(*args), dtype=args[6]),
            "torch._utils._rebuild_parameter": lambda data, *_: data,
            "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
            "torch._tensor._rebuild_from_type_v2": lambda make, kind, args, state: make(*args),
        }
        # each time another, so that a file cannot give one to the next
        return made.get(name) or type("Inert", (Inert,), {})

    def persistent_load(self, pid: Any, /) -> Any:
        match pid:
            case ("storage", torch.dtype() as dtype, str(key), _, int(count), *part):
                self.widths[key] = dtype.itemsize
                first = part[0][1] if part and part[0] else 0
                return Storage(key, dtype, part[0][2] if first else count, first)
            case ("module", kind, *_):  # of the older format: a class, and its source
                return kind
            case _:
                return Inert()


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *_: Any) -> Stored:
    return Stored(storage, storage.dtype, offset, tuple(shape), tuple(stride))
