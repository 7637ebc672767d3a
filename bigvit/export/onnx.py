"""model.onnx: what timm makes of an export, as ONNX Runtime computes it.

Shapes: B images, C channels, H x W pixels, K classes.
"""

import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

ONNX = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MOST = 1e-4  # by which a logit may differ from torch's
ONE_FILE = 1_900_000_000  # bytes of weights; protobuf's files have 2 GiB at most
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in what the exporter says
BATCHES = (1, 3)  # it is traced with 2: a batch size that was kept in it would show


def refuse_missing() -> None:
    """Raise ValueError where what --onnx needs is not installed."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(
            f"--onnx needs {', '.join(missing)}, which is not installed: pip install 'bigvit[onnx]'"
        )


def write_onnx(folder: Path, kind: str, ours: Any) -> float:
    """Write model.onnx beside the weights of an export: images (B, C, H, W), normalised, of any
    number -> logits (B, K).

    Args:
        folder: has the weights and config.json; where they are above 1.9 GB, model.onnx.data has
            those of ONNX.
        kind: of model, for messages.
        ours: the model as it was trained (`Backbone`), in evaluation mode.

    Returns:
        The largest difference of a logit from our model's, over one and over three images of noise.

    Raises:
        ValueError: ONNX cannot take the model, or its logits differ by more than 1e-4.
    """
    import timm
    import torch

    theirs: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    shape = tuple(theirs.pretrained_cfg["input_size"])
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=generator)

    path = folder / ONNX
    size = sum(weight.nbytes for weight in theirs.state_dict().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter about itself
        try:
            program = torch.onnx.export(
                theirs,
                (noise(2),),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        except Exception as error:  # torch's exporter raises what it likes
            _refuse(kind, error.__cause__ or error)
        assert program is not None
        program.save(path, external_data=size > ONE_FILE)
    answered = _answers(path, kind, noise)
    largest = 0.0
    with torch.no_grad():
        for images, logits in answered:
            wanted = ours(images).prediction("logits")
            largest = max(largest, float((torch.from_numpy(logits) - wanted).abs().max()))
    if not largest <= MOST:  # nan is not
        raise ValueError(
            f"--onnx: ONNX Runtime's logits of this {kind} differ from torch's by {largest:.1e}, "
            f"more than {MOST:g}; leave it out"
        )
    return largest


def _answers(path: Path, kind: str, noise: Any) -> list[tuple[Any, Any]]:
    """Images of each batch size, and ONNX Runtime's logits (B, K)."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = [noise(count) for count in BATCHES]
        return [(each, session.run(None, {"images": each.numpy()})[0]) for each in inputs]
    except Exception as error:  # its own classes, which have no public base
        _refuse(kind, error)


def _refuse(kind: str, error: BaseException) -> NoReturn:
    lines = COLOURS.sub("", str(error)).splitlines()
    said = next(filter(None, map(str.strip, lines)), type(error).__name__)
    raise ValueError(f"--onnx: ONNX cannot take this {kind} ({said}); leave it out") from error
