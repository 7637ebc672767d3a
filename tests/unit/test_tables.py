"""Tables: wrapped on a terminal, a plain line a row for other programs."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from bigvit.cli import main
from bigvit.cli.table import print_table
from bigvit.recipe.find import all_recipes, by_paper

COMMAND = "import sys; from bigvit.cli import main; sys.exit(main())"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(columns: int, *args: str) -> list[str]:
    """The lines that a command writes to a terminal of that width."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    left_out = ("COLUMNS", "LINES", "NO_COLOR")
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    env["TERM"] = "xterm"
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *args], stdout=slave, env=env)
    os.close(slave)
    said = b""
    try:
        while part := os.read(master, 65536):
            said += part
    except OSError:  # how Linux says that nobody writes there any more
        pass
    finally:
        os.close(master)
    assert process.wait(timeout=60) == 0
    return said.decode().splitlines()


def piped(*args: str, **env: str) -> list[str]:
    command = [sys.executable, "-c", COMMAND, *args]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env={**os.environ, **env}, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_no_line_is_wider_and_nothing_is_cut(columns: int) -> None:
    styled = on_a_terminal(columns, "list")
    assert STYLE.search(styled[0]), "the heads stand out"
    lines = [STYLE.sub("", line) for line in styled]
    assert max(map(len, lines)) <= columns and len(lines) > len(all_recipes()) + 1
    names = {line.split()[0] for line in lines if line and not line.startswith(" ")}
    assert names >= set(all_recipes()), "a name is never broken"
    assert "…" not in "".join(lines)
    titles = [line for line, seen in zip(lines, styled, strict=True) if "\x1b[1m" in seen][1:]
    assert " ".join(titles) == " ".join(by_paper()), "papers stand out"
    source, below = "", False
    for line, seen in zip(lines, styled, strict=True):
        if "\x1b[2m" in seen:  # the rows that follow share it
            source, below = ("" if below else source) + line.replace(" ", ""), False
        elif line and line == seen and not line.startswith(" "):
            below = True
            assert source == all_recipes()[line.split()[0]].source.replace(" ", "")


def test_a_pipe_gets_a_plain_line_a_row_whatever_the_environment_says() -> None:
    lines = piped("list", COLUMNS="40", FORCE_COLOR="1", TTY_COMPATIBLE="1", TERM="xterm")
    assert lines == piped("list", COLUMNS="400")
    assert "\x1b" not in "".join(lines)
    assert [line.split()[0] for line in lines] == ["name", *all_recipes()]  # awk '{print $1}'
    for line, recipe in zip(lines[1:], all_recipes().values(), strict=True):
        assert line.endswith(recipe.source) and line == line.rstrip()


def test_a_cell_of_several_lines_or_with_markup_is_one_line_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("state", "reason"), [("error", "first\nsecond [red]x[/] " + "y" * 300)])
    head, row = capsys.readouterr().out.splitlines()
    assert head == "state  reason"
    assert row == "error  first second [red]x[/] " + "y" * 300


def test_what_a_run_has_not_said_is_a_dash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock").touch()
    for status, said in (
        (None, ["killed", "0", *["-"] * 12]),
        ({"state": "done", "update": 7, "exit_code": 0}, ["done", "7", "0", *["-"] * 11]),
    ):
        if status is not None:
            (tmp_path / "status.json").write_text(json.dumps(status))
        assert main(["status", str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[1].split() == said
    (tmp_path / "status.json").write_text('{"state": "error", "update": 1, "reason": "[b] broke"}')
    lines = on_a_terminal(60, "status", str(tmp_path))
    assert "[b] broke" in " ".join(" ".join(STYLE.sub("", line) for line in lines).split())
