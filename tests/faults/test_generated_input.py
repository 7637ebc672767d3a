"""More than a thousand bad inputs, made from the fields there are (`generated.py`), each refused by
one message that names the field, with exit code 2, within a second, and with nothing written.

They run in this process, a few dozen also as a user starts them. Every seventh is run; all of them
with BIGVIT_ALL_INPUT set.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import generated
import pytest
from generated import Case, holders, inside, numbers_of, put
from refusals import faults, listing, make_there, refused, write_text
from small import ROOT, TINY

from bigvit import cli
from bigvit.recipe import Recipe, Run
from bigvit.recipe.bounds import bounds_of, check_numbers
from bigvit.recipe.check import check_recipe, check_run, check_training
from bigvit.recipe.find import all_recipes
from bigvit.recipe.parse import parse
from bigvit.recipes.digits import digits_vit


def test_recipe_files(folder, capfd) -> None:
    assert refused(generated.file_cases(folder / "own.py"), folder, capfd) > 500


def test_options_of_a_training(folder, capfd) -> None:
    assert refused(generated.option_cases(folder / "new"), folder, capfd) > 300


def test_options_of_the_light_commands(folder, capfd) -> None:
    (folder / "own.txt").touch()
    cases = generated.command_cases(cli._parser(), GIVEN)
    assert refused(cases, folder, capfd) > 300


GIVEN = {
    **dict.fromkeys(("recipe", "first", "second", "training", "base"), "digits_vit"),
    **dict.fromkeys(("path", "paths", "model", "teacher"), "run"),
    **dict.fromkeys(("images", "hostfile"), "own.txt"),
    **{"ranks": "1", "models": "timm:none", "out": "maps", "data_root": "none", "folder": "."},
    "shell": "bash",
}
"""What commands are given for their arguments, and for the options that they need."""

OWN = (
    "from dataclasses import replace\nfrom bigvit.recipe import *\n"
    "from bigvit.recipes.digits import digits_vit\n"
)
FILES: dict[str, str] = {
    **{
        error: f"raise {error}('for a reason')\n"
        for error in ("KeyboardInterrupt", "MemoryError", "RecursionError", "GeneratorExit")
        + ("Exception", "OSError", "BaseException", "StopIteration", "SystemExit")
    },
    "sys.exit(0)": "import sys\nsys.exit(0)\n",
    "no end of itself": "def f():\n    return f()\nf()\n",
    "a syntax error": "def broken(:\n",
    "parentheses": "(" * 5000,
    "a NUL": "x = 1\0\n",
    "no UTF-8": "x = '\udcff'\n",
    "nothing": "",
    "no recipe": "x = 1\n",
    "a module that there is not": "import nothing_like_this\n",
    "a fault of many lines": "raise ValueError('one\\ntwo\\nthree')\n",
    "a class of model": OWN + "mine = replace(digits_vit, model=ViT)\n",
    "a dict of model": OWN + "mine = replace(digits_vit, model={1: 2})\n",
    "an optimizer of model": OWN + "mine = replace(digits_vit, model=digits_vit.optim)\n",
    "a recipe in itself": OWN + "mine = replace(digits_vit, model=digits_vit)\n",
    "a part of another kind": OWN
    + "mine = replace(digits_vit, objectives=(StochasticDepth(rate=0.1, group=1),))\n",
    "a set": OWN + "mine = replace(digits_vit, objectives={1})\n",
    "a list in itself": OWN + "x = []\nx.append(x)\nmine = replace(digits_vit, objectives=x)\n",
    "a too large number": OWN + "mine = replace(digits_vit, clip_norm=10**400)\n",
    "a number of many digits": OWN + "mine = replace(digits_vit, seed=10**5000)\n",
    "a function": OWN + "mine = replace(digits_vit, seed=len)\n",
    "two recipes": OWN + "one = digits_vit\ntwo = digits_vit\n",
}


def test_recipe_files_that_are_none(folder, capfd) -> None:
    path = folder / "own.py"
    cases = [
        Case(
            f"a recipe file of {name}, {words[0]}",
            [*words, str(path)],
            "seed" if name == "a number of many digits" else "own.py",
            lambda text=text: write_text(path, text),
        )
        for name, text in FILES.items()
        for words in (["train"], ["bigvit", "show"])
    ]
    for name, make in (("a folder", Path.mkdir), ("a FIFO", os.mkfifo)):
        cases.append(
            Case(
                f"a recipe file: {name}",
                ["train", str(path)],
                "own.py",
                lambda make=make: make_there(path, make),
            )
        )
    refused(cases, folder, capfd)


def test_command_lines(folder, capfd) -> None:
    new = ["train", "digits_vit", "--run-dir", str(folder / "new")]
    lines = {
        "nothing of a name": (["train", ""], ""),
        "an option first": (["train", "--seed", "1"], "recipe"),
        "a NUL for a name": (["train", "a\0b"], "command line"),
        "a very long name": (["train", LONG_NAME], "command line"),
        "a long name": (["train", "q" * 200], "qqq"),
        "no such part": (["train", "digits_vit:x"], "digits_vit:x"),
        "a stray word": ([*new, "more"], "more"),
        "three dashes": ([*new, "---seed", "1"], "seed"),
        "an unknown option": ([*new, "--optim.lrr", "1"], "--optim.lrr"),
        "a shortened option": ([*new, "--see", "1"], "--see"),
        "an option's long name": ([*new, f"--{'o' * 5000}", "1"], "ooo"),
        "two options twice": ([*new, "--seed", "1", "--keep", "2", "--seed=1"], "--seed"),
        "an option twice, with _": ([*new, "--batch-size", "8", "--batch_size", "8"], "batch_size"),
        "a list twice": ([*new, "--allow-change", "seed", "--allow-change", "ema"], "allow-change"),
        "a list of nothing known": ([*new, "--allow-change", "a.b.c"], "--allow-change"),
        "classes without a head": (
            ["train", "deit3_b16_in1k_224", "--data.classes", "7"],
            "--model.num-classes 7",
        ),
        "a head without classes": ([*new, "--model.num-classes", "12"], "--model.num-classes 10"),
        "attention where there is none": (
            ["train", "resnet50_infograph_300e", "--trainable", "attention"],
            "--trainable all",
        ),
        "too many parameters": (
            [*new, "--model.embed-dim", "1000000", "--model.depth", "10000"],
            "model.embed_dim",
        ),
        "more updates than can be counted": (
            [*new, "--schedule.epochs", "99999999"],
            "schedule.epochs",
        ),
        "many stages": (
            ["train", "swin_t_cifar100", "--model.depths", *["1"] * 17],
            "model.depths",
        ),
    }
    cases = [Case(name, args, says) for name, (args, says) in lines.items()]
    refused(cases, folder, capfd)


LONG_NAME = "q" * 5000


def test_what_init_names(folder, capfd) -> None:
    """None is begun with, whatever its name says: a FIFO would wait for ever."""
    path = folder / "text.pth"
    words = ["train", "digits_vit", *TINY, "--run-dir", str(folder / "new"), "--starts-from", "x"]
    cases = [
        Case(
            f"--init {name}",
            [*words, "--init", str(path)],
            "--init",
            lambda m=make: make_there(path, m),
        )
        for name, make in (("of nothing", lambda path: None), ("of a FIFO", os.mkfifo))
    ]
    cases.append(Case("--init of a device", [*words, "--init", "/dev/zero"], "--init"))
    refused(cases, folder, capfd)


@pytest.mark.parametrize("program", ["scripts/train.py", "bigvit.cli"])
def test_as_a_user_starts_them(program: str, folder: Path) -> None:
    """The same through an interpreter of their own: exit code, time and that nothing is written."""
    cases = [case for case in generated.option_cases(folder / "new") if "huge" in case.name][::8]
    words = [sys.executable, str(ROOT / program)]
    if program == "bigvit.cli":
        cases = [*generated.command_cases(cli._parser(), GIVEN)]
        cases = [case for case in cases if "huge" in case.name][::5]
        words = [sys.executable, "-m", program]
    before = listing(folder)
    assert cases
    for case in cases:
        began = time.monotonic()
        done = subprocess.run([*words, *case.args[1:]], capture_output=True, text=True, env=_env())
        wrong = [*faults(done.returncode, case, done.stdout, done.stderr, 0.0)]
        assert not wrong, (case.name, wrong, done.stderr)
        assert time.monotonic() - began < 10, f"{case.name}: a machine that is busy takes less"
    assert listing(folder) == before


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_every_number_has_bounds_and_may_be_as_large() -> None:
    """Each field by itself: the ends of its bound are allowed, and what lies beyond is not."""
    owners: list[tuple[Any, Callable[[Any], None]]] = [(Run(), check_run)]
    owners += [(dict(generated.held(r))[path], check_numbers) for _, r, path in holders().values()]
    for owner, check in owners:
        for field in fields(owner):
            kinds = numbers_of(generated.get_type_hints(type(owner))[field.name])
            if not kinds:
                continue
            bound = bounds_of(type(owner))[field.name]
            value = getattr(owner, field.name)
            for end in inside(bound):
                number = kinds[0](end)
                several = isinstance(value, tuple)
                check(replace(owner, **{field.name: (number,) * len(value) if several else number}))


def test_what_others_train_is_allowed() -> None:
    """Bounds are for slips of the keyboard: the largest and oddest that was published passes."""
    own = all_recipes()

    def vit(**changed: Any) -> Recipe:
        recipe = own["deit3_h14_in1k_224"]
        for path, value in changed.items():
            part, name = path.rsplit("__", 1) if "__" in path else ("", path)
            part = part.replace("__", ".")
            inner = dict(generated.held(recipe))[part]
            recipe = put(recipe, part, replace(inner, **{name: value}))
        check_recipe(recipe)
        check_training(recipe)
        return recipe

    vit(model__embed_dim=6144, model__depth=48, model__num_heads=48)  # ViT-22B
    vit(model__embed_dim=15_360, model__depth=112, model__num_heads=120, model__mlp_ratio=8.0)
    vit(data__train_images=5_850_000_000, batch_size=65_536, schedule__epochs=8)  # LAION-5B
    vit(data__classes=10_000_000, model__num_classes=10_000_000)
    vit(data__image_size=4088, model__drop_path=digits_vit.model.drop_path)
    vit(optim__lr=32.0, optim__weight_decay=1.0, optim__eps=1e-30, clip_norm=1e9)
    vit(data__test_crop_ratio=0.1, data__repeats=16)
    parse(["digits_vit", "--schedule.epochs", "100000", "--workers", "256", "--keep", "100000"])
    parse(["digits_vit", "--run-dir", "ordner/mit Leerzeichen/日本語/é", "--max-minutes", "20160"])
