"""docs/export.md, typed: every block as it stands, beside the model that was trained."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_server import TOKEN, HubServer
from huggingface_hub import ModelCard, constants
from oblong import recipe_of, saved
from PIL import Image

import bigvit
from bigvit.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
NAMES = ["ant", "bee", "cat", "dog", "elk"]


class Typed:
    """What was typed from the page, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}  # what the Python blocks made
        self.ours = bigvit.load_trained(folder / "runs" / "third").model


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """The page, typed from top to bottom."""
    folder = tmp_path_factory.mktemp("docs")
    run = folder / "runs" / "third"
    saved(run, recipe_of(32), 1)
    (run / "classes.json").write_text(json.dumps(NAMES))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    typed = Typed(folder)
    hub = HubServer()
    hub.repos["ada/third"] = {"model.onnx": b"of an older export", "notes.txt": b"mine"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(constants, "ENDPOINT", hub.address)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setenv("HF_TOKEN", TOKEN)
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
            if language == "python":
                patch.setattr(constants, "HF_HUB_OFFLINE", True)
                exec(compile(block, PAGE.name, "exec"), typed.names)
                patch.setattr(constants, "HF_HUB_OFFLINE", False)
                continue
            for line in block.splitlines():
                program, *words = shlex.split(line)
                assert program == "bigvit"
                assert main(words) == 0
    typed.names["pushed"] = hub.repos["ada/third"]
    yield typed
    hub.shutdown()
    hub.server_close()


@torch.no_grad()
def test_timm_gives_the_logits_of_the_trained_model(typed: Typed) -> None:
    wanted = typed.ours(typed.names["images"]).logits
    assert wanted.std() > 0.05
    assert torch.equal(typed.names["logits"], wanted)
    assert typed.names["names"] == NAMES


@torch.no_grad()
def test_transformers_gives_them_too_and_names_the_classes(typed: Typed) -> None:
    classify = typed.names["classify"]
    images = typed.names["images"]
    assert torch.equal(classify.model(pixel_values=images).logits, typed.names["logits"])
    shares = typed.names["logits"][0].softmax(dim=0)
    best = shares.topk(3)
    answers = typed.names["answers"]
    assert [each["label"] for each in answers] == [NAMES[i] for i in best.indices.tolist()]
    scores = torch.tensor([each["score"] for each in answers])
    torch.testing.assert_close(scores, best.values, rtol=0, atol=1e-6)


def test_onnx_runtime_gives_them_within_a_ten_thousandth(typed: Typed) -> None:
    difference = np.abs(typed.names["onnx_logits"] - typed.names["logits"].numpy()).max()
    assert 0 <= difference <= 1e-4
    session = typed.names["session"]
    (given,), (said,) = session.get_inputs(), session.get_outputs()
    assert given.shape[1:] == [3, 32, 32] and said.shape[1:] == [5]
    (five,) = session.run(None, {"images": np.zeros((5, 3, 32, 32), np.float32)})
    assert five.shape == (5, 5)


def test_what_is_pushed_is_the_export_and_nothing_else_goes(typed: Typed) -> None:
    folder = typed.folder / "runs" / "third" / "export"
    there = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(there) == {"README.md", "config.json", "model.safetensors"}
    assert typed.names["pushed"] == there | {"notes.txt": b"mine"}
    text = there["README.md"].decode()
    assert 'timm.create_model("hf-hub:ada/third", pretrained=True)' in text
    assert ModelCard(text).data.to_dict()["license"] == "apache-2.0"
