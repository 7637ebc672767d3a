"""Maps of labels cropped by RoIAlign, against a literal transcription and torchvision's."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from torchvision.ops import roi_align

from bigvit.data import augment
from bigvit.data.augment import Drawn
from bigvit.data.augment.crop import ResizedCrop, SimpleCrop
from bigvit.data.augment.rand_augment import STILL, Operation, Operations
from bigvit.data.label_maps.cropping import SparseMaps, aligned, cropped
from bigvit.recipe import RandomResizedCrop

CLASSES = 23
GEOMETRIC = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}
SHAPES = [((18, 18), (14, 14)), ((18, 18), (1, 1)), ((9, 14), (4, 7)), ((5, 12), (11, 3))]


def literal(image: np.ndarray, box: Any, out: tuple[int, int], flip: bool) -> np.ndarray:
    """RoIAlign (arXiv:1703.06870), aligned, of a map (K, h, w) in float64, sample by sample."""
    (classes, height, width), (down, across) = image.shape, out
    left, top, right, bottom = box
    x0, y0 = left * width - 0.5, top * height - 0.5
    bin_x, bin_y = (right - left) * width / across, (bottom - top) * height / down
    many_x, many_y = math.ceil(bin_x), math.ceil(bin_y)
    result = np.zeros((classes, down, across))
    for i in range(down):
        for j in range(across):
            for a in range(many_y):
                for b in range(many_x):
                    y = min(max(y0 + (i + (a + 0.5) / many_y) * bin_y, 0), height - 1)
                    x = min(max(x0 + (j + (b + 0.5) / many_x) * bin_x, 0), width - 1)
                    r, c = int(y), int(x)
                    below, beside = min(r + 1, height - 1), min(c + 1, width - 1)
                    v, u = y - r, x - c
                    result[:, i, j] += (
                        (1 - v) * ((1 - u) * image[:, r, c] + u * image[:, r, beside])
                        + v * ((1 - u) * image[:, below, c] + u * image[:, below, beside])
                    ) / (many_x * many_y)
    return result[..., ::-1] if flip else result


def drawn(count: int) -> list[tuple[Any, bool]]:
    """Crops as training draws them, of images upright and oblong."""
    data = RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
    found: list[tuple[Any, bool]] = []
    for number in range(count):
        size = [(500, 375), (333, 500), (97, 64), (224, 224)][number % 4]
        made = augment.crop.draw(data, 224, size, 0, 0, number)
        found.append((made.of_image(size), number % 3 == 0))
    return found


def sparse(cells: tuple[int, int], crops: list[tuple[Any, bool]], top: int = 5) -> SparseMaps:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(len(crops), *cells, CLASSES, generator=generator) * 4
    best = scores.topk(top, dim=-1)
    where = torch.tensor([[*box, flip] for box, flip in crops], dtype=torch.float64)
    return SparseMaps(where, best.indices.int(), best.values.half())


def dense_of(maps: SparseMaps) -> np.ndarray:
    """(B, K, h, w) float64, written out one by one."""
    batch, *cells, top = maps.classes.shape
    dense = np.zeros((batch, CLASSES, *cells))
    for b, r, c, k in np.ndindex(batch, *cells, top):
        dense[b, int(maps.classes[b, r, c, k]), r, c] = float(maps.scores[b, r, c, k])
    return dense


@pytest.mark.parametrize(("cells", "grid"), SHAPES)
def test_crops_are_those_of_a_literal_roi_align_and_torchvisions(
    cells: tuple[int, int], grid: tuple[int, int]
) -> None:
    crops = drawn(200 if grid == (14, 14) else 40)
    maps = sparse(cells, crops)
    found, dense = aligned(maps, grid, CLASSES).permute(0, 3, 1, 2), dense_of(maps)
    shares = cropped(maps, grid, CLASSES).permute(0, 3, 1, 2).double()
    scale = torch.tensor([cells[1], cells[0]] * 2, dtype=torch.float64)
    boxes = [(maps.where[b, :4] * scale)[None] for b in range(len(crops))]
    theirs = roi_align(torch.from_numpy(dense), boxes, grid, 1.0, -1, aligned=True)
    largest = float(np.abs(dense).max())
    for b, (box, flip) in enumerate(crops):
        whole = theirs[b].flip(-1) if flip else theirs[b]
        assert (found[b] - whole).abs().max() < 1e-6 * largest
        assert (shares[b] - whole.softmax(dim=0)).abs().max() < 1e-6
        if b < 20 or b % 10 == 0:
            slow = torch.from_numpy(literal(dense[b], box, grid, flip).copy())
            assert (found[b] - slow).abs().max() < 1e-6 * largest


@pytest.mark.parametrize("flip", [False, True])
def test_a_ramp_stays_that_ramp(flip: bool) -> None:
    """Rows and columns are not exchanged, and nothing moves by half a cell."""
    cells, grid, box = (18, 12), (7, 14), (0.25, 0.125, 0.75, 0.5)
    r, c = torch.meshgrid(torch.arange(18.0), torch.arange(12.0), indexing="ij")
    scores = torch.stack([r, 2 * c], dim=-1)[None]
    classes = torch.tensor([1, 0], dtype=torch.int32).expand(1, *cells, 2)
    where = torch.tensor([[*box, flip]], dtype=torch.float64)
    found = aligned(SparseMaps(where, classes, scores.half()), grid, 3)[0]
    down = (0.125 + (torch.arange(7) + 0.5) * 0.375 / 7) * 18 - 0.5
    across = (0.25 + (torch.arange(14) + 0.5) * 0.5 / 14) * 12 - 0.5
    across = across.flip(0) if flip else across
    torch.testing.assert_close(found[..., 1], down[:, None].expand(7, 14))
    torch.testing.assert_close(found[..., 0], 2 * across.expand(7, 14))
    assert not found[..., 2].any()


OPERATIONS = [
    [("Rotate", 25.0)],
    [("ShearX", -0.25), ("Color", 1.4)],
    [("ShearY", 0.3)],
    [("TranslateXRel", 0.3), ("TranslateYRel", -0.2)],
    [("Rotate", -17.0), ("ShearX", 0.2), ("TranslateYRel", 0.15)],
    [("TranslateXRel", 0.2), ("Equalize", None), ("Rotate", 30.0)],
    [("Posterize", 4)],
]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("operations", OPERATIONS)
def test_maps_follow_what_randaugment_does_to_the_image(operations: Any, flip: bool) -> None:
    """Pixels that say where they are, and where they come from in the end, by Pillow."""
    width, height, size, grid, cells = 320, 240, (96, 192), (4, 6), (36, 48)
    down, across = np.mgrid[:height, :width].astype(np.float64)
    given = np.stack([across + 0.5, down + 0.5, np.full_like(down, 1.0)], axis=-1)
    crop = ResizedCrop(40, 30, 240, 150, size, "bilinear")
    seen: list[np.ndarray] = []
    of_place = [each for each in operations if each[0] in GEOMETRIC]
    for channel in range(3):  # in floats, which 8 bits would round
        image = Image.fromarray(given[..., channel].astype(np.float32), "F")
        image = image.resize((192, 96), Image.Resampling.BILINEAR, (40, 30, 280, 180))
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image
        for name, value in of_place:
            options = {"resample": Image.Resampling.BILINEAR, "fillcolor": 0}
            image = auto_augment.NAME_TO_OP[name](image, value, **options)
        seen.append(np.asarray(image, np.float64))
    cell = (len(seen[0]) // grid[0], len(seen[0][0]) // grid[1])
    means = [each.reshape(grid[0], cell[0], grid[1], cell[1]).mean((1, 3)) for each in seen]

    made = Operations(tuple(Operation(*each) for each in operations), (0, 0, 0), "bilinear")
    drawn = Drawn(crop, flip, made, None)
    rows, columns = np.mgrid[: cells[0], : cells[1]] + 0.5
    scores = np.stack([columns / cells[1], rows / cells[0], np.ones(cells)], axis=-1)
    steps = [number for affine in made.affines(size) for number in affine]
    where = (*drawn.box((width, height)), float(flip), *(steps or STILL))
    maps = SparseMaps(
        torch.tensor([where], dtype=torch.float64),
        torch.arange(3, dtype=torch.int32).expand(1, *cells, 3),
        torch.from_numpy(scores)[None].half(),
    )
    found = aligned(maps, grid, 3)[0].numpy()
    whole = means[2] > 0.999  # nothing that was filled in
    assert whole.sum() >= 6
    assert np.abs(found[..., 2] - means[2]).max() < (0.12 if of_place else 1e-3)
    assert np.abs(found[..., 0] - means[0] / width)[whole].max() < 0.004
    assert np.abs(found[..., 1] - means[1] / height)[whole].max() < 0.004
    if not of_place:
        upright = maps._replace(where=maps.where[:, :5])
        torch.testing.assert_close(aligned(upright, grid, 3)[0].numpy(), found)


def test_whole_images_at_the_maps_own_grid_are_the_maps() -> None:
    maps = sparse((6, 9), [((0.0, 0.0, 1.0, 1.0), False)])
    found = aligned(maps, (6, 9), CLASSES)[0].permute(2, 0, 1).double().numpy()
    np.testing.assert_array_equal(found, dense_of(maps)[0])


def test_class_numbers_above_those_of_16_bit_floats_are_exact() -> None:
    classes = torch.tensor([2048, 2049, 4099, 21_839], dtype=torch.int32).view(1, 1, 1, 4)
    maps = SparseMaps(
        torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float64),
        classes,
        torch.tensor([4.0, 3.0, 2.0, 1.0]).half().view(1, 1, 1, 4),
    )
    found = aligned(maps, (1, 1), 21_841)[0, 0, 0]
    assert found.nonzero()[:, 0].tolist() == classes.flatten().tolist()
    assert found[classes.flatten().long()].tolist() == [4.0, 3.0, 2.0, 1.0]


def test_boxes_are_where_the_crops_lie() -> None:
    resized = ResizedCrop(10, 30, 20, 40, 16, "bicubic")
    assert Drawn(resized, True, None, None).box((100, 80)) == (0.1, 0.375, 0.3, 0.875)
    # an image of 200 x 100 becomes 32 x 16; its border has 4 pixels
    simple = SimpleCrop(32, 16, 4, 12, 0, 16, "bicubic")
    assert Drawn(simple, False, None, None).box((200, 100)) == (0.25, -0.25, 0.75, 0.75)
    assert Drawn(None, False, None, None).box((8, 8)) == (0.0, 0.0, 1.0, 1.0)
    moved = Drawn(augment.Moved(2, -1), False, None, None)
    assert moved.box((8, 8)) == (0.125, -0.25, 1.125, 0.75)
