"""Average precision of boxes and masks, as COCO measures it."""

from collections.abc import Callable, Mapping

from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.sources import Source
from bigvit.evaluate import Measured
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Data


def average_precision(
    predict: Callable[[Tensor], Mapping[str, Tensor]],
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
    agreed: Callable[[Callable[[], Batch | None]], Batch | None] = lambda fetch: fetch(),
) -> Measured:
    """Collective: every rank predicts equally often, and knows the same in the end."""
    raise NotImplementedError
