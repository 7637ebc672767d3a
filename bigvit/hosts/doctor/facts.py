"""What a host is, said by itself: `python bigvit/hosts/doctor facts '{"recipe": ...}'` prints one
line of JSON."""

import time

BEGAN = time.time()  # before the slow imports: the nearer to the question, the better a clock shows

import json  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from importlib.metadata import PackageNotFoundError, version  # noqa: E402
from pathlib import Path  # noqa: E402

import psutil  # noqa: E402
import xxhash  # noqa: E402

import bigvit  # noqa: E402

PACKAGES = ("torch", "torchvision", "deepspeed", "timm", "numpy", "pillow", "safetensors")


@dataclass(frozen=True)
class Question:
    """What a host is asked."""

    recipe: str | None  # a name, or FILE.py[:NAME]
    data_root: str | None
    folder: str  # the run folder, which need not exist
    mark: str | None  # a file that the asking host made where the run folder is, or is to be
    classes_map: str | None = None  # a file, with a recipe whose data.level is map


@dataclass(frozen=True)
class Facts:
    """What a host answers."""

    versions: dict[str, str]  # what must be the same everywhere
    devices: list[str]  # of each GPU, its name and memory
    links: list[str]  # kinds of links between GPUs, as nvidia-smi calls them
    cores: int  # that this process may use
    memory: int  # bytes free
    shared: int | None  # bytes free in /dev/shm
    disk: int  # bytes free for the run folder
    sees: bool | None  # whether the mark is there; None: there is none
    addresses: dict[str, str]  # interface by IPv4 address, in the order of `hostname -I`
    address: str  # where gloo listens
    recipe: str | None  # digest of its values
    data: dict[str, str] | None  # digests by split, with numbers of images
    slow: str  # why images are decoded by Pillow alone; empty: by the extension
    problems: list[str]  # that the host sees by itself
    clock: tuple[float, float]  # its time when this began, and when it ended


def gather(question: Question) -> Facts:
    """The facts of this host."""
    from bigvit.data.photo import without

    problems: list[str] = []
    place = standing(Path(question.folder))
    if reason := _unwritable(place):
        problems.append(
            f"{place} cannot be written to: {reason}; free some of it, or mend its mode"
        )
    versions, devices = _versions(problems), _devices(problems)
    addresses = _addresses()
    recipe, data = _recipe_and_data(question, problems)
    return Facts(
        versions=versions,
        devices=devices,
        links=_links(),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().available,
        shared=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,
        disk=shutil.disk_usage(place).free,
        sees=None if question.mark is None else Path(question.mark).exists(),
        addresses=addresses,
        address=_gloo(addresses, problems),
        recipe=recipe,
        data=data,
        slow=without(),
        problems=problems,
        clock=(BEGAN, time.time()),
    )


def standing(folder: Path) -> Path:
    """A folder, or the nearest above it that there is."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _unwritable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as error:
        return str(error.strerror)
    return ""


def _versions(problems: list[str]) -> dict[str, str]:
    found = {"python": platform.python_version(), "bigvit": bigvit.__version__}
    code = xxhash.xxh3_64()
    for folder, _, names in sorted(os.walk(Path(bigvit.__file__).parent, followlinks=True)):
        for name in sorted(name for name in names if name.endswith((".py", ".json"))):
            code.update(name.encode() + Path(folder, name).read_bytes())
    found["bigvit's code"] = code.hexdigest()
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    try:
        import torch
    except Exception as error:  # whatever a broken installation raises
        problems.append(f"torch cannot be imported: {error}; install it again (scripts/setup.sh)")
        return found
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    if torch.cuda.is_available():
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # pyright: ignore
    if driver := _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"):
        found["driver"] = driver.splitlines()[0]
    return found


def _devices(problems: list[str]) -> list[str]:
    if "torch" not in sys.modules:
        return []
    import torch

    if not torch.cuda.is_available():
        if _ask("nvidia-smi", "-L"):
            problems.append(
                "torch sees no GPU, and nvidia-smi does; install a torch for CUDA that the "
                "driver knows, and look at CUDA_VISIBLE_DEVICES"
            )
        return []
    each = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"{one.name} {one.total_memory / 1e9:.0f} GB" for one in each]


def _links() -> list[str]:
    lines = re.findall(r"^GPU\d+\t(.*)$", _ask("nvidia-smi", "topo", "-m"), re.MULTILINE)
    rows = [words for words in map(str.split, lines) if "X" in words]  # not the heads of columns
    return sorted({word for words in rows for word in words[: len(rows)]} - {"X"})


def _addresses() -> dict[str, str]:
    there = {
        address.address: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    order = [address for address in _ask("hostname", "-I").split() if address in there]
    return {address: there[address] for address in [*order, *there]}


def _gloo(addresses: dict[str, str], problems: list[str]) -> str:
    """The address that gloo takes: that of its interface, or of the host's own name."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        found = [ip for ip, name in addresses.items() if name == interface.split(",")[0]]
        if not found:
            names = ", ".join(addresses.values())
            problems.append(
                f"GLOO_SOCKET_IFNAME is {interface}, and the interfaces with an address are "
                f"{names or 'none'}; name one by `bigvit env --interface`"
            )
        return found[0] if found else ""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _recipe_and_data(
    question: Question, problems: list[str]
) -> tuple[str | None, dict[str, str] | None]:
    """Digests of a recipe's values, and of its data set."""
    if question.recipe is None:
        return None, None
    from bigvit.data.check import check_data
    from bigvit.data.index import describe
    from bigvit.data.sources import open_splits
    from bigvit.recipe import Run
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import digest

    root, coarser = (
        None if each is None else Path(each) for each in (question.data_root, question.classes_map)
    )
    values = data = None
    try:
        _, recipe = find_recipe(question.recipe)
        values = digest(recipe)
        check_data(recipe.data, Run(data_root=root, classes_map=coarser))
        data = {}
        splits = open_splits(recipe.data, root, coarser)
        for split, source in zip(("train", "test"), splits, strict=True):
            if source is None:
                continue
            index = describe(source)
            data[split] = f"{index['images']:,} images in {index['classes']:,} classes, "
            data[split] += f"digest {index['digest'][:16]}, contents {index['contents'][:16]}"
    except (ValueError, OSError) as error:
        problems.append(str(error))
    return values, data


def _ask(*command: str) -> str:
    """What a program says; nothing where it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(json.dumps(asdict(gather(Question(**json.loads(sys.argv[1]))))), flush=True)
