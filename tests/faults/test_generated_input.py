"""More than a thousand bad inputs, made from the fields there are (`generated.py`), each refused by
one message that names the field, with exit code 2, within a second, and with nothing written.

They run in this process, a few dozen also as a user starts them. Every third is run; all of them
with BIGVIT_ALL_INPUT set.
"""

import gc
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import generated
import pytest
from generated import BROKEN_JSON, Case, Missing, changed, holders, inside, numbers_of, outside, put
from small import ROOT, TINY

from bigvit import cli, train
from bigvit.checkpoint import manifest as manifests
from bigvit.engines.deepspeed.config import ALLOWED
from bigvit.recipe import Recipe, Run
from bigvit.recipe.bounds import Bound, bounds_of, check_numbers
from bigvit.recipe.check import check_recipe, check_run, check_training
from bigvit.recipe.find import all_recipes
from bigvit.recipe.parse import parse
from bigvit.recipe.store import ADDED
from bigvit.recipes.digits import digits_vit

MOST = 1.0  # seconds of this process, for a refusal
EVERY = 1 if "BIGVIT_ALL_INPUT" in os.environ else 3  # of the cases, some 2,000 in all, one is run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)  # where a default run folder would be made
    return tmp_path


@pytest.fixture
def run(folder: Path, stopped_run: Path) -> Path:
    """A copy of a stopped run in it."""
    return Path(shutil.copytree(stopped_run, folder / "run"))


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


def test_recipe_files(folder, capfd) -> None:
    assert refused(generated.file_cases(folder / "own.py"), folder, capfd) > 500


def test_options_of_a_training(folder, capfd) -> None:
    assert refused(generated.option_cases(folder / "new"), folder, capfd) > 300


def test_options_of_the_light_commands(folder, capfd) -> None:
    (folder / "own.txt").touch()
    names = ("recipe", "first", "second", "training")
    given: dict[str, str] = {name: "digits_vit" for name in names}
    given |= {"path": "run", "paths": "run", "images": "own.txt", "hostfile": "own.txt"}
    cases = generated.command_cases(cli._parser(), given)
    assert refused(cases, folder, capfd) > 300


def test_shardings(folder, capfd) -> None:
    path = folder / "own.json"
    words = ["train", "digits_vit", "--run-dir", str(folder / "new"), "--sharding", str(path)]

    def case(name: str, text: str, says: str) -> Case:
        return Case(f"a sharding with {name}", words, says, lambda: _write(path, text))

    def cases() -> Iterator[Case]:
        for where, kind in _sharding_keys(ALLOWED):
            for what, value in _not_of(kind):
                stage = {"zero_optimization": {"stage": 3}} if len(where) > 1 else {}
                text = json.dumps(_merged(stage, where, value))
                yield case(f"{'.'.join(where)} {what}", text, where[-1])
        filled = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping")
        for key in (*filled, "gradient_accumulation_steps", "bf16", "fp16", "data_types"):
            for value in (10**30, "x", {"enabled": 3}, True):
                yield case(f"{key} {value}", json.dumps({key: value}), key)
        for key in ("zero_quantized_weights", "zero_quantized_gradients"):
            for value in (True, 1, "x"):
                text = json.dumps({"zero_optimization": {"stage": 3, key: value}})
                yield case(f"{key} {value}", text, key)
        for name, text in BROKEN_JSON.items():
            yield case(name, text.replace("WORD", "steps_per_print"), "own.json")
        odd = {"zero_optimization": {"stage": 2, "allgather_bucket_size": 1001}}
        yield case("an odd bucket", json.dumps(odd), "allgather_bucket_size")
        for name, make in (("a folder", Path.mkdir), ("a FIFO", os.mkfifo)):
            yield Case(f"a sharding that is {name}", words, "own.json", lambda: _make(path, make))  # noqa: B023
        device = [*words[:-1], "/dev/zero"]
        yield Case("a sharding that has no end", device, "/dev/zero")

    assert refused(cases(), folder, capfd) > 250


def _write(path: Path, text: str) -> None:
    path.write_text(text, errors="surrogateescape")


def _make(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else than a file at a path."""
    _remove(path)
    make(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _sharding_keys(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Every key of a sharding by its path, with the kind of its value."""
    for key, kind in table.items():
        yield (*above, key), kind
        if isinstance(kind, dict):
            yield from _sharding_keys(kind, (*above, key))


def _not_of(kind: Any) -> Iterator[tuple[str, Any]]:
    """Values that are not of a kind that sharding.py knows."""
    values: dict[str, Any] = {"a text": "auto", "an object": {"x": 1}, "false": False}
    values |= {"one": 1}
    fine = {bool: ["false"], str: ["a text"], list: []}.get(
        kind if isinstance(kind, type) else None, []
    )
    if isinstance(kind, Bound):
        values |= {
            what: json.loads(text)
            for what, text in outside(kind).items()
            if what in ("below", "beyond", "huge", "a fraction")
        }
        fine = ["one"]
    yield from ((what, value) for what, value in values.items() if what not in fine)


def _merged(value: dict[str, Any], where: tuple[str, ...], new: Any) -> dict[str, Any]:
    """JSON with a value at a path."""
    first, *rest = where
    return value | {first: _merged(value.get(first, {}), tuple(rest), new) if rest else new}


def test_manifests(folder, run, capfd) -> None:
    """Every key of a real one, at every level, with the digest made right again."""
    checkpoint = run / "checkpoints" / "step_00000004"
    path = checkpoint / "manifest.json"
    whole = json.loads(path.read_text())
    words = ["bigvit", "evaluate", str(checkpoint), "--workers", "0"]

    def cases() -> Iterator[Case]:
        for place, what, value in generated.json_changes(whole["body"]):
            where = [*place]
            name = ".".join(map(str, where))
            if where[0] in ("data", "recipe") and len(where) > 1:
                continue  # compared with the recipe and the data where a run goes on
            if _is_older(name, what, value) or _is_another_name(name, what):
                continue
            body = changed(whole["body"], where, value)
            if name == "scalars.strange key":
                continue  # an engine's own; a later one may keep more
            says = [str(key) for key in where if type(key) is str][-1]
            if "exp_avg" in name and what == "missing":
                continue  # not read here
            if where[0] == "tensors" and (what == "missing" or name.endswith("shape.0")):
                says = ""  # what does not fit then is another thing
            yield Case(f"a manifest, {name} {what}", words, says, lambda body=body: write(body))
        for shape in ([10**12], [10**12, 10**12], [2] * 10_000, [-1, -1], [1.5], ["x"]):
            body = changed(whole["body"], ("tensors", 0, "shape"), shape)
            size = abs(math.prod(n for n in shape if isinstance(n, int)))
            for cut in (whole["body"]["tensors"][0]["cuts"][0], [0, 1, size], [0, size, 1]):
                body = changed(body, ("tensors", 0, "cuts"), [cut])
                name = f"a manifest, a shape of {str(shape)[:40]} cut as {str(cut)[:20]}"
                yield Case(name, words, "manifest", lambda body=body: write(body))
        for row in (0, -1):
            tensors = [*whole["body"]["tensors"], whole["body"]["tensors"][row]]
            body = whole["body"] | {"tensors": tensors}
            yield Case(f"a manifest, row {row} twice", words, "name", lambda body=body: write(body))
        twice = {**whole["body"], "files": whole["body"]["files"] * 2}
        yield Case("a manifest, a file twice", words, "files", lambda: write(twice))
        for where, what, value in generated.json_changes(whole):
            if where[0] != "body" or len(where) == 1:
                text = json.dumps(changed(whole, where, value))
                if what != "unknown":
                    name = f"a manifest, {where[0]} {what}"
                    yield Case(name, words, "manifest.json", lambda text=text: _write(path, text))
        for name, text in BROKEN_JSON.items():
            text = text.replace("WORD", "body")
            yield Case(f"a manifest: {name}", words, "json", lambda text=text: _write(path, text))

    def write(body: Any) -> None:
        _write(path, json.dumps({**whole, "digest": manifests._digest_of(body), "body": body}))

    assert refused(cases(), folder, capfd) > 150


def _is_older(name: str, what: str, value: Any) -> bool:
    """What a manifest of before may lack, and what may be null."""
    later = ["batch", *(f.name for f in fields(manifests.Manifest) if f.default is not MISSING)]
    return (
        what == "missing"
        and name in later
        or name == "data"
        and (value is None or what == "an object")
    )


def _is_another_name(name: str, what: str) -> bool:
    """Another digest or name is not wrong by itself: the files' content tells."""
    return (
        name == "files.0.digest"
        and what in ("a way out", "long", "empty", "NUL")
        or (name == "tensors.0.name" and what in ("a text", "a way out"))
    )


def test_a_runs_own_files(folder, run, capfd) -> None:
    kept = {path: path.read_bytes() for path in run.glob("*.json")}
    status = json.loads((run / "status.json").read_text())
    classes = json.loads((run / "classes.json").read_text())
    described = json.loads((run / "recipe.json").read_text())
    resume = ["train", "digits_vit", *TINY, "--run-dir", str(run), "--resume", "auto"]

    def case(name: str, file: str, words: list[str], text: str) -> Case:
        def prepare() -> None:
            for path, content in kept.items():
                path.write_bytes(content)
            _write(run / file, text)

        return Case(f"{file}: {name}", words, file, prepare)

    def cases() -> Iterator[Case]:
        files = {"status.json": ["bigvit", "status", str(run)], "recipe.json": resume}
        files["classes.json"] = ["bigvit", "export", str(run)]
        for file, words in files.items():
            for name, text in BROKEN_JSON.items():
                if file != "classes.json" or name != "a list of names":
                    yield case(name, file, words, text.replace("WORD", "recipe"))
        for key, value in status.items():
            for what, other in generated.broken(value):
                number = type(value) is int and type(other) is int
                fine = number or type(value) is str and type(other) is str
                if not fine and not (
                    other is None and key in ("exit_code", "time", "host", "process")
                ):
                    yield case(
                        f"{key} {what}",
                        "status.json",
                        files["status.json"],
                        json.dumps({**status, key: other}),
                    )
        for what, other in {
            "an object": {"0": "a"},
            "numbers": list(range(len(classes))),
            "one too many": [*classes, "more"],
            "one twice": [*classes[:-1], classes[0]],
            "a name nested": [*classes[:-1], ["x"]],
            "null": [*classes[:-1], None],
        }.items():
            yield case(what, "classes.json", files["classes.json"], json.dumps(other))
        for where, what, value in generated.json_changes(described["recipe"]):
            filled = value is Missing and any(where[-1] in fields for fields in ADDED.values())
            if what in ("missing", "unknown", "huge", "a list") and not filled:
                text = json.dumps(
                    {**described, "recipe": changed(described["recipe"], where, value)}
                )
                yield case(
                    f"{'.'.join(map(str, where))} {what}", "recipe.json", resume, text
                )._replace(says=str(where[-1]))
        for what, other in generated.broken(described["recipe"]):
            yield case(
                what, "recipe.json", resume, json.dumps({**described, "recipe": other})
            )._replace(says="recipe")

    assert refused(cases(), folder, capfd) > 100


def test_hostfiles(folder, capfd) -> None:
    path = folder / "hosts"
    words = ["bigvit", "hosts", "--hostfile", str(path), "digits_vit"]
    texts = {
        f"{n} slots": f"a slots={n}\n" for n in ("0", "-1", "x", "1e3", 10**30, "9" * 5000, "٣")
    }
    texts |= {
        "no slots": "a\n",
        "nothing": "",
        "comments": "# a\n",
        "twice": "a slots=1\na slots=1\n",
    }
    texts |= {"no UTF-8": "\udcff slots=1\n", "more": "a slots=1x\n"}
    cases = [
        Case(f"a hostfile with {name}", words, "--hostfile", lambda text=text: _write(path, text))
        for name, text in texts.items()
    ]
    for name, make in (("a folder", Path.mkdir), ("nothing at all", lambda path: None)):
        cases.append(
            Case(f"a hostfile: {name}", words, "--hostfile", lambda m=make: _make(path, m))
        )
    refused(cases, folder, capfd)


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
            "own.py",
            lambda text=text: _write(path, text),
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
                lambda make=make: _make(path, make),
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
            f"--init {name}", [*words, "--init", str(path)], "--init", lambda m=make: _make(path, m)
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
        given = {"path": "run", "paths": "run", "images": "own.txt", "recipe": "digits_vit"}
        given |= {"hostfile": "own.txt", "training": "digits_vit", "first": "a", "second": "b"}
        cases = [*generated.command_cases(cli._parser(), given)]
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
