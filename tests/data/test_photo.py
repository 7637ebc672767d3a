"""Parts of JPEGs by the extension: Pillow's pixels, and Pillow's verdict of files with faults."""

import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pictures import DATA, RECIPE
from PIL import Image
from sklearn.datasets import load_sample_images

from bigvit.data import augment, loader, photo
from bigvit.data.augment import crop, on_device, three_augment
from bigvit.data.decode import BadImage, Photo
from bigvit.data.photo import Part
from bigvit.recipe import ImageSize, RandAugment, SimpleRandomCrop, ThreeAugment
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json, to_json

ROOT = Path(__file__).parents[2]
PHOTOGRAPHS = [Image.fromarray(pixels) for pixels in load_sample_images().images]  # 640 x 427
SIZES = [(640, 427), (375, 293), (127, 401), (33, 17), (16, 16), (1, 30), (65, 1), (250, 333)]
IMAGES = replace(DATA, image_size=126, test_crop_ratio=0.9)
CJPEG: dict[str, tuple[str, ...]] = {  # as libjpeg-turbo's own program packs them
    "4:4:0": ("-sample", "1x2"),
    "4:1:1": ("-sample", "4x1"),
    "4:1:0": ("-sample", "4x2"),
    "more colour than light": ("-sample", "1x1,2x2,2x2"),
    "rgb": ("-rgb",),
    "arithmetic": ("-arithmetic",),
    "restarts": ("-restart", "1"),
    "restarts by block, progressive": ("-restart", "7B", "-progressive"),
    "fast transform": ("-dct", "fast", "-quality", "50"),
    "coarse": ("-quality", "3"),
}

needed = pytest.mark.skipif(photo.extension() is None, reason=photo.without())


def packed(image: Image.Image, **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, "JPEG", **options)
        return file.getvalue()


@cache
def files() -> dict[str, bytes]:
    """JPEGs of many kinds, by what they are."""
    found = dict[str, bytes]()
    for i, size in enumerate(SIZES):
        image = PHOTOGRAPHS[i % 2].crop((7, 5, 7 + size[0], 5 + size[1])).resize(size)
        for name, options in {
            "4:4:4": {"subsampling": 0, "quality": 95},
            "4:2:2": {"subsampling": 1},
            "4:2:0": {"subsampling": 2},
            "progressive": {"progressive": True, "quality": 85},
            "progressive 4:4:4": {"progressive": True, "subsampling": 0},
            "restart markers": {"restart_marker_blocks": 5},
            "rows of restarts": {"restart_marker_rows": 1, "progressive": True},
            "Exif": {"exif": Image.Exif(), "comment": b"from the world", "dpi": (72, 72)},
        }.items():
            found[f"{name} {size}"] = packed(image, **options)
        found[f"gray {size}"] = packed(image.convert("L"))
        found[f"CMYK {size}"] = packed(image.convert("CMYK"))
        if shutil.which("cjpeg"):
            plain = io.BytesIO()
            image.save(plain, "PPM")
            for name, words in CJPEG.items():
                done = subprocess.run(
                    ("cjpeg", *words), input=plain.getvalue(), capture_output=True
                )
                assert done.returncode == 0, done.stderr
                found[f"cjpeg {name} {size}"] = done.stdout
    return found


def draws(count: int, size: tuple[int, int], seed: int) -> Iterator[Part]:
    """Parts of an image: crops that are enlarged, shrunk or kept, and windows of them; every third
    of an image that may be decoded smaller."""
    generator = random.Random(seed)
    for i in range(count):
        width, height = generator.randint(1, size[0]), generator.randint(1, size[1])
        left, top = generator.randint(0, size[0] - width), generator.randint(0, size[1] - height)
        wide, high = generator.choice(((126, 126), (224, 96), (17, 40), (9, 7), (width, height)))
        x, y = generator.randrange(wide), generator.randrange(high)
        window = (x, y, generator.randint(x + 1, wide), generator.randint(y + 1, high))
        window = window if i % 2 else (0, 0, wide, high)
        how = generator.choice(("bicubic", "bilinear"))
        part = Part((left, top, width, height), (wide, high), window, how)
        yield part if i % 3 else part.shrunk()


def by_pillow(content: bytes, part: Part) -> np.ndarray:
    """A part of a file that Pillow decodes whole, smaller where that is wanted."""
    image, by = Image.open(io.BytesIO(content)), part.shrink
    if by > 1:
        image.draft(image.mode, (image.width // by, image.height // by))
    x, y, width, height = part.box
    left, top = x // by, y // by
    image = image.convert("RGB").crop((left, top, -(-(x + width) // by), -(-(y + height) // by)))
    within = (x / by - left, y / by - top, (x + width) / by - left, (y + height) / by - top)
    resized = image.resize(part.size, photo.RESAMPLING[part.interpolation], within)
    return np.asarray(resized.crop(part.window))


@needed
@pytest.mark.parametrize("plainly", [False, True])
def test_a_part_has_the_pixels_of_the_whole_file_decoded(plainly: bool):
    fast: Any = photo.extension()
    fast.plainly(plainly)
    try:
        without, shrunk = set[str](), list[int]()
        for i, (name, content) in enumerate(files().items()):
            given = Photo(content, name)
            assert given.size == Image.open(io.BytesIO(content)).size
            for part in draws(6, given.size, i):
                found = given.part(part)
                if found is None:
                    without.add(name.rpartition(" (")[0])
                else:
                    shrunk.append(part.shrink)
                    assert np.array_equal(found[..., :3], by_pillow(content, part)), (name, part)
    finally:
        fast.plainly(False)
    assert min(shrunk.count(by) for by in (2, 4, 8)) > 5
    # what Pillow has to decode, and nothing else
    allowed = {"CMYK"} | {f"cjpeg {name}" for name in CJPEG if name[:4] in ("4:1:", "more", "arit")}
    assert without <= allowed and "CMYK" in without


KINDS = {
    "3-Augment": IMAGES,
    "no jitter": replace(IMAGES, augment=ThreeAugment(color_jitter=0.0)),
    "strong jitter": replace(IMAGES, augment=ThreeAugment(color_jitter=1.5), image_size=224),
    "RandAugment": replace(
        IMAGES, augment=RandAugment(operations=2, magnitude=9, magnitude_std=0.5, increasing=True)
    ),
    "simple crop": replace(IMAGES, crop=SimpleRandomCrop(padding=4, interpolation="bicubic")),
    "oblong": replace(IMAGES, augment=None, image_size=(96, 140)),
    "scaled": replace(IMAGES, augment=None, image_size=(64, 48), decode="scaled"),
    "simple crop, scaled": replace(
        IMAGES,
        crop=SimpleRandomCrop(padding=4, interpolation="bicubic"),
        image_size=40,
        decode="scaled",
    ),
}


@needed
@pytest.mark.parametrize("kind", KINDS)
def test_a_varied_image_is_pillows(kind: str):
    data = KINDS[kind]
    for i, (name, content) in enumerate(
        list(files().items())[:: 4 if kind == "RandAugment" else 1]
    ):
        image = Image.open(io.BytesIO(content)).convert("RGB")
        assert np.array_equal(
            augment.test_image(Photo(content, name), data), augment.test_image(image, data)
        ), name
        drawn = augment.draw(data, 3, 0, i, image.size)
        scaled = data.decode == "scaled"
        found = augment.apply(Photo(content, name), drawn, scaled)
        with pytest.MonkeyPatch.context() as patch:
            if scaled:  # of a file alone; by Pillow
                patch.setattr(photo, "extension", lambda: None)
                image = Photo(content, name)
            assert np.array_equal(found, augment.apply(image, drawn, scaled)), (name, drawn)


@pytest.mark.parametrize("side", [(96, 80), (1, 30), (3, 2)], ids=str)
def test_a_device_varies_a_batch_as_pillow_does(side: tuple[int, int]):
    augments = [ThreeAugment(color_jitter=strength) for strength in (0.0, 0.3, 1.5)]
    count = 90
    drawn = [three_augment.draw(augments[i % 3], 0, 0, i) for i in range(count)]
    assert {each.choice for each in drawn} == set(three_augment.CHOICES)
    boxes = [(i, 2 * i, i + side[0], 2 * i + side[1]) for i in range(count)]
    images = [PHOTOGRAPHS[i % 2].crop(box) for i, box in enumerate(boxes)]
    stacked = np.stack([np.asarray(image).transpose(2, 0, 1) for image in images])
    numbers = np.stack([on_device.numbers_of(three) for three in drawn])
    found = on_device.apply(torch.from_numpy(stacked), torch.from_numpy(numbers)).numpy()
    for image, three, made in zip(images, drawn, found, strict=True):
        assert np.array_equal(made, np.asarray(three.apply(image)).transpose(2, 0, 1)), three


def test_a_recipe_that_a_device_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]):
    from bigvit.train import main

    assert main(["digits_vit", "--engine", "single", "--augment-on", "device"]) == 2
    assert "--augment-on device: this recipe has no 3-Augment" in capsys.readouterr().err


@pytest.mark.parametrize("size", [168, (96, 224)], ids=str)
def test_scaled_decoding_is_refused_where_it_is_no_faster(size: ImageSize):
    recipe = replace(RECIPE, data=replace(DATA, image_size=size, decode="scaled"))
    with pytest.raises(ValueError, match="decode: scaled is not allowed.* exact .* 160 pixels"):
        check_recipe(recipe)
    older: Any = to_json(replace(RECIPE, data=DATA))
    del older["data"]["decode"]
    assert recipe_from_json(older).data == DATA


FIRST = loader.TrainIndex(0, 0, 0)


def test_a_recipe_trains_on_smaller_images_and_is_tested_on_exact_ones():
    content = files()["4:2:0 (640, 427)"]
    source: Any = SimpleNamespace(open=lambda id: Photo(content, str(id)))
    data = replace(DATA, image_size=40, flip=0.0, augment=None)
    scaled, made = replace(data, decode="scaled"), augment.draw(data, 0, 0, 0, (640, 427))
    assert isinstance(made.crop, crop.ResizedCrop)
    part = made.crop.part((640, 427), scaled=True)
    assert part.shrink > 1
    for each, wanted in ((scaled, part), (data, part._replace(shrink=1))):
        found = loader._train_sample(source, each, [each], 0, False, None, None, FIRST)
        assert np.array_equal(found.image, by_pillow(content, wanted).transpose(2, 0, 1))
    one, other = (augment.test_image(Photo(content, ""), each) for each in (scaled, data))
    assert np.array_equal(one, other)


def verdict(given: bytes, part: Part | None) -> tuple[str, Any]:
    """Of a file that may be broken: the reason, or the pixels of a part, or of Pillow's."""
    try:
        image = Photo(given, "it")
        if part is None:
            return "", np.asarray(image.image())
        found = image.part(part)
        if found is not None:
            return "", found[..., :3]
        return "", np.asarray(crop.taken(image, part))
    except BadImage as error:
        return str(error), None


def broken(content: bytes, cuts: int, flips: int, seed: int) -> Iterator[bytes]:
    """The file cut off, and with bytes changed: anywhere, or in the header."""
    generator = random.Random(seed)
    for i in range(cuts):
        yield content[: len(content) * i // cuts]
    for i in range(flips):
        changed = bytearray(content)
        for _ in range(generator.choice((1, 1, 3))):
            where = generator.randrange(len(content) if i % 3 else min(700, len(content)))
            changed[where] = generator.choice((0xFF, 0, generator.randrange(256)))
        yield bytes(changed)


def compared(contents: Iterator[bytes], seed: int) -> tuple[int, int]:
    """How many were bad, and how many fine: in each Pillow's verdict, and Pillow's pixels."""
    bad = fine = 0
    generator = random.Random(seed)
    for content in contents:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(photo, "extension", lambda: None)
            reason, whole = verdict(content, None)
            if whole is None:
                width, height = generator.randint(1, 200), generator.randint(1, 200)
                part = Part((0, 0, width, height), (32, 32), (0, 0, 32, 32), "bicubic")
                wanted = None
                bad += 1
            else:
                part = next(draws(1, whole.shape[1::-1], generator.randrange(1 << 30)))
                wanted = np.asarray(crop.taken(Image.fromarray(whole), part._replace(shrink=1)))
                fine += 1
            smaller = verdict(content, part.shrunk())
        assert smaller[0] == reason
        for each, pixels in ((part._replace(shrink=1), wanted), (part.shrunk(), smaller[1])):
            said, found = verdict(content, each)
            assert said == reason
            assert found is None if pixels is None else np.array_equal(found, pixels)
    return bad, fine


BROKEN = ["4:4:4", "4:2:2", "4:2:0", "progressive", "restart markers", "Exif", "gray"]


@needed
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_has_pillows_verdict(kind: str):
    content = files()[f"{kind} (127, 401)"]
    bad, fine = compared(broken(content, 40, 280, 1), 2)
    assert bad + fine == 320 and bad > 40 and fine > 40


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    whole = photo.extension.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(photo, "DOWN_FIRST", not photo.DOWN_FIRST)  # as another Pillow would be
        patch.setattr(photo, "extension", whole)
        assert photo.extension() is None
        assert "other pixels than Pillow" in photo.without() or "not built" in photo.without()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "bigvit.data._pixels", None)  # as one without it
        patch.delattr("bigvit.data._pixels", raising=False)
        patch.setattr(photo, "extension", whole)
        assert photo.extension() is None and "libjpeg-dev" in photo.without()
        content = files()["4:2:0 (375, 293)"]
        drawn = augment.draw(IMAGES, 0, 0, 0, (375, 293))
        image = Image.open(io.BytesIO(content)).convert("RGB")
        assert np.array_equal(
            augment.apply(Photo(content, "it"), drawn), augment.apply(image, drawn)
        )


@needed
@pytest.mark.slow
def test_broken_files_are_read_within_their_bytes(tmp_path: Path):
    """The same comparison under the address sanitiser, which ends the process at a wrong access."""
    import sysconfig

    suffix, include = sysconfig.get_config_var("EXT_SUFFIX"), sysconfig.get_paths()["include"]
    built = tmp_path / f"_pixels{suffix}"
    sources = sorted(map(str, (ROOT / "bigvit/csrc").glob("*.c")))
    options = ("-std=c11", "-O1", "-g", "-ffp-contract=off", "-fPIC", "-shared", f"-I{include}")
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    subprocess.run(["gcc", *options, *checks, *sources, "-o", built, "-ljpeg", "-lm"], check=True)
    # libstdc++ too: what torch imports throws, and the sanitiser asks for that at the start
    names = [f"-print-file-name={name}" for name in ("libasan.so", "libstdc++.so")]
    told = [subprocess.check_output(["gcc", name], text=True).strip() for name in names]
    code = f"""
import importlib.util, sys
import bigvit.data
spec = importlib.util.spec_from_file_location("bigvit.data._pixels", {str(built)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["bigvit.data._pixels"] = bigvit.data._pixels = module
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_photo as t
assert t.photo.extension() is module
for seed, kind in enumerate(t.BROKEN):
    content = t.files()[f"{{kind}} (127, 401)"]
    print(kind, t.compared(t.broken(content, 40, 2000, seed), seed), flush=True)
for plainly in (False, True):
    t.test_a_part_has_the_pixels_of_the_whole_file_decoded(plainly)
import pytest, test_views
for kind in test_views.KINDS:
    with pytest.MonkeyPatch.context() as patch:
        test_views.test_views_that_are_decoded_at_once_are_those_decoded_each(kind, True, patch)
print("whole")
"""
    environment = {**os.environ, "LD_PRELOAD": " ".join(told), "PYTHONPATH": str(ROOT)}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.endswith("whole\n"), done.stdout + done.stderr
