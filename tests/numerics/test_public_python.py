"""What Python code is meant to import: docs/python.md's examples, and what they leave open."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from each import each_of

import bigvit
from bigvit.train import main

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ("--engine", "single", "--workers", "0", "--schedule.epochs", "10")
    assert main(["digits_vit", *options, "--schedule.warmup-epochs", "1"]) == 0
    names: dict[str, object] = {}
    for i, example in enumerate(EXAMPLES):
        exec(compile(example, f"{PAGE.name}, example {i}", "exec"), names)
    assert len(EXAMPLES) == 6 and "class 3 is called 3" in capsys.readouterr().out


def test_importing_it_is_light_and_says_all_that_is_public():
    code = (
        "import sys, bigvit; names = dir(bigvit)\n"
        "heavy = {'torch', 'deepspeed', 'timm', 'datasets', 'numpy'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "assert set(bigvit.__all__) <= {n for n in bigvit.__all__ if getattr(bigvit, n)}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'lamb'"):
        bigvit.lamb  # noqa: B018


def test_an_epoch_is_what_a_run_trains_on():
    """Every image once, in another order each epoch; what is asked for again is the same."""
    recipe = replace(bigvit.load_recipe("digits_vit"), batch_size=64)
    first, again, other = (
        list(bigvit.build_loader(recipe, epoch=epoch, workers=0)) for epoch in (0, 0, 1)
    )
    assert len(first) == recipe.updates_per_epoch
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].images, other[0].images)
    numbers = [inputs.number for inputs in other]
    assert numbers == list(range(len(first), 2 * len(first)))


def test_test_images_come_once_in_batches_that_need_not_divide():
    recipe = bigvit.load_recipe("digits_vit")
    loader = bigvit.build_loader(recipe, split="test", batch_size=64, workers=0)
    sizes = [len(inputs.images) for inputs in loader]
    assert sizes == [64, 64, 64, 64, 44] and len(loader) == 5
    assert loader.classes == [str(digit) for digit in range(10)]


def test_weights_are_what_a_run_begins_with_or_those_that_are_given(tmp_path):
    recipe = bigvit.load_recipe("digits_vit")
    model = bigvit.build_model(recipe)
    assert torch.equal(model.head.weight, bigvit.build_model(recipe).head.weight)
    other = bigvit.build_model(replace(recipe, seed=1))
    torch.save({"model": other.state_dict()}, tmp_path / "weights.pth")
    given = bigvit.build_model(recipe, tmp_path / "weights.pth")
    assert torch.equal(given.head.weight, other.head.weight)
    assert not torch.equal(given.head.weight, model.head.weight)


WRONG = [
    (lambda r: bigvit.load_recipe("digit_vit"), "digits_vit"),
    (
        lambda r: bigvit.build_loader(r, epoch=20),
        "epoch: 20 is not allowed; ",
    ),
    (lambda r: bigvit.build_loader(r, epoch=-1), "epoch: -1 is not allowed"),
    (lambda r: bigvit.build_loader(r, batch_size=0), "batch_size: 0 is not allowed"),
    (lambda r: bigvit.build_model(r, "nowhere.pth"), "nowhere.pth"),
    (lambda r: bigvit.load_trained("nowhere"), "nowhere"),
]


@each_of(("call", "said"), WRONG)
def test_what_cannot_be_is_said(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call(bigvit.load_recipe("digits_vit"))


# the localization loss


@pytest.mark.parametrize("offsets", ["absolute", "signed", "classes", "gaussian"])
def test_the_loss_falls_where_tokens_say_where_they_are(offsets):
    """Tokens that hold their row and column, over an oblong grid; it is not said which pairs."""
    h, w = 3, 5
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    places = torch.stack([rows, columns]).float()
    features = torch.cat([places, torch.ones(6, h, w)]).expand(16, 8, h, w).contiguous()
    loss = bigvit.LocalizationLoss(8, (h, w), offsets=offsets, hidden_dim=256)
    optimizer = torch.optim.AdamW(loss.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(150):
        value = loss(features, generator)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-10:]) < 0.3 * sum(values[:10])


def test_tokens_and_maps_are_the_same_and_draw_as_the_generator_says():
    loss = bigvit.LocalizationLoss(8, (3, 5))
    maps = torch.randn(4, 8, 3, 5, generator=torch.Generator().manual_seed(1))
    tokens = maps.flatten(2).transpose(1, 2)
    values = [loss(x, torch.Generator().manual_seed(2)) for x in (maps, tokens)]
    assert torch.equal(*values)
    assert not torch.equal(values[0], loss(maps, torch.Generator().manual_seed(3)))
    every = bigvit.LocalizationLoss(8, (3, 5), pairs=None)
    assert every(maps).isfinite()


@each_of("shape", [(4, 16, 8), (4, 15, 9), (4, 8, 5, 3), (4, 15)])
def test_features_of_another_grid_or_width_are_refused(shape):
    loss = bigvit.LocalizationLoss(8, (3, 5))
    with pytest.raises(ValueError, match=r"must be \(B, 15, 8\) or \(B, 8, 3, 5\)"):
        loss(torch.zeros(shape))
