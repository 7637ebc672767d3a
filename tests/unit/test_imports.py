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
    if not path.relative_to(ROOT)
    .as_posix()
    .startswith(("bigvit/recipes", "bigvit/ds_configs", "bigvit/scripts"))
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
    assert "bigvit.keyed_random" in IMPORTS["data/augment/__init__.py"]
    assert "bigvit.recipes" in IMPORTS["recipe/find.py"]
    assert "deepspeed" in IMPORTS["engines/deepspeed/engine.py"]


ROOMS = (
    *("ds_configs", "recipe", "keyed_random", "ranks", "layers", "models", "data", "objectives"),
    *("task", "optim", "engines", "plan", "checkpoint", "evaluate", "dense", "export", "labelling"),
    *("visualize", "neighbours", "training", "train", "report", "rehearse", "hosts", "transfer"),
    "cli",
)
"""From below upwards: a room imports what stands before it."""

NOT_BELOW = {
    "ranks": ("recipe",),
    "layers": ("ranks",),
    "models": ("ranks",),
    "objectives": ("ranks",),
    "data": ("layers", "models"),
    "optim": ("models", "layers", "objectives", "data", "ranks"),
    "engines": ("models", "layers", "objectives"),
    "plan": ("models", "layers", "objectives", "optim", "ranks"),
    "checkpoint": ("plan", "models", "layers", "objectives", "data", "optim"),
    "training": ("models", "layers", "objectives", "optim", "visualize", "export"),
    "report": ("models", "layers", "objectives", "optim", "engines", "train", "export"),
}
"""Rooms that stand before one, and are no business of it."""


def room_of(module: str) -> str:
    """The room of a module of bigvit: models for bigvit.models.vit."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_stands_below_it(room: str) -> None:
    here = [n for n in IMPORTS if n == f"{room}.py" or n.startswith(f"{room}/")]
    allowed = {"", *ROOMS[: ROOMS.index(room) + 1]} - set(NOT_BELOW.get(room, ()))
    for name in here:
        rooms = {room_of(module): module for module in of_ours(name)}
        found = {module for of, module in rooms.items() if of not in allowed}
        assert found <= ({"bigvit.recipes"} if name == "recipe/find.py" else set()), name


def test_every_file_is_in_a_room() -> None:
    outside = ("recipes", "scripts", "__init__.py")
    rooms = {name.split("/")[0].removesuffix(".py") for name in IMPORTS}
    assert rooms - {name.removesuffix(".py") for name in outside} == set(ROOMS)


def module_of(name: str) -> str:
    """models/vit.py -> bigvit.models.vit; a package for its __init__."""
    return "bigvit." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Also by imports that wait until they are needed."""
    inside = {module_of(name): of_ours(name) for name in IMPORTS if "recipes" not in name}
    inside = {module: [m for m in found if m in inside] for module, found in inside.items()}
    left = dict(inside)
    while free := [m for m, found in left.items() if not set(found) & left.keys() - {m}]:
        for module in free:
            del left[module]
    assert not left, f"these import each other in a circle, or stand on one: {sorted(left)}"


def test_no_file_has_more_than_400_lines() -> None:
    long = {name: text.count("\n") for name, text in SOURCES.items() if text.count("\n") > 400}
    assert not long


def test_at_most_six_files_stand_at_the_top() -> None:
    assert len(list((ROOT / "bigvit").glob("*.py"))) <= 6


def test_recipes_import_nothing_but_bigvit_recipe() -> None:
    for name in below("recipes"):
        assert set(IMPORTS[name]) <= {"bigvit.recipe", "dataclasses"}, name


def test_what_is_checked_before_torch_does_not_import_it() -> None:
    light = {
        *below("cli"),
        "hosts/hostfile.py",
        "keyed_random.py",
        "__init__.py",
        "checkpoint/files.py",
        "checkpoint/jobs.py",
        "checkpoint/manifest.py",
        "checkpoint/metrics.py",
        "checkpoint/run.py",
        "training/run_folder.py",
        "training/start.py",
        "data/check.py",
        "data/label_maps/form.py",
        "data/label_maps/maps.py",
        "engines/check.py",
        "rehearse/certificate.py",
        "engines/deepspeed/config.py",
        *(n for n in below("report") if n not in ("report/computed.py", "report/pictures.py")),
        *below("recipe", "recipes", "ds_configs"),
        *(name for name in below("plan") if name != "plan/measure.py"),  # which measures a device
    }
    for name in light:
        heavy = ("torch", "torchvision", "deepspeed", "timm", "safetensors")
        assert [module for module in IMPORTS[name] if within(module, *heavy)] == [], name


def test_task_imports_models_objectives_and_recipes_only() -> None:
    rooms = {room_of(module) for module in of_ours("task.py")}
    assert rooms == {"data", "models", "objectives", "recipe"}
    found = {module for module in of_ours("task.py") if room_of(module) == "data"}
    assert found == {"bigvit.data.batch", "bigvit.data.prepare"}


def test_the_loop_knows_no_model_loss_or_engine_by_name() -> None:
    named = ("bigvit.models", "bigvit.layers", "bigvit.objectives", "bigvit.optim")
    engines = ("bigvit.engines.single", "bigvit.engines.deepspeed.engine", "deepspeed")
    for name in ("training/loop.py", "train.py", "training/progress.py", "evaluate.py"):
        assert [m for m in IMPORTS[name] if within(m, *named, *engines)] == [], name


def test_deepspeed_is_imported_by_its_engine_alone() -> None:
    found = {
        name for name, modules in IMPORTS.items() if any(within(m, "deepspeed") for m in modules)
    }
    assert found == {f"engines/deepspeed/{name}.py" for name in ("before", "engine", "inside")}


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
