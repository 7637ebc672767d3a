"""Named recipes: the `Recipe` values of the modules of `recipes/`, or of a user's own file."""

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

from bigvit.recipe.recipe import Recipe
from bigvit.recipe.store import recipe_from_json, to_json


def all_recipes() -> dict[str, Recipe]:
    """Every recipe that comes with bigvit, by name, in the order of the files."""
    recipes: dict[str, Recipe] = {}
    for own in _by_module().values():
        for name, recipe in own.items():
            assert name not in recipes, f"two recipes are named {name}"
            recipes[name] = recipe
    return recipes


def module_of(name: str) -> str:
    """The module that holds one of bigvit's recipes."""
    return next(module for module, recipes in _by_module().items() if name in recipes)


def by_paper() -> dict[str, list[str]]:
    """The names of bigvit's recipes by what each file of `recipes/` says that it is: its paper."""
    found: dict[str, list[str]] = {}
    for module, recipes in _by_module().items():
        said = " ".join((sys.modules[module].__doc__ or module).split())
        title = re.match(r"[^:.()]*(\([^)]*\))?", said)
        assert title is not None
        found.setdefault(title.group().strip(), []).extend(recipes)
    return found


def _by_module() -> dict[str, dict[str, Recipe]]:
    import bigvit.recipes

    names = sorted(info.name for info in pkgutil.iter_modules(bigvit.recipes.__path__))
    modules = [f"bigvit.recipes.{name}" for name in names]
    return {name: _recipes_of(importlib.import_module(name)) for name in modules}


def find_recipe(name: str) -> tuple[str, Recipe]:
    """A recipe by its name, or by the path of a user's file: FILE.py, or FILE.py:NAME. What the
    file imports from elsewhere is not its own, and taken where it is named.

    Raises:
        ValueError: there is no such recipe; the message gives the nearest names.
    """
    path, _, inner = name.partition(":")
    if path.endswith(".py"):
        every = _recipes_of(_module_at(Path(path)))
        recipes = _own(every)
        if not inner and len(recipes) == 1:
            inner = next(iter(recipes))
        if inner in every:
            return inner, _of_right_types(every[inner], path)
        where, wanted = path, inner
    else:
        recipes, where, wanted = all_recipes(), "bigvit", name
    if wanted in recipes:
        return wanted, recipes[wanted]
    if not recipes:
        raise ValueError(f"{path} holds no recipe: no module-level value is a bigvit.recipe.Recipe")
    if not wanted:
        raise ValueError(
            f"{path} holds {len(recipes)} recipes ({', '.join(recipes)}); say {path}:NAME"
        )
    near = difflib.get_close_matches(wanted, recipes, n=3, cutoff=0.5)
    hint = f"the nearest are {', '.join(near)}" if near else "`bigvit list` shows all"
    raise ValueError(f"no recipe is named {wanted!r} in {where}; {hint}")


def recipes_in(path: Path) -> dict[str, Recipe]:
    """The recipes of a user's file by name, as it has them.

    Raises:
        ValueError: it is not there, or cannot be read as Python.
    """
    return _own(_recipes_of(_module_at(path)))


def _recipes_of(module: ModuleType) -> dict[str, Recipe]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Recipe)}


def _own(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
    """Those that a file does not import: all, where it makes none of its own."""
    imported = {
        id(value)
        for module in list(sys.modules.values())
        for value in list(getattr(module, "__dict__", {}).values())
        if type(value) is Recipe  # isinstance asks what stands in for a module's values
    }
    return {n: recipe for n, recipe in recipes.items() if id(recipe) not in imported} or recipes


def _module_at(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no recipe file {path}")
    spec = importlib.util.spec_from_file_location(f"bigvit_user_recipes.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # its code may raise what it likes, KeyboardInterrupt too
        said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raise ValueError(f"{path} cannot be read as Python: {said}") from error
    return module


def _of_right_types(recipe: Recipe, path: str) -> Recipe:
    """The recipe of a user's file, each value of the type that its field has; lists are tuples."""
    try:
        return recipe_from_json(to_json(recipe))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
