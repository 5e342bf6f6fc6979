"""Which accelerator the loop trains on; clocks and what holds them down, as NVML tells them.

NVML needs the package nvidia-ml-py, and a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.wire.beats import GpuLook
from loaderdoctor.instrument.wire.window_records import GpuLimitRecord

if TYPE_CHECKING:
    import torch

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


def device_of(optimizer: torch.optim.Optimizer) -> torch.device | None:
    """Where an optimizer's first parameter lies."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device: torch.device = parameter.device
            return device
    return None


def training_device(optimizer_device: torch.device | None) -> torch.device | None:
    """The CUDA (or ROCm) device in use, initialising none; None: the loop trains on the CPU."""
    import torch

    if optimizer_device is not None and optimizer_device.type == "cuda":
        return optimizer_device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return None
