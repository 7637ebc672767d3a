"""The compiled part: built once for a torch and a compiler, and kept beside other caches."""

import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = ("device.cpp", "operators.cpp")
NAME = "pretend_c"


def unavailable() -> str:
    """Why the device cannot be built here; nothing where it can."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"the pretend device is not for {platform.system()} on {platform.machine()}"
    if shutil.which(_compiler()) is None:
        return f"the pretend device needs a C++ compiler, and there is no {_compiler()}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the pretend device needs Python.h, of the package python3-dev"
    return ""


def library() -> Path:
    """The built library: from the cache, or built now. One process builds, others wait for it.

    Raises:
        RuntimeError: the compiler's words.
    """
    import torch

    version = subprocess.run([_compiler(), "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(f"{torch.__version__} {sysconfig.get_python_version()}".encode())
    digest.update(version)
    for source in (*SOURCES, "pretend.h", Path(__file__).name):
        digest.update((HERE / source).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bigvit-tests"
    built = cache / f"{NAME}-{digest.hexdigest()[:16]}.so"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                os.replace(_build(Path(folder)), built)  # whole, or not there
    return built


@functools.cache
def extension() -> Any:
    """The loaded library."""
    spec = importlib.util.spec_from_file_location(NAME, library())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def _build(folder: Path) -> Path:
    """Compile all sources at once, and link."""
    import torch

    torch_at = Path(torch.__file__).parent
    includes = (
        torch_at / "include",
        torch_at / "include/torch/csrc/api/include",
        sysconfig.get_path("include"),
    )
    abi = int(torch.compiled_with_cxx11_abi())
    compiling = (
        *("-std=c++20", "-O1", "-fPIC", f"-DTORCH_EXTENSION_NAME={NAME}"),
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *(word for include in includes for word in ("-isystem", str(include))),
    )
    objects = [str(folder / f"{source}.o") for source in SOURCES]
    _run(
        [_compiler(), *compiling, "-c", str(HERE / source), "-o", made]
        for source, made in zip(SOURCES, objects, strict=True)
    )
    built = folder / f"{NAME}.so"
    libraries = ("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10")
    _run(
        [[_compiler(), "-shared", *objects, f"-L{torch_at / 'lib'}", *libraries, "-o", str(built)]]
    )
    return built


def _run(commands: Any) -> None:
    """Run commands side by side."""
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    outputs = [process.communicate()[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"the pretend device does not compile\n{output}")
