"""A model of timm's with its published weights, or an export of ours."""

from typing import Any, NamedTuple

import timm
import timm.data.config

TIMM = "timm:"


class OfTimm(NamedTuple):
    """A model, and what it is fed."""

    model: Any  # in evaluation mode
    input_size: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_ratio: float


def of_timm(given: str) -> OfTimm:
    """What timm:NAME, or timm:local-dir:FOLDER, names.

    Raises:
        ValueError: timm cannot make it, or get its weights.
    """
    try:
        model: Any = timm.create_model(given.removeprefix(TIMM), pretrained=True)
    except Exception as error:  # whatever it is that timm, a hub or a file says
        said = str(error).splitlines() or [repr(error)]
        raise ValueError(
            f"{given}: timm cannot make it or get its weights ({said[0]}); choose one of "
            "timm.list_pretrained(), on a machine that can fetch or has kept it, or "
            "timm:local-dir:FOLDER"
        ) from None
    fed = timm.data.config.resolve_data_config({}, model=model)
    mean, std = tuple(fed["mean"]), tuple(fed["std"])
    return OfTimm(model.eval(), fed["input_size"], mean, std, fed["crop_pct"])
