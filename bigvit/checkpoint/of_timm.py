"""A model of timm's with its published weights, or an export of ours."""

from typing import Any, NamedTuple

TIMM = "timm:"


class OfTimm(NamedTuple):
    """A model, and what it is fed."""

    model: Any  # in evaluation mode
    input_size: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_ratio: float


def pretrained(name: str) -> Any:
    """A model of timm's with its weights.

    Raises:
        ValueError: timm cannot make it, or get them.
    """
    import timm

    try:
        return timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever it is that timm, a hub or a file says: many kinds
        said = next(iter(str(error).splitlines()), "")
        raise ValueError(
            f"timm cannot make it or get its weights ({type(error).__name__}: {said}); choose one "
            "of timm.list_pretrained(), on a machine that can fetch or has kept it, or give a file "
            "of them, or timm:local-dir:FOLDER"
        ) from None


def of_timm(given: str) -> OfTimm:
    """What timm:NAME, or timm:local-dir:FOLDER, names.

    Raises:
        ValueError: timm cannot make it, or get its weights.
    """
    try:
        model = pretrained(given.removeprefix(TIMM))
    except ValueError as error:
        raise ValueError(f"{given}: {error}") from None
    import timm.data.config

    fed = timm.data.config.resolve_data_config({}, model=model)
    mean, std = tuple(fed["mean"]), tuple(fed["std"])
    return OfTimm(model.eval(), fed["input_size"], mean, std, fed["crop_pct"])
