"""What held the training GPU's clock down, over the plain windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = Literal["power", "heat", "board"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitFacts:
    """The limit that held longest. Shares of the windows' time, 0…1."""

    limit: Limit
    share: float
    sm_mhz: float  # median of what was seen at the ends of windows
    max_sm_mhz: float
    temperature_c: float | None
    limit_w: float | None
    max_limit_w: float | None
    default_limit_w: float | None = None  # as it left the factory

    @property
    def slowed_share(self) -> float:
        """What a kernel bound by the clock would take less of its time at the highest clock."""
        return max(0.0, 1.0 - self.sm_mhz / self.max_sm_mhz)

    @property
    def limit_lowered(self) -> bool:
        """Whether the power limit is below the factory's; False where that is not known.

        The most that may be set says nothing of it: many boards may be set above their default.
        """
        if self.limit_w is None or self.default_limit_w is None:
            return False
        return self.limit_w < 0.98 * self.default_limit_w
