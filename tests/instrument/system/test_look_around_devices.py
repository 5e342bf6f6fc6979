"""NVML's counters, through a stand-in for its package: where it fails, nothing is told."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loaderdoctor.instrument.system.look_around import GpuLimits


class Nvml(ModuleType):
    """As nvidia-ml-py answers on an H200; the counters go on with each reading."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[str] = []
        self.ms = 0

    def nvmlInit(self) -> None:  # noqa: N802  # the package's name
        self.asked.append("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:  # noqa: N802
        if policy == 3:
            raise RuntimeError("not supported")
        self.ms += 1 if policy == 0 else 0
        return SimpleNamespace(violationTime=1_000_000 * self.ms if policy == 0 else 0)

    def __getattr__(self, name: str) -> Any:
        told = {
            "nvmlDeviceGetClockInfo": 1515,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetPowerManagementLimitConstraints": [200_000, 700_000],
            "nvmlDeviceGetEnforcedPowerLimit": 600_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 650_000,
        }
        return lambda *words: told[name]


def test_counters_are_told_as_what_they_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    limits = GpuLimits("ab-cd")
    assert nvml.asked == ["init", "GPU-ab-cd"]
    before = limits.counters()
    told = limits.since(before)
    assert told is not None
    assert told.wall_ns > 0
    assert (told.power_ns, told.thermal_ns, told.board_ns) == (1_000_000, 0, None)
    assert (told.sm_mhz, told.max_sm_mhz, told.temperature_c) == (1515, 1980, 55)
    assert (told.limit_w, told.max_limit_w, told.default_limit_w) == (600.0, 700.0, 650.0)


def test_without_the_package_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    limits = GpuLimits("ab-cd")
    assert limits.counters() is None
    assert limits.since(None) is None
