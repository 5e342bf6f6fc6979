"""What this machine offers a training run: CPUs, memory, shared memory, files, GPUs. No torch.

Every figure respects the container: usable CPUs are min(affinity, cgroup quota), never
os.cpu_count(), and available memory is what the tightest cgroup leaves. What a system doesn't
tell is None. `root` stands for "/" and is replaced in tests by a faked tree.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path("/")
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


def shm_free_bytes(root: Path = ROOT) -> int | None:
    """Free space in /dev/shm, where workers put their batches; None without one."""
    return shm_bytes(root)[1]


def available_bytes(root: Path = ROOT) -> int | None:
    """Host memory that can be taken without swapping; the tightest cgroup limit counts."""
    try:
        return memory_available_bytes(root)
    except (OSError, RuntimeError):
        return None


def open_files_limit() -> int | None:
    """Soft limit on open files of this process; None where unlimited or unknown."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def free_port() -> int:
    """One of this machine's own address that nobody listened at a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


# What the container allows: CPU quota and memory limit of cgroup v1 and v2 (Linux). A process may
# use no more than the tightest limit between its own group and the root, so every level that is
# visible is read.

# A v1 limit "without limit" is the largest page-aligned signed 64-bit number; no machine has this
# much memory.
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """One group's memory limit and what counts against it, in bytes."""

    limit_bytes: int
    used_bytes: int  # without the page cache that the kernel gives back under pressure

    @property
    def available_bytes(self) -> int:
        """What can still be taken; 0 where the group is full."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """What the group with the tightest quota has used of it since the group was made."""

    used_ns: int | None  # CPU time of every process in it
    n_periods: int | None  # in which it ran
    n_throttled: int | None  # of these, how many ended with the group held back


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the tightest quota allows, e.g. 1.5; None where there is no quota."""
    return min((cpus for cpus, _ in _quotas(root)), default=None)


def cpu_use_of_quota(root: Path = ROOT) -> QuotaUse | None:
    """How the tightest quota is used; None where there is none."""
    quotas = _quotas(root)
    if not quotas:
        return None
    _, folder = min(quotas, key=lambda found: found[0])
    stat = folder / "cpu.stat"
    used_us, used_ns = _entry(stat, "usage_usec"), _number(folder / "cpuacct.usage")  # v2, v1
    return QuotaUse(
        used_ns=used_ns if used_us is None else used_us * 1000,
        n_periods=_entry(stat, "nr_periods"),
        n_throttled=_entry(stat, "nr_throttled"),
    )


def _quotas(root: Path) -> list[tuple[float, Path]]:
    """(CPUs, folder of the group) of every quota that holds for this process."""
    quotas: list[tuple[float, Path]] = []
    for folder in _groups(root, controller=None):
        words = text_of(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append((int(words[0]) / int(words[1]), folder))
    for folder in _groups(root, controller="cpu"):
        quota = _number(folder / "cpu.cfs_quota_us")
        period = _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append((quota / period, folder))
    return quotas


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The group with the least memory left; None where memory is not limited."""
    limits: list[MemoryLimit] = []
    for controller, names in (
        (None, ("memory.max", "memory.current", "inactive_file")),
        ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        limit_file, used_file, cache = names
        for folder in _groups(root, controller=controller):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None and limit < UNLIMITED_BYTES:
                used -= _entry(folder / "memory.stat", cache) or 0
                limits.append(MemoryLimit(limit_bytes=limit, used_bytes=max(0, used)))
    return min(limits, key=lambda found: found.available_bytes, default=None)


def _groups(root: Path, *, controller: str | None) -> list[Path]:
    """Folders from this process's own group up to the mount; `controller` None means v2."""
    own = _own_group(root, controller)
    for mount_root, mount_point in _mounts(root, controller):
        inside = own
        if own is not None and mount_root != "/":
            # The mount shows only a subtree: in a container usually the group itself.
            inside = own[len(mount_root) :] if own.startswith(mount_root) else None
        base = root / mount_point.lstrip("/")
        parts = [part for part in (inside or "").split("/") if part and part != ".."]
        levels = [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
        return [level for level in levels if level.is_dir()]
    return []


def _own_group(root: Path, controller: str | None) -> str | None:
    """The group of this process for a controller, as /proc/self/cgroup names it."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller is None and number == "0" and not controllers:
            return path
        if controller is not None and controller in controllers.split(","):
            return path
    return None


def _mounts(root: Path, controller: str | None) -> list[tuple[str, str]]:
    """(subtree shown, mount point) of the hierarchy that holds `controller`."""
    found: list[tuple[str, str]] = []
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kinds) < 3:
            continue
        v2 = controller is None and kinds[0] == "cgroup2"
        v1 = kinds[0] == "cgroup" and controller in kinds[2].split(",")
        if v1 or v2:
            found.append((fields[3], fields[4]))
    return found


def text_of(path: Path) -> str:
    """A file's text; empty where it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """A file that holds one whole number; None for "max", -1 as -1, None where absent."""
    text = text_of(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _entry(path: Path, key: str) -> int | None:
    """One entry of a file of `name number` lines; None where absent."""
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None
