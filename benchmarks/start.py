"""What a start does with a large data set before the first update: seconds, and bytes read.

    python -m benchmarks.start [--small] [--check] [--folder FOLDER]

Names are made up as ImageNet-21k's. What is called "before" is what bigvit did until it took names
by the block; on a sample, and carried over to all of them. FOLDER, on a disk, takes 4 GB meanwhile.
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash

from benchmarks.measure import Row, arguments, report
from bigvit.data.sampler import Sampler
from bigvit.data.sources.folders import FileNames, FileSource, open_classes
from bigvit.data.sources.hugging_face import HuggingFaceSource, find_parquet, open_parquet
from bigvit.data.sources.kept import kept
from bigvit.data.sources.source import Source

IN21K, IN1K = 14_197_122, 1_281_167
Made = TypeVar("Made")


def names(count: int) -> Iterator[bytes]:
    for number in range(count):
        name = b"n%08d" % (1440764 + number // 650)
        yield b"train/%s/%s_%d.JPEG" % (name, name, 10 + number % 650 * 13)


def seconds(of: Callable[[], Made]) -> tuple[float, Made]:
    began = time.perf_counter()
    made = of()
    return time.perf_counter() - began, made


def by_image(source: Source, count: int) -> str:
    """The digest of names as it was made before."""
    hasher = xxhash.xxh3_128()
    for index in range(count):
        hasher.update(source.name(index).encode() + b"\0")
    return hasher.hexdigest()


def by_block(source: Source) -> str:
    hasher = xxhash.xxh3_128()
    for block in source.all_names():
        hasher.update(block)
    return hasher.hexdigest()


def of_names(count: int, few: int, sample: int) -> Iterator[Row]:
    """Of names that were found once, as each later start takes them."""
    found = FileNames(names(count))
    whole, marks = f"{count / 1e6:.3g} million names", np.zeros((1, 4), np.int64)

    def take() -> FileNames:
        return FileNames.of(kept("benchmark", b"names", [b"train"], marks, found.arrays))

    def source(found: FileNames, count: int) -> FileSource:
        return FileSource(Path(), found, np.zeros(count, np.int32), ["class"])

    take()
    before, _ = seconds(lambda: by_image(source(found, count), sample))
    before *= count / sample
    yield Row(f"digest of {whole}: before, from {sample:,}", f"{before:.1f} s")
    taken, found = seconds(take)
    now, digest = seconds(lambda: by_block(source(found, count)))
    yield Row("the same by the block", f"{now:.2f} s")
    yield Row("taking them from where they are kept", f"{taken:.2f} s")
    both = now + taken
    yield Row("both", f"{both:.2f} s", "", "<= 15 s", both <= 15)
    if sample == count:
        assert digest == by_image(source(found, count), count)
    found = FileNames(names(few))
    now, digest = seconds(lambda: by_block(source(found, few)))
    assert digest == by_image(source(found, few), few)
    yield Row(f"digest of {few:,} names", f"{now:.2f} s", "", "<= 1 s", now <= 1)


def of_folders(folder: Path, count: int) -> Iterator[Row]:
    """Of files that are there, 650 in a class folder; the disk is warm."""
    for path in map(os.fsdecode, names(count)):
        if path.endswith("_10.JPEG"):
            (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(b"x")
    of = f"{count:,} files"

    def carried(spent: float) -> str:
        return f"{spent:.2f} s ({spent * IN21K / count:.1f} s of 14.2 million)"

    spent, source = seconds(lambda: open_classes(folder, "train"))
    yield Row(f"{of} listed", carried(spent))
    spent, again = seconds(lambda: open_classes(folder, "train"))
    assert by_block(again) == by_block(source)
    yield Row("the same as kept", f"{spent:.2f} s")
    spent, sizes = seconds(source.contents)
    assert (sizes == 1).all()
    yield Row(f"sizes of {of}, asked at each start", carried(spent))


def write_parquet(file: Path, rows: int, size: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    said = {"huggingface": json.dumps({"info": {"features": kinds}})}
    schema = pa.schema([("image", cell), ("label", pa.int64())], metadata=said)
    random = np.random.default_rng(0)
    with parquet.ParquetWriter(file, schema, compression="none") as writer:
        for first in range(0, rows, 100):
            here = range(first, min(rows, first + 100))
            images = [{"bytes": random.bytes(size), "path": f"{row}.JPEG"} for row in here]
            labels = [row % 2 for row in here]
            writer.write_table(pa.table({"image": images, "label": labels}, schema=schema))


def forget(folder: Path) -> None:
    """Let the system forget what it holds of files."""
    gc.collect()
    for file in filter(Path.is_file, folder.rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetched() -> int:
    """Bytes that this process had read from the disk."""
    said = Path("/proc/self/io").read_text().split()
    return int(said[said.index("read_bytes:") + 1])


def of_parquet(folder: Path, rows: int, size: int) -> Iterator[Row]:
    import datasets

    root, cache = folder / "parquet", folder / "cache"
    root.mkdir()
    write_parquet(root / "train.parquet", rows, size)
    datasets.config.HF_DATASETS_CACHE = cache  # pyright: ignore
    datasets.disable_progress_bars()

    def opened() -> HuggingFaceSource:
        return open_parquet(root, find_parquet(root), "train")

    def before() -> tuple[str, Any]:
        (converted,) = cache.iterdir()
        files = [str(root / "train.parquet")]
        from_parquet: Any = datasets.Dataset.from_parquet
        table = from_parquet(files, cache_dir=str(converted))
        source = HuggingFaceSource(table, "train", [root])
        return by_image(source, rows), source.contents()

    def now() -> tuple[str, Any]:
        source = opened()
        return by_block(source), source.contents()

    opened()  # converts it, once
    answers: list[tuple[str, Any]] = []
    for what, read in (("before", before), ("now", now)):
        forget(folder)
        held = fetched()
        spent, answer = seconds(read)
        share = 100 * (fetched() - held) / (rows * size)
        answers.append((answer[0], answer[1].tolist()))
        goal = ("<= 5 %", share <= 5) if what == "now" else ("", None)
        yield Row(f"{rows:,} rows of {size / 1000:g} KB, {what}", f"{spent:.2f} s")
        yield Row("read of the disk for it", f"{share:.1f} % of the images", "", *goal)
    assert answers[0] == answers[1]


def of_order(count: int) -> Iterator[Row]:
    sampler = Sampler(count, 1, count // 4, 0)
    spent, _ = seconds(lambda: sampler.batch(0))
    yield Row(f"the order of {count / 1e6:.3g} million images", f"{spent:.2f} s")
    for number in (1, 2, 3):
        sampler.batch(number)
    time.sleep(2 * spent)  # as the last batches are trained on
    spent, _ = seconds(lambda: sampler.batch(4))
    yield Row("waiting for the next epoch's", f"{spent:.2f} s", "", "<= 0.5 s", spent <= 0.5)


def main() -> int:
    options = arguments(__doc__ or "", folder="")
    small = options.small
    with tempfile.TemporaryDirectory(dir=options.folder or None) as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "kept")
        rows = [
            *of_names(*((20_000, 2_000, 20_000) if small else (IN21K, IN1K, 200_000))),
            *of_folders(folder, 40_000 if small else 200_000),
            *of_parquet(folder, *((200, 10_000) if small else (20_000, 100_000))),
            *of_order(10_000 if small else IN21K),
        ]
    return report("The start with a large data set, one process", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
