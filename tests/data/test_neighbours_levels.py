"""A run that was trained on the digits' parity with Grafit, asked about the digits themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from bigvit.checkpoint.asked import from_run
from bigvit.checkpoint.model import read_checkpoint
from bigvit.cli import main
from bigvit.neighbours.given import given
from bigvit.ranks.joining import alone
from bigvit.train import main as train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("parity") / "run"
    words = ["--schedule.epochs", "1", "--schedule.warmup-epochs", "0"]
    how = ["--engine", "single", "--workers", "0", "--run-dir", str(run)]
    assert train(["coarse_digits_grafit", *words, *how]) == 0
    return run


def said(capsys: Any, *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, words), "--workers", "0"]) == 0
    return json.loads(capsys.readouterr().out)


def kept(folder: Path, split: str) -> np.ndarray:
    (file,) = folder.glob(f"{split}-*")
    return load_file(file)["embeddings"].numpy()


def test_its_own_classes_are_the_ten_digits(run: Path, tmp_path: Path, capsys: Any) -> None:
    coarse = said(capsys, "neighbours", run)
    fine = said(capsys, "neighbours", run, "--level", "own", "--keep", tmp_path)
    assert (coarse["classes"], fine["classes"]) == (2, 10)
    _, digits = load_digits(return_X_y=True)
    tested = np.arange(len(digits)) % 6 == 0
    for found, truth in ((coarse, digits % 2), (fine, digits)):
        weights: Any = lambda d: np.exp((1 - d) / 0.07)  # noqa: E731
        knn = KNeighborsClassifier(20, metric="cosine", weights=weights)
        knn.fit(kept(tmp_path, "train"), truth[~tested])
        right = int((knn.predict(kept(tmp_path, "test")) == truth[tested]).sum())
        assert abs(found["top1_correct"] - right) <= 1  # a tie
    for command in (("probe", run, "--epochs", 1), ("retrieve", run, "--map")):
        assert said(capsys, *command, "--level", "own")["classes"] == 10


def test_the_projector_embeds(run: Path, tmp_path: Path, capsys: Any) -> None:
    g, f = (from_run(str(run), False, alone(), trunk) for trunk in (False, True))
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = read_checkpoint(run).weights
    names = [n for n in weights if n.startswith("heads.") and ".projector." in n]
    prefix = names[0].split("projector.")[0] + "projector."
    with torch.no_grad():
        x = f.embed(images).double()
        last = {n.removeprefix(prefix): weights[n].double() for n in names}
        x = x @ last["hidden.0.linear.weight"].T + last["hidden.0.linear.bias"]
        if "hidden.0.norm.weight" in last:
            x = (x - last["hidden.0.norm.running_mean"]) / (
                last["hidden.0.norm.running_var"] + 1e-5
            ).sqrt()
            x = x * last["hidden.0.norm.weight"] + last["hidden.0.norm.bias"]
        x = x.relu() @ last["last.weight"].T + last["last.bias"]
        assert torch.allclose(g.embed(images).double(), x, atol=1e-5) and x.std() > 1e-3
    said(capsys, "neighbours", run, "--keep", tmp_path)
    said(capsys, "neighbours", run, "--keep", tmp_path, "--trunk")
    widths = {load_file(file)["embeddings"].shape[1] for file in tmp_path.iterdir()}
    assert widths == {x.shape[1], f.embed(images).shape[1]} and len(list(tmp_path.iterdir())) == 4


def test_a_ranking_is_conditioned_by_the_coarse_prediction(
    run: Path, tmp_path: Path, capsys: Any
) -> None:
    parity = tmp_path / "parity.json"
    parity.write_text(json.dumps({str(i): "odd" if i % 2 else "even" for i in range(10)}))
    words = ("retrieve", run, "--map", "--level", "own")
    plain = said(capsys, *words)
    by = {
        how: said(capsys, *words, "--coarse", "trained", "--condition", how)
        for how in ("prediction", "oracle", "none")
    }
    assert by["none"] == plain and plain["map"] < by["oracle"]["map"]
    assert by["prediction"]["conditioned_by"] == "neighbours"  # its classifier is not trained
    assert said(capsys, *words, "--coarse", parity) == by["prediction"]
    assert said(capsys, *words, "--coarse", "parity") == by["prediction"]


def test_examples_say_at_which_level_each_is_right(run: Path, tmp_path: Path, capsys: Any) -> None:
    tens = tmp_path / "tens.json"
    tens.write_text(json.dumps({str(i): "low" if i < 5 else "high" for i in range(10)}))
    picture = tmp_path / "near.png"
    capsys.readouterr()
    words = ["--level", "own", "--examples", "7", "--levels", f"{tens},parity", "--workers", "0"]
    assert main(["retrieve", str(run), *words, "--picture", str(picture)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    numbers = np.asarray(load_digits(return_X_y=True)[1])[::6]
    assert [row["image"] for row in rows] == [f"test[{300 * i // 7}]" for i in range(7)]
    seen = set()
    for i, row in enumerate(rows):
        truth = int(numbers[300 * i // 7])
        for near in row["nearest"]:
            digit = int(near["class"])
            same = "parity" if digit % 2 == truth % 2 else None
            same = "tens" if (digit < 5) == (truth < 5) else same
            assert near["right_at"] == ("own" if digit == truth else same)
            seen.add(near["right_at"])
    assert {"own", "tens"} <= seen
    with Image.open(picture) as drawn:  # green frames are around what is right, and no others
        green = (np.asarray(drawn.convert("RGB")) == (0, 104, 55)).all(axis=2).sum()
    assert green > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map", "--condition", "oracle"], "by which coarse classes? Name them by --coarse"),
        (["x.jpg", "--coarse", "parity", "--condition", "oracle"], "nothing says the classes of"),
        (["--map", "--coarse", "nothing"], "--coarse nothing: these data have no such level"),
        (["--map", "--coarse", "cifar100"], "--coarse cifar100: these data have no such level"),
    ],
)
def test_a_condition_is_refused(words: list[str], message: str, run: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["retrieve", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_what_is_asked_stays_as_it_is_where_it_is_made(run: Path) -> None:
    asked = given(str(run), None, False, None, None, None, False)
    made = asked.prepare(alone(), 64, 0)
    assert (
        asked.ready is None and made.model() is made.model() and asked.model() is not made.model()
    )
    found = made.embedded(made.model(), "train", 64, 0)
    assert found is made.embedded(made.model(), "train", 64, 0)
    assert len(found.ids) == len(asked.train)
