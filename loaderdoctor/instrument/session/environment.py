"""The measuring process's own surroundings, as the report shows them."""

from __future__ import annotations

import platform
import socket
from typing import TYPE_CHECKING

from loaderdoctor.instrument.session.ranks import as_launched, process_group
from loaderdoctor.instrument.system import machine
from loaderdoctor.instrument.system.memory import allocator, fault_us
from loaderdoctor.instrument.trial.trial_checks import default_start_method
from loaderdoctor.instrument.wire.records import Environment

if TYPE_CHECKING:
    import torch


def environment(device_index: int | None) -> Environment:
    """Look once; `device_index` is the CUDA device trained on, None without one.

    Never initialises CUDA, and never chooses a start method.
    """
    import torch

    name = memory = None
    if device_index is not None:
        properties = torch.cuda.get_device_properties(device_index)
        name, memory = properties.name, properties.total_memory
    _, shm_free = machine.shm_bytes()
    swap_used, _ = machine.swap_bytes()
    rank, n_ranks = process_group() or as_launched() or (None, None)
    return Environment(
        torch=str(torch.__version__),  # a str subclass that JSON encoders refuse
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        device_name=name,
        device_memory_bytes=memory,
        cuda=torch.version.cuda or torch.version.hip,
        usable_cpus=machine.usable_cpus(),
        n_threads=torch.get_num_threads(),
        memory_available_bytes=machine.memory_available_bytes(),
        shm_free_bytes=shm_free,
        open_files_limit=machine.open_files_limit(),
        start_method=default_start_method(),
        host=socket.gethostname(),
        rank=rank,
        n_ranks=n_ranks,
        cudnn_benchmark=torch.backends.cudnn.benchmark if device_index is not None else None,
        tf32=_tf32() if device_index is not None else None,
        swap_used_bytes=swap_used,
        allocator=allocator(),
        fault_us=fault_us(),
        cpu_bf16=_cpu_bf16(),
    )


def n_devices(device: torch.device | None) -> int:
    """Accelerators that this process sees; 0 where it trains on none."""
    import torch

    return torch.cuda.device_count() if device is not None else 0


def _tf32() -> bool | None:
    """Whether float32 matrix products may use TensorFloat-32; None where torch won't say."""
    import torch

    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch >= 2.9 refuses after a mix of its old and new settings
        return None


def _cpu_bf16() -> bool | None:
    """Whether oneDNN has bfloat16 instructions to use here; None where torch won't say."""
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # built without oneDNN
        return None
