"""A pretend accelerator for tests.

With this package's folder on PYTHONPATH and PRETEND set, torch has an accelerator "pretend" as soon
as it is imported, with devices, streams, pinned memory and collectives, and DeepSpeed has one over
it. Its kernels are the CPU's. What works on a CPU by chance fails here:

    devices      a tensor that lies elsewhere is refused, also on another device of this kind
    memory       the host cannot read the device's: it faults
    new memory   holds no number until it is written
    copies       that are asked not to wait, do not: what comes to the host is there once somebody
                 waits; what goes to the device is read when it is used there, and must not be
                 written before somebody waited
    collectives  take tensors of the process's device alone; what they make is there after `wait`
    waiting      every copy, read and synchronisation for which the host waits is told (`watch`)

It shows neither speed nor a GPU's own rounding, nor races between streams: kernels run when they
are called.
"""
