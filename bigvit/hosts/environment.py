"""Writing .deepspeed_env, which carries variables to every host. No torch here."""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from bigvit.hosts.hostfile import NAME, environment_files, import_path, in_files

KNOWN = {  # settings by how their names begin, each documented; never a key or a password
    "": "PATH PYTHONPATH LD_LIBRARY_PATH VIRTUAL_ENV OMP_NUM_THREADS DS_ACCELERATOR "
    "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF XDG_CACHE_HOME",
    "HF_": "HOME HUB_CACHE XET_CACHE DATASETS_CACHE ASSETS_CACHE ENDPOINT HUB_OFFLINE "
    "DATASETS_OFFLINE DATASETS_IN_MEMORY_MAX_SIZE DATASETS_DISABLE_PROGRESS_BARS "
    "HUB_DOWNLOAD_TIMEOUT HUB_ETAG_TIMEOUT HUB_DISABLE_PROGRESS_BARS HUB_DISABLE_TELEMETRY "
    "HUB_DISABLE_SYMLINKS_WARNING HUB_DISABLE_XET HUB_VERBOSITY XET_HIGH_PERFORMANCE "
    "UPDATE_DOWNLOAD_COUNTS",
    "TORCH_": "HOME EXTENSIONS_DIR CUDA_ARCH_LIST LOGS CPP_LOG_LEVEL SHOW_CPP_STACKTRACES "
    "DISTRIBUTED_DEBUG FR_BUFFER_SIZE GLOO_LAZY_INIT NCCL_ASYNC_ERROR_HANDLING "
    "NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT NCCL_CUDA_EVENT_CACHE NCCL_DESYNC_DEBUG "
    "NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING NCCL_HEARTBEAT_TIMEOUT_SEC "
    "NCCL_HIGH_PRIORITY NCCL_NAN_CHECK NCCL_PROPAGATE_ERROR NCCL_RANKS_PER_ROOT "
    "NCCL_RETHROW_CUDA_ERRORS NCCL_TRACE_BUFFER_SIZE NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    "GLOO_": "SOCKET_IFNAME DEVICE_TRANSPORT LOG_LEVEL",
    "UCX_": "TLS NET_DEVICES LOG_LEVEL IB_GID_INDEX SOCKADDR_TLS_PRIORITY",
    "NCCL_": "ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECK_POINTERS "
    "COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING CONF_FILE CROSS_NIC "
    "CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS "
    "DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DMABUF_ENABLE GRAPH_DUMP_FILE GRAPH_FILE "
    "GRAPH_MIXING_SUPPORT GRAPH_REGISTER IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE "
    "IB_AR_THRESHOLD IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA "
    "IB_MERGE_NICS IB_MERGE_VFS IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION "
    "IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC "
    "IB_TIMEOUT IGNORE_CPU_AFFINITY IPC_USE_ABSTRACT_SOCKET LAUNCH_MODE LAUNCH_ORDER_IMPLICIT "
    "LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS "
    "MAX_NRINGS MIN_CTAS MIN_NCHANNELS MIN_NRINGS MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID NET "
    "NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS "
    "NETDEVS_POLICY NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLS_ENABLE OOB_NET_ENABLE "
    "OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE "
    "P2P_PXN_LEVEL PROFILER_PLUGIN PROTO PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR "
    "RUNTIME_CONNECT SET_THREAD_NAME SHM_DISABLE SINGLE_PROC_MEM_REG_ENABLE "
    "SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS SOCKET_RETRY_CNT "
    "SOCKET_RETRY_SLEEP_MSEC TOPO_DUMP_FILE TOPO_FILE TUNER_PLUGIN WIN_ENABLE",
}
NAMES = {begin + name for begin, names in KNOWN.items() for name in names.split()}
BEGINNINGS = tuple(filter(None, KNOWN))
LOGIN = re.compile(r"://[^/\s]*@|^[^/\s:@]+:[^/\s@]+@")  # user:password@ before a host
UNFIT = re.compile(r"""[\n\r"$`\\%]""")  # a shell between double quotes, or pdsh, reads on


class Written(NamedTuple):
    """What the hosts are given."""

    path: Path
    variables: dict[str, str]
    left_out: list[str]  # names of what is set here, looks as if it mattered, and is not written


def write_variables(given: Sequence[str], interface: str | None) -> Written:
    """Write those variables that are set here and are known to matter there, and what is given, for
    DeepSpeed's launcher; lines of other variables stay. Only this user can read the file.

    Args:
        given: NAME=VALUE each.
        interface: the network that gloo and NCCL are to use, as it is called on every host.

    Raises:
        ValueError: a name or value cannot be carried, or there is no such interface.
    """
    path = environment_files()[-1]
    variables = in_files([path])
    left_out: list[str] = []
    for name, value in sorted(os.environ.items()):
        value = import_path(value) if name == "PYTHONPATH" else value
        if value and name in NAMES and not LOGIN.search(value):
            variables[name] = value
        elif value and (name in NAMES or name.startswith(BEGINNINGS)):
            left_out.append(name)
    if interface is not None:
        if interface not in (there := psutil.net_if_addrs()):
            raise ValueError(f"--interface {interface}: there are {', '.join(there)} here")
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not NAME=VALUE")
        variables[name] = value
    for name, value in variables.items():
        if (unfit := UNFIT.search(value)) or value != value.strip():
            what = f"a {unfit[0]!r}" if unfit else "a blank at an end"
            raise ValueError(
                f"the value of {name} cannot be carried: {path.name} has no way to write {what}; "
                "change it here, or set it in the shell's profile on every host"
            )
    # made anew with mode 0600 and a name that nobody can foresee, whatever the old file was
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in variables.items())
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise
    return Written(path, variables, [name for name in left_out if name not in variables])
