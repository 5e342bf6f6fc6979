"""NVML's counters of plain windows -> what held the GPU's clock down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loaderdoctor.facts.gpu_limits import GpuLimitFacts, Limit
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.surroundings import GpuLimitRecord


def gpu_limit_facts(windows: Sequence[WindowDone]) -> GpuLimitFacts | None:
    """None where nothing was counted, or no clock is known."""
    seen = [w.gpu_limits for w in windows if w.gpu_limits is not None and w.gpu_limits.wall_ns > 0]
    clocks = [x.sm_mhz for x in seen if x.sm_mhz]
    most = max((x.max_sm_mhz for x in seen if x.max_sm_mhz), default=None)
    if not clocks or most is None:
        return None
    shares: dict[Limit, float] = {
        "power": _share(seen, "power_ns"),
        "heat": _share(seen, "thermal_ns"),
        "board": _share(seen, "board_ns"),
    }
    limit = max(shares, key=lambda x: shares[x])
    last = seen[-1]
    return GpuLimitFacts(
        limit=limit,
        share=shares[limit],
        sm_mhz=float(median(clocks)),
        max_sm_mhz=float(most),
        temperature_c=max((float(x.temperature_c) for x in seen if x.temperature_c), default=None),
        limit_w=last.limit_w,
        max_limit_w=last.max_limit_w,
        default_limit_w=last.default_limit_w,
    )


def _share(seen: Sequence[GpuLimitRecord], counter: str) -> float:
    held = sum(getattr(x, counter) or 0 for x in seen)
    return min(1.0, held / sum(x.wall_ns for x in seen))
