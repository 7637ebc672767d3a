"""`bigvit new`: a recipe file for one's own data, which starts from one of bigvit's recipes."""

import argparse
import json
import keyword
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bigvit.cli import arguments
from bigvit.recipe.bounds import ShareBelow1

if TYPE_CHECKING:
    from bigvit.data.look import Look
    from bigvit.recipe import Images, Recipe

UPDATES = 10  # an epoch, at least, if the batch can be made so small
HELD_OUT = 0.1


class Value(NamedTuple):
    """A field of the new recipe, as it stands in the file."""

    name: str
    value: str
    why: str


def add(add: arguments.Add) -> None:
    """Add the command."""
    command = add("new", _new, "look at your data, and write a recipe file for them")
    command.add_argument("base", metavar="BASE", help="the recipe that it starts from, by its name")
    text = "where the data set is"
    command.add_argument("--data-root", type=Path, required=True, help=text)
    text = "file to write (default: the data folder's name, .py)"
    command.add_argument("--out", type=Path, help=text)
    text = "share of the images to test on, where there is no testing split (default 0.1)"
    command.add_argument("--held-out", number=ShareBelow1[float], default=HELD_OUT, help=text)


def _new(options: argparse.Namespace) -> None:
    from bigvit.recipe import Images
    from bigvit.recipe.find import find_recipe

    base, recipe = find_recipe(options.base)
    if options.base.partition(":")[0].endswith(".py") or not isinstance(recipe.data, Images):
        kind = "a file's" if isinstance(recipe.data, Images) else "of the bundled digits"
        raise ValueError(f"BASE {options.base}: it is {kind}; name a recipe of `bigvit list`")
    root: Path = options.data_root
    name = _named(root)
    out: Path = options.out or Path(f"{name}.py")
    if out.suffix != ".py":
        raise ValueError(f"--out {out}: a recipe file ends in .py")
    if out.exists():
        raise ValueError(f"--out {out}: it is there already; choose another name")
    arguments.refuse_unwritable(out)
    from bigvit.data.look import look

    seen = look(recipe.data, root, options.held_out)
    print(_said(seen))
    smallest = math.lcm(*recipe.groups.values())
    if seen.train < smallest:
        raise ValueError(
            f"--data-root {root}: {seen.train} images to train on are fewer than the smallest "
            f"batch of {base}, {smallest}; give more, or another BASE"
        )
    made, values = _fitted(recipe, recipe.data, seen, name, base)
    from bigvit.data.check import check_data
    from bigvit.recipe import Run
    from bigvit.recipe.check import check_recipe, check_training

    check_recipe(made)
    check_training(made)
    check_data(made.data, Run(data_root=root))
    text = _file(base, name, values)
    out.write_text(text)
    assert find_recipe(str(out))[1] == made, "what is written is what was checked"
    print(f"\n{text}\n{out} is written. What next:\n")
    init = "" if recipe.starts_from is None else f" --init WEIGHTS_OF_{recipe.starts_from}"
    more = " --teacher WEIGHTS" * (recipe.teacher is not None) + " --label-maps M" * recipe.maps
    file, data = shlex.quote(str(out)), shlex.quote(str(root))
    print(f"  bigvit samples {file} --data-root {data}")
    print(f"  bigvit plan {file}")
    print(f"  bigvit train {file} --data-root {data}{init}{more}")


def _named(root: Path) -> str:
    """A name for Python and for run folders, after the data folder's."""
    words = re.sub(r"\W+", "_", root.name if root.name else root.absolute().name).strip("_").lower()
    taken = keyword.iskeyword(words) or words in ("base", "replace")
    return words if words.isidentifier() and not taken else f"data_{words}".rstrip("_")


def _said(seen: "Look") -> str:
    each = f"{seen.fewest}" if seen.fewest == seen.most else f"{seen.fewest} to {seen.most}"
    of = "with a testing split" if not seen.held_out else "without a testing split"
    lines = [
        f"{seen.classes:,} classes, {seen.train:,} images to train on ({each} a class), "
        f"{seen.test:,} to test on; {of}",
        f"of {seen.sampled:,} images: shorter side {seen.side} pixels (median), "
        f"mean {seen.mean}, deviation {seen.std}",
    ]
    if seen.without:
        names = ", ".join(seen.without[:5])
        lines.append(f"{len(seen.without)} classes have no image to train on: {names}")
    if seen.bad:
        share = len(seen.bad) / seen.sampled
        names = ", ".join(seen.bad[:5])
        lines.append(
            f"{len(seen.bad)} of these cannot be read: {names}. Mend or remove what cannot; a "
            f"training goes on with as many by --bad-images {math.ceil(200 * share) / 100:g}"
        )
    return "\n".join(lines)


def _fitted(
    recipe: "Recipe", data: "Images", seen: "Look", name: str, base: str
) -> tuple["Recipe", dict[str, list[Value]]]:
    """The recipe with what fits the data, and its values as they are written, by part."""
    from bigvit.recipe import Lamb

    values = {"": list[Value](), "model": list[Value](), "data": list[Value]()}

    def say(part: str, field: str, value: object, why: str) -> None:
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        values[part].append(Value(field, shown, why))

    source = f"{base} on {name}"
    say("", "source", source, "where the values come from")
    say("model", "num_classes", seen.classes, "counted")
    changed: dict[str, object] = {
        "dataset": name,
        "train_images": seen.train,
        "test_images": seen.test,
        "classes": seen.classes,
    }
    why = {"dataset": "its name", "train_images": "counted", "test_images": "counted"}
    why["classes"] = "counted"
    if seen.held_out:
        changed["held_out"] = seen.held_out
        why["held_out"] = "share that is tested on, by a hash of the names"
    if recipe.starts_from is None:
        changed["mean"], changed["std"] = seen.mean, seen.std
        why["mean"] = why["std"] = f"of {seen.sampled} images"
    size = _size(recipe, data, seen)
    if size != data.image_size:
        changed["image_size"] = size
        why["image_size"] = f"{data.image_size} in {base}; the images have {seen.side}"
    batch, repeats = _batch(recipe, data, seen)
    if repeats != data.repeats:
        changed["repeats"] = repeats
        why["repeats"] = f"{data.repeats} in {base}; so small a batch would mix copies"
    for field, value in changed.items():
        say("data", field, value, why[field])
    made = replace(
        recipe,
        source=source,
        model=replace(recipe.model, num_classes=seen.classes),
        data=replace(data, **changed),  # pyright: ignore[reportArgumentType]
    )
    if (teacher := recipe.teacher) is not None:
        model = replace(teacher.model, num_classes=seen.classes)
        made = replace(made, teacher=replace(teacher, model=model))
        text = f"replace(base.teacher.model, num_classes={seen.classes})"
        text = f"replace(base.teacher, model={text})"
        values[""].append(Value("teacher", text, "of the same classes"))
    if batch != recipe.batch_size:
        share, rule = batch / recipe.batch_size, "as the batch"
        if isinstance(recipe.optim, Lamb):  # arXiv:1904.00962, section 4
            share, rule = math.sqrt(share), "as the batch's square root"
        rate = float(f"{recipe.optim.lr * share:.3g}")
        made = replace(made, batch_size=batch, optim=replace(recipe.optim, lr=rate))
        few = f"{seen.train // batch} updates an epoch"
        say("", "batch_size", batch, f"{recipe.batch_size} in {base}; {few}")
        text = f"replace(base.optim, lr={rate!r})"
        values[""].append(Value("optim", text, f"{recipe.optim.lr} in {base}, {rule}"))
    return made, values


def _size(recipe: "Recipe", data: "Images", seen: "Look") -> "int | tuple[int, int]":
    """The base's resolution, or the largest below it that the images have and the model takes."""
    if not isinstance(data.image_size, int) or seen.side >= data.image_size:
        return data.image_size
    model = replace(recipe.model, num_classes=seen.classes)
    for size in range(seen.side, min(31, seen.side) - 1, -1):
        try:
            model.check(size, recipe.starts_from)
        except ValueError:
            continue
        return size
    return data.image_size


def _batch(recipe: "Recipe", data: "Images", seen: "Look") -> tuple[int, int]:
    """Batch and repeats: the base's, or as many images as leave some updates an epoch."""
    group = math.lcm(*recipe.groups.values())
    most = max(seen.train // UPDATES, group)
    batch = recipe.batch_size
    if batch > most:
        batch = group * 2 ** int(math.log2(most // group))
    mixed = data.mixing_group or 1
    return batch, data.repeats if batch // data.repeats >= mixed else 1


def _file(base: str, name: str, values: dict[str, list[Value]]) -> str:
    """The file's text."""
    from bigvit.recipe.find import module_of

    lines = [
        f'"""{base} for {name}: what differs, and why. Written by `bigvit new`; all else is as',
        'there, and any other field can be added: `bigvit show` lists them."""',
        "",
        "from dataclasses import replace",
        "",
        f"from {module_of(base)} import {base} as base",
        "",
        f"{name} = replace(",
        "    base,",
    ]
    own = values[""]
    lines += [f"    {v.name}={v.value},  # {v.why}" for v in own if v.name == "source"]
    for part in ("model", "data"):
        lines += [f"    {part}=replace(", f"        base.{part},"]
        lines += [f"        {v.name}={v.value},  # {v.why}" for v in values[part]]
        lines.append("    ),")
    lines += [f"    {v.name}={v.value},  # {v.why}" for v in own if v.name != "source"]
    return "\n".join([*lines, ")", ""])
