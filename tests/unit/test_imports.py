"""Imports point one way, as the architecture says; read from the source, nothing is run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in ("bigvit", "recipes", "ds_configs", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if not path.relative_to(ROOT).as_posix().startswith(("bigvit/recipes", "bigvit/ds_configs"))
)


def name_of(path: Path) -> str:
    """A file as the tests speak of it: models/vit.py, recipes/digits.py, ..."""
    name = path.relative_to(ROOT).as_posix()
    return name.removeprefix("bigvit/")


SOURCES = {name_of(path): path.read_text() for path in FILES}


def is_module(name: str) -> bool:
    place = ROOT / Path(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def imports_of(text: str) -> Iterator[str]:
    """Every module that a source imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are written in full"
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                ours = node.module.split(".")[0] == "bigvit"
                yield below if ours and is_module(below) else node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield ast.unparse(node.args[0]).lstrip("f").strip("'").split(".{")[0]


IMPORTS = {name: sorted(set(imports_of(text))) for name, text in SOURCES.items()}


def within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def below(*folders: str) -> list[str]:
    names = [name for name in IMPORTS if name.startswith(tuple(f"{f}/" for f in folders))]
    assert names, f"{folders} hold nothing"
    return names


def of_ours(name: str) -> list[str]:
    return [module for module in IMPORTS[name] if within(module, "bigvit")]


def test_the_source_is_read() -> None:
    assert len(IMPORTS) > 40
    assert "bigvit.layers.attention" in IMPORTS["models/vit.py"]
    assert "bigvit.random" in IMPORTS["data/augment/__init__.py"]
    assert "bigvit.recipes" in IMPORTS["recipe/find.py"]
    assert "deepspeed" in IMPORTS["engines/ranks.py"]


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("layers", ("layers", "recipe", "random")),
        ("models", ("layers", "models", "recipe", "random")),
        ("objectives", ("objectives", "models.output", "layers", "recipe", "random")),
        ("optim", ("optim", "recipe", "task")),
        ("data", ("data", "recipe", "random", "stopping", "task")),
        ("engines", ("engines", "optim", "recipe", "task", "ds_configs")),
        ("checkpoint", ("checkpoint", "engines.engine", "engines.ranks", "recipe", "task")),
    ],
)
def test_a_folder_imports_only_what_lies_below_it(folder: str, allowed: tuple[str, ...]) -> None:
    packages = [f"bigvit.{name}" for name in allowed]
    for name in below(folder):
        assert [module for module in of_ours(name) if not within(module, *packages)] == [], name


def test_recipes_import_nothing_but_bigvit_recipe() -> None:
    for name in below("recipes"):
        assert set(IMPORTS[name]) <= {"bigvit.recipe", "dataclasses"}, name


def test_bigvit_recipe_imports_nothing_of_bigvit_but_itself() -> None:
    for name in below("recipe"):
        allowed = ["bigvit.recipe", *(["bigvit.recipes"] if name == "recipe/find.py" else [])]
        assert [module for module in of_ours(name) if not within(module, *allowed)] == [], name


def test_what_is_checked_before_torch_does_not_import_it() -> None:
    light = {
        "cli/__init__.py",
        "cli/models.py",
        "cli/pictures.py",
        "hosts.py",
        "random.py",
        "__init__.py",
        "checkpoint/files.py",
        "checkpoint/folder.py",
        "checkpoint/manifest.py",
        "data/check.py",
        "engines/sharding.py",
        *below("recipe", "recipes", "ds_configs"),
    }
    for name in light:
        heavy = ("torch", "torchvision", "deepspeed", "timm", "safetensors")
        assert [module for module in IMPORTS[name] if within(module, *heavy)] == [], name


def test_task_imports_models_objectives_and_recipes_only() -> None:
    wanted = {"bigvit.layers.mix", "bigvit.models", "bigvit.objectives", "bigvit.recipe"}
    assert set(of_ours("task.py")) == wanted


def test_engines_never_import_models() -> None:
    for name in below("engines"):
        assert [m for m in IMPORTS[name] if within(m, "bigvit.models", "bigvit.layers")] == [], name


def test_the_loop_knows_no_model_loss_or_engine_by_name() -> None:
    named = ("bigvit.models", "bigvit.layers", "bigvit.objectives", "bigvit.optim")
    engines = ("bigvit.engines.single", "bigvit.engines.deepspeed", "deepspeed")
    for name in ("loop.py", "train.py", "progress.py", "evaluate.py"):
        assert [m for m in IMPORTS[name] if within(m, *named, *engines)] == [], name


def test_deepspeed_is_imported_by_its_engine_and_by_joining_ranks_only() -> None:
    found = {
        name for name, modules in IMPORTS.items() if any(within(m, "deepspeed") for m in modules)
    }
    assert found == {"engines/deepspeed.py", "engines/deepspeed_inside.py", "engines/ranks.py"}


def test_only_scripts_start_training() -> None:
    starters = {
        n for n, modules in IMPORTS.items() if any(within(m, "bigvit.train") for m in modules)
    }
    assert starters == {"scripts/train.py"}


def test_nothing_is_pickled_and_one_file_unpickles_without_running_anything() -> None:
    for name, modules in IMPORTS.items():
        if name == "checkpoint/pickled.py":
            continue
        picklers = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve")
        assert [m for m in modules if within(m, *picklers)] == [], name


def loads(text: str) -> list[str]:
    """Calls of torch.load and torch.save, and what unpickles by itself."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    forbidden = ("torch.load", "torch.save", "torch.serialization.load", "pickle.load")
    return [ast.unparse(call) for call in calls if ast.unparse(call.func) in forbidden]


def test_files_of_torch_are_read_by_our_own_unpickler_alone() -> None:
    assert loads("torch.load(path)\ntorch.load(path, weights_only=True)\n") != []
    for name, text in SOURCES.items():
        assert loads(text) == [], name
