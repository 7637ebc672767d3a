"""Levels of classes in training: built in, iNaturalist's ranks, or of a file that a run keeps."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
from test_inaturalist import FOLDERS, SMALL, write

from bigvit.checkpoint.run import classes_map_of
from bigvit.cli import main as bigvit
from bigvit.data.check import check_data
from bigvit.data.sources import open_source, open_splits
from bigvit.evaluate import evaluate_checkpoint
from bigvit.recipe import Images, Run
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.train import main

# fine_label_names.txt of cifar-100-binary
FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm""".split()
# the coarse label that stands in the files beside each fine one
COARSE = """4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14
16 9 11 5 5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16
12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"""
RANKS = {
    10: ("Animalia", "Chordata", "Aves", "Passeriformes", "Paridae", "Parus"),
    2: ("Plantae", "Tracheophyta", "Liliopsida", "Poales", "Poaceae", "Poa"),
    7: ("Plantae", "Tracheophyta", "Magnoliopsida", "Asterales", "Asteraceae", "Bellis"),
}
NAMES = ("kingdom", "phylum", "class", "order", "family", "genus")


def coarse_numbers() -> list[int]:
    return [int(number) for number in COARSE.split()]


def test_cifar_100s_coarse_classes_are_those_of_its_files(tmp_path: Path) -> None:
    """Packed as CIFAR packs it: coarse label, fine label, 3,072 values."""
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    (root / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    fine = np.random.default_rng(0).permutation(np.arange(300) % 100)
    coarse = np.array(coarse_numbers())[fine]
    pixels = np.random.default_rng(1).integers(0, 256, (300, 3072))
    records = np.concatenate([coarse[:, None], fine[:, None], pixels], axis=1).astype(np.uint8)
    records[:200].tofile(root / "train.bin")
    records[200:].tofile(root / "test.bin")
    data = replace(pictures.DATA, train_images=200, classes=20, level="cifar100")
    check_data(data, Run(data_root=tmp_path))
    train, test = open_splits(data, tmp_path)
    assert test is not None and len(train.classes) == 20
    assert train.classes[0] == "aquatic_mammals" and train.classes[19] == "vehicles_2"
    assert list(train.targets) == list(coarse[:200]) and list(test.targets) == list(coarse[200:])
    # the fine ones are as they were, and in the same order
    own = open_source(replace(data, level="own", classes=100), "train", tmp_path)
    assert own.classes == FINE and list(own.targets) == list(fine[:200])
    assert pictures.equal(own.read(7), train.read(7))


def test_other_classes_than_cifar_100s_have_no_coarse_ones_of_its(tmp_path: Path) -> None:
    pictures.write_folders(tmp_path, "train", pictures.jpegs(8))
    data = replace(pictures.DATA, train_images=8, test_images=0, level="cifar100")
    with pytest.raises(ValueError, match="it lacks 2 of 2 classes .china, flower."):
        check_data(data, Run(data_root=tmp_path))


def ranked(root: Path, hidden: bool) -> None:
    """iNaturalist's lists with ranks; or, as they were given out first, with names that say nothing
    and categories.json apart."""
    write(root)
    full = [
        {"id": id, "name": f"{of[-1]} {id}", **dict(zip(NAMES, of, strict=True))}
        for id, of in RANKS.items()
    ]
    for name in ("train2018.json", "val2018.json"):
        listed = json.loads((root / name).read_text())
        given = [{"id": id, "name": FOLDERS[id], "supercategory": "x"} for id in FOLDERS]
        listed["categories"] = given if hidden else full
        (root / name).write_text(json.dumps(listed))
    if hidden:
        (root / "categories.json").write_text(json.dumps(full))


@pytest.mark.parametrize("hidden", [False, True])
def test_inaturalists_ranks_are_levels(tmp_path: Path, hidden: bool) -> None:
    ranked(tmp_path, hidden)
    for i, name in enumerate(NAMES):
        classes = sorted({of[i] for of in RANKS.values()})
        data = replace(SMALL, level=name, classes=len(classes))
        check_data(data, Run(data_root=tmp_path))
        train, test = open_splits(data, tmp_path)
        assert test is not None and train.classes == test.classes == classes
        for source in (train, test):
            for image in range(len(source)):
                number = int(source.name(image).split("/")[2])
                assert source.classes[source.targets[image]] == RANKS[number][i]


def test_ranks_that_nobody_says_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    data = replace(SMALL, level="genus")
    with pytest.raises(ValueError, match="does not say the kingdom.* lay iNaturalist's categories"):
        check_data(data, Run(data_root=tmp_path))
    folders = tmp_path / "folders"
    pictures.write_folders(folders, "train", pictures.jpegs(8))
    data = replace(pictures.DATA, train_images=8, test_images=0, level="genus")
    with pytest.raises(ValueError, match="no genus is known of its classes"):
        check_data(data, Run(data_root=folders))


def test_digits_are_odd_or_even() -> None:
    data = replace(digits_vit.data, level="parity")
    train, test = open_splits(data)
    digits = open_source(digits_vit.data, "train")
    assert test is not None and train.classes == test.classes == ["even", "odd"]
    assert list(train.targets) == list(digits.targets % 2)
    assert data.classes == 2 and digits_vit.data.classes == 10


# --- a file that says it ------------------------------------------------------------------------

RECIPE = """
import json
from bigvit.recipe.store import recipe_from_json
mapped = recipe_from_json(json.loads({0!r}))
"""
MAP = {"a": "near", "b": "near", "c": "far", "d": "none here"}


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """Class folders a, b and c, and arguments of a training that tells near from far."""
    for split, count in (("train", 48), ("val", 12)):
        for name, _, content in pictures.jpegs(count):
            folder = tmp_path / "data" / split / "abc"[int(name[:3]) % 3]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    data = replace(pictures.DATA, train_images=48, level="map")
    schedule = replace(pictures.RECIPE.schedule, epochs=2, warmup_epochs=0)
    recipe = replace(pictures.RECIPE, data=data, schedule=schedule)
    check_recipe(recipe)
    (tmp_path / "it.py").write_text(RECIPE.format(json.dumps(to_json(recipe))))
    (tmp_path / "map.json").write_text(json.dumps(MAP))
    run = ["--run-dir", str(tmp_path / "run"), "--engine", "single", "--workers", "0"]
    return [f"{tmp_path / 'it.py'}:mapped", "--data-root", str(tmp_path / "data"), *run]


@pytest.mark.usefixtures("own_signals")
def test_a_run_is_trained_by_its_map_keeps_it_and_goes_on_with_no_other(
    given: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, run, root = tmp_path / "map.json", tmp_path / "run", tmp_path / "data"
    assert main([*given, "--classes-map", str(file), "--stop-after", "2"]) == 85
    assert json.loads((run / "classes.json").read_text()) == ["far", "near"]
    last = run / "checkpoints" / "step_00000002"
    kept = classes_map_of(last)
    assert kept == classes_map_of(run) and kept is not None
    assert json.loads(kept.read_text()) == MAP
    file.unlink()
    found = evaluate_checkpoint(run, 4, root)
    assert found["images"] == 12 and found["classes"] == 2 and found["classes_by"] == "name"
    capfd.readouterr()
    for words in (
        ["evaluate", str(run)],
        ["predict", str(run), "--data-root", str(root)],
        ["compare", str(run), str(last), "--out", str(tmp_path / "compared")],
        ["branches", str(run), "--out", str(tmp_path / "branches.png")],
        ["neighbours", str(run), "--neighbours", "3"],
        ["report", str(run), "--out", str(tmp_path / "report.html")],
    ):
        assert bigvit(words) in (None, 0), capfd.readouterr().err
        said = capfd.readouterr()
        assert "classes-map" not in said.out + said.err, (words, said)
    assert "classes-map is missing" not in (tmp_path / "report.html").read_text()
    again = [*given, "--resume", "auto"]
    assert main(again) == 2
    assert "--classes-map is missing" in capfd.readouterr().err
    file.write_text(json.dumps(MAP | {"b": "far"}))
    assert main([*again, "--classes-map", str(file)]) == 2
    said = capfd.readouterr().err
    assert "index.train.digest" in said and "--allow-change index.train" in said
    # classes that are not there may be mapped otherwise: these are the same images
    file.write_text(json.dumps(MAP | {"e": "far"}))
    assert main([*again, "--classes-map", str(file), "--stop-after", "3"]) == 85
    file.write_text(json.dumps(MAP | {"b": "far"}))
    allowed = ["--allow-change", "index"]
    assert main([*again, "--classes-map", str(file), *allowed, "--stop-after", "4"]) == 85
    assert json.loads(kept.read_text())["b"] == "far"


REFUSED: list[tuple[str, Any, list[str], str]] = [
    ("map.json", None, [], "--classes-map is missing: which coarser class"),
    ("map.json", {"a": "x", "c": "y"}, [], "it lacks 1 of 3 classes (b); add them"),
    ("map.json", {"a": 1}, [], 'must hold an object {"class": "coarser class", ...}'),
    ("map.json", dict.fromkeys("abc", "x"), [], "train has 1 classes, but photographs has 2"),
    ("map.csv", "a,x\nb,x\n", [], "it lacks 1 of 3 classes (c); add them"),
    ("map.csv", "a,x\na,y\n", [], "row 2 says another coarser class of 'a'"),
    ("map.json", MAP, ["--data.level", "own"], "leave it out, or add --data.level map"),
]


@pytest.mark.parametrize(("name", "content", "more", "said"), REFUSED)
def test_maps_that_do_not_fit_are_refused_before_torch(
    given: list[str], tmp_path: Path, name: str, content: Any, more: list[str], said: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        more = [*more, "--classes-map", str(file)]
    code = (
        "import sys; from bigvit.train import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, *given, *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "False\n", done.stderr
    assert said in done.stderr and done.stderr.count("error:") == 1
    assert not (tmp_path / "run").exists()


def test_a_csv_says_the_same(given: list[str], tmp_path: Path) -> None:
    file = tmp_path / "map.csv"
    file.write_text("a,near\nb,near\n\nc,far\n")
    data: Images = replace(pictures.DATA, train_images=48, level="map")
    check_data(data, Run(data_root=tmp_path / "data", classes_map=file))
    train, test = open_splits(data, tmp_path / "data", file)
    for source in (train, test):
        assert source is not None and source.classes == ["far", "near"]
        for image in range(len(source)):
            own = Path(source.name(image)).parent.name
            assert source.classes[source.targets[image]] == MAP[own]
