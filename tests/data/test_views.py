"""Further views of an image: drawn by their place, decoded once, and the same on any ranks."""

import io
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from test_photo import PHOTOGRAPHS, by_pillow, files, needed
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from bigvit.data import augment, loader, photo
from bigvit.data.augment import crop, view_augment
from bigvit.data.augment.view_augment import Varied
from bigvit.data.batch import Batch
from bigvit.data.decode import BadImage, Photo
from bigvit.data.loader import as_seen, train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_source
from bigvit.data.workers import shape_of, slot_bytes, view_shapes
from bigvit.recipe import (
    Images,
    Mix,
    RandAugment,
    RandomResizedCrop,
    Shift,
    SimpleRandomCrop,
    ThreeAugment,
    ViewAugment,
    ViewGroup,
    Views,
    batch_layout,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task

DINO = ViewAugment(
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.2,
    hue=0.1,
    grayscale=0.2,
    blur=0.5,
    solarize=0.2,
)
LARGE = RandomResizedCrop(scale=(0.4, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
SMALL = RandomResizedCrop(scale=(0.05, 0.4), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
GROUPS = (
    Views(count=2, image_size=24, crop=LARGE, flip=0.5, augment=DINO, erasing=0.25),
    Views(count=3, image_size=(8, 16), crop=SMALL, flip=0.5, augment=None, erasing=0.0),
)
DATA = replace(pictures.DATA, train_images=100, views=GROUPS, image_size=24)
RECIPE = replace(
    pictures.RECIPE,
    data=DATA,
    batch_size=32,
    schedule=replace(pictures.RECIPE.schedule, epochs=2, warmup_epochs=0),
)
"""Three updates an epoch, six in all."""
KINDS: dict[str, tuple[Views, ...]] = {
    "crops": GROUPS,
    "other augmentations": (
        Views(2, 40, LARGE, 0.5, ThreeAugment(color_jitter=0.4), 0.0),
        Views(1, 40, LARGE, 0.5, RandAugment(2, 9.0, 0.5, True), 0.5),
        Views(1, 40, SimpleRandomCrop(padding=4, interpolation="bilinear"), 0.0, DINO, 0.0),
    ),
}


# --- what is drawn ------------------------------------------------------------------------------


def test_an_image_is_varied_as_without_views_and_each_view_by_itself() -> None:
    bare = replace(DATA, views=())
    seen = as_seen(DATA)
    assert seen[0] == bare and len(seen) == 6
    for slot in range(20):
        each = [augment.draw(own, 0, 1, slot, (40, 32), i) for i, own in enumerate(seen)]
        assert each[0] == augment.draw(bare, 0, 1, slot, (40, 32))
        assert len({repr(drawn) for drawn in each}) == 6
        # the third view is that, whatever stands in the groups before it
        other = replace(DATA, views=(replace(GROUPS[0], count=1), replace(GROUPS[1], count=4)))
        assert augment.draw(as_seen(other)[3], 0, 1, slot, (40, 32), 3) == each[3]


def test_each_part_happens_as_often_as_it_is_to() -> None:
    count = 4_000
    drawn = [view_augment.draw(DINO, 0, slot) for slot in range(count)]
    for share, found in (
        (DINO.jitter, [bool(each.jitter) for each in drawn]),
        (DINO.grayscale, [each.gray for each in drawn]),
        (DINO.blur, [each.radius is not None for each in drawn]),
        (DINO.solarize, [each.solarized for each in drawn]),
    ):
        assert abs(sum(found) - share * count) < 4 * (count * share * (1 - share)) ** 0.5
    radii = [each.radius for each in drawn if each.radius is not None]
    assert 0.1 <= min(radii) < 0.12 and 1.98 < max(radii) <= 2.0
    jittered = [each.jitter for each in drawn if each.jitter]
    orders = Counter(tuple(what for what, _ in each) for each in jittered)
    assert len(orders) == 24 and min(orders.values()) > 0.5 * len(jittered) / 24
    for what, low, high in (
        ("brightness", 0.6, 1.4),
        ("contrast", 0.6, 1.4),
        ("saturation", 0.8, 1.2),
        ("hue", -0.1, 0.1),
    ):
        factors = [factor for each in jittered for name, factor in each if name == what]
        assert low <= min(factors) < low + 0.01 and high - 0.01 < max(factors) <= high
    assert view_augment.draw(replace(DINO, jitter=0.0, blur=0.0), 0, 1)[::2] == ((), None)
    still = replace(DINO, jitter=1.0, brightness=0.0, hue=0.0)
    assert {what for what, _ in view_augment.draw(still, 0, 0).jitter} == {"contrast", "saturation"}


# --- what it makes of images --------------------------------------------------------------------


def by_torchvision(image: Image.Image, drawn: Varied) -> Image.Image:
    """BYOL's and DINO's pipeline after the crop: torchvision's functions on Pillow's images."""
    of = {
        "brightness": F.adjust_brightness,
        "contrast": F.adjust_contrast,
        "saturation": F.adjust_saturation,
        "hue": F.adjust_hue,
    }
    for what, factor in drawn.jitter:
        image = of[what](image, factor)
    if drawn.gray:
        image = v2.Grayscale(3)(image)
    if drawn.radius is not None:
        image = image.filter(ImageFilter.GaussianBlur(radius=drawn.radius))
    return ImageOps.solarize(image) if drawn.solarized else image


@pytest.mark.parametrize("strength", ["DINO's", "strong"])
def test_a_view_is_varied_as_by_torchvision_and_pillow(strength: str) -> None:
    strong = replace(DINO, jitter=1.0, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    fast = photo.extension()
    for key in range(60):
        drawn = view_augment.draw(DINO if strength == "DINO's" else strong, key)
        image = PHOTOGRAPHS[key % 2].crop((key, 2 * key, key + 96, 2 * key + 80))
        wanted = by_torchvision(image, drawn)
        assert pictures.equal(drawn.apply(image), wanted), drawn
        if fast is not None:
            pixels = np.dstack([np.asarray(image), np.full((80, 96), 7, np.uint8)])
            drawn.apply_fast(fast, pixels)
            assert pictures.equal(pixels[..., :3], wanted), drawn


@needed
def test_a_hue_is_turned_as_pillow_turns_it() -> None:
    """A sixteenth of all colours, by each turn."""
    fast: Any = photo.extension()
    grid = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2), -1)
    for turn in range(256):
        colours = np.zeros((256, 256, 4), np.uint8)
        colours[..., :2], colours[..., 2] = grid, turn
        hue, *rest = Image.fromarray(colours[..., :3].copy()).convert("HSV").split()
        turned = Image.fromarray(np.asarray(hue) + np.uint8(7 * turn % 256))
        fast.turn(colours, 7 * turn % 256)
        wanted = Image.merge("HSV", (turned, *rest)).convert("RGB")
        assert pictures.equal(colours[..., :3], wanted)


def several(data: Images, slot: int, size: tuple[int, int]) -> list[augment.Drawn]:
    return [augment.draw(own, 3, 0, slot, size, i) for i, own in enumerate(as_seen(data))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fast", [pytest.param(True, marks=needed), False])
def test_views_that_are_decoded_at_once_are_those_decoded_each(
    kind: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of JPEGs of every kind and shape: oblong, gray, CMYK, progressive, with restarts."""
    if not fast:
        monkeypatch.setattr(photo, "extension", lambda: None)
        monkeypatch.setattr(augment, "extension", lambda: None)
    data = replace(DATA, views=KINDS[kind])
    kinds = list(files().items())[:: 3 if fast else 11]
    assert kind != "crops" or not fast or any("CMYK" in name for name, _ in files().items())
    for i, (name, content) in enumerate(kinds):
        image = Photo(content, name)
        drawn = several(data, i, image.size)
        whole = Image.open(io.BytesIO(content)).convert("RGB")
        for made, each in zip(augment.apply_all(image, drawn), drawn, strict=True):
            assert np.array_equal(made, augment.apply(whole, each)), (name, each)


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needed), False])
def test_scaled_decoding_is_as_small_as_serves_all_views(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr(photo, "extension", lambda: None)
        monkeypatch.setattr(augment, "extension", lambda: None)
    plain = replace(GROUPS[1], flip=0.0)
    data = replace(DATA, flip=0.0, augment=None, erasing=0.0, views=(plain,), decode="scaled")
    shrinks, content = Counter[int](), files()["4:2:0 (640, 427)"]
    for slot in range(40):
        drawn = several(data, slot, (640, 427))
        parts = []
        for each in drawn:
            assert isinstance(each.crop, crop.ResizedCrop)
            parts.append(each.crop.part((640, 427), scaled=True))
        least = min(part.shrink for part in parts)
        shrinks[least] += 1
        made = augment.apply_all(Photo(content, ""), drawn, scaled=True)
        for pixels, part in zip(made, parts, strict=True):
            wanted = by_pillow(content, part._replace(shrink=least))
            assert np.array_equal(pixels, wanted.transpose(2, 0, 1))
    assert len(shrinks) >= 2 and max(shrinks) > 1


def test_a_damaged_file_is_bad_with_views_too() -> None:
    for name, content in pictures.bad_contents().items():
        for given in (content, files()["4:2:0 (375, 293)"][:3000]):
            if given is None:
                continue
            with pytest.raises(BadImage):
                image = Photo(given, name)
                augment.apply_all(image, several(DATA, 0, image.size))


class Counting:
    """A source that counts what is asked of it."""

    def __init__(self, source: Source) -> None:
        self.source, self.opened = source, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def open(self, index: int) -> Any:
        self.opened += 1
        return self.source.open(index)


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needed), False])
def test_an_image_is_read_and_decoded_once(
    source: Source, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension, decoded = photo.extension(), list[int]()
    whole = Photo.image
    monkeypatch.setattr(Photo, "image", lambda *a: decoded.append(1) or whole(*a))
    if fast:
        resized = extension.resized  # type: ignore
        counted = lambda *a: decoded.append(len(a[2])) or resized(*a)  # noqa: E731
        monkeypatch.setattr(extension, "resized", counted)
    else:
        monkeypatch.setattr(photo, "extension", lambda: None)
        monkeypatch.setattr(augment, "extension", lambda: None)
    counting: Any = Counting(source)
    layout = batch_layout(RECIPE, 1, 32)
    next(train_batches(counting, RECIPE, layout, 0, 0, 0, Task(RECIPE).draws))
    assert counting.opened == 32
    assert decoded == [6 if fast else 1] * 32


# --- the stream ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("photographs")
    pictures.write_folders(root, "train", pictures.jpegs(100))
    return open_source(DATA, "train", root)


def stream(
    source: Source, recipe: Any, world: int = 1, micro: int = 32, workers: int = 0, first: int = 0
) -> list[list[torch.Tensor]]:
    """Of each global batch what all ranks see: images, and each group's views."""
    layout, draws = batch_layout(recipe, world, micro), Task(recipe).draws
    ranks = [
        list(train_batches(source, recipe, layout, rank, workers, first, draws))
        for rank in range(world)
    ]
    found = list[list[torch.Tensor]]()
    for pieces in zip(*ranks, strict=True):
        parts: list[Batch] = sum(pieces, [])
        each = [(part.images, *part.views) for part in parts]
        found.append([torch.cat(same) for same in zip(*each, strict=True)])
    return found


def assert_same(found: list[list[torch.Tensor]], wanted: list[list[torch.Tensor]]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


DIGITS = replace(
    digits_vit,
    data=replace(digits_vit.data, augment=Shift(pixels=3), views=2),
    batch_size=32,
    schedule=replace(digits_vit.schedule, epochs=1, warmup_epochs=0),
)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", ["images", "digits"])
def test_views_are_the_same_on_any_ranks_workers_and_from_any_batch_on(
    kind: str, source: Source
) -> None:
    recipe = RECIPE
    if kind == "digits":
        recipe = DIGITS
        source = open_source(recipe.data, "train")
    straight = stream(source, recipe)
    sizes = [each.shape[1:] for each in straight[0]]
    assert sizes == [shape_of(recipe.data), *view_shapes(recipe.data)]
    for world, micro, workers, first in ((4, 8, 0, 0), (1, 8, 3, 1), (2, 16, 3, 4)):
        assert_same(stream(source, recipe, world, micro, workers, first), straight[first:])
    every = torch.cat([each[1].flatten(0, 1) for each in straight[:2]])
    assert len({view.numpy().tobytes() for view in every}) > 0.9 * len(every)


def test_the_images_are_those_of_a_recipe_without_views(source: Source) -> None:
    bare = replace(RECIPE, data=replace(DATA, views=()))
    with_views = [each[:1] for each in stream(source, RECIPE)]
    assert_same(with_views, stream(source, bare))


def test_each_view_is_its_places_crop_and_operations(source: Source) -> None:
    layout = batch_layout(RECIPE, 1, 32)
    batches = train_batches(source, RECIPE, layout, 0, 0, 3, Task(RECIPE).draws)
    for micro in islice(batches, 2):
        (batch,) = micro
        for i, (id, slot) in enumerate(zip(batch.ids.tolist(), batch.slots.tolist(), strict=True)):
            image = source.read(id)
            views = [view for group in batch.views for view in group[i]]
            for number, view in enumerate(views, start=1):
                own = as_seen(DATA)[number]
                choice = augment.draw(own, RECIPE.seed, 1, slot, image.size, number)
                assert pictures.equal(view, augment.apply(image, choice))


def test_where_the_device_varies_images_views_come_whole(source: Source) -> None:
    data = replace(DATA, erasing=0.0)
    assert data.augment_on_device
    recipe, layout = replace(RECIPE, data=data), batch_layout(RECIPE, 1, 32)
    draws, prepare = Task(recipe).draws, Prepare(recipe)
    both = [
        prepare(next(train_batches(source, recipe, layout, 0, 0, 0, draws, on_device))[0])
        for on_device in (False, True)
    ]
    assert torch.equal(both[0].images, both[1].images)
    assert all(torch.equal(*pair) for pair in zip(both[0].views, both[1].views, strict=True))


def test_views_of_a_bad_images_place_are_its_substitutes_and_of_none_empty(tmp_path: Path) -> None:
    pictures.write_sixty(tmp_path)
    data = replace(DATA, train_images=60)
    recipe = replace(RECIPE, data=data, batch_size=20)
    source, layout = open_source(data, "train", tmp_path), batch_layout(recipe, 1, 20)
    bad = 0
    for micro in train_batches(source, recipe, layout, 0, 0, 0, Task(recipe).draws):
        (batch,) = micro
        bad += len(batch.bad)
        assert batch.valid.all() and all(view.flatten(2).any(2).all() for view in batch.views)
        epoch = batch.number // recipe.updates_per_epoch
        for i, (id, slot) in enumerate(zip(batch.ids.tolist(), batch.slots.tolist(), strict=True)):
            image = source.read(id)
            choice = augment.draw(data.group(2), 0, epoch, slot, image.size, 3)
            assert pictures.equal(batch.views[1][i, 0], augment.apply(image, choice))
    assert bad >= 12
    broken: Any = Counting(source)
    broken.open = lambda index: Photo(b"nothing", "it")
    (batch,) = next(train_batches(broken, recipe, layout, 0, 0, 0, Task(recipe).draws))
    assert not batch.valid.any() and not any(view.any() for view in batch.views)


def test_views_are_normalised_and_never_mixed(source: Source) -> None:
    mixed = replace(DATA, mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=4))
    recipe, layout = replace(RECIPE, data=mixed), batch_layout(RECIPE, 1, 32)
    (batch,) = next(train_batches(source, recipe, layout, 0, 0, 0, Task(recipe).draws))
    inputs = Prepare(recipe)(batch)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (DATA.mean, DATA.std))
    for views, pixels in zip(inputs.views, batch.views, strict=True):
        assert views.dtype == torch.float32 and views.shape == pixels.shape
        assert torch.equal(views, (pixels.float() / 255 - mean) / std)
    assert not torch.equal(inputs.images, (batch.images.float() / 255 - mean) / std)


def test_test_images_have_no_views_and_what_a_slot_holds_is_known(source: Source) -> None:
    batch = next(loader.test_batches(source, DATA, 8, 0, 1, 0))
    assert batch.views == ()
    assert DATA.groups == (ViewGroup(2, 24), ViewGroup(3, (8, 16)))
    shapes = [(2, 3, 24, 24), (3, 3, 8, 16)]
    assert view_shapes(DATA) == shapes
    pixels = 3 * (24 * 24 + 2 * 24 * 24 + 3 * 8 * 16)
    assert slot_bytes(shape_of(DATA), 5, shapes) == 5 * (25 + pixels)


# --- recipes ------------------------------------------------------------------------------------


def test_recipes_with_views_are_kept_and_older_ones_had_none() -> None:
    check_recipe(RECIPE)
    assert recipe_from_json(to_json(RECIPE)) == RECIPE
    older: Any = to_json(pictures.RECIPE)
    del older["data"]["views"], older["data"]["level"]
    assert recipe_from_json(older) == pictures.RECIPE


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({"image_size": 20}, r"data\.views\.1\.image_size: .*20"),
        ({"crop": replace(SMALL, scale=(0.5, 0.1))}, r"data\.views\.1\.crop\.scale: .*lower one"),
        ({"crop": SimpleRandomCrop(9, "bicubic")}, r"data\.views\.1\.crop\.padding: 9"),
        ({"count": 0}, r"data\.views\.1\.count: 0 is not allowed; it must be 1 to 64"),
        ({"augment": replace(DINO, hue=0.6)}, r"data\.views\.1\.augment\.hue: 0\.6"),
    ],
)
def test_views_that_cannot_be_made_or_taken_are_refused(view: dict[str, Any], said: str) -> None:
    views = (GROUPS[0], replace(GROUPS[1], **view))
    with pytest.raises(ValueError, match=said):
        check_recipe(replace(RECIPE, data=replace(DATA, views=views)))


def test_views_of_another_size_are_refused_where_weights_are_of_one() -> None:
    from bigvit.recipe.find import find_recipe

    resmlp = find_recipe("resmlp_s12_in1k_224")[1]
    assert isinstance(resmlp.data, Images)
    large = Views(2, 224, LARGE, 0.5, DINO, 0.0)
    check_recipe(replace(resmlp, data=replace(resmlp.data, views=(large,))))
    small = replace(large, image_size=96)
    with pytest.raises(ValueError, match=r"views\.0\.image_size: 96 .* 224, as ResMLP is built"):
        check_recipe(replace(resmlp, data=replace(resmlp.data, views=(small,))))


def test_scaled_decoding_is_refused_with_large_views_and_digits_views_without_shifts() -> None:
    views = (replace(GROUPS[0], image_size=168),)
    with pytest.raises(ValueError, match=r"data\.decode: scaled is not allowed"):
        check_recipe(replace(RECIPE, data=replace(DATA, views=views, decode="scaled")))
    with pytest.raises(ValueError, match=r"data\.views: 2 is not allowed without data\.augment"):
        check_recipe(replace(DIGITS, data=replace(DIGITS.data, augment=None)))
