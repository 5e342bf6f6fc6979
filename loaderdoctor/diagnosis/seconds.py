"""Where the seconds of a diagnosis go: until when each part of it may take, on one clock.

The budget is a cap, not a plan: what can no longer change the answer is not measured. The best
change is tried before a clear verdict is made finer; and where the first advice would still be a
prediction when the budget is used up, or too few rounds tell what the loader costs, a second cap
serves to measure it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from loaderdoctor.instrument.wire.protocol import ProfilerSchedule

# Kept back from the budget for stopping the script, reading the trace and writing the report.
RESERVE_S = 6.0
RESERVE_SHARE = 0.25  # of the budget, where that is less
# Of what is left for experiments, this part goes to ablation first; trying settings gets the rest
# and whatever ablation did not need.
ABLATION_SHARE = 0.5
# Of it what goes to rounds that only make a clear verdict finer: two rounds of steps of 20 ms take
# that long, of slower ones they come when settings were tried.
FINER_SHARE = 0.25
# Of what is left before the profile, for shares that are open where no setting is worth trying by
# then: torchvision's loop of 35 ms a step had one round, ± 10 ms, and ended with a third of the
# budget unspent. The rest is for the profile.
OPEN_SHARE = 0.7
# Of what is left behind the trials, for a verdict that is uncertain and had no settings to try.
LONGER_SHARE = 0.5
# Trying the first advice may go on until so many times the budget. Steps of 300 ms need it: one
# pair of windows with workers that fall short takes them 10 to 15 s.
SECOND_CAP = 2.0
# The report with its charts, and what a trace adds: read, written twice, compressed (13 MB of JSON
# took 1.7 s more CPU time than `analyze` alone on one of two cores).
REPORT_S = 2.0
REPORT_BYTES_PER_S = 8e6


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisOptions:
    """What may be done to the loop, and for how long."""

    budget_s: float
    ablate: bool = True
    verify: bool = True
    profile: bool = True  # False: no profiled window is wanted, and none is missed
    patient: bool = True  # of a loop that does not train: wait whether it begins to
    trial_limit_s: float | None = None  # a trial that takes longer hangs; None: as planned
    profiler: ProfilerSchedule = field(default_factory=ProfilerSchedule)
    memory_history: Path | None = None  # where torch's memory snapshot goes; None: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The budget of one diagnosis, counted from its first step."""

    begun_s: float
    budget_s: float

    @property
    def _reserve_s(self) -> float:
        return min(RESERVE_S, RESERVE_SHARE * self.budget_s)

    @property
    def end_s(self) -> float:
        """When the report is to be there."""
        return self.begun_s + self.budget_s

    @property
    def until_s(self) -> float:
        """When measuring is to end."""
        return self.end_s - self._reserve_s

    @property
    def most_s(self) -> float:
        """When the report is to be there, where the first advice has to be measured for longer."""
        return self.begun_s + self.most_budget_s

    @property
    def most_until_s(self) -> float:
        """When that measuring is to end."""
        return self.most_s - self._reserve_s

    @property
    def most_budget_s(self) -> float:
        """The second cap."""
        return SECOND_CAP * self.budget_s

    def rounds_until_s(self, now_s: float) -> float:
        """When rounds that begin now and have settings tried behind them are to end."""
        return self._part_s(now_s, ABLATION_SHARE)

    def finer_until_s(self, now_s: float) -> float:
        """Likewise of those whose verdict is clear already."""
        return self._part_s(now_s, FINER_SHARE)

    def open_until_s(self, now_s: float) -> float:
        """When rounds before a profile are to end, where no settings follow."""
        return self._part_s(now_s, OPEN_SHARE)

    def longer_until_s(self, now_s: float) -> float:
        """When longer rounds of an uncertain verdict are to end, where settings may follow."""
        return self._part_s(now_s, LONGER_SHARE)

    def _part_s(self, now_s: float, share: float) -> float:
        return now_s + (self.until_s - now_s) * share


def report_seconds(trace: str | None) -> float:
    """What reading this trace, None where there is none, and writing the report take, about."""
    path = Path(trace) if trace else None
    n_bytes = path.stat().st_size if path is not None and path.is_file() else 0
    return REPORT_S + n_bytes / REPORT_BYTES_PER_S
