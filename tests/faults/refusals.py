"""Runs bad input in this process, and looks at how it is refused."""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from generated import Case

from bigvit import cli, train

MOST = 1.0  # seconds of this process, for a refusal
EVERY = 1 if "BIGVIT_ALL_INPUT" in os.environ else 7  # of the cases, some 2,000 in all, one is run


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """What is in a folder, and when it was changed last."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def plain(text: str) -> str:
    """A field's name in an option, a path or a list of keys."""
    return text.replace("-", "_").lower()


def code_of(main: Callable[[list[str]], int], args: list[str]) -> object:
    """How a command ends."""
    try:
        return main(args)
    except SystemExit as ended:  # argparse's own
        return ended.code
    except BaseException as error:
        return f"a traceback of {type(error).__name__}: {error}"


def faults(code: object, case: Case, output: str, error: str, seconds: float) -> Iterator[str]:
    """What is wrong with a refusal."""
    text = " ".join(error.replace("│", " ").split())
    if code != 2:
        yield f"ended with {code}"
    if (messages := text.count("error: ") + text.count("For full helptext")) != 1:
        yield f"gave {messages} messages"
    if plain(case.says) not in plain(text):
        yield f"did not name {case.says}"
    if "Traceback" in text + output:
        yield "showed a traceback"
    if len(text) > 2000:
        yield f"said {len(text)} characters"
    if seconds > MOST:
        yield f"took {seconds:.1f} s"


def refused(cases: Iterable[Case], folder: Path, capfd: pytest.CaptureFixture[str]) -> int:
    """Run cases in this process, and fail with a list of those that are not refused as they should.

    Returns:
        How many there were, those included that this run leaves out.
    """
    found: list[str] = []
    count = 0
    for case in cases:
        count += 1
        if count % EVERY:
            continue
        case.prepare()
        before = listing(folder)
        gc.disable()  # what other tests left is not the refusal's to collect
        began = time.process_time()
        code = code_of(train.main if case.args[0] == "train" else cli.main, case.args[1:])
        took = time.process_time() - began
        gc.enable()
        said = capfd.readouterr()
        wrong = [*faults(code, case, said.out, said.err, took)]
        if listing(folder) != before:
            wrong.append("changed files")
        if wrong:
            found.append(f"{case.name}: {', '.join(wrong)}: {said.err[-300:].strip()}")
    assert not found, f"{len(found)} of {count} cases:\n" + "\n".join(found[:40])
    return count


def write_text(path: Path, text: str) -> None:
    path.write_text(text, errors="surrogateescape")


def make_there(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else than a file at a path."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    make(path)
