"""What data sets ask of the network: a name on the hub alone does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from forms import (
    TRAIN,
    folders,
    parquet,
    saved,
    shards,
    tables,
)
from pictures import DATA

from bigvit.data.check import check_data
from bigvit.recipe import Run

SMALL = replace(DATA, train_images=TRAIN)


def test_a_name_on_the_hub_is_the_only_thing_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[str] = []

    def load(name: str, split: str) -> object:
        asked.append(f"{name} {split}")
        return tables()["train" if split == "train" else "test"]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(
        datasets, "get_dataset_split_names", lambda name: ["train", "validation", "test"]
    )
    check_data(SMALL, Run(data_root=Path("hf:someone/photographs")))
    assert asked == ["someone/photographs train", "someone/photographs validation"]


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def fail(name: str) -> list[str]:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    with pytest.raises(ValueError, match="--data-root hf:someone/absent: no route to the hub"):
        check_data(DATA, Run(data_root=Path("hf:someone/absent")))


OFFLINE = """
import socket, sys
def deny(*args, **kwargs):
    raise SystemExit(f"the network was asked for: {args}")
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, deny)
for name in ("getaddrinfo", "gethostbyname", "create_connection"):
    setattr(socket, name, deny)
from dataclasses import replace
from pathlib import Path
from bigvit.data.check import check_data
from bigvit.data.sources import open_source
from bigvit.recipe import Images, RandomResizedCrop, Run
crop = RandomResizedCrop(scale=(0.1, 1.0), ratio=(1.0, 1.0), interpolation="bicubic")
half = (0.5,) * 3
more = ((), "own", 1, None, half, half, 1.0, "exact", 0.0)
data = Images("x", 8, None, 2, 16, crop, 0.5, None, 0.0, *more)
for root in map(Path, sys.argv[1:]):
    check_data(data, Run(data_root=root))
    print(sum(open_source(data, "train", root).read(i).width for i in range(8)))
print({"torch", "deepspeed", "torchvision"} & set(sys.modules))
"""


def test_local_data_are_read_without_the_network_and_checked_without_torch(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("folders", "parquet", "saved", "shards")]
    for write, root in zip((folders, parquet, saved, shards), roots, strict=True):
        write(root)
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE, *map(str, roots)],
        env=env | {"HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "320\n" * 4 + "set()\n", done.stderr
    assert done.returncode == 0
