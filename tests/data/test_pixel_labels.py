"""Maps of classes as they are found on disks, and what becomes of an image and its map together."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scenes import DATA, OBJECTS, ade20k, jpeg, png, scene

from bigvit import keyed_random
from bigvit.data import pixel_labels
from bigvit.data.augment import distortion
from bigvit.data.batch import Draws
from bigvit.data.check import check_data
from bigvit.data.decode import BadImage, decode
from bigvit.data.loader import test_batches as batches_of_test
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Normalise, within
from bigvit.data.sources import open_source
from bigvit.data.sources.segmentation import Labelled, read_map
from bigvit.recipe import Distortion, Run, batch_layout
from bigvit.recipe.check import check_recipe
from bigvit.recipe.scene import UNTOLD
from bigvit.recipes.digits import digits_vit
from bigvit.recipes.segmentation import scenes_vit_64

VALUES = np.array([[0, 1, 2, 3], [4, 255, 1, 0]], np.uint8)
COLOURS = bytes(range(60, 60 + 15))


def test_ade20ks_folders_are_read_with_their_names(tmp_path: Path) -> None:
    root = ade20k(tmp_path)
    source = cast(Labelled, open_source(DATA, "train", root))
    assert len(source) == 6 and len(open_source(DATA, "test", root)) == 3
    assert source.classes == ["wall", "building, edifice", "sky", "floor, flooring"]
    assert source.name(0) == "images/training/ADE_train_00000001.jpg"
    for i in range(6):
        labels = source.labels(i, source.read(i).size)
        wanted = scene(i, 37 + 5 * i, 61 - 3 * i)[1].astype(int) - 1
        assert np.array_equal(labels, np.where(wanted < 0, UNTOLD, wanted))
    check_data(DATA, Run(data_root=root))
    with pytest.raises(ValueError, match=r"train has 4 classes, but scenes has 7 in the recipe"):
        check_data(replace(DATA, classes=7), Run(data_root=root))


@pytest.mark.parametrize(
    "folders",
    ["images/train labels/train", "images/train masks/train", "train/images train/labels"],
)
def test_other_names_of_folders_are_known(folders: str, tmp_path: Path) -> None:
    images, maps = folders.split()
    for folder in (images, maps):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder.replace("train", "val")).mkdir(parents=True)
    for split in ("train", "val"):
        content, labels = scene(1, 30, 40)
        (tmp_path / images.replace("train", split) / "a.b.JPEG").write_bytes(content)
        (tmp_path / maps.replace("train", split) / "a.b.png").write_bytes(png(labels))
    data = replace(DATA, train_images=1, test_images=1)
    for split in ("train", "test"):
        source = cast(Labelled, open_source(data, split, tmp_path))
        assert source.classes == ["0", "1", "2", "3"]
        assert source.labels(0, (40, 30)).shape == (30, 40)


@pytest.mark.parametrize(
    ("kind", "depth", "palette"), [(0, 8, b""), (3, 8, COLOURS), (3, 4, COLOURS), (0, 4, b"")]
)
def test_indices_are_classes_and_colours_are_not_looked_at(
    kind: int, depth: int, palette: bytes
) -> None:
    values = np.where(VALUES == 255, 0, VALUES) if depth < 8 else VALUES
    values = np.where(values == 255, 4, values) if palette else values
    content = png(values.astype(np.uint8), kind, depth, palette)
    found = read_map(content, "a.png", (4, 2), 5, "class")
    assert np.array_equal(found, np.where(values == 255, UNTOLD, values))
    shifted = read_map(content, "a.png", (4, 2), 4, "not told")
    told = (values != 0) & (values != 255)
    assert np.array_equal(shifted, np.where(told, values.astype(int) - 1, UNTOLD))


@pytest.mark.parametrize(
    ("content", "size", "said"),
    [
        (png(VALUES), (2, 4), "its map has 4 x 2 pixels, and the image 2 x 4"),
        (png(VALUES), (4, 2), r"it has class 4; the recipe's are 0 to 3 \(data.classes\)"),
        (png(VALUES, depth=16), (4, 2), "8-bit gray or palette PNG, not 16-bit gray"),
        (png(np.stack([VALUES] * 3, -1), 2), (4, 2), "8-bit gray or palette PNG, not 8-bit RGB"),
        (png(np.stack([VALUES] * 2, -1), 4), (4, 2), "PNG, not 8-bit gray with alpha"),
        (jpeg(np.stack([VALUES] * 3, -1)), (4, 2), "a map of classes must be a PNG"),
        (png(VALUES)[:45], (4, 2), "a.png: "),
        (b"", (4, 2), "a.png: empty"),
    ],
)
def test_what_is_no_map_of_an_image_is_told(
    content: bytes, size: tuple[int, int], said: str
) -> None:
    with pytest.raises(BadImage, match=said):
        read_map(content, "a.png", size, 4, "class")


def test_a_class_is_said_as_it_is_written() -> None:
    with pytest.raises(BadImage, match=r"it has class 3, written 4; the recipe's are 0 to 2"):
        read_map(png(VALUES), "a.png", (4, 2), 3, "not told")


def test_what_cannot_be_a_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)--data-root is missing.*annotations/training"):
        check_data(DATA, Run())
    with pytest.raises(ValueError, match="there is no such folder"):
        check_data(DATA, Run(data_root=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"no images/training/ or images/train/ with its maps"):
        check_data(DATA, Run(data_root=tmp_path))
    root = ade20k(tmp_path / "a")
    (root / "annotations/validation/ADE_val_00000002.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 3 images in images/validation/ have no map.*0002"):
        check_data(DATA, Run(data_root=root))
    root = ade20k(tmp_path / "b")
    (root / "images/training/ADE_train_00000001.png").write_bytes(b"")
    with pytest.raises(ValueError, match="two images called ADE_train_00000001"):
        check_data(DATA, Run(data_root=root))
    root = ade20k(tmp_path / "c")
    for file in (root / "annotations/training").iterdir():
        Image.open(file).convert("RGB").save(file)
    with pytest.raises(ValueError, match="6 of 6 maps that were looked at cannot"):
        check_data(DATA, Run(data_root=root))
    root = ade20k(tmp_path / "d")
    (root / "objectInfo150.txt").write_text(OBJECTS.replace("\n3\t", "\n5\t"))
    with pytest.raises(ValueError, match="objectInfo150.txt is damaged"):
        check_data(DATA, Run(data_root=root))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stride": 25}, "data.stride: 25 is not allowed; it must be at most 24, the shorter side"),
        ({"classes": 255}, "data.classes: 255 is not allowed"),
        ({"factor": (2.0, 0.5)}, "data.factor: .* two numbers that do not fall"),
    ],
)
def test_values_that_cannot_be_are_refused(changed: dict[str, Any], said: str) -> None:
    model = replace(scenes_vit_64.model, num_classes=changed.get("classes", 4))
    with pytest.raises(ValueError, match=said):
        check_recipe(replace(scenes_vit_64, model=model, data=replace(DATA, **changed)))


WIDTH, HEIGHT = 230, 200


@pytest.fixture(scope="module")
def coordinates() -> tuple[Image.Image, NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture whose red says each pixel's column, and green its row; and maps that say them."""
    rows, columns = (each.astype(np.uint8) for each in np.mgrid[:HEIGHT, :WIDTH])
    return Image.fromarray(np.stack([columns, rows, 0 * rows], -1)), columns, rows


KEYS = 500


def test_image_and_classes_move_together(
    coordinates: tuple[Image.Image, NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    """Of an output pixel the image says, by interpolation, where it came from, and so does its
    class: both within a pixel, and on average within a tenth of one, which half a pixel of an
    image enlarged twice would not be."""
    image, columns, rows = coordinates
    data = replace(DATA, distortion=None, image_size=(96, 128), longest=230, shortest=200)
    flips = sizes = 0
    for slot in range(KEYS):
        drawn = pixel_labels.draw(data, 7, 1, slot, columns)
        pixels = pixel_labels.apply(image, drawn).astype(int)
        for channel, classes in zip(pixels, (columns, rows), strict=False):
            found = pixel_labels.apply_to_labels(classes, drawn).astype(int)
            assert found.shape == channel.shape and found.shape[0] == 96
            assert abs(channel - found).max() <= 1
            assert abs((channel - found).mean()) < 0.1
        across = np.diff(pixels[0].mean(axis=0))
        assert (across < 0).mean() > 0.3 if drawn.flip else (across > 0).mean() > 0.3
        flips, sizes = flips + drawn.flip, sizes + (drawn.size[0] > WIDTH)
    assert 0.4 < flips / KEYS < 0.6 and 0.55 < sizes / KEYS < 0.8  # factors of 1/2 to 2


def test_without_resizing_every_pixel_keeps_its_class(
    coordinates: tuple[Image.Image, NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    image, columns, rows = coordinates
    data = replace(DATA, distortion=None, longest=230, shortest=200, factor=(1, 1))
    for slot in range(KEYS):
        drawn = pixel_labels.draw(data, 3, 0, slot, rows)
        red, green, _ = pixel_labels.apply(image, drawn)
        assert np.array_equal(red, pixel_labels.apply_to_labels(columns, drawn))
        assert np.array_equal(green, pixel_labels.apply_to_labels(rows, drawn))


@pytest.mark.parametrize("factor", [0.4, 0.75, 1.3, 2.0])
def test_a_map_is_resized_as_pillow_does_it(factor: float) -> None:
    labels = np.random.default_rng(0).integers(0, 150, (61, 47), np.uint8)
    size = round(47 * factor), round(61 * factor)
    whole = pixel_labels.nearest(labels, size, (0, 0, *size))
    wanted = Image.fromarray(labels).resize(size, Image.Resampling.NEAREST)
    assert np.array_equal(whole, np.asarray(wanted))
    window = 3, 5, size[0] - 2, size[1]
    assert np.array_equal(pixel_labels.nearest(labels, size, window), whole[5:, 3:-2])


@pytest.mark.parametrize(
    ("size", "factor", "wanted"),
    # mmcv 1.7: imrescale((h, w), (int(2048 f), int(512 f)), return_scale=True)
    [
        ((683, 512), 1.0, (683, 512)),
        ((512, 683), 1.0, (512, 683)),
        ((2000, 300), 1.0, (2048, 307)),
        ((1024, 768), 0.5, (341, 256)),
        ((500, 375), 1.7, (1160, 870)),
    ],
)
def test_images_are_resized_to_what_mmcv_says(
    size: tuple[int, int], factor: float, wanted: tuple[int, int]
) -> None:
    data = replace(DATA, longest=2048, shortest=512)
    assert pixel_labels.fitted(data, size, factor) == wanted


def test_a_crop_is_drawn_again_while_one_class_fills_it() -> None:
    labels = np.zeros((64, 200), np.uint8)
    labels[:, 100:], labels[:8] = 1, UNTOLD
    data = replace(DATA, image_size=(16, 40), longest=200, shortest=64, factor=(1, 1))

    def shares(most: float) -> NDArray[np.float64]:
        found = list[float]()
        for slot in range(300):
            data_of = replace(data, most_of_one=most)
            drawn = pixel_labels.draw(data_of, 0, 0, slot, labels)
            seen = pixel_labels.apply_to_labels(labels, drawn)
            found.append(max((seen == 0).sum(), (seen == 1).sum()) / max(1, (seen < 2).sum()))
        return np.array(found)

    once, again = shares(1.0), shares(0.75)
    assert (once >= 0.75).mean() > 0.75  # 20 of 161 places have less
    # (1 - 20 / 161)^11 of all still have: what ten more tries leave
    assert (again >= 0.75).mean() == pytest.approx((1 - 20 / 161) ** 11, abs=0.09)


def literal_distortion(image: NDArray[np.uint8], how: distortion.Distorted) -> NDArray[np.uint8]:
    """mmsegmentation 0.30's steps without hue and saturation, in float32."""

    def converted(values: NDArray[np.uint8], alpha: float = 1, beta: float = 0) -> Any:
        changed = values.astype(np.float32) * np.float32(alpha) + np.float32(beta)
        return np.clip(changed, 0, 255).astype(np.uint8)

    if how.brightness is not None:
        image = converted(image, beta=how.brightness)
    return image if how.contrast is None else converted(image, alpha=how.contrast)


def test_distortion_is_of_the_ranges_and_chances_it_says() -> None:
    image = decode(scene(4, 40, 60)[0], "a")
    found, strong = list[distortion.Distorted](), Distortion(32, (0.5, 1.5), (0.5, 1.5), 18)
    for slot in range(400):
        how = distortion.draw(strong, 0, 0, slot)
        found.append(how)
        alone = how._replace(saturation=None, hue=None)
        wanted = literal_distortion(np.asarray(image), alone)
        assert np.array_equal(np.asarray(alone.apply(image)), wanted)
    for name, low, high in (
        ("brightness", -32, 32),
        ("contrast", 0.5, 1.5),
        ("saturation", 0.5, 1.5),
        ("hue", -18, 18),
    ):
        values = np.array([v for each in found if (v := getattr(each, name)) is not None])
        assert 0.42 < len(values) / 400 < 0.58
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)
    assert 0.42 < np.mean([each.contrast_last for each in found]) < 0.58
    gray = distortion.Distorted(None, None, 0.0, None, False).apply(image)
    assert np.ptp(np.asarray(gray).astype(int), axis=-1).max() <= 1
    turned = distortion.Distorted(None, None, None, 60.0, False)
    red = Image.new("RGB", (1, 1), (200, 0, 0))
    assert np.allclose(np.asarray(turned.apply(red))[0, 0], (0, 200, 0), atol=6)  # a third round


def stream(source: Any, world: int, micro: int, workers: int) -> list[list[torch.Tensor]]:
    """What all ranks see of each global batch: images, labels, sizes, ids, and which are bad."""
    recipe = replace(digits_vit, data=DATA, batch_size=4)
    schedule = replace(recipe.schedule, epochs=3, warmup_epochs=0)
    recipe = replace(recipe, schedule=schedule, data=replace(DATA, train_images=len(source)))
    layout = batch_layout(recipe, world, micro)

    def draws(number: int, span: tuple[int, int]) -> Draws:
        return Draws(None, ())

    ranks = [
        list(train_batches(source, recipe, layout, rank, workers, 0, draws))
        for rank in range(world)
    ]
    found = list[list[torch.Tensor]]()
    for pieces in zip(*ranks, strict=True):
        parts = [(b.images, b.labels, b.sizes, b.ids, b.slots) for b in sum(pieces, [])]
        found.append([torch.cat(cast(Any, same)) for same in zip(*parts, strict=True)])
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("world", "micro", "workers"), [(1, 4, 3), (4, 1, 0), (4, 1, 3), (2, 1, 0)]
)
def test_the_stream_is_the_same_on_any_ranks_and_workers(
    world: int, micro: int, workers: int, tmp_path: Path
) -> None:
    root = ade20k(tmp_path)
    (root / "annotations/training/ADE_train_00000003.png").write_bytes(b"no map")
    source = open_source(DATA, "train", root)
    one = stream(source, 1, 4, 0)
    assert len(one) == 3
    for here, there in zip(one, stream(source, world, micro, workers), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    images, labels, sizes, ids, slots = (torch.cat(each) for each in zip(*one, strict=True))
    assert 2 not in ids.tolist() and images.shape == (12, 3, 24, 32)  # a bad map's is replaced
    assert labels.shape == (12, 24, 32) and labels.unique().tolist()[-1] == UNTOLD
    inside = within(sizes, (24, 32))
    assert not inside.all() and (labels[~inside] == UNTOLD).all()
    for i in range(12):  # what the batch holds is what is drawn for its place
        epoch, id = i // 4, int(ids[i])
        own = cast(Labelled, source).labels(id, source.read(id).size)
        drawn = pixel_labels.draw(DATA, digits_vit.seed, epoch, int(slots[i]), own)
        height, width = sizes[i].tolist()
        seen = images[i, :, :height, :width].numpy()
        assert np.array_equal(seen, pixel_labels.apply(source.read(id), drawn))


def test_what_is_missing_is_0_once_it_is_normalised(tmp_path: Path) -> None:
    from bigvit.data.prepare import Prepare

    source = open_source(DATA, "train", ade20k(tmp_path))
    data = replace(DATA, factor=(0.5, 0.5), train_images=6)
    schedule = replace(digits_vit.schedule, epochs=1, warmup_epochs=0)
    recipe = replace(digits_vit, data=data, batch_size=4, schedule=schedule)
    layout = batch_layout(recipe, 1, 4)
    batch = next(train_batches(source, recipe, layout, 0, 0, 0, lambda *_: Draws(None, ())))[0]
    assert batch.sizes is not None and batch.labels is not None
    inputs = Prepare(recipe)(batch)
    inside = within(batch.sizes, (24, 32))[:, None].expand(-1, 3, -1, -1)
    assert (inputs.images[~inside] == 0).all() and (~inside).sum() > 100
    normalised = Normalise(data)(batch.images)
    assert torch.equal(inputs.images[inside], normalised[inside])
    assert inputs.targets.labels is not None
    assert torch.equal(inputs.targets.labels, batch.labels.long())


def test_a_test_images_centre_is_seen(tmp_path: Path) -> None:
    source = open_source(DATA, "test", ade20k(tmp_path))
    (batch,) = batches_of_test(source, DATA, 4, 0, 1, 0)
    assert batch.valid.tolist() == [True, True, True, False] and batch.labels is not None
    assert batch.images.shape == (4, 3, 24, 32) and (batch.labels != UNTOLD).any()


def test_draws_are_of_the_key_alone() -> None:
    labels = keyed_random.bits(2000, "labels").astype(np.uint8).reshape(40, 50) % 4
    each = {pixel_labels.draw(DATA, *key, labels) for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0))}
    assert len(each) == 3
    assert pixel_labels.draw(DATA, 0, 1, 0, labels) in each


def test_a_folder_of_datasets_is_read(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict, Features, Value
    from datasets import Image as Kind

    def rows(count: int, first: int) -> Dataset:
        pairs = [scene(first + i, 30 + i, 40) for i in range(count)]
        cells = {
            "image": [{"bytes": content, "path": None} for content, _ in pairs],
            "annotation": [{"bytes": png(labels), "path": None} for _, labels in pairs],
            "scene": ["street"] * count,
        }
        kinds = Features({"image": Kind(), "annotation": Kind(), "scene": Value("string")})
        return Dataset.from_dict(cells, features=kinds)

    whole = DatasetDict({"train": rows(6, 0), "validation": rows(3, 50)})
    whole.save_to_disk(str(tmp_path / "saved"))
    check_data(DATA, Run(data_root=tmp_path / "saved"))
    source = cast(Any, open_source(DATA, "train", tmp_path / "saved"))
    assert source.name(2) == "train[2]" and source.contents().shape == (6, 2)
    for i in range(6):
        wanted = scene(i, 30 + i, 40)[1].astype(int) - 1
        labels = source.labels(i, source.open(i).size)
        assert np.array_equal(labels, np.where(wanted < 0, UNTOLD, wanted))
    without = DatasetDict({"train": rows(6, 0).remove_columns("annotation")})
    without.save_to_disk(str(tmp_path / "without"))
    with pytest.raises(ValueError, match="two columns of images are needed.*not image"):
        open_source(DATA, "train", tmp_path / "without")
