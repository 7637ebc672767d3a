"""What scripts/gpu.sh does: see what is missing, run tests and benchmark, and print one table."""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

TESTS, ALL, ENDING = 150.0, 240.0, 15.0  # seconds on a GPU: of the tests, of all, to end a part
NEEDED = {  # by the name of the import, that of the package
    **dict.fromkeys(
        ("torch", "torchvision", "timm", "numpy", "safetensors", "psutil", "xxhash"), ""
    ),
    **dict.fromkeys(("pytest", "scipy", "tqdm", "tensorboard"), ""),
    **{"sklearn": "scikit-learn", "PIL": "pillow", "xdist": "pytest-xdist"},
}
WITHOUT = {
    "deepspeed": "nothing is run by DeepSpeed or on several GPUs",
    "tyro": "no run is started by its command, so out of memory is not tried",
}
PRETEND = Path("tests/device/path").absolute()
FACTS = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
nccl = ".".join(map(str, torch.cuda.nccl.version())) if names else None
print(json.dumps([torch.__version__, torch.version.cuda, nccl, names]))
"""


class Line(NamedTuple):
    """A check, or a figure."""

    what: str
    result: str  # ok, FAILED, skipped, or goal missed
    figure: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pretend", action="store_true", help="run what can be without a GPU")
    pretend = parser.parse_args().pretend
    if lacking := [package or name for name, package in NEEDED.items() if not _there(name)]:
        print(f"gpu: not installed: {', '.join(lacking)}; bash scripts/setup.sh", file=sys.stderr)
        return 2
    if pretend:
        print(f"gpu: --pretend: {_pretend()}, and no figure means anything")
    elif not (said := _gpus()):
        return 2
    else:
        os.environ.pop("BIGVIT_PRETEND", None)
        print(said)
    for name in WITHOUT:
        if not _there(name):
            print(f"gpu: {name} is not installed: {WITHOUT[name]}")
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), pretend)


def _there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _pretend() -> str:
    """Have what is started find the pretend device; what runs it all instead of a GPU."""
    os.environ.update(BIGVIT_PRETEND="1", CUDA_VISIBLE_DEVICES="")
    sys.path.insert(0, str(PRETEND))
    from pretend.build import unavailable

    if why := unavailable():
        return f"all is run by the CPU, as {why}"
    os.environ.update(PRETEND="1", PYTHONPATH=f"{os.environ['PYTHONPATH']}:{PRETEND}")
    return f"all is run by the device of {PRETEND.parent}"


def _gpus() -> str:
    """What torch sees; nothing, and why is said, where it sees no GPU."""
    done = subprocess.run([sys.executable, "-c", FACTS], capture_output=True, text=True)
    if done.returncode:
        print(f"gpu: torch does not start here:\n{done.stderr}", file=sys.stderr)
        return ""
    torch, cuda, nccl, names = json.loads(done.stdout)
    if names:
        count = ", ".join(f"{n} x {name}" for name, n in Counter(names).items())
        return f"gpu: {count}; torch {torch}, CUDA {cuda}, NCCL {nccl}"
    if cuda is None:
        why = f"torch {torch} is built without CUDA"
    elif not Path("/proc/driver/nvidia").exists():
        why = f"torch {torch} sees none, and no driver is loaded"
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
        why = f"torch {torch} for CUDA {cuda} sees none (CUDA_VISIBLE_DEVICES is {visible})"
    print(f"gpu: there is no GPU: {why}; --pretend runs what can be without", file=sys.stderr)
    return ""


def _run(folder: Path, pretend: bool) -> int:
    began = time.monotonic()
    tests, rows = folder / "tests.xml", folder / "rows"
    limit = 4 * ALL if pretend else ALL
    # a library's warning is no failure on a machine that has another version of it
    options = ("-m", "gpu", "-q", "-W", "default", "-p", "no:cacheprovider")
    report = (f"--junitxml={tests}", "-o", "junit_family=xunit1")
    code = _part(limit if pretend else TESTS, "-m", "pytest", "tests/gpu", *options, *report)
    lines = _tests(tests, code)
    left = began + limit - time.monotonic()
    given = ("--seconds", f"{left - ENDING:.0f}", "--rows", rows, *["--small"] * pretend)
    code = _part(left, "-m", "benchmarks.gpu", *given)
    lines += _benchmark(rows, code)
    return _table(lines, time.monotonic() - began)


def _part(seconds: float, *command: object) -> int | None:
    """Run Python to its end, and return its exit code; None where it had to be ended by then."""
    process = subprocess.Popen([sys.executable, *map(str, command)])
    try:
        return process.wait(max(0, seconds - ENDING))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    except KeyboardInterrupt:  # which it was sent, too
        process.wait(ENDING)
        raise
    return None


def _tests(path: Path, code: int | None) -> list[Line]:
    """A line a test; one more where they did not end by themselves."""
    lines: list[Line] = []
    cases = ElementTree.parse(path).iter("testcase") if path.exists() else ()
    for case in cases:
        name = (case.get("name") or "").removeprefix("test_").replace("_", " ")
        shown = [each.get("value", "") for each in case.iter("property")]
        result = "ok"
        for said in case:
            if said.tag in ("failure", "error", "skipped"):
                result = "skipped" if said.tag == "skipped" else "FAILED"
                shown.append(_first(said.get("message")))
        lines.append(Line(name, result, "; ".join(shown)))
    if code not in (0, 1):
        lines.append(Line("the tests", "FAILED", _why(code)))
    return lines


def _benchmark(path: Path, code: int | None) -> list[Line]:
    """A line a figure; one more where it did not end by itself."""
    lines: list[Line] = []
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        missed = "FAILED" if row["goal"] in ("0", "to run") else "goal missed"
        figure = ", ".join(filter(None, (row["measured"], row["interval"])))
        goal = f" ({row['goal']})" * (row["ok"] is not None)
        lines.append(Line(row["what"], missed if row["ok"] is False else "ok", figure + goal))
    if code != 0 and not any(line.result == "FAILED" for line in lines):
        lines.append(Line("the benchmark", "FAILED", _why(code)))
    return lines


def _why(code: int | None) -> str:
    return "took too long" if code is None else f"ended with code {code}"


def _first(text: str | None) -> str:
    """A message's first line, shortened."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= 100 else f"{line[:97]}..."


def _table(lines: list[Line], seconds: float) -> int:
    """Print the table, and what failed; the exit code. A goal that is missed is no failure."""
    cells = [("check", "result", "figure"), *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(3)]
    print()
    for i, line in enumerate(cells):
        joined = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(" | ".join(joined).rstrip())
        if i == 0:
            print("-|-".join("-" * width for width in widths))
    counts = Counter(line.result for line in lines)
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    print(f"\ngpu: {len(lines)} checks and figures in {seconds:.0f} s: {said}")
    for line in lines:
        if line.result == "FAILED":
            print(f"gpu: FAILED: {line.what}: {line.figure}", file=sys.stderr)
    return int(counts["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
