"""Everything known about one run: what findings decide on, and reports show.

Built by `attribution` from a trace (`TraceFacts`) and from the run's window records and worker
records (the rest). A fact that was not recorded is None, and the rule that needs it abstains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderdoctor.facts.loop import AblationFacts, MachineFacts, StepFacts, ThreadTrial
from loaderdoctor.facts.ranks import RankFacts
from loaderdoctor.facts.shares import Hidden, Shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.facts.workers import WorkerFacts
from loaderdoctor.instrument.wire.records import (
    ComputeRecord,
    LoaderRecord,
    TransferRecord,
    main_loader,
)

# Recording ops only slows, and the noise of two windows is some percent on a steady machine. Of the
# reports kept on two shared CPUs while this was made, about one in twenty was below.
UNSTEADY_OVERHEAD = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything known about one run. From a trace alone only `trace` is there."""

    command: Literal["diagnose", "sweep", "analyze"]
    shares: Shares | None  # the best estimate
    shares_low: dict[str, float] | None  # lower bounds of input and copy shares, from ablation
    hidden: Hidden | None
    step: StepFacts | None
    trace: TraceFacts | None
    loaders: tuple[LoaderRecord, ...]  # loaders of the training step first
    transfers: tuple[TransferRecord, ...]
    workers: WorkerFacts | None  # of the loader that feeds the step
    ablation: AblationFacts | None
    machine: MachineFacts | None
    profiler_overhead: float | None  # profiled / plain step time
    compute: ComputeRecord | None = None  # how the loop was seen to compute
    ranks: tuple[RankFacts, ...] = ()  # of a job of several; the other facts are the slowest's
    other_workers: tuple[WorkerFacts, ...] = ()  # of the other loaders seen, validation mostly
    thread_trials: tuple[ThreadTrial, ...] = ()  # empty: not tried, or not yet

    @property
    def step_ms(self) -> float | None:
        """The step's wall time: plain windows, else the trace."""
        if self.step is not None:
            return self.step.wall_ms.value
        return self.trace.wall_ms if self.trace is not None else None

    @property
    def unsteady(self) -> bool:
        """Whether steps were clearly shorter with the profiler on, which slows: pace changed."""
        return self.profiler_overhead is not None and self.profiler_overhead < UNSTEADY_OVERHEAD

    @property
    def main_loader(self) -> LoaderRecord | None:
        """The loader that feeds the step, if one was seen."""
        return main_loader(self.loaders)

    def share(self, name: str) -> float | None:
        """One share of the best estimate, 0…1; None where there is none."""
        return self.shares.as_dict()[name] if self.shares is not None else None
