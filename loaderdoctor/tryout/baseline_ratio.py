"""The loop's own settings as the measure of each node.

On a cluster a trial runs on one node and its rivals on others. Machines of one type still differ
by some percent, so each node measures the loop's own settings beside its trials, in the same
rounds, and a trial counts as its ratio to those. Ratios become times again by the mean of the
loop's own settings over all nodes. The loop's own settings are then exact by definition: what is
not known about them is in the ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from loaderdoctor.tryout.trials import Measurement, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRatio:
    """Wall time per step of the loop's own settings, milliseconds: overall, and where and when."""

    mean_ms: float
    by_round: Mapping[tuple[int, Phase, int], float]  # (group, phase, round)
    by_group: Mapping[int, float]

    @staticmethod
    def of(
        own: Sequence[tuple[Measurement, float]], counted: Sequence[tuple[Measurement, float]]
    ) -> BaselineRatio:
        """From visits of trial 0 with their wall times; `counted` are those that rank it."""
        by_round: dict[tuple[int, Phase, int], float] = {}
        groups: dict[int, list[float]] = {}
        for measurement, ms in own:
            if measurement.group is not None:
                by_round[measurement.group, measurement.phase, measurement.round] = ms
                groups.setdefault(measurement.group, []).append(ms)
        return BaselineRatio(
            mean_ms=fmean(ms for _, ms in counted) if counted else 0.0,
            by_round=by_round,
            by_group={group: fmean(ms) for group, ms in groups.items()},
        )

    def factor(self, measurement: Measurement) -> float:
        """What this window's time is to be multiplied by; 1 where all was on one machine."""
        if measurement.group is None:
            return 1.0
        own = self.by_round.get((measurement.group, measurement.phase, measurement.round))
        own = own or self.by_group.get(measurement.group)
        return self.mean_ms / own if own else 1.0


ONE_MACHINE = BaselineRatio(
    mean_ms=0.0, by_round=MappingProxyType({}), by_group=MappingProxyType({})
)
