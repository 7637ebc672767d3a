"""Run folders on a file system without locks: `fcntl` fails as the kernel lets it fail there, by a
library that is loaded before C's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

static int without(const char *name, int fd, int command, void *argument) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) {
        errno = REASON;
        return -1;
    }
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return real(fd, command, argument);
}
#define SHIM(name)                                   \\
    int name(int fd, int command, ...) {             \\
        va_list list;                                \\
        va_start(list, command);                     \\
        void *argument = va_arg(list, void *);       \\
        va_end(list);                                \\
        return without(#name, fd, command, argument); \\
    }
SHIM(fcntl)
SHIM(fcntl64)
"""
OPEN = """
import sys
from pathlib import Path
from bigvit.training.run_folder import RunFolder, status_of
from bigvit.recipe.parse import parse

command = parse(["digits_vit", *sys.argv[2:]])
try:
    folder = RunFolder(Path(sys.argv[1]), command, 1)
except ValueError as error:
    sys.exit(str(error))
folder.accept()
folder.write_status()
print(status_of(Path(sys.argv[1]))["state"])
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Open a run folder where locks fail for a reason, and what is said."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)

    def run(path: Path, reason: str, *options: str) -> tuple[int, str]:
        library = folder / f"{reason}.so"
        build = ["cc", "-shared", "-fPIC", f"-DREASON={reason}", folder / "shim.c", "-o", library]
        subprocess.run([*build, "-ldl"], check=True)
        done = subprocess.run(
            [sys.executable, "-c", OPEN, path, *options],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("ENOSYS", "Function not implemented"),
        ("ENOLCK", "No locks available"),
        ("EOPNOTSUPP", "Operation not supported"),
        ("EINVAL", "Invalid argument"),
    ],
)
def test_a_file_system_without_locks_is_called_that(opened, tmp_path, reason, text):
    code, said = opened(tmp_path / "run", reason)
    assert code == 1 and f"its file system has no locks ({text})" in said, said
    assert "in use" not in said and "--no-lock" in said
    assert list(tmp_path.iterdir()) == []


def test_no_lock_goes_on_there_and_its_status_is_what_it_says(opened, tmp_path):
    assert opened(tmp_path / "run", "ENOSYS", "--no-lock") == (0, "running\n")


@pytest.mark.parametrize("reason", ["EAGAIN", "EACCES"])
def test_a_lock_that_another_job_holds_is_called_that_even_so(opened, tmp_path, reason):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("process 7 on far\n")
    code, said = opened(tmp_path / "run", reason, "--no-lock")
    assert code == 1 and "is in use by another job (process 7 on far)" in said, said
    assert (tmp_path / "run" / "lock").read_text() == "process 7 on far\n"
