# pyright: basic
"""The pretend device as DeepSpeed sees it: asynchronous, with streams and events, as a GPU."""

from functools import partial

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

device = torch.pretend  # pyright: ignore


def _made(dtype: torch.dtype) -> property:
    return property(lambda self: partial(torch.tensor, dtype=dtype, device="pretend"))


class PretendAccelerator(CPU_Accelerator):
    """DeepSpeed's accelerator over the pretend device; what it does not say is the CPU's."""

    def __init__(self):
        super().__init__()
        self._name, self._communication_backend_name = "pretend", "pretend_ccl"
        self._compile_backend = "eager"

    def is_synchronized_device(self):
        return False

    def is_fp16_supported(self):
        return True

    def supported_dtypes(self):
        return [torch.float, torch.half, torch.bfloat16]

    def on_accelerator(self, tensor):
        return tensor.device.type == "pretend"

    def create_op_builder(self, class_name):
        return None  # no kernels of its own, nor the CPU's: collectives in shared memory

    # devices

    def device_name(self, device_index=None):
        return "pretend" if device_index is None else f"pretend:{device_index}"

    def device(self, device_index=None):
        index = device.current_device() if device_index is None else device_index
        return torch.device("pretend", index)

    def set_device(self, device_index):
        device.set_device(device_index)

    def current_device(self):
        return device.current_device()

    def current_device_name(self):
        return f"pretend:{device.current_device()}"

    def device_count(self):
        return device.device_count()

    def synchronize(self, device_index=None):
        device.synchronize(device_index)

    # random numbers

    def set_rng_state(self, new_state, device_index=None):
        device.set_rng_state(new_state, device_index)

    def get_rng_state(self, device_index=None):
        return device.get_rng_state(device_index)

    def manual_seed(self, seed):
        return device.manual_seed(seed)

    def manual_seed_all(self, seed):
        return device.manual_seed_all(seed)

    def initial_seed(self):
        return device.initial_seed()

    def default_generator(self, device_index):
        return device.default_generator(device_index)

    # streams and events

    Stream = property(lambda self: device.Stream)
    Event = property(lambda self: device.Event)

    def stream(self, stream):
        return device.stream(stream)

    def current_stream(self, device_index=None):
        return device.current_stream(device_index)

    default_stream = current_stream

    # memory

    def memory_allocated(self, device_index=None):
        return device.memory_allocated(device_index)

    def max_memory_allocated(self, device_index=None):
        return device.max_memory_allocated(device_index)

    def reset_peak_memory_stats(self, device_index=None):
        device.reset_peak_memory_stats(device_index)

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated
    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    _torch_pins_host_memory = True
    pin_memory = DeepSpeedAccelerator.pin_memory
    _torch_pin_memory = DeepSpeedAccelerator._torch_pin_memory
    _torch_empty_pinned = DeepSpeedAccelerator._torch_empty_pinned

    # tensors

    BFloat16Tensor, HalfTensor = _made(torch.bfloat16), _made(torch.half)
    FloatTensor, DoubleTensor = _made(torch.float), _made(torch.double)
    ByteTensor, IntTensor, LongTensor = _made(torch.uint8), _made(torch.int), _made(torch.long)
