"""The model card says what the run said, as the hub reads it, and nothing of the machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from hub_server import TOKEN, HubServer
from huggingface_hub import ModelCard, constants
from oblong import recipe_of, saved

from bigvit.cli import main
from bigvit.recipe.store import to_json

LINE = {"kind": "evaluation", "time": "2026-01-01T00:00:00+00:00", "update": 1, "epoch": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two checkpoints, of which the first was counted, and the second with its average."""
    folder = tmp_path / "secret_place" / "run"
    saved(folder, recipe_of(32, ema=0.9), 1, 2)
    described = {
        "name": "digits_vit",
        "recipe": to_json(recipe_of(32)),
        "run": {
            "engine": "deepspeed",
            "sharding": str(tmp_path / "own.json"),
            "init": "/home/me/w",
        },
        "world": 4,
        "versions": {"bigvit": "0.1.0", "torch": "2.11.0"},
        "git": "0123abcd+",
    }
    (folder / "recipe.json").write_text(json.dumps(described))
    first = {"batch": 1, "images": 40, "top1": 62.5, "top5": 90.0, "test_loss": 1.25}
    second = {"batch": 2, "images": 40, "ema_images": 40, "ema_top1": 75.0, "ema_top5": 95.0}
    lines = [json.dumps({**LINE, **each}) + "\n" for each in (first, second)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def card(run: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """The text of an export's card, and its header as the hub's library reads it."""
    assert main(["export", str(run), "--out", str(run.parent / "out"), *options]) == 0
    text = (run.parent / "out" / "README.md").read_text()
    return text, ModelCard(text).data.to_dict()


def test_results_are_those_of_the_exported_weights_alone(run: Path) -> None:
    text, header = card(run / "checkpoints" / "step_00000001")
    (model,) = header["model-index"]
    metrics = model["results"][0]["metrics"]
    assert [each["value"] for each in metrics] == [0.625, 0.9]
    assert "62.50 %" in text and "1.2500" in text and "after update 1" in text
    text, header = card(run, "--ema")
    assert [each["value"] for each in header["model-index"][0]["results"][0]["metrics"]] == [
        0.75,
        0.95,
    ]
    text, header = card(run)  # these weights nobody counted
    assert "model-index" not in header and "Nobody has counted" in text


def test_results_at_another_resolution_are_told_apart(run: Path) -> None:
    text, header = card(run / "checkpoints" / "step_00000001", "--image-size", "48")
    assert "model-index" not in header
    assert "62.50 %" in text and "nothing was counted at that resolution" in text


def test_the_header_is_the_hubs_and_the_body_tells_where_all_comes_from(run: Path) -> None:
    text, header = card(run, "--license", "cc-by-nc-4.0")
    assert header["library_name"] == "timm" and header["license"] == "cc-by-nc-4.0"
    assert header["pipeline_tag"] == "image-classification" and "bigvit" in header["tags"]
    for said in ("torch 2.11.0", "0123abcd+ (with changes)", "4, deepspeed", "| optim.lr |"):
        assert said in text, said
    assert "these values were changed" in text and "| data.image_size | 8 -> 32 |" in text
    assert "| sharding | own.json |" in text
    for private in ("secret_place", str(run.parent), "/home/me"):
        assert private not in text
    text, header = card(run)
    assert "license" not in header and "**License:** none is stated." in text


def test_a_checkpoint_that_was_copied_elsewhere_has_a_card_too(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copies" / "step_00000002"
    copied.parent.mkdir()
    (run / "checkpoints" / "step_00000002").rename(copied)
    text, header = card(copied)
    assert "author's own" in text and "model-index" not in header


def test_an_edited_card_is_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card(run)
    path = run.parent / "out" / "README.md"
    path.write_text(path.read_text().replace("## Limits", "## My own limits"))
    assert main(["export", str(run), "--out", str(run.parent / "out")]) == 2
    assert "README.md there is not as an export wrote it" in capsys.readouterr().err
    assert "## My own limits" in path.read_text()


def refused(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Why an export is, before anything is written."""
    assert main(["export", str(run), *options]) == 2
    assert not (run / "export").exists()
    return capsys.readouterr().err


def test_what_onnx_needs_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bigvit.export.onnx.find_spec", lambda name: None)
    said = refused(run, capsys, "--onnx")
    assert "onnxruntime" in said and "pip install 'bigvit[onnx]'" in said


def test_what_keeps_an_export_from_the_hub_is_said_first(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said(repo: str = "ada/mine") -> str:
        return refused(run, capsys, "--push", repo)

    hub, reader = HubServer(), HubServer("read")
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "HF_HUB_OFFLINE is set" in said()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token" in said()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not know the token" in said()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "the token is of ada and lab, not of eve" in said("eve/mine")
    assert "it is no name on the hub" in said("a/b/c")
    assert hub.repos == {}
    monkeypatch.setattr(constants, "ENDPOINT", reader.address)
    assert "may only read" in said()
    for each in (hub, reader):
        each.shutdown()
        each.server_close()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")  # where nobody listens
    assert "cannot be reached" in said()


def test_a_license_is_as_the_hub_writes_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--license 'Apache 2.0'" in refused(run, capsys, "--license", "Apache 2.0")
