"""Devices: what their makers say, and what of it programs reach. No torch here."""

import difflib
from dataclasses import dataclass, replace

from bigvit.recipe.bounds import shown

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """Peaks are of dense products in FLOPs a second; bandwidths in bytes a second."""

    memory: int  # bytes that a program may ask for
    bandwidth: float  # of its memory
    peaks: dict[str, float]  # by a recipe's precision, of products that add up in fp32
    link: float  # to the other devices of a node, in one direction
    source: str  # the maker's document
    products: float  # share of the peak that large products reach
    copies: float = 0.88  # share of the bandwidth that passes over large tensors reach
    launch: float = 6e-6  # seconds of the host an operation, eager; one that waits for no other
    measured: bool = False  # whether the three shares above were, on such a device


def _device(
    gib: float, gb_s: float, half: float, single: float, link: float, source: str, products: float
) -> Device:
    """Args: half, single: TFLOPs a second in bf16 and fp16, and of torch's float32; link: GB/s."""
    peaks = {"bf16": half * 1e12, "fp16": half * 1e12, "fp32": single * 1e12}
    return Device(int(gib * GIB), gb_s * 1e9, peaks, link * 1e9, source, products)


def _no_bf16(device: Device) -> Device:
    return replace(device, peaks={**device.peaks, "bf16": 0.0})


V100, A100 = "NVIDIA V100 Tensor Core GPU, data sheet", "NVIDIA A100 Tensor Core GPU, data sheet"
H100 = "NVIDIA H100 Tensor Core GPU, data sheet"

DEVICES = {
    # memory as torch reports it, which is less than what is sold; fp32 is of plain cores, as torch
    # takes no TF32 for products unless told
    "v100-16gb": _no_bf16(_device(15.7, 900, 125, 15.7, 150, V100, 0.42)),
    "v100-32gb": _no_bf16(_device(31.7, 900, 125, 15.7, 150, V100, 0.42)),
    "a100-40gb": _device(39.4, 1555, 312, 19.5, 300, A100, 0.80),
    "a100-80gb": _device(79.1, 2039, 312, 19.5, 300, A100, 0.80),
    "l40s-48gb": _device(44.4, 864, 362, 91.6, 32, "NVIDIA L40S GPU, data sheet", 0.65),
    "rtx4090-24gb": _device(
        23.6, 1008, 165, 82.6, 32, "NVIDIA Ada GPU architecture, white paper", 0.85
    ),
    "h100-80gb": _device(79.1, 3350, 989, 67, 450, H100, 0.70),
    "h100-pcie-80gb": _device(79.1, 2000, 756, 51, 64, H100, 0.65),
    "h200-141gb": _device(139.8, 4800, 989, 67, 450, "NVIDIA H200 GPU, data sheet", 0.70),
    "b200-180gb": _device(178.3, 8000, 2250, 80, 900, "NVIDIA HGX B200, data sheet", 0.70),
    "mi250x-gcd-64gb": _device(
        64.0, 1638, 191.5, 23.9, 100, "AMD Instinct MI250X accelerator, data sheet", 0.60
    ),
    "mi300x-192gb": _device(
        192.0, 5300, 1307, 163.4, 448, "AMD Instinct MI300X accelerator, data sheet", 0.54
    ),
}
"""By name, with the memory that it is sold with."""


def find_device(name: str) -> Device:
    """A device by its name.

    Raises:
        ValueError: there is none; the message gives the nearest names.
    """
    if name in DEVICES:
        return DEVICES[name]
    near = difflib.get_close_matches(name.lower(), DEVICES, n=3, cutoff=0.4)
    hint = f"the nearest are {', '.join(near)}; all are" if near else "it must be one of"
    raise ValueError(f"--gpu {shown(name)}: no such device; {hint} {', '.join(DEVICES)}")


def known_as(name: str, memory: int) -> str | None:
    """The name here of a device that torch calls so; None: it is none of these.

    Args:
        memory: bytes, as torch says.
    """
    plain = name.lower()
    fitting = [
        known
        for known, device in DEVICES.items()
        if known.split("-")[0] in plain.replace(" ", "")
        and ("pcie" in plain) == ("pcie" in known)
        and abs(device.memory / memory - 1) < 0.05
    ]
    return fitting[0] if fitting else None
