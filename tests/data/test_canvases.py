"""Batches of images that lie, or of such that stand, each kind on its canvas."""

import shutil
from dataclasses import replace
from pathlib import Path

import cocos
import numpy as np
import pictures
import pytest
import torch
from PIL import Image

import bigvit
from bigvit import models
from bigvit.data.batch import Batch, Draws
from bigvit.data.loader import test_batches as batches_of
from bigvit.data.loader import train_batches
from bigvit.data.sampler import Sampler
from bigvit.data.tested import test_places as places_of
from bigvit.recipe import Model, Recipe, batch_layout
from bigvit.recipe.check import check_recipe
from bigvit.recipe.find import all_recipes
from bigvit.recipes import detection
from bigvit.recipes.detection import COCO, mask_rcnn_swin_t, scenes_mask_rcnn

RECIPE: Recipe = replace(pictures.RECIPE, data=cocos.OBLONG, batch_size=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cocos.written(tmp_path_factory.mktemp("coco"))


def upright(root: Path, names: list[str]) -> list[bool]:
    """By the files."""
    found = list[bool]()
    for name in names:
        with Image.open(root / name) as image:
            found.append(image.height > image.width)
    return found


def batches(root: Path, recipe: Recipe = RECIPE) -> list[Batch]:
    train, _ = cocos.opened(root)
    made = train_batches(
        train, recipe, batch_layout(recipe, 1, 8), 0, 0, 0, lambda *_: Draws(None, ())
    )
    return [batch for (batch,) in made]


def test_the_list_says_which_images_stand(root: Path) -> None:
    train, test = cocos.opened(root)
    for source in (train, test, test.first(4)):
        names = [source.name(i) for i in range(len(source))]
        assert source.standing.tolist() == upright(root, names)
        assert 0 < source.standing.sum() < len(source)


def test_a_batch_has_the_canvas_of_its_images(root: Path) -> None:
    """Of an epoch of three batches one at least is of each kind; what it holds is its images'."""
    train, _ = cocos.opened(root)
    made = batches(root)
    sampler, kinds = Sampler.of(RECIPE, train), list[bool]()
    for number, batch in enumerate(made):
        epoch, slots, ids = sampler.batch(number)
        assert batch.ids.tolist() == ids.tolist() and batch.slots.tolist() == slots.tolist()
        (stands,) = set(upright(root, [train.name(i) for i in batch.ids.tolist()]))
        kinds.append(stands)
        assert batch.images.shape == (8, 3, *((96, 64) if stands else (64, 96)))
        assert batch.sizes is not None and batch.objects is not None
        assert (batch.sizes[:, 0] > batch.sizes[:, 1]).all() == stands
        for image, (height, width) in zip(batch.images, batch.sizes.tolist(), strict=True):
            assert image[:, height - 1, :width].any() and image[:, :height, width - 1].any()
            assert not image[:, height:].any() and not image[:, :, width:].any()
    assert len(made) == 9 and {True, False} == set(kinds)
    every = set(torch.cat([batch.ids for batch in made]).tolist())
    assert every == set(range(24))


def test_a_bad_image_is_replaced_by_one_of_its_kind(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(root, other)
    train, _ = cocos.opened(other)
    bad = {*np.flatnonzero(train.standing)[:4].tolist(), *range(3)}
    for id in bad:
        (other / train.name(id)).write_bytes(b"no image")
    good, made = batches(root), batches(other)
    replaced = 0
    for before, after in zip(good, made, strict=True):
        assert before.images.shape == after.images.shape and after.valid.all()
        assert not set(after.ids.tolist()) & bad
        kept = torch.tensor([id not in bad for id in before.ids.tolist()])
        replaced += int((~kept).sum())
        assert torch.equal(before.images[kept], after.images[kept])
        (stands,) = set(train.standing[after.ids].tolist())
        assert after.images.shape[2:] == cocos.OBLONG.canvas(stands)
    assert replaced > 10


@pytest.mark.parametrize("world", [1, 2, 3, 16])
def test_every_rank_has_as_many_test_batches_each_of_one_kind(world: int, root: Path) -> None:
    _, test = cocos.opened(root)
    ranks = [list(places_of(10, 3, rank, world, test.standing)) for rank in range(world)]
    assert len({len(own) for own in ranks}) == 1
    every = [place for own in ranks for batch in own for place in batch]
    assert sorted(place.id for place in every if place.real) == list(range(10))
    for batch in (batch for own in ranks for batch in own):
        assert len(batch) == 3 and len({bool(test.standing[place.id]) for place in batch}) == 1


def test_test_images_lie_on_their_canvas(root: Path) -> None:
    _, test = cocos.opened(root)
    square = {}
    for batch in batches_of(test, cocos.DATA, 10, 0, 1, 0):
        square |= dict(zip(batch.ids.tolist(), batch.images, strict=True))
    for batch in batches_of(test, cocos.OBLONG, 3, 0, 1, 0):
        height, width = batch.images.shape[2:]
        for id, image, real in zip(batch.ids.tolist(), batch.images, batch.valid, strict=True):
            assert torch.equal(image, square[id][:, :height, :width]) or not real


def test_a_loop_of_ones_own_has_both_kinds(root: Path) -> None:
    recipe = replace(
        scenes_mask_rcnn,
        data=replace(cocos.OBLONG, classes=3),
        model=replace(scenes_mask_rcnn.model, num_classes=3),
    )
    for split, count in (("train", 24), ("test", 10)):
        loader = bigvit.build_loader(recipe, root, split, batch_size=4, workers=0)  # pyright: ignore
        inputs = list(loader)
        assert len(inputs) == len(loader)
        assert sum(len(each.images) for each in inputs) == count
        assert {each.images.shape[2:] for each in inputs} == {(64, 96), (96, 64)}


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            replace(mask_rcnn_swin_t, data=replace(COCO, image_size=(1344, 800))),
            "data.image_size: (1344, 800) is not allowed; it must be the lower number first",
        ),
        (
            replace(mask_rcnn_swin_t, data=replace(COCO, image_size=(800, 1333))),
            "data.image_size: (800, 1333) is not allowed; it must be a multiple of",
        ),
        (
            replace(mask_rcnn_swin_t, data=replace(COCO, image_size=(768, 1344))),
            "736, 768, 800) is not allowed; it must be one number or more, each 1 to 768 "
            "(data.image_size)",
        ),
        (
            replace(mask_rcnn_swin_t, data=replace(COCO, longest=1345)),
            "data.longest: 1345 is not allowed; it must be 1 to 1344",
        ),
        (
            replace(mask_rcnn_swin_t, model=all_recipes()["deit3_s16_in1k_224"].model),
            "data.image_size: (800, 1344) is not allowed, as ViT is made for one size",
        ),
        (
            replace(
                mask_rcnn_swin_t,
                objectives=(
                    *mask_rcnn_swin_t.objectives,
                    all_recipes()["drloc_swin_t_cifar100"].objectives[1],
                ),
            ),
            "data.image_size: (800, 1344) is not allowed, as DRLoc is made for one size",
        ),
    ],
)
def test_what_does_not_fit_two_canvases_is_refused(recipe: Recipe, said: str) -> None:
    with pytest.raises(ValueError) as error:
        check_recipe(recipe)
    assert said in str(error.value)


def test_models_that_turn_are_taken_and_a_square_takes_all() -> None:
    for name in ("swin_t", "patchconvnet_s60"):
        check_recipe(getattr(detection, f"mask_rcnn_{name}"))
    square = replace(COCO, image_size=1344)
    check_recipe(
        replace(
            mask_rcnn_swin_t,
            data=square,
            model=replace(all_recipes()["deit3_s16_in1k_224"].model, num_classes=80),
        )
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["PaddedSwin", "PatchConvNet", "ResNet"])
def test_a_model_that_turns_makes_of_turned_images_what_one_of_that_size_makes(name: str) -> None:
    known = all_recipes()
    small: dict[str, Model] = {
        "PaddedSwin": replace(scenes_mask_rcnn.model, depths=(2, 2, 2, 2)),
        "PatchConvNet": replace(known["patchconvnet_s60_in1k_224"].model, embed_dim=24, depth=2),
        "ResNet": replace(known["mask_rcnn_resnet50"].model, depths=(1, 1, 1, 1)),
    }
    model = small[name]
    assert type(model).__name__ == name and model.turns
    lying, standing = (models.build(model, size) for size in ((64, 96), (96, 64)))
    lying.init_weights(3)
    standing.load_state_dict(lying.state_dict())
    images, blocks = torch.randn(2, 3, 96, 64), lying.last_blocks()
    found, wanted = (each.eval()(images, blocks=blocks) for each in (lying, standing))
    assert torch.equal(found.logits, wanted.logits)
    for block in blocks:
        assert torch.equal(found.blocks[block].tokens, wanted.blocks[block].tokens)
        assert found.blocks[block].grid == wanted.blocks[block].grid
