"""`bigvit neighbours`, `probe` and `retrieve`, on a run that was really trained: what they count,
keep and refuse."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import jpegs, write_folders
from PIL import Image
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier
from test_predict import FILE

from bigvit import keyed_random
from bigvit.checkpoint.asked import from_run
from bigvit.cli import main
from bigvit.data import augment
from bigvit.data.sources import open_source
from bigvit.labelling.predict import asked
from bigvit.neighbours.embeddings import FOLDER, computed
from bigvit.ranks.joining import alone
from bigvit.train import main as train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, a run of nine updates on them, its export, and maps of its classes."""
    root = tmp_path_factory.mktemp("photographs")
    write_folders(root / "data", "train", jpegs(60))
    write_folders(root / "data", "val", jpegs(21, first=60))
    (root / "data/val/china/bad.jpg").write_bytes(b"no image")
    (root / "own.py").write_text(FILE.format(data=str(Path(__file__).parent)))
    how = ["--engine", "single", "--workers", "0", "--run-dir", str(root / "run")]
    assert train([f"{root / 'own.py'}:photos", *how, "--data-root", str(root / "data")]) == 0
    assert main(["export", str(root / "run"), "--out", str(root / "export")]) == 0
    (root / "one.json").write_text('{"china": "thing", "flower": "thing", "more": "other"}')
    (root / "same.csv").write_text("china,A\nflower,B\n")
    (root / "lacks.json").write_text('{"china": "thing"}')
    write_folders(root / "others", "train", jpegs(8))
    write_folders(root / "others", "val", jpegs(8))
    for split in ("train", "val"):
        (root / "others" / split / "china").rename(root / "others" / split / "temple")
    (root / "empty").mkdir()
    return root


def said(capsys: Any, *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, words), "--workers", "0"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def features(root: Path) -> dict[str, tuple[Any, Any]]:
    """By split: the trunk's class token of each image, and its class; literally."""
    model = from_run(str(root / "run"), False, alone())
    net: Any = model.module
    found = {}
    for split in ("train", "test"):
        source = open_source(model.data, split, root / "data")
        made = computed(model, source, 7, 0)
        assert made.bad == (split == "test") and len(made.ids) == len(source) - made.bad
        seen = []
        for id in made.ids.tolist():
            pixels = torch.from_numpy(augment.test_image(source.open(id), model.data))
            mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.data.mean, model.data.std))
            with torch.no_grad():
                seen.append(net(((pixels / 255 - mean) / std)[None]).cls[0])
        literal = torch.stack(seen)
        assert torch.allclose(made.vectors, literal, atol=1e-5)
        found[split] = literal.numpy(), np.asarray(source.targets)[made.ids]
    return found


def test_top1_is_scikit_learns(root: Path, features: Any, capsys: Any) -> None:
    (seen, classes), (asked_of, truth) = features["train"], features["test"]
    for k, temperature in ((20, 0.07), (3, 0.5), (60, 0.05)):
        found = said(
            capsys,
            *("neighbours", root / "run", "--neighbours", k, "--temperature", temperature),
        )
        weights: Any = lambda d, t=temperature: np.exp((1 - d) / t)  # noqa: E731
        knn = KNeighborsClassifier(k, metric="cosine", weights=weights)
        right = int((knn.fit(seen, classes).predict(asked_of) == truth).sum())
        assert found["top1_correct"] == right and found["top1"] == 100 * right / 21
        assert (found["images"], found["training_images"], found["bad_images"]) == (21, 60, 1)
        assert (found["classes"], found["neighbours"]) == (2, k)


def test_levels_of_classes(root: Path, capsys: Any) -> None:
    own = said(capsys, "neighbours", root / "run")
    same = said(capsys, "neighbours", root / "run", "--classes-map", root / "same.csv")
    assert same == own
    one = said(capsys, "neighbours", root / "run", "--classes-map", root / "one.json")
    assert (one["top1"], one["classes"]) == (100.0, 1)


def test_an_export_has_equal_features(root: Path, capsys: Any) -> None:
    ours, timms = (asked(str(root / name), False, alone()) for name in ("run", "export"))
    source = open_source(ours.data, "train", root / "data")
    one, other = (computed(each, source, 16, 0).vectors for each in (ours, timms))
    assert torch.allclose(one, other, atol=1e-5) and one.std() > 0.1
    by_run = said(capsys, "neighbours", root / "run")
    by_export = said(capsys, "neighbours", root / "export", "--data-root", root / "data")
    assert by_export["top1"] == by_run["top1"]


def test_features_are_kept_beside_the_run_and_used_again(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = said(capsys, "neighbours", root / "run")
    files = sorted((root / "run" / FOLDER).iterdir())
    assert [file.name.split("-")[0] for file in files] == ["test", "train"]
    kept = said(capsys, "neighbours", root / "run", "--keep", tmp_path / "kept")
    assert kept == first and len(list((tmp_path / "kept").iterdir())) == 2
    (files[0]).write_bytes(b"damaged")  # made anew
    assert said(capsys, "neighbours", root / "run") == first
    with monkeypatch.context() as without:
        without.setattr("bigvit.neighbours.embeddings.computed", None)  # nothing is computed
        assert said(capsys, "neighbours", root / "run", "--neighbours", 20) == first
    before = {file.name for file in (root / "run" / FOLDER).iterdir()}
    image = next((root / "data/train/china").iterdir())
    content = image.read_bytes()
    try:
        image.write_bytes(jpegs(2, first=90)[0][2] + b" ")
        said(capsys, "neighbours", root / "run")
    finally:
        image.write_bytes(content)
    after = {file.name for file in (root / "run" / FOLDER).iterdir()}
    assert len(after - before) == 1 and next(iter(after - before)).startswith("train-")


def test_other_classes_where_that_is_meant(root: Path, capsys: Any) -> None:
    words = ("neighbours", root / "run", "--data-root", root / "others", "--neighbours", 2)
    assert said(capsys, *words, "--other-classes")["images"] == 8


REFUSED = [
    (["RUN", "--neighbours", "61"], "--neighbours 61: there are 60 training images"),
    (["RUN", "--classes-map", "ROOT/lacks.json"], "it lacks 1 of 2 classes (flower)"),
    (["RUN", "--classes-map", "ROOT/none.json"], "cannot be read (No such file"),
    (["RUN", "--classes-map", "ROOT/own.py"], "own.py: cannot be read"),
    (["RUN", "--data-root", "ROOT/others"], "its 2 classes are not the 2 that"),
    (["ROOT/export", "--data-root", "ROOT/others", "--neighbours", "2"], "not the 2 that"),
    (["ROOT/export"], "--data-root is missing"),
    (["ROOT/export", "--ema"], "has no average; leave it out"),
    (["RUN", "--data-root", "ROOT/empty"], "no data set is recognised there"),
    (["RUN", "--keep", "ROOT/own.py"], "it is a file; name a folder"),
    (["ROOT/empty"], "empty"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_other_input_is_refused(
    words: list[str], message: str, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigvit.neighbours.embeddings.computed", None)  # nothing is computed
    words = [w.replace("RUN", str(root / "run")).replace("ROOT", str(root)) for w in words]
    assert main(["neighbours", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("error:") == 1


def test_a_probe_is_literally_trained(root: Path, features: Any, capsys: Any) -> None:
    found = said(capsys, "probe", root / "run", "--epochs", 30, "--train-batch", 16)
    again = said(capsys, "probe", root / "run", "--epochs", 30, "--train-batch", 16)
    assert found == again and found["training_images"] == 54 and found["held_out_images"] == 6
    assert found["top1"] == found["by_lr"][f"{found['lr']:g}"]
    assert found["best_on_test"]["top1"] == max(found["by_lr"].values())
    # one classifier by itself, by torch's own layer and optimizer
    seen, classes = (torch.from_numpy(each) for each in features["train"])
    asked_of, truth = (torch.from_numpy(each) for each in features["test"])
    rest = torch.from_numpy(keyed_random.permutation(60, "probe", 0))[6:]
    seen, classes = seen[rest], classes[rest].long()
    mean, scale = seen.mean(dim=0), seen.std(dim=0, correction=0)
    for rate in (1e-3, 0.1):
        layer = torch.nn.Linear(seen.shape[1], 2)
        for p in layer.parameters():
            torch.nn.init.zeros_(p)
        sgd = torch.optim.SGD(layer.parameters(), lr=0.0, momentum=0.9)
        for update in range(30 * 3):
            order = torch.from_numpy(keyed_random.permutation(54, "probe", 0, update // 3))
            places = order[16 * (update % 3) :][:16]
            sgd.param_groups[0]["lr"] = rate / 16 * (0.5 + 0.5 * math.cos(math.pi * update / 90))
            logits = layer((seen[places] - mean) / scale)
            torch.nn.functional.cross_entropy(logits, classes[places]).backward()
            sgd.step()
            sgd.zero_grad()
        right = int((layer((asked_of - mean) / scale).argmax(dim=1) == truth).sum())
        assert found["by_lr"][f"{rate:g}"] == pytest.approx(100 * right / 21)


def test_a_probe_needs_some_images(root: Path, capsys: Any) -> None:
    words = ["--data-root", str(root / "others"), "--other-classes"]
    assert main(["probe", str(root / "run"), *words]) == 2
    assert "there are 8 training images; a probe needs 20 or more" in capsys.readouterr().err


def retrieved(capsys: Any, *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["retrieve", *map(str, words), "--workers", "0"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_nearest_are_ranked_and_drawn(
    root: Path, features: Any, tmp_path: Path, capsys: Any
) -> None:
    picture, files = tmp_path / "near.png", sorted((root / "data/train/flower").iterdir())[:2]
    bad = root / "data/val/china/bad.jpg"
    found = retrieved(capsys, root / "run", *files, bad, "--picture", picture)
    assert [each["image"] for each in found] == [*map(str, files), str(bad)]
    assert found[2] == {"image": str(bad), "error": "cannot be read"}
    seen = features["train"][0] / np.linalg.norm(features["train"][0], axis=1, keepdims=True)
    for place, each in enumerate(found[:2]):
        near = each["nearest"]
        equal = [n["image"] for n in near if n["cosine"] > 1 - 1e-5]
        assert len(near) == 10 and f"train/flower/{files[place].name}" in equal
        cosines = sorted((seen @ seen[30 + place]).tolist(), reverse=True)
        assert [n["cosine"] for n in near] == pytest.approx(cosines[:10], abs=1e-5)
        assert near[0]["cosine"] == pytest.approx(1, abs=1e-5)
        assert all(f"{n['class']}/" in n["image"] for n in near)
    with Image.open(picture) as drawn:
        assert drawn.width > 10 * 96 and drawn.height > 2 * 48
    (other,) = retrieved(capsys, root / "run", files[0], "--top", 3)
    wanted = [n["cosine"] for n in found[0]["nearest"][:3]]
    assert [n["cosine"] for n in other["nearest"]] == pytest.approx(wanted, abs=1e-5)


def test_mean_average_precision_is_scikit_learns(root: Path, features: Any, capsys: Any) -> None:
    (seen, classes), (asked_of, truth) = features["train"], features["test"]
    seen, asked_of = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (seen, asked_of))
    each = [
        average_precision_score(classes == own, seen @ query)
        for query, own in zip(asked_of, truth, strict=True)
    ]
    (found,) = retrieved(capsys, root / "run", "--map")
    assert found["map"] == pytest.approx(100 * float(np.mean(each)), abs=0.2)  # nearly equal ones
    assert (found["queries"], found["training_images"]) == (21, 60)
    (one,) = retrieved(capsys, root / "run", "--map", "--classes-map", root / "one.json")
    assert one["map"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name image files and folders, or give --map or --examples N"),
        (["--map", "--picture", "a.png"], "it shows what is near to images; name some, or --ex"),
        (["--levels", "own", "--map"], "--levels: it is of --examples; give that, too"),
        (["ROOT/own.py", "--top", "61"], "--top 61: there are 60 training images"),
        (["ROOT/none.jpg"], "none.jpg: there is no such file or folder"),
        (["ROOT/own.py", "--picture", "ROOT/a.xyz"], "there is no picture of kind xyz"),
        (["ROOT/data", "--picture", "ROOT/a.png"], "it shows 50 images at most, and 82 are named"),
    ],
)
def test_a_retrieval_is_refused(
    words: list[str], message: str, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigvit.neighbours.embeddings.computed", None)  # nothing is computed
    assert (
        main(["retrieve", str(root / "run"), *(w.replace("ROOT", str(root)) for w in words)]) == 2
    )
    error = capsys.readouterr().err
    assert message in error and error.count("error:") == 1


def test_a_ranking_by_the_models_own_classifier(root: Path, features: Any, capsys: Any) -> None:
    (seen, classes), (asked_of, truth) = features["train"], features["test"]
    model = from_run(str(root / "run"), False, alone())
    head: Any = model.module.head
    with torch.no_grad():
        p = head(torch.from_numpy(asked_of)).double().softmax(dim=1).numpy()
    seen, asked_of = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (seen, asked_of))
    each = [
        average_precision_score(classes == own, seen @ query + np.log(q / (1 - q))[classes])
        for query, own, q in zip(asked_of, truth, p, strict=True)
    ]
    (found,) = retrieved(capsys, root / "run", "--map", "--coarse", "trained")
    assert found["conditioned_by"] == "classifier"
    assert found["map"] == pytest.approx(100 * float(np.mean(each)), abs=0.2)  # nearly equal ones
    (known,) = retrieved(
        capsys, root / "run", "--map", "--coarse", "trained", "--condition", "oracle"
    )
    assert known["map"] == pytest.approx(100)
    file = next((root / "data/val/flower").iterdir())
    (near,) = retrieved(capsys, root / "run", file, "--coarse", "trained", "--top", 60)
    order = [each["class"] for each in near["nearest"]]
    assert len(order) == 60 and set(order) == {"china", "flower"}
