"""`run` in report.json: a whole run, recorded to its end. Seconds and milliseconds by name.

Imports little: what listens to a run writes this every minute, and stays small.
"""

from __future__ import annotations

import msgspec

from loaderdoctor.instrument.wire.beats import TuningRecord


class RunAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was told while the run went on. `at_s`: since the run began."""

    kind: str
    at_s: float
    step: int
    text: str
    cause: str | None = None
    advice: str | None = None
    rank: int | None = None  # of several


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where recorded seconds went; but for `gc_s` and `waited_s`, they sum to `recorded_s`."""

    recorded_s: float
    n_steps: int
    step_s: float
    input_s: float  # waits for a batch that nothing hid
    starts_s: float  # steps in which an epoch starts
    validation_s: float
    saving_s: float
    other_s: float
    gc_s: float
    waited_s: float
    copy_s: float | None = None  # copies that the step's own work waits for; None: not recorded


class RunEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs `first` to `last`, counted from 0 since the recording began."""

    first: int
    last: int
    time: RunTime


class RunStretch(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of the time line; since the run began."""

    start_s: float
    end_s: float
    time: RunTime
    run_bytes: int | None = None


class RunRank(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the job."""

    rank: int
    host: str
    time: RunTime
    n_steps: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a whole; of several ranks, the lowest."""

    took_s: float  # from its start to its end, or to when this was written
    before_s: float  # of it, before the recording: imports, first steps, the first window
    time: RunTime
    n_steps: int  # of the loop, since it began
    step_ms_quantiles: tuple[float, ...] | None  # 50, 90, 99, 99.9 %, each within 9 %
    wait_ms_quantiles: tuple[float, ...] | None
    epochs: tuple[RunEpoch, ...] = ()
    timeline: tuple[RunStretch, ...] = ()
    alerts: tuple[RunAlert, ...] = ()
    ranks: tuple[RunRank, ...] = ()
    last_step_ms: tuple[float, ...] = ()
    tuning: TuningRecord | None = None  # without --tune
    complete: bool = False  # the script has ended; False: it was running when this was written
    how: str | None = None  # it ended, as `Ended.how`
    exit_code: int | None = None

    @property
    def input_share(self) -> float | None:
        """Of the recorded time."""
        return self.time.input_s / self.time.recorded_s if self.time.recorded_s > 0 else None
