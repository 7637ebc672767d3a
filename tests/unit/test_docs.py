"""What README and docs promise, as far as that can be tested in seconds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bigvit.cli import _parser
from bigvit.recipe import Run
from bigvit.recipe.check import leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.parse import parse

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = all_recipes()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = ("bigvit", "deepspeed", "bash", "sbatch", "python")


def commands() -> list[tuple[str, list[str]]]:
    """Each command of a page's code blocks: the page's name, and its words without comments."""
    found: list[tuple[str, list[str]]] = []
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if not language and line.startswith(PROGRAMS):
                    found.append((page.name, shlex.split(line, comments=True)))
    return found


COMMANDS = commands()


def named(program: str) -> list:
    """The commands that run a program, for pytest."""
    return [
        pytest.param(words, id=f"{page}: {shlex.join(words)}"[:90])
        for page, words in COMMANDS
        if program in words
    ]


def after(words: list[str], program: str) -> list[str]:
    """What a program is given, up to where the shell goes on with something else."""
    given = words[words.index(program) + 1 :]
    ends = [i for i, word in enumerate(given) if word in ("|", "||", "&&")]
    return [word for word in given[: min(ends, default=None)] if word != "..."]


@pytest.mark.parametrize("words", named("bigvit"))
def test_a_bigvit_command_has_these_options(words: list[str]) -> None:
    _parser().parse_args(after(words, "bigvit"))


@pytest.mark.parametrize("words", named("scripts/train.py") + named("scripts/slurm.sbatch"))
def test_a_training_command_has_these_options(words: list[str]) -> None:
    script = "scripts/train.py" if "scripts/train.py" in words else "scripts/slurm.sbatch"
    given = after(words, script)
    if given and given[0] != "RECIPE":
        assert parse(given).name in RECIPES
    launcher = words[words.index("deepspeed") if "deepspeed" in words else 0 : words.index(script)]
    named = {word for word in launcher if word.startswith("--")}
    assert named - options() - OTHERS == set()


def test_there_are_commands_to_look_at() -> None:
    assert len(named("bigvit")) >= 15 and len(named("scripts/train.py")) >= 6


def test_programs_of_the_commands_are_there() -> None:
    for page, words in COMMANDS:
        for word in words:
            if word.startswith(("scripts/", "benchmarks/")):
                assert (ROOT / word).is_file(), (page, word)
            if word.startswith("benchmarks."):
                assert (ROOT / f"{word.replace('.', '/')}.py").is_file(), (page, word)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        other = page.parent / path if path else page
        assert other.is_file(), target
        if heading:
            heads = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            assert heading in [head.lower().replace(" ", "-") for head in heads], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_that_are_named_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:deit3|drloc|digits|photos|cait|resmlp|swin|t2t)_\w+)`", page.read_text()
    ):
        named = re.search("_in(1|21)k_", name)
        ours = not name.startswith(("cait_", "resmlp_")) or named  # the others are timm's names
        starts = [known for known in RECIPES if known.startswith(name)]
        assert not ours or name in RECIPES or (name.endswith("_") and starts), name


def options() -> set[str]:
    """Every option that bigvit, training, deepspeed's launcher and the project's scripts have."""
    found = {f"--{name}".replace("_", "-") for name in vars(Run())}
    found |= {f"--no-{name[2:]}" for name in found}
    for recipe in RECIPES.values():
        found |= {f"--{path}".replace("_", "-") for path, _ in leaves(recipe)}
    code = [*(ROOT / "bigvit/cli").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    import importlib.util

    deepspeed = importlib.util.find_spec("deepspeed")
    assert deepspeed is not None and deepspeed.submodule_search_locations is not None
    code.append(Path(deepspeed.submodule_search_locations[0], "launcher/runner.py"))
    for path in code:
        found |= set(re.findall(r"--[a-z][\w-]+", path.read_text()))
    return found


OTHERS = {  # of other programs: sbatch, docker, torchrun, accelerate, the authors' repositories
    "--nodes", "--gpus-per-node", "--time", "--signal", "--shm-size", "--check", "--small",
    "--use_abs", "--finetune", "--min-lr", "--sched", "--help",
    "--nnodes", "--nproc_per_node", "--standalone", "--max-restarts", "--multi_gpu",
    "--num_processes", "--cpu", "--use_fsdp", "--use_deepspeed", "--mixed_precision",
    "--dynamo_backend",
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_are_named_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    named = {option for code in re.findall(r"`([^`]+)`", text) for option in code.split()}
    named = {re.split("[=,]", option)[0] for option in named if re.match(r"--[a-z]", option)}
    assert named - options() - OTHERS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    theirs = {"main.py", "config.py", "torch.py", "json.py"}  # the authors', and a trap
    rooms = ("benchmarks", "bigvit", "recipes", "scripts", "tests")
    ours = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room).rglob("*.*")]
    for name in re.findall(r"`([a-z][\w/.]*\.(?:py|sh|sbatch))`", page.read_text()):
        assert name in theirs or any(path.endswith(f"/{name}") for path in ours), name


def test_scripts_are_run_by_their_name() -> None:
    for path in (ROOT / "scripts").iterdir():
        if path.is_file() and path.read_bytes().startswith(b"#!"):
            assert os.access(path, os.X_OK), path.name
    bin = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as with the environment active
    done = subprocess.run(
        [ROOT / "scripts/train.py", "digits_vit", "--help"],
        env={**os.environ, "PATH": bin, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--optim.lr" in done.stdout and "--micro-batch" in done.stdout


def test_demos_side_by_side_meet_at_ports_of_their_own() -> None:
    line = ". scripts/environment.sh; for i in 1 2 3; do master_port; done"
    env = {key: value for key, value in os.environ.items() if key != "MASTER_PORT"}
    env["BIGVIT_VENV"] = sys.prefix

    def ports(**more: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-euc", line], cwd=ROOT, env={**env, **more}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    chosen = ports()
    assert len(set(chosen)) > 1 and all(20000 <= int(port) < 30000 for port in chosen)
    assert ports(MASTER_PORT="23456") == ["23456"] * 3
    demos = sorted((ROOT / "scripts").glob("*demo.sh"))
    assert len(demos) == 3
    for path in demos:
        for started in re.findall(r"^\s*deepspeed .*$", path.read_text(), re.MULTILINE):
            assert '--master_port "$(master_port)"' in started, path.name
