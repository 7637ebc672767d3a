"""Tab in bash, zsh and fish offers commands, options and recipes; what is mistyped is guessed."""

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bigvit.cli import SUBJECTS, _parser, main
from bigvit.recipe.find import all_recipes, by_paper

CASES = {  # what stands on the line, the last word half typed: what is offered
    ("exp",): {"export"},
    ("export", "run", "--on"): {"--onnx"},
    ("show", "digits_v"): {"digits_vit", "digits_vit_ft_parity"},
    ("transfer", "run", "--rec"): {"--recipes"},
    ("transfer", "run", "--optim.l"): {"--optim.lr"},
    ("train", "digits_vit", "--optim.l"): {"--optim.lr"},
    ("train", "digits_vit", "--micro"): {"--micro-batch"},
    ("completion", ""): {"bash", "zsh", "fish"},
}
BASH = """
source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bigvit
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'source $argv[1]; complete -C "$argv[2]"'
ZSH = """
autoload -Uz compinit && compinit -u -d "$2/dump"; source "$1"; shift 2
compadd() { print -l -- ${(P)@[-1]}; }
_describe() { print -l -- ${${(P)@[-1]}%%:*}; }
_files() { : }
words=("$@"); CURRENT=$#; PREFIX="$words[-1]"; _bigvit
"""


def script(shell: str, folder: Path) -> Path:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["completion", shell]) == 0
    path = folder / f"bigvit.{shell}"
    path.write_text(said.getvalue())
    return path


def offered(shell: str, path: Path, words: tuple[str, ...]) -> set[str]:
    """What a shell offers in the place of the last word."""
    line = ["bigvit", *words]
    command = {
        "bash": ["bash", "-c", BASH, "bash", path, *line],
        "fish": ["fish", "--no-config", "-c", FISH, path, " ".join(line)],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", path, path.parent, *line],
    }[shell]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = {each.split("\t")[0] for each in done.stdout.splitlines()}
    return {each for each in found if each.startswith(words[-1])}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_offers_commands_options_and_recipes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; scripts/debian.sh installs it")
    path = script(shell, tmp_path)
    for words, wanted in CASES.items():
        assert offered(shell, path, words) == wanted, words


def test_every_command_stands_in_the_help_once() -> None:
    grouped = [name for names in SUBJECTS.values() for name in names]
    assert sorted(grouped) == sorted(_parser().commands)


def test_recipes_are_grouped_by_what_their_files_say() -> None:
    papers = by_paper()
    assert [name for names in papers.values() for name in names] == list(all_recipes())
    assert "DeiT III (arXiv:2204.07118; thesis chapter 6)" in papers
    assert all(5 < len(paper) < 120 and re.match("[A-Z]", paper) for paper in papers)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["exprot", "run"], "export"),
        (["lits"], "list"),
        (["export", "run", "--onx"], "--onnx"),
        (["evaluate", "run", "--bach-size=3"], "--batch-size"),
        (["show", "digits_vitt"], "digits_vit"),
        (["completion", "bahs"], "bash"),
    ],
)
def test_what_is_mistyped_is_guessed(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code == 2 and len(said.splitlines()) == 1
    assert re.search(rf"nearest (is|are) .*{re.escape(meant)}\b|choose from .*{meant}", said), said
