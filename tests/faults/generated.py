"""Bad input, made from the fields there are: recipes, runs, shardings, manifests and commands.

A field that is added later gets its cases by itself; a kind of part that no recipe has is asked for
by name (`holders`). What a number may be is read from its field's type, what breaks it is not.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from bigvit.cli.arguments import Once
from bigvit.recipe import (
    SGD,
    AveragePooling,
    BranchScalar,
    CaiT,
    ClassToken,
    DRLoc,
    FixedLayerScale,
    Fixup,
    MixToken,
    Ramp,
    Recipe,
    Run,
    Shift,
    TFixup,
    TokenLabeling,
    UniformLayerScale,
)
from bigvit.recipe.bounds import Bound, bounds_of
from bigvit.recipe.find import all_recipes
from bigvit.recipes.digits import digits_vit

RESIDUALS = (UniformLayerScale(mean=1e-4), BranchScalar(init=0.0), Fixup(), TFixup())
RESIDUALS += (FixedLayerScale(),)
ADAM = digits_vit.optim
LONG = "x" * 5000
TEXTS = {"empty": "", "blank": "  ", "NUL": "a\0b", "a line's end": "a\nb", "no UTF-8": "a\udcff"}
TEXTS |= {"too long": LONG, "a name too long": f"a/{'y' * 300}/b", "U+2028": "a\u2028b"}


class Case(NamedTuple):
    """A command that must be refused."""

    name: str
    args: list[str]  # "train ..." or "bigvit ..."
    says: str = ""  # the field, option, key or file that the message names
    prepare: Callable[[], object] = lambda: None


def outside(bound: Bound) -> dict[str, str]:
    """Numbers that a bound does not allow, as a command line has them."""
    whole = type(bound.low) is int
    step: Callable[[float, float], float] = (
        (lambda n, to: n + (1 if to > n else -1)) if whole else math.nextafter
    )
    found = {
        "below": bound.low if bound.above else step(bound.low, -math.inf),
        "beyond": bound.high if bound.below else step(bound.high, math.inf),
        "huge": 10**30 if whole else 1e300,
        "negative and huge": -(10**30) if whole else -1e300,
    }
    texts = {name: repr(number) for name, number in found.items()}
    if whole:
        return texts | {"thousands of digits": "9" * 5000, "a fraction": "1.5"}
    return texts | {"nan": "nan", "inf": "inf", "-inf": "-inf", "past float64": "1e999"}


def inside(bound: Bound) -> tuple[float, float]:
    """The least and the largest number that a bound allows."""
    low = math.nextafter(bound.low, math.inf) if bound.above else bound.low
    return low, math.nextafter(bound.high, -math.inf) if bound.below else bound.high


def parts(kind: Any) -> Iterator[type]:
    """Every dataclass that a recipe may hold, by its types."""
    if is_dataclass(kind):
        yield kind  # pyright: ignore
        for hint in get_type_hints(kind).values():
            yield from parts(hint)
    for member in get_args(kind):
        if get_origin(kind) is not Literal:
            yield from parts(member)


def held(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dataclass in a recipe, with its path."""
    yield path, value
    for field in fields(value):
        item = getattr(value, field.name)
        below = f"{path}.{field.name}".lstrip(".")
        for i, part in enumerate(item) if isinstance(item, tuple) else [(None, item)]:
            if is_dataclass(part):
                yield from held(part, below if i is None else f"{below}.{i}")


def recipe_of_parts() -> dict[str, Recipe]:
    """Recipes by name, among them some of parts that none of ours has."""
    found = all_recipes()
    cait = next(r for r in found.values() if isinstance(r.model, CaiT))
    assert isinstance(cait.model, CaiT)
    drloc = next(r for r in found.values() if isinstance(r.objectives[-1], DRLoc))
    ramped = replace(drloc.objectives[-1], ramp=Ramp(warmup_epochs=1, last=0.5))  # pyright: ignore
    digits, lv = found["digits_vit"], found["lv_vit_s_in1k_224"]
    labels = (*lv.objectives, TokenLabeling(weight=1.0, smoothing=0.1, labels="image"))
    mixed = replace(lv.data, mix=MixToken(alpha=1.0, cell=16, group=8))
    return found | {
        "labelled": replace(
            lv, model=replace(lv.model, dense_head=True), data=mixed, objectives=labels
        ),
        "shifted": replace(digits, data=replace(digits.data, augment=Shift(pixels=1))),
        "momentum": replace(
            digits, optim=SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
        ),
        "ramped": replace(drloc, objectives=(drloc.objectives[0], ramped)),
        "average": replace(cait, model=replace(cait.model, pooling=AveragePooling())),
        "token": replace(cait, model=replace(cait.model, pooling=ClassToken(layer=1))),
        **{
            type(residual).__name__: replace(
                cait, model=replace(cait.model, residual=residual), starts_from="cait"
            )
            for residual in RESIDUALS
        },
    }


def holders() -> dict[type, tuple[str, Recipe, str]]:
    """For every part that there is, a recipe that has it and where; small ones first."""
    found: dict[type, tuple[str, Recipe, str]] = {}
    for name, recipe in recipe_of_parts().items():
        for path, part in held(recipe):
            found.setdefault(type(part), (name, recipe, path))
    missing = {kind.__name__ for kind in parts(Recipe)} - {kind.__name__ for kind in found}
    assert not missing, f"no recipe holds a {', '.join(missing)}: add one to recipe_of_parts"
    return found


def numbers_of(hint: Any) -> list[type]:
    """The types of number that a field may hold, in a tuple or not."""
    if hint in (int, float):
        return [hint]
    return [] if get_origin(hint) is Literal else [t for m in get_args(hint) for t in numbers_of(m)]


def count_of(value: Any) -> int:
    """How many values an option of a field takes."""
    return len(value) if isinstance(value, tuple) else 1


def bad_options(owner: Any, name: str, path: str, value: Any) -> Iterator[tuple[str, list[str]]]:
    """Options that set a field wrongly, with what is wrong."""
    option, hint = "--" + path.replace("_", "-"), get_type_hints(type(owner))[name]
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if numbers_of(hint):
        bound = bounds_of(type(owner))[name]
        several = any(get_origin(kind) is tuple for kind in kinds)
        n = len(value) if isinstance(value, tuple) else 2 if several else 1
        for what, text in outside(bound).items():
            if isinstance(owner, Run) or what in ("thousands of digits", "nan"):
                yield what, [f"{option}={text}"] if n == 1 else [option, *[text] * n]
        good = [option, *[repr(inside(bound)[1])] * n]
        yield "twice", [*good, *good]
        yield "twice, in other words", [*good, f"--{path}", *good[1:]]
        yield "a text", [option, *["many"] * n]
    elif hint is bool:
        head, dot, last = path.replace("_", "-").rpartition(".")
        yield "a value of a switch", [option, "maybe"]
        yield "both of a switch", [option, f"--{head}{dot}no-{last}"]
        return
    elif any(get_origin(kind) is Literal for kind in kinds):
        yield "none of them", [option, "nonsense"]
        yield "in capitals", [option, str(value).upper()]
    elif isinstance(owner, Run):
        for what, text in TEXTS.items():
            yield what, [option, text]
    yield "empty", [f"{option}="]
    if Ellipsis not in get_args(hint):  # of several there may be none
        yield "nothing", [option]


def file_cases(file: Path) -> Iterator[Case]:
    """Every field of every part of a recipe, wrong in a recipe file: in all ways in the first part
    that has a field of its name, and beyond its bound in the others."""
    seen: set[str] = set()
    for kind, (name, recipe, path) in holders().items():
        part = dict(held(recipe))[path]
        for field in fields(part):
            value, below = getattr(part, field.name), f"{path}.{field.name}".lstrip(".")
            for what, other in bad_values(part, field.name, value):
                if field.name in seen and what != "beyond":
                    continue
                wrong = put(recipe, path, replace(part, **{field.name: other}))
                label = f"{kind.__name__}.{field.name} in a file: {what}"

                def write(wrong: Recipe = wrong, name: str = name) -> None:
                    file.write_text(FILE.format(name, wrong), errors="surrogateescape")

                yield Case(label, ["bigvit", "show", str(file)], below, write)
            seen.add(field.name)


FILE = "from bigvit.recipe import *\nnan, inf = float('nan'), float('inf')\n{} = {!r}\n"


def bad_values(owner: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Values that a field of a recipe cannot have."""
    hint = get_type_hints(type(owner))[name]
    others = {"None": None, "a text": "3", "a list": [], "a tuple": (), "true": True, "AdamW": ADAM}
    others["nested"] = [[[3]]]
    for what, other in others.items():
        if not fits(other, hint):
            yield what, other
    for number in numbers_of(hint)[:1]:
        bound = bounds_of(type(owner))[name]
        for what, text in outside(bound).items():
            if what not in ("thousands of digits", "a fraction"):
                other = number(text)
                yield what, (other,) * len(value) if isinstance(value, tuple) else other
    if str in (hint, *get_args(hint)) and name != "source":
        yield from TEXTS.items()
    if get_origin(hint) is Literal:
        yield "none of them", "nonsense"


def fits(value: Any, hint: Any) -> bool:
    """Whether a field may hold a value, by its type alone."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    members = [m for m in get_args(hint) if get_origin(hint) is not tuple] or [hint]
    if any(get_origin(member) is tuple for member in members) and value in ([], ()):
        return True  # whether it may be empty is another matter
    return any(isinstance(member, type) and type(value) is member for member in members)


def put(recipe: Any, path: str, part: Any) -> Any:
    """A recipe with one of its parts replaced."""
    first, _, rest = path.partition(".")
    if not first:
        return part
    if isinstance(recipe, tuple):
        i = int(first)
        return (*recipe[:i], put(recipe[i], rest, part), *recipe[i + 1 :])
    return replace(recipe, **{first: put(getattr(recipe, first), rest, part)})


def option_cases(run: Path) -> Iterator[Case]:
    """Every field of one recipe, and every option of a run, set wrongly on the command line."""
    given: list[tuple[Any, str]] = [(part, path) for path, part in held(digits_vit)]
    for part, path in [*given, (Run(), "")]:
        for field in fields(part):
            value = getattr(part, field.name)
            items = value if isinstance(value, tuple) else (value,)
            hint = get_type_hints(type(part))[field.name]
            without = value is None and any(is_dataclass(member) for member in get_args(hint))
            if without or any(is_dataclass(item) for item in items):
                continue  # its own parts have their turn; one left out has no option
            target = [] if field.name == "run_dir" else ["--run-dir", str(run)]
            below = f"{path}.{field.name}".lstrip(".")
            for what, options in bad_options(part, field.name, below, value):
                label = f"{type(part).__name__}.{field.name}: {what}"
                says = "maybe" if "maybe" in options else below
                yield Case(label, ["train", "digits_vit", *target, *options], says)


def command_cases(parser: argparse.ArgumentParser, given: dict[str, str]) -> Iterator[Case]:
    """Every option of every light command, set wrongly; `given` has what positionals take."""
    [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        if name in ("launch", "train"):  # their words are others'
            continue
        needed = [a for a in command._actions if not a.option_strings and a.nargs not in ("?", "*")]
        words = [given[a.dest] for a in needed if a.nargs != argparse.REMAINDER]
        rest = [given[a.dest] for a in needed if a.nargs == argparse.REMAINDER]
        for action in command._actions:
            required = [
                w
                for a in command._actions
                if a.required and a.option_strings and a is not action
                for w in (a.option_strings[0], given[a.dest])
            ]
            for what, options in bad_arguments(action):
                args = ["bigvit", name, *required, *words, *options, *rest]
                yield Case(f"{name} {action.dest}: {what}", args, action.dest)
        for position in range(len(words)):
            for what, text in TEXTS.items():
                wrong = [*words[:position], text, *words[position + 1 :]]
                yield Case(f"{name}'s argument {position}: {what}", ["bigvit", name, *wrong, *rest])


def bad_arguments(action: argparse.Action) -> Iterator[tuple[str, list[str]]]:
    """Ways in which an option of a light command is wrong."""
    if not action.option_strings or not isinstance(action, Once):
        return
    option = action.option_strings[0]
    good = "1"
    if action.bound is not None:
        for what, text in outside(action.bound).items():
            yield what, [f"{option}={text}"]
        yield "a text", [option, "many"]
        good = repr(inside(action.bound)[0])
    else:
        for what, text in TEXTS.items():
            yield what, [option, text]
    yield "twice", [option, good, option, good]
    yield "twice, otherwise written", [option, good, f"{option}={good}"]
    yield "nothing", [option]


def broken(value: Any) -> Iterator[tuple[str, Any]]:
    """Values of another type than a JSON value has, or beyond what any number may be."""
    others: dict[str, Any] = {"null": None, "a text": "x", "a number": 3, "a fraction": 0.5}
    others |= {"a list": [1], "an object": {"a": 1}, "true": True}
    kinds = {str: "a text", int: "a number", float: "a fraction", list: "a list", dict: "an object"}
    kinds[bool] = "true"
    for what, other in others.items():
        if what != kinds.get(type(value)) and not (what == "null" and value is None):
            yield what, other
    if type(value) is int:
        yield from {"negative": -1, "huge": 10**30}.items()
    if type(value) is str:
        yield from {"empty": "", "a way out": "../../x", "NUL": "a\0b", "long": LONG}.items()


def json_changes(
    value: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """Places in JSON with what is wrong there, and the value put in its place; `Missing` for none.
    Of a list the first item stands for all."""
    if path:
        yield path, "missing", Missing
        for what, other in broken(value):
            yield path, what, other
    if isinstance(value, dict):
        yield (*path, "strange key"), "unknown", 1
        for key, item in value.items():
            yield from json_changes(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from json_changes(value[0], (*path, 0))


Missing = object()


def changed(value: Any, path: Sequence[Any], new: Any) -> Any:
    """JSON with one place changed."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if new is Missing:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


BROKEN_JSON = {
    "nothing": "",
    "half": '{"a": ',
    "no JSON": "batch: 64",
    "a key twice": '{"WORD": 1, "WORD": 2}',
    "NaN": '{"WORD": NaN}',
    "Infinity": '{"WORD": -Infinity}',
    "past float64": '{"WORD": 1e999}',
    "thousands of digits": '{"WORD": ' + "9" * 5000 + "}",
    "deep": '{"WORD": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "quite deep": '{"WORD": ' + "[" * 500 + "]" * 500 + "}",
    "a list": "[1]",
    "a number": "3",
    "null": "null",
    "no UTF-8": "\udcff\udcfe",
    "a BOM": "\ufeff{}",
    "more behind it": "{} {}",
}
