"""Further views of an image: drawn by their place, and decoded once."""

import io
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pictures
import pytest
from PIL import Image, ImageFilter, ImageOps
from test_photo import PHOTOGRAPHS, by_pillow, files, needed
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from viewed import DATA, DIGITS, DINO, GROUPS, KINDS, LARGE, RECIPE, SMALL, Counting, photographs

from bigvit.data import augment, photo
from bigvit.data.augment import crop, view_augment
from bigvit.data.augment.view_augment import Varied
from bigvit.data.decode import BadImage, Photo
from bigvit.data.loader import as_seen, train_batches
from bigvit.data.sources import Source
from bigvit.recipe import (
    Images,
    SimpleRandomCrop,
    Views,
    batch_layout,
)
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.task import Task

# --- what is drawn ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return photographs(tmp_path_factory.mktemp("photographs"))


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
