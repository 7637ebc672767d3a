"""How each kind of data is evaluated."""

from collections.abc import Callable

from bigvit.dense.average_precision import average_precision
from bigvit.dense.mean_iou import mean_iou
from bigvit.evaluate import Measured, evaluate
from bigvit.recipe import Data, Detection, Segmentation


def evaluator(data: Data) -> Callable[..., Measured]:
    """What measures predictions of such data; all take what `evaluate` takes: the predictions by
    name, the source, the data, the size of a batch, the ranks, the data processes of each, and
    `agreed`, which fetches a batch on every rank alike. All are collective."""
    match data:
        case Segmentation():
            return mean_iou
        case Detection():
            return average_precision
        case _:
            return evaluate
