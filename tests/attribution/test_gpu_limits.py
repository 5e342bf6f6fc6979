"""Counters of windows, as NVML tells them, become one limit and its share of the time."""

from __future__ import annotations

from typing import Any

from loaderdoctor.attribution.gpu import gpu_limit_facts
from loaderdoctor.instrument.wire.measured import GpuLimitRecord
from loaderdoctor.instrument.wire.protocol import WindowDone

S = 1_000_000_000


def window(**told: Any) -> WindowDone:
    limits = GpuLimitRecord(**{"wall_ns": 10 * S, **told}) if told else None
    return WindowDone(id=1, mode="plain", status="ok", gpu_limits=limits)


def test_the_limit_that_held_longest_is_told_with_its_share_of_all_windows() -> None:
    held = gpu_limit_facts([
        window(power_ns=9 * S, thermal_ns=S, sm_mhz=1500, max_sm_mhz=1980, limit_w=700.0),
        window(power_ns=7 * S, thermal_ns=0, sm_mhz=1600, max_sm_mhz=1980, temperature_c=60),
        window(),
    ])  # fmt: skip
    assert held is not None
    assert (held.limit, held.share, held.sm_mhz) == ("power", 0.8, 1550.0)
    assert (held.temperature_c, held.limit_w) == (60.0, None)
    assert not held.limit_lowered
    assert abs(held.slowed_share - (1 - 1550 / 1980)) < 1e-9


def test_nothing_is_told_without_counters_or_clocks() -> None:
    assert gpu_limit_facts([]) is None
    assert gpu_limit_facts([window()]) is None
    assert gpu_limit_facts([window(power_ns=S)]) is None
    unheld = gpu_limit_facts([window(power_ns=0, sm_mhz=345, max_sm_mhz=1980)])
    assert unheld is not None
    assert unheld.share == 0.0
