"""What `bigvit plan --calibrate` measured, kept in a file that later plans take. No torch here."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from bigvit.data.cache import cache_folder
from bigvit.plan.devices import Device

HERE = "here"  # the name of a device that was measured and is none of the known ones


def calibration_file() -> Path:
    """Where it is kept."""
    return cache_folder() / "calibration.json"


def write_calibration(name: str, device: Device, feeding: float | None) -> Path:
    """Keep what was measured of a device, beside what is kept of others.

    Args:
        feeding: images a second and core, over what is modelled; None: it was not measured.
    """
    file, all_ = calibration_file(), _read()
    all_[name] = {"device": asdict(device), "feeding": feeding}
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".json.new")
    aside.write_text(json.dumps(all_, indent=2))
    aside.replace(file)
    return file


def measured(name: str) -> tuple[Device, float | None] | None:
    """What was measured of a device of this name; None: nothing was."""
    with suppress(KeyError, TypeError):
        kept = _read()[name]
        return replace(Device(**kept["device"]), measured=True), kept["feeding"]
    return None


def _read() -> dict[str, Any]:
    """Everything that is kept; nothing where the file is not ours, or damaged."""
    try:
        found: Any = json.loads(calibration_file().read_text())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
