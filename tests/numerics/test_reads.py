"""An update that logs nothing has the host wait for no number of the device but DeepSpeed's."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.reads import counting
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.engines.norms import Squares
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe
from bigvit.task import Task

Batches = Callable[[Recipe, int], Iterator[list[Batch]]]


def test_forward_and_backward_read_nothing(tiny: Recipe, batches: Batches):
    task = Task(tiny)
    task.init_weights()
    batch = next(batches(tiny, 1))[0]
    found, prepare = Counter[str](), Prepare(tiny)
    with counting(found):
        torch.stack(list(task(prepare(batch)).values())).sum().backward()
    assert not found


@pytest.mark.parametrize("read", [float, bool, torch.Tensor.item])
def test_a_read_is_counted(read: Callable[[torch.Tensor], object]):
    found: Counter[str] = Counter()
    with counting(found):
        read(torch.ones(()))
    assert found == {"others": 1}


def test_norms_by_block_are_read_once():
    read = list[torch.device]()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = func(*args, **(kwargs or {}))
            before = [a.device for a in args if isinstance(a, torch.Tensor)]
            if isinstance(result, torch.Tensor) and result.device.type == "cpu":
                read.extend(device for device in before if device.type == "cuda")
            return result

    names = [f"model.blocks.{n}.{name}" for n in range(12) for name in ("mlp.weight", "ls.gamma")]
    with FakeTensorMode(), Counting():  # there is no such device here, nor a number
        squares = Squares(names)
        for name in names:
            squares.add(name, torch.empty(8, device="cuda"), torch.empty(8, device="cuda"))
        assert read == []
        with pytest.raises(DataDependentOutputException):
            squares.by_block(alone(), 1.0, None)
    assert read == [torch.device("cuda:0")]


def test_norms_by_block_are_right():
    squares = Squares(["model.blocks.10.ls.gamma", "model.blocks.9.mlp.weight"])
    squares.add("model.blocks.10.ls.gamma", torch.tensor([3.0]), torch.tensor([1.0, 2.0]))
    squares.add("model.blocks.10.ls.gamma", torch.tensor([4.0]), torch.tensor([2.0]))
    squares.add("model.blocks.9.mlp.weight", torch.tensor([0.0]), torch.tensor([5.0]))
    norms = squares.by_block(alone(), 10.0, 5.0)
    assert list(norms) == ["blocks.9", "blocks.10"]
    assert norms["blocks.9"] == {"weight": 5.0}
    assert norms["blocks.10"] == pytest.approx({"gradient": 10, "weight": 3, "layer_scale": 3})
