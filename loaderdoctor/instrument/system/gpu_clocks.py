"""Asks NVML for clocks and what holds them down; needs the package nvidia-ml-py, and a driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loaderdoctor.instrument.wire.surroundings import GpuLook

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
