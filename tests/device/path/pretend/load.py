# pyright: reportPrivateImportUsage=false
"""What torch calls at the end of its import, by the entry point `torch.backends`."""

import contextlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any


def load() -> None:
    """Give torch the device, where PRETEND is set."""
    if not os.environ.get("PRETEND"):
        return
    import torch

    from pretend.build import extension
    from pretend.collectives import register

    native = extension()
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", _module(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    register()
    sys.meta_path.insert(0, _AcceleratorFinder())
    torch.compile = _not_compiled  # inductor knows nothing of this device


def _not_compiled(model: Any = None, **_: Any) -> Any:
    return model


def _module(native: Any) -> ModuleType:
    """`torch.pretend`: what torch, and DeepSpeed's accelerator, ask of a device's module."""
    import torch

    def index_of(device: Any = None) -> int:
        if device is None:
            return native.current_device()
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return native.current_device() if index is None else index

    class Stream(torch.Stream):
        def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Any:
            if not given:  # device 0, where none is named, would be another rank's
                given = {"device": torch.device("pretend", index_of(device))}
            return super().__new__(cls, **given)

    class Event(torch.Event):
        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
        ) -> Any:
            return super().__new__(cls, torch.device("pretend"), enable_timing=enable_timing)

    @contextlib.contextmanager
    def device(device: Any) -> Generator[None]:
        before = native.current_device()
        if (index := index_of(device)) >= 0:
            native.set_device(index)
        try:
            yield
        finally:
            native.set_device(before)

    @contextlib.contextmanager
    def stream(stream: Any) -> Generator[None]:
        with contextlib.nullcontext() if stream is None else stream:
            yield

    def manual_seed_all(seed: int) -> None:
        for i in range(native.device_count()):
            native.generator(i).manual_seed(seed)

    def memory(device: Any = None) -> int:
        return native.memory(index_of(device))[0]

    def peak(device: Any = None) -> int:
        return native.memory(index_of(device))[1]

    module: Any = ModuleType("torch.pretend")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        init=lambda: None,
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,
        device_count=native.device_count,
        current_device=native.current_device,
        set_device=lambda device: native.set_device(index_of(device)),
        synchronize=lambda device=None: native.synchronize(),
        device=device,
        stream=stream,
        Stream=Stream,
        Event=Event,
        current_stream=torch.accelerator.current_stream,
        default_stream=torch.accelerator.current_stream,
        default_generator=native.generator,
        manual_seed=lambda seed: native.generator(-1).manual_seed(seed),
        manual_seed_all=manual_seed_all,
        initial_seed=lambda: native.generator(-1).initial_seed(),
        get_rng_state=lambda device=None: native.generator(index_of(device)).get_state(),
        set_rng_state=lambda state, device=None: native.generator(index_of(device)).set_state(
            state
        ),
        memory_allocated=memory,
        memory_reserved=memory,
        max_memory_allocated=peak,
        max_memory_reserved=peak,
        reset_peak_memory_stats=lambda device=None: native.reset_peak(index_of(device)),
        memory_stats=lambda device=None: {},
        empty_cache=lambda: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_bf16_supported=lambda *_: True,
    )
    sys.modules["torch.pretend"] = module
    return module


class _AcceleratorFinder(importlib.abc.MetaPathFinder):
    """DeepSpeed asks for its accelerator while it is imported: it is set as soon as that can be."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "deepspeed.accelerator.real_accelerator":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            from pretend.accelerator import PretendAccelerator

            module.SUPPORTED_ACCELERATOR_LIST.append("pretend")
            module.set_accelerator(PretendAccelerator())

        spec.loader.exec_module = exec_module  # pyright: ignore
        return spec
