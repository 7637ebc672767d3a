"""An update that logs nothing has the host wait for no number of the device but DeepSpeed's."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks.reads import counting
from bigvit.recipe import Recipe
from bigvit.task import Batch, Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]


def test_forward_and_backward_read_nothing(tiny: Recipe, batches: Batches):
    task = Task(tiny)
    task.init_weights()
    batch = next(batches(tiny, 1))[0]
    found: Counter[str] = Counter()
    with counting(found):
        torch.stack(list(task(batch).values())).sum().backward()
    assert not found


@pytest.mark.parametrize("read", [float, bool, torch.Tensor.item])
def test_a_read_is_counted(read: Callable[[torch.Tensor], object]):
    found: Counter[str] = Counter()
    with counting(found):
        read(torch.ones(()))
    assert found == {"others": 1}
