"""Looks at what goes on around a run: the machine, from another process, and GPUs, by NVML.

It costs the run nothing, but for memory: the kernel walks a process's pages to tell its share, so
that is asked for less often than the rest. What it counts anyway (resident, and how much of it is
shared) costs nothing and is told each time: it shows growth, also of a process whose pages take a
second to walk. NVML needs the package nvidia-ml-py, and a driver.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Literal

import psutil

from loaderdoctor.instrument.system.cpu_use import busy_ns
from loaderdoctor.instrument.system.machine import (
    ROOT,
    available_bytes,
    cpu_use_of_quota,
    shm_bytes,
    swap_bytes,
    text_of,
    usable_cpus,
)
from loaderdoctor.instrument.system.processes import bytes_of, tree
from loaderdoctor.instrument.wire.measured import GpuLimitRecord, GpuLook, Surroundings
from loaderdoctor.units import NS_PER_S

# Asking for the memory of processes of 40 GB took the kernel 20 ms each: at most this share.
MAX_MEMORY_SHARE: Final = 0.01
# What Linux tells the pressure of (PSI).
Pressure = Literal["cpu", "io", "memory"]
PRESSURES: Final[tuple[Pressure, ...]] = ("cpu", "io", "memory")
MEMORY_EVERY_S: Final = 1.4  # each look, where that costs so little


class LookAround:
    """At the processes below `pid`, and at the machine."""

    def __init__(self, pid: int, root: Path = ROOT) -> None:
        self._pid, self._root = pid, root
        self._gpus = GpuClocks()
        self._before: dict[str, float] | None = None
        self._cpu_s: dict[int, float] = {}  # of each process that was seen
        self._read: dict[int, int] = {}
        self._worker_first: dict[int, int] = {}  # private bytes, when first seen
        self._memory_at_s = float("-inf")
        self._memory_took_s = 0.0
        self.walked_s = 0.0  # of the last look: this process's time while the kernel walked pages

    def look(self, workers: Sequence[int] = ()) -> Surroundings | None:
        """Since the last call; None at the first, or where the run is gone.

        `workers`: pids whose memory is told apart.
        """
        processes = tree(self._pid)
        if not processes:
            return None
        now = self._totals(processes)
        before, self._before = self._before, now
        if before is None:
            return None
        took_s = now["at"] - before["at"]
        if took_s <= 0.0:
            return None

        def rate(name: str) -> float | None:
            if name not in now or name not in before:
                return None
            return max(0.0, (now[name] - before[name]) / took_s)

        own, busy = rate("own"), rate("busy")
        periods, throttled = rate("periods"), rate("throttled")
        _, shm_free = shm_bytes(self._root)
        swap, _ = swap_bytes()
        n_workers_bytes, n_run_bytes = self._memory(processes, workers)
        private = self._private_bytes(processes, workers)
        return Surroundings(
            at_s=time.time(),
            end_ns=time.perf_counter_ns(),
            took_s=took_s,
            n_cpus=usable_cpus(self._root),
            own_cpus=own,
            other_cpus=max(0.0, busy - own) if busy is not None and own is not None else None,
            throttled_share=throttled / periods if periods and throttled is not None else None,
            cpu_pressure=_share(rate("psi-cpu")),
            io_pressure=_share(rate("psi-io")),
            memory_pressure=_share(rate("psi-memory")),
            read_bytes_per_s=rate("read"),
            received_bytes_per_s=rate("received"),
            workers_bytes=n_workers_bytes,
            run_bytes=n_run_bytes,
            workers_grown_bytes=private[0] if private is not None else None,
            run_private_bytes=private[1] if private is not None else None,
            available_bytes=available_bytes(self._root),
            shm_free_bytes=shm_free,
            swap_used_bytes=swap,
            gpus=self._gpus.look([p.pid for p in processes]),
        )

    def _totals(self, processes: Sequence[psutil.Process]) -> dict[str, float]:
        found = {"at": time.monotonic()}
        for process in processes:
            try:
                times = process.cpu_times()
                self._cpu_s[process.pid] = times.user + times.system
            except (OSError, psutil.Error):
                continue
            try:
                self._read[process.pid] = process.io_counters().read_bytes
            except (OSError, psutil.Error, AttributeError):
                continue
        # Processes that have ended keep their last figure, so that sums never fall.
        found["own"] = sum(self._cpu_s.values())
        if self._read:
            found["read"] = float(sum(self._read.values()))
        self._forget_old(processes)
        busy = busy_ns(self._root)
        if busy is not None:
            found["busy"] = busy / NS_PER_S
        quota = cpu_use_of_quota(self._root)
        if quota is not None and quota.n_periods is not None and quota.n_throttled is not None:
            found["periods"], found["throttled"] = float(quota.n_periods), float(quota.n_throttled)
        for name in PRESSURES:
            us = stalled_us(name, self._root)
            if us is not None:
                found[f"psi-{name}"] = us / 1e6
        received = _received()
        if received is not None:
            found["received"] = float(received)
        return found

    def _forget_old(self, processes: Sequence[psutil.Process]) -> None:
        """Workers of thousands of epochs are one entry."""
        if len(self._cpu_s) < 4096:
            return
        alive = {p.pid for p in processes}
        gone = [pid for pid in self._cpu_s if pid not in alive and pid]
        self._cpu_s[0] = sum(self._cpu_s.pop(pid) for pid in gone) + self._cpu_s.get(0, 0.0)
        gone = [pid for pid in self._read if pid not in alive and pid]
        self._read[0] = sum(self._read.pop(pid) for pid in gone) + self._read.get(0, 0)

    def _memory(
        self, processes: Sequence[psutil.Process], workers: Sequence[int]
    ) -> tuple[int | None, int | None]:
        self.walked_s, now = 0.0, time.monotonic()
        pause_s = max(MEMORY_EVERY_S, self._memory_took_s / MAX_MEMORY_SHARE)
        if now - self._memory_at_s < pause_s:
            return None, None
        self._memory_at_s, cpu_s = now, time.thread_time()
        proc = self._root / "proc"
        wanted = set(workers)
        of_workers = bytes_of([p for p in processes if p.pid in wanted], proc)
        rest = bytes_of([p for p in processes if p.pid not in wanted], proc)
        # On a busy machine the rest is waiting.
        self.walked_s = self._memory_took_s = time.thread_time() - cpu_s
        known = [n for n in (of_workers, rest) if n is not None]
        return of_workers, sum(known) if known else None

    def _private_bytes(
        self, processes: Sequence[psutil.Process], workers: Sequence[int]
    ) -> tuple[int, int] | None:
        """(what workers have grown by, that with all of the others); None: the system hides it.

        Pages of no file and no shared memory. A forked worker counts all that its parent had, and
        goes on to when it copies some of it: level, and growth is what comes on top.
        """
        grown = others = 0
        first, wanted = self._worker_first, set(workers)
        for process in processes:
            try:
                told = process.memory_info()
                private = max(0, told.rss - told.shared)
            except psutil.Error:
                continue  # it has ended
            except AttributeError:
                return None  # Linux alone tells what is shared
            if process.pid in wanted:
                grown += max(0, private - first.setdefault(process.pid, private))
            else:
                others += private
        for pid in first.keys() - wanted:
            del first[pid]
        return grown, grown + others


def _share(rate: float | None) -> float | None:
    return None if rate is None else min(1.0, rate)


def _received() -> int | None:
    try:
        counters = psutil.net_io_counters(pernic=True)
    except (OSError, RuntimeError):
        return None
    return sum(c.bytes_recv for name, c in counters.items() if name != "lo") if counters else None


def stalled_us(what: Pressure, root: Path = ROOT) -> int | None:
    """Microseconds so far in which some process of the machine waited for it; None: not told."""
    # Not there: an older kernel, psi=0, or a sandbox.
    for line in text_of(root / "proc/pressure" / what).splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            number = words[-1].removeprefix("total=")
            return int(number) if number.isdigit() else None
    return None


# nvmlClocksEventReasons*: bit -> what it is. Idle (1), application clocks (2) and a display's
# clocks (256) are settings, sync boost (16) follows another GPU.
REASONS = (
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x20, "heat"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
)

# nvmlPerfPolicyType: counters of the time (ns) in which a policy held the clock down. The board's
# supply and its hardware brake are told apart by none of them. An H200 under dense products told
# 14.9 of 15 s for power, idle or lightly used 0; reading them and the clock took 0.1 ms.
POLICIES = {"power_ns": 0, "thermal_ns": 1, "board_ns": 3}


class GpuClocks:
    """NVML, opened once; where it is missing, every look is empty."""

    def __init__(self) -> None:
        self._handles: list[tuple[int, Any]] = []
        try:
            self._nvml = _opened()
            n = self._nvml.nvmlDeviceGetCount()
            self._handles = [(i, self._nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(n)]
        except Exception:  # not installed, no driver, no GPU, not permitted
            self._handles = []

    def look(self, pids: Sequence[int]) -> tuple[GpuLook, ...]:
        """Those GPUs that any of these processes computes on; all where that is not told."""
        used = [x for x in self._handles if self._uses(x[1], pids)] or self._handles
        return tuple(self._one(index, handle) for index, handle in used)

    def _uses(self, handle: Any, pids: Sequence[int]) -> bool:
        running = _ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
        return any(p.pid in pids for p in running)

    def _one(self, index: int, handle: Any) -> GpuLook:
        bits = _ask(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        use = _ask(self._nvml, "nvmlDeviceGetUtilizationRates", handle)
        return GpuLook(
            index=index,
            busy_share=use.gpu / 100.0 if use is not None else None,
            slowed_by=tuple(name for bit, name in REASONS if bits & bit),
            **_clocks(self._nvml, handle),
        )


class GpuLimits:
    """Of the one GPU that this process trains on; nothing is told where NVML can't be had."""

    def __init__(self, uuid: str) -> None:
        """`uuid` as torch has it: without NVML's "GPU-" before it."""
        self._nvml: Any = None
        self._handle: Any = None
        try:
            nvml = _opened()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self._nvml = nvml
        except Exception:  # not installed, no driver, part of a GPU (MIG), not NVIDIA's
            self._nvml = None

    def counters(self) -> tuple[int, dict[str, int]] | None:
        """When they were read (ns, CLOCK_MONOTONIC), and each that this GPU has."""
        if self._nvml is None:
            return None
        statuses = {name: self._ask("ViolationStatus", policy) for name, policy in POLICIES.items()}
        found = {name: int(x.violationTime) for name, x in statuses.items() if x is not None}
        return perf_counter_ns(), found

    def since(self, before: tuple[int, dict[str, int]] | None) -> GpuLimitRecord | None:
        """From an earlier reading to now; None where nothing was counted."""
        now = self.counters() if before is not None else None
        if before is None or now is None or not now[1]:
            return None
        limits = self._ask("PowerManagementLimitConstraints")
        limit = self._ask("EnforcedPowerLimit")
        default = self._ask("PowerManagementDefaultLimit")
        return GpuLimitRecord(
            wall_ns=now[0] - before[0],
            limit_w=limit / 1000.0 if limit is not None else None,
            max_limit_w=limits[1] / 1000.0 if limits is not None else None,
            default_limit_w=default / 1000.0 if default is not None else None,
            **_clocks(self._nvml, self._handle),
            **{k: n - before[1][k] for k, n in now[1].items() if k in before[1]},
        )

    def _ask(self, what: str, *words: Any) -> Any:
        return _ask(self._nvml, f"nvmlDeviceGet{what}", self._handle, *words)


def _opened() -> Any:
    """NVML's package. Raises what it raises, ImportError where it is not installed."""
    import pynvml  # type: ignore[import-not-found,unused-ignore]

    pynvml.nvmlInit()
    return pynvml


def _ask(nvml: Any, name: str, handle: Any, *words: Any) -> Any:
    try:
        return getattr(nvml, name)(handle, *words)
    except Exception:  # not supported by this GPU
        return None


def _clocks(nvml: Any, handle: Any) -> dict[str, int | None]:
    return {
        "sm_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "max_sm_mhz": _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "temperature_c": _ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
    }
