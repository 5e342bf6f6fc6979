"""What this machine offers a training run: CPUs, memory, shared memory, files, GPUs. No torch.

Every figure respects the container: usable CPUs are min(affinity, cgroup quota), never
os.cpu_count(), and available memory is what the tightest cgroup leaves. What a system doesn't
tell is None. `root` stands for "/" and is replaced in tests by a faked tree.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from loaderdoctor.instrument.system.cgroups import ROOT, cpu_quota, memory_limit

# nvidia-smi answers in 0.1–2 s; with a hung driver it never does, and then we do without.
NVIDIA_SMI_TIMEOUT_S = 10.0
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver lists it, whatever CUDA_VISIBLE_DEVICES says."""

    index: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine as one process of this container sees it, at one instant."""

    system: str
    logical_cpus: int | None
    physical_cores: int | None
    affinity_cpus: int | None
    quota_cpus: float | None  # None: no quota
    usable_cpus: float
    memory_total_bytes: int
    memory_limit_bytes: int | None  # None: no limit below the machine's own
    memory_available_bytes: int
    swap_used_bytes: int | None
    swap_total_bytes: int | None
    shm_total_bytes: int | None
    shm_free_bytes: int | None
    open_files_limit: int | None  # None: unlimited or unknown
    gpus: tuple[Gpu, ...]


def look(root: Path = ROOT) -> Machine:
    """Everything above, now. Takes milliseconds, but for nvidia-smi where it is installed."""
    memory = psutil.virtual_memory()
    limit = memory_limit(root)
    swap_used, swap_total = swap_bytes()
    shm_total, shm_free = shm_bytes(root)
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        logical_cpus=os.cpu_count(),
        physical_cores=psutil.cpu_count(logical=False),
        affinity_cpus=affinity_cpus(),
        quota_cpus=cpu_quota(root),
        usable_cpus=usable_cpus(root),
        memory_total_bytes=memory.total,
        memory_limit_bytes=limit.limit_bytes if limit else None,
        memory_available_bytes=memory_available_bytes(root),
        swap_used_bytes=swap_used,
        swap_total_bytes=swap_total,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        open_files_limit=open_files_limit(),
        gpus=gpus(),
    )


def usable_cpus(root: Path = ROOT) -> float:
    """CPUs this process may keep busy: min(affinity, cgroup quota); may be a fraction."""
    allowed = float(affinity_cpus() or os.cpu_count() or 1)
    quota = cpu_quota(root)
    return allowed if quota is None else min(allowed, quota)


_started: list[int] = []  # how many ranks the script started itself; empty: not known to be any


def note_started_ranks(n_ranks: int) -> None:
    """In a rank: its script started so many on this machine, without a launcher that says so."""
    _started[:] = [n_ranks]


def local_ranks() -> int | None:
    """Ranks of this job on this machine; None where neither launcher nor script started several.

    A launcher such as torchrun says it, else what started them (`note_started_ranks`).
    """
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    if said.isdigit() and int(said):
        return int(said)
    return _started[0] if _started else None


def affinity_cpus() -> int | None:
    """CPUs this process may be scheduled on; None where the system has no such list."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return None


def memory_available_bytes(root: Path = ROOT) -> int:
    """Memory that can be taken without swapping: of the machine, and of the tightest cgroup."""
    available: int = psutil.virtual_memory().available
    limit = memory_limit(root)
    return available if limit is None else min(available, limit.available_bytes)


def swap_bytes() -> tuple[int | None, int | None]:
    """Swap used and in total; (None, None) where the system doesn't tell."""
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):  # hidden in some containers
        return None, None
    return swap.used, swap.total


def shm_bytes(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Size and free space of /dev/shm, where worker batches travel; (None, None) without it."""
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError:
        return None, None
    return usage.total, usage.free


def open_files_limit() -> int | None:
    """Soft limit on open files of this process; None where unlimited or unknown."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def gpus(command: tuple[str, ...] = _NVIDIA_SMI) -> tuple[Gpu, ...]:
    """NVIDIA GPUs by asking the driver's own tool; empty where it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ()
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer.stdout)


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's `index, name, memory.total` lines (MiB); other lines are left out."""
    found: list[Gpu] = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not parts[0].isdigit():
            continue
        # "[N/A]" on machines whose GPU shares the host's memory
        memory = int(parts[2]) * 2**20 if parts[2].isdigit() else None
        found.append(Gpu(index=int(parts[0]), name=parts[1], memory_bytes=memory))
    return tuple(found)
