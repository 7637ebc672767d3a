# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""Recipes to JSON and back, with the kind of every union's member written beside its values."""

import json
import logging
import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import xxhash

from bigvit.recipe.bounds import shown
from bigvit.recipe.recipe import Recipe

T = TypeVar("T")

log = logging.getLogger(__name__)
KIND = "kind"
ABSENT = "(absent)"


def _model_precision(recipe: dict[str, Any]) -> Any:
    return recipe.get("precision")


ADDED: dict[str, dict[str, Any]] = {
    "Recipe": {
        "ema": None,
        "resampling": "antialiased",
        "gradient_precision": _model_precision,
        "teacher": None,
        "ema_end": None,
    },
    "ViT": {"dense_head": False, "pooling": {KIND: "ClassToken", "layer": 0}},
    "Swin": {"pooling": {KIND: "AveragePooling"}},
    "ResNet": {
        "pooling": {KIND: "AveragePooling"},
        "head_hidden_dim": None,
        "frozen_statistics": False,
    },
    "CaiT": {"distillation": None, "dense_head": False},
    "Images": {
        "test_images": None,
        "decode": "exact",
        "held_out": 0.0,
        "views": [],
        "level": "own",
    },
    "Digits": {"views": 0, "level": "digit"},
    "AdamW": {"weight_decay_end": None},
    "TokenLabeling": {"labels": "image"},
    "BinaryCrossEntropy": {"class_weights": None},
    "CrossEntropy": {"class_weights": None},
}
"""Fields that came later, by dataclass, with what files written before them meant; or what says it
of the rest of their values."""


def to_json(value: Any) -> Any:
    """A dataclass as plain JSON values; its class name stands under "kind"."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        return {KIND: type(value).__name__, **values}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def digest(recipe: Recipe) -> str:
    """A short text that is the same where every value of two recipes is."""
    values = json.dumps(to_json(recipe), sort_keys=True)
    return xxhash.xxh3_64_hexdigest(values.encode())


def recipe_from_json(value: Any) -> Recipe:
    """The recipe that `to_json` wrote.

    Raises:
        ValueError: a field is missing, unknown or of another type; the message names it.
    """
    if older := left_out(value):
        log.warning("%s", older)
    return _build(Recipe, filled(value), "recipe")


def left_out(value: Any) -> str:
    """What to say of a recipe that an older bigvit wrote; nothing of one that is whole."""
    lines = differences(value, filled(value))
    meant = ", ".join(line for line in lines if f": {ABSENT} -> " in line)  # a nan differs, too
    return meant and f"an older bigvit wrote this recipe; it meant: {meant}"


def filled(value: Any) -> Any:
    """A recipe that `to_json` wrote, with the fields that came later as it meant them."""
    if isinstance(value, dict):
        added = ADDED.get(str(value.get(KIND)), {})
        meant = {k: v(value) if callable(v) and k not in value else v for k, v in added.items()}
        return meant | {k: filled(v) for k, v in value.items()}
    return [filled(item) for item in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two values made by `to_json` differ, a line each: `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), below)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{path}.{i}")
    elif old != new:
        yield f"{path}: {old} -> {new}"


def is_named(difference: str, fields: Iterable[str]) -> bool:
    """Whether a line of `differences` is about one of the fields, or what lies below one."""
    path = difference.partition(":")[0]
    return any(path == field or path.startswith(f"{field}.") for field in fields)


def build(kind: type[T], value: Any, path: str) -> T:
    """A dataclass of plain values, lists of dataclasses included, from JSON that says no kinds.

    Raises:
        ValueError: a key is missing, unknown or of another type; the message names it.
    """
    return _build_dataclass(kind, value, path, kinds=False)


def _build(kind: Any, value: Any, path: str, kinds: bool = True) -> Any:
    origin = get_origin(kind)
    if kind is Any or origin is dict and isinstance(value, dict):
        return value
    if origin in (Union, types.UnionType):
        return _build(_member(get_args(kind), value, path), value, path, kinds)
    if origin is tuple:
        items = get_args(kind)
        if not isinstance(value, list):
            raise ValueError(f"{path}: {_shown(value)} is not a list")
        if items[-1] is Ellipsis:
            items = (items[0],) * len(value)
        if len(items) != len(value):
            raise ValueError(f"{path}: {_shown(value)} must have {len(items)} values")
        pairs = zip(items, value, strict=True)
        return tuple(_build(item, v, f"{path}.{i}", kinds) for i, (item, v) in enumerate(pairs))
    if origin is Literal:
        if value not in get_args(kind):
            allowed = ", ".join(map(repr, get_args(kind)))
            raise ValueError(f"{path}: {_shown(value)} is none of {allowed}")
        return value
    if is_dataclass(kind):
        return _build_dataclass(kind, value, path, kinds)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path}: {_shown(value)} is too large a number") from None
    if kind is type(None) and value is None or type(value) is kind:
        return value
    raise ValueError(f"{path}: {_shown(value)} is not of type {kind.__name__}")


@cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, Field[Any]]]:
    """The type of each field, and the field."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], field) for field in fields(kind)}


def _build_dataclass(kind: Any, value: Any, path: str, kinds: bool) -> Any:
    said = KIND if kinds else None
    if not isinstance(value, dict) or kinds and value.get(KIND) != kind.__name__:
        raise ValueError(f"{path}: {_shown(value)} is not a {kind.__name__}")
    known = _fields_of(kind)
    needed = {name for name, (_, field) in known.items() if kinds or field.default is MISSING}
    unknown, missing = set(value) - {*known, said}, needed - set(value)
    if unknown or missing:
        raise ValueError(
            f"{path}: a {kind.__name__} with unknown fields {sorted(unknown)} and missing fields "
            f"{sorted(missing)}; it was written by another version of bigvit"
        )
    given = [name for name in known if name in value]
    return kind(**{n: _build(known[n][0], value[n], f"{path}.{n}", kinds) for n in given})


def _member(members: tuple[Any, ...], value: Any, path: str) -> Any:
    """The member of a union that a value belongs to."""
    if value is None and type(None) in members:
        return type(None)
    rest = [member for member in members if member is not type(None)]
    if len(rest) == 1:
        return rest[0]
    for member in rest:
        if isinstance(value, dict) and value.get(KIND) == member.__name__:
            return member
        if type(value) is (list if get_origin(member) is tuple else member):
            return member
        if get_origin(member) is Literal and type(value) is str:
            return member
    names = ", ".join(getattr(member, "__name__", str(member)) for member in rest)
    raise ValueError(f"{path}: {_shown(value)} is none of {names}")


def _shown(value: Any) -> str:
    try:
        return shown(repr(value))
    except (ValueError, RecursionError):  # of too many digits, or of itself
        return f"this {type(value).__name__}"
