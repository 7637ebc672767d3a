"""Which boxes are drawn, and what they show of masks."""

import numpy as np
import pytest
import torch
from test_mask_rcnn import SIDE, masks_of, ours, some_objects
from torchvision.ops import roi_align

from bigvit.objectives.sampling import mask_targets, priorities

assert ours  # a fixture


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling", [1, 2, 3])
def test_mask_targets_are_roi_align_of_masks(aligned, sampling):
    objects = some_objects(4)
    random = np.random.default_rng(0)
    low = random.uniform(-0.5, 100, (200, 2))
    boxes = torch.from_numpy(np.concatenate([low, low + random.uniform(0, 60, (200, 2))], 1))
    boxes[0] = torch.tensor([0.0, 0, 128, 128])
    which = torch.from_numpy(random.integers(0, len(objects.of), 200))
    packed = objects.bits, objects.frames[which], objects.starts[which]
    found = mask_targets(*packed, boxes, (SIDE, SIDE), 28, sampling, aligned)
    rois = torch.cat([which[:, None].double(), boxes], 1)
    wanted = roi_align(masks_of(objects)[:, None], rois, (28, 28), 1.0, sampling, aligned)[:, 0]
    assert float(wanted.mean()) > 0.02
    assert torch.allclose(found, wanted, atol=1e-12)


def test_samples_by_any_key_are_spread_and_the_same_anywhere():
    keys = [torch.tensor(k) for k in (0, 1, 2**32 - 1, 77)]
    each = [priorities(key, torch.arange(100_000)) for key in keys]
    for priority in each:
        assert int(priority.min()) >= 0 and int(priority.max()) < 2**32
        assert len(priority.unique()) > 99_990
        cells = torch.bincount(priority >> 26, minlength=64)
        assert abs(cells - 100_000 / 64).max() < 200
    assert abs(np.corrcoef(torch.stack(each).numpy()) - np.eye(4)).max() < 0.02
    assert torch.equal(priorities(keys[3], torch.arange(40, 50)), each[3][40:50])


def test_draws_are_a_place_in_the_trainings(ours):
    (keys,) = ours.draws("detection", 3, 9, (4, 12))
    (some,) = ours.draws("detection", 3, 9, (8, 10))
    assert torch.equal(keys[4:6], some) and len(keys.unique()) == 16
    assert not torch.equal(keys, ours.draws("detection", 3, 10, (4, 12))[0])
