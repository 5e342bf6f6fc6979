"""Reads what the container allows: CPU quota and memory limit of cgroup v1 and v2 (Linux).

A process may use no more than the tightest limit between its own group and the root, so every
level that is visible is read. `root` stands for "/" and is replaced in tests by a faked tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

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
        words = _text(folder / "cpu.max").split()
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
    for folder in _groups(root, controller=None):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            cache = _stat(folder / "memory.stat", "inactive_file")
            limits.append(MemoryLimit(limit_bytes=limit, used_bytes=max(0, used - cache)))
    for folder in _groups(root, controller="memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED_BYTES:
            cache = _stat(folder / "memory.stat", "total_inactive_file")
            limits.append(MemoryLimit(limit_bytes=limit, used_bytes=max(0, used - cache)))
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
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller is None and number == "0" and not controllers:
            return path
        if controller is not None and controller in controllers.split(","):
            return path
    return None


def _mounts(root: Path, controller: str | None) -> list[tuple[str, str]]:
    """(subtree shown, mount point) of the hierarchy that holds `controller`."""
    found: list[tuple[str, str]] = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kinds) < 3:
            continue
        v2 = controller is None and kinds[0] == "cgroup2"
        v1 = kinds[0] == "cgroup" and controller in kinds[2].split(",")
        if v1 or v2:
            found.append((fields[3], fields[4]))
    return found


def _text(path: Path) -> str:
    """A file's text; empty where it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """A file that holds one whole number; None for "max", -1 as -1, None where absent."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _stat(path: Path, key: str) -> int:
    """One entry of a memory.stat file; 0 where absent."""
    return _entry(path, key) or 0


def _entry(path: Path, key: str) -> int | None:
    """One entry of a file of `name number` lines; None where absent."""
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None
