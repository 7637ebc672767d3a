"""What was found of tar shards is kept while they are as they were, and made anew where not."""

import os
import threading
from pathlib import Path

import pytest
from forms import JPEG, PAIR, members, opened, write_shard
from pictures import jpegs

from bigvit.data.decode import Unread
from bigvit.data.index import describe
from bigvit.data.sources import shards
from bigvit.data.sources.shards import ShardSource, find_shards


def test_what_was_found_is_kept_until_a_shard_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by one of the same length, names and time of change."""
    path = tmp_path / "train/0.tar"
    write_shard(path, members(jpegs(6)))
    before, old = describe(opened(tmp_path)), path.stat()
    (kept,) = (tmp_path / "cache/bigvit").glob("*.npz")
    with monkeypatch.context() as patched:
        patched.setattr(shards, "_found", None)
        assert describe(opened(tmp_path)) == before
        assert [opened(tmp_path).content(i) for i in range(6)] == [each[2] for each in jpegs(6)]
    turned = [(name, 1 - target, content) for name, target, content in jpegs(6)]
    for aside in (path, tmp_path / "aside.tar"):  # written over it, or put in its place
        write_shard(aside, members(turned))
        os.utime(aside, ns=(old.st_atime_ns, old.st_mtime_ns))
        aside.replace(path)
        assert path.stat().st_size == old.st_size and path.stat().st_mtime_ns == old.st_mtime_ns
        assert list(opened(tmp_path).targets) == [target for _, target, _ in turned]
        assert describe(opened(tmp_path))["digest"] != before["digest"]
        turned = turned[::-1]
    assert kept.is_file()


def test_a_damaged_or_lost_cache_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(tmp_path / "train/0.tar", members(jpegs(6)))
    wanted = describe(opened(tmp_path))
    (kept,) = (tmp_path / "cache/bigvit").glob("*.npz")
    content = kept.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    for what in (b"", content[:1000], content[:-1000], bytes(damaged), b"PK\3\4" + bytes(3000)):
        kept.write_bytes(what)
        assert describe(opened(tmp_path)) == wanted
        assert kept.stat().st_size == len(content)
    (tmp_path / "full").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    assert describe(opened(tmp_path)) == wanted


def test_ranks_that_look_at_once_find_the_same(tmp_path: Path) -> None:
    for number in range(5):
        write_shard(tmp_path / f"train/{number}.tar", members(jpegs(12)))
    found: list[ShardSource] = []

    def look() -> None:
        found.append(shards.open_shards(tmp_path, find_shards(tmp_path), "train"))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 6 and all(describe(each) == describe(found[0]) for each in found)
    assert len(list((tmp_path / "cache/bigvit").glob("*.npz"))) == 1


def test_a_shard_that_changes_while_it_is_read_from_ends_the_run(tmp_path: Path) -> None:
    """It is no image's fault; as many are in it, they would be replaced by others in silence."""
    path = tmp_path / "train/0.tar"
    write_shard(path, PAIR)
    source = opened(tmp_path)
    files = os.listdir("/proc/self/fd")
    assert source.content(0) == JPEG
    write_shard(path, [("a.cls", b"1"), ("a.jpg", JPEG[::-1])])
    with pytest.raises(Unread, match="train/0.tar has changed since it was listed; start again"):
        source.read(0)
    path.unlink()
    with pytest.raises(Unread, match="train/0.tar: No such file"):
        source.read(0)
    assert os.listdir("/proc/self/fd") == files, "none is left open"
