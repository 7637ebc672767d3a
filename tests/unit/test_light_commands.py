"""The commands that a person tries first: right, quick, and clean when they fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bigvit import __version__
from bigvit.cli import main
from bigvit.plan.weights import size_of
from bigvit.recipe.check import leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

COMMAND = """
import sys
from bigvit.cli import main
code = 1
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
finally:
    heavy = {"torch", "tyro", "deepspeed", "numpy", "rich"}
    print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def python(code: str, *args: str, stdout: int = subprocess.PIPE) -> "subprocess.CompletedProcess":
    """Run Python with buffered output, as a user's shell does."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        timeout=60,
    )


def light(*args: str) -> str:
    """What a command prints, which must import nothing heavy."""
    done = python(COMMAND, *args)
    assert (done.returncode, done.stderr) == (0, "\n")
    return done.stdout


def test_help_names_every_command() -> None:
    said = light("--help")
    assert said.startswith("usage: bigvit")
    commands = {line.split()[0] for line in said.splitlines() if line.startswith("    ")}
    assert {"list", "show", "evaluate", "export"} <= commands
    assert "deepspeed scripts/train.py RECIPE" in " ".join(said.split())


def test_a_script_for_a_shell_and_a_status_need_little(tmp_path: Path) -> None:
    assert "complete -o bashdefault" in light("completion", "bash")
    (tmp_path / "lock").touch()
    assert light("status", str(tmp_path)).splitlines()[1].split()[0] == "killed"


def test_version_is_the_packages() -> None:
    assert light("--version") == f"bigvit {__version__}\n"


def test_list_shows_name_parameters_resolution_and_source() -> None:
    lines = light("list").splitlines()
    assert len(lines) == 1 + len(all_recipes())
    header, rows = lines[0], {line.split()[0]: line for line in lines[1:]}
    assert {"digits_vit", "deit3_h14_in1k_126"} <= set(rows) == set(all_recipes())
    start = {word: header.index(word) for word in ("parameters", "pixels", "source")}
    for name, recipe in all_recipes().items():
        row = rows[name]
        millions = row[start["parameters"] : start["pixels"]].removesuffix("M  ").split()[0]
        size = recipe.data.image_size
        pixels = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
        count, _ = size_of(recipe)
        assert abs(float(millions) * 1e6 - count) <= 5_000
        assert row[start["pixels"] : start["source"]].strip() == pixels
        assert row[start["source"] :] == recipe.source
    assert "0.17 M" in rows["digits_vit"] and " 64x96 " in rows["photos_cait_64_ft64x96"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["deit3_h14"], lambda name, recipe: "deit3_h14" in name),
        (["*_ft384"], lambda name, recipe: name.endswith("_ft384")),
        (["--model", "lvvit"], lambda name, recipe: type(recipe.model).__name__ == "LVViT"),
        (["--data", "cifar-100"], lambda name, recipe: "cifar100" in name),
        (
            ["cait", "--image-size", "384", "--model", "CaiT"],
            lambda name, recipe: "cait" in name and recipe.data.image_size == 384,
        ),
    ],
)
def test_list_narrows_down(words: list[str], wanted: Any, capsys: Any) -> None:
    expected = [name for name, recipe in all_recipes().items() if wanted(name, recipe)]
    assert main(["list", *words]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == expected and expected
    assert main(["list", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == expected
    for each in found:
        recipe = all_recipes()[each["name"]]
        assert each["parameters"] == recipe.model.parameters(recipe.data.image_size)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["deit3_h14_in1k_125"],
            "no recipe is like that; the nearest names are deit3_h14_in1k_1",
        ),
        (["--model", "VitT"], "--model VitT: there is none; the kinds are CaiT, CvT, DeiT"),
        (["--image-size", "225"], "no recipe is like that; `bigvit list` alone names all"),
    ],
)
def test_list_says_what_there_is_where_nothing_is_left(
    words: list[str], said: str, capsys: Any
) -> None:
    assert main(["list", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["digits_vit", "drloc_swin_t_cifar100", "photos_cait_64_ft64x96"])
def test_show_lists_every_field_with_its_value(name: str) -> None:
    shown = dict(line.split(maxsplit=1) for line in light("show", name).splitlines())
    recipe = all_recipes()[name]
    for path, value in leaves(recipe):
        assert shown[path] == str(value)
    assert shown["name"] == name
    assert int(shown["parameters"].replace(",", "")) == recipe.model.parameters(
        recipe.data.image_size
    )
    assert shown["updates"].split()[0] == f"{recipe.updates:,}"
    assert type(recipe.model).__name__ in shown["kinds"]
    assert type(recipe.optim).__name__ in shown["kinds"]


@pytest.mark.parametrize("name", ["digits_vit", "deit3_h14_in1k_126"])
def test_show_json_is_the_recipe_as_it_is_stored(name: str) -> None:
    value = json.loads(light("show", name, "--json"))
    assert value == to_json(all_recipes()[name])
    assert recipe_from_json(value) == all_recipes()[name]


def test_show_reads_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from bigvit.recipes import digits\n"
        "mine = replace(digits.digits_vit, seed=7)\n"
    )
    assert json.loads(light("show", f"{path}:mine", "--json"))["seed"] == 7


def refused(*args: str, imported: str = "") -> str:
    """The one line that a refused command says, having imported no more than that."""
    done = python(COMMAND, *args)
    assert (done.returncode, done.stdout) == (2, "")
    line, heavy, rest = done.stderr.split("\n")
    assert (heavy, rest) == (imported, "")
    assert line.startswith("error: ")
    return line


def test_an_unknown_recipe_is_refused_in_one_line() -> None:
    assert "nonsense" in refused("show", "nonsense")
    assert "digits_vit" in refused("show", "digits_vti")


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_missing_checkpoint_is_refused_before_torch_is_imported(
    command: str, tmp_path: Path
) -> None:
    absent = str(tmp_path / "absent")
    assert absent in refused(command, absent)
    said = refused(command, str(tmp_path))
    assert "neither a run folder nor a checkpoint" in said


def test_a_missing_hostfile_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    assert "absent cannot be read" in refused("doctor", "--hostfile", str(tmp_path / "absent"))


def test_a_batch_size_of_zero_is_refused(tmp_path: Path) -> None:
    assert "--batch-size" in refused("evaluate", str(tmp_path), "--batch-size", "0")


@pytest.mark.parametrize("args", [(), ("lst",), ("show",), ("list", "--wrong")])
def test_a_wrong_command_line_is_refused_in_one_line(args: tuple[str, ...]) -> None:
    done = python(COMMAND, *args)
    assert (done.returncode, done.stdout) == (2, "")
    said, imported = done.stderr.splitlines()
    assert said.startswith("error: ") and said.endswith("says what there is") and not imported


@pytest.mark.parametrize("args", [("list",), ("show", "digits_vit"), ("--help",)])
def test_a_closed_pipe_ends_a_command_cleanly(args: tuple[str, ...]) -> None:
    """As in `bigvit list | head -1`, where head has ended before anything was written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = python(
            "import sys; from bigvit.cli import main; sys.exit(main())", *args, stdout=writer
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 141: ended by SIGPIPE, as a shell says it


def test_parsing_a_training_command_imports_no_torch() -> None:
    done = python(
        "import sys\n"
        "from bigvit.recipe.parse import parse\n"
        "print(parse(['digits_vit', '--seed', '3', '--keep', '2']).recipe.seed)\n"
        "print(*sorted({'torch', 'deepspeed'} & set(sys.modules)))"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n\n", "")


def test_checking_a_training_command_imports_no_torch(tmp_path: Path) -> None:
    done = python(
        "import sys\n"
        "from bigvit.recipe.parse import parse\n"
        "from bigvit.training.check import check\n"
        "cut, start = check(parse(['digits_vit', '--run-dir', sys.argv[1]]), 2)\n"
        "print(cut.micro_batch, start.checkpoint)\n"
        "print(*sorted({'torch', 'deepspeed'} & set(sys.modules)))",
        str(tmp_path),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "32 None\n\n", "")
