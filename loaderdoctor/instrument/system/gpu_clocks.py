"""Asks NVML for clocks and what holds them down; needs the package nvidia-ml-py, and a driver."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from loaderdoctor.instrument.wire.surroundings import GpuLimitRecord, GpuLook

# nvmlClocksEventReasons*: bit -> what it is. Idle (1), application clocks (2) and a display's
# clocks (256) are settings, sync boost (16) follows another GPU.
REASONS = (
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x20, "heat"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
)


class GpuClocks:
    """NVML, opened once; where it is missing, every look is empty."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[tuple[int, Any]] = []
        try:
            import pynvml  # type: ignore[import-not-found,unused-ignore]

            pynvml.nvmlInit()
            self._handles = [
                (i, pynvml.nvmlDeviceGetHandleByIndex(i))
                for i in range(pynvml.nvmlDeviceGetCount())
            ]
            self._nvml = pynvml
        except Exception:  # not installed, no driver, no GPU, not permitted
            self._handles = []

    def look(self, pids: Sequence[int]) -> tuple[GpuLook, ...]:
        """Those GPUs that any of these processes computes on; all where that is not told."""
        used = [x for x in self._handles if self._uses(x[1], pids)] or self._handles
        return tuple(self._one(index, handle) for index, handle in used)

    def _uses(self, handle: Any, pids: Sequence[int]) -> bool:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except Exception:
            return False
        return any(p.pid in pids for p in running)

    def _one(self, index: int, handle: Any) -> GpuLook:
        nvml = self._nvml
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return GpuLook(
            index=index,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            max_sm_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            busy_share=use.gpu / 100.0 if use is not None else None,
            slowed_by=tuple(name for bit, name in REASONS if bits & bit),
        )

    def _ask(self, name: str, *words: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*words)
        except Exception:  # not supported by this GPU
            return None


# nvmlPerfPolicyType: counters of the time (ns) in which a policy held the clock down. The board's
# supply and its hardware brake are told apart by none of them. An H200 under dense products told
# 14.9 of 15 s for power, idle or lightly used 0; reading them and the clock took 0.1 ms.
_POLICIES = {"power_ns": 0, "thermal_ns": 1, "board_ns": 3}


class GpuLimits:
    """Of the one GPU that this process trains on; nothing is told where NVML can't be had."""

    def __init__(self, uuid: str) -> None:
        """`uuid` as torch has it: without NVML's "GPU-" before it."""
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self._nvml = pynvml
        except Exception:  # not installed, no driver, part of a GPU (MIG), not NVIDIA's
            self._nvml = None

    def counters(self) -> tuple[int, dict[str, int]] | None:
        """When they were read (ns, CLOCK_MONOTONIC), and each that this GPU has."""
        if self._nvml is None:
            return None
        found = {}
        for name, policy in _POLICIES.items():
            status = self._ask("nvmlDeviceGetViolationStatus", policy)
            if status is not None:
                found[name] = int(status.violationTime)
        return perf_counter_ns(), found

    def since(self, before: tuple[int, dict[str, int]] | None) -> GpuLimitRecord | None:
        """From an earlier reading to now; None where nothing was counted."""
        now = self.counters() if before is not None else None
        if before is None or now is None or not now[1]:
            return None
        nvml = self._nvml
        limits = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        default = self._ask("nvmlDeviceGetPowerManagementDefaultLimit")
        return GpuLimitRecord(
            wall_ns=now[0] - before[0],
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            max_sm_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            limit_w=limit / 1000.0 if limit is not None else None,
            max_limit_w=limits[1] / 1000.0 if limits is not None else None,
            default_limit_w=default / 1000.0 if default is not None else None,
            **{k: n - before[1][k] for k, n in now[1].items() if k in before[1]},
        )

    def _ask(self, name: str, *words: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *words)
        except Exception:  # not supported by this GPU
            return None
