"""What a sweep says beyond ranking: the loop as it is, and where each trial's step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from loaderdoctor.advice.fit_wrapping import why_not_kept
from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.attribution.combine import best_shares, facts_of_run
from loaderdoctor.attribution.gpu import tensor_core_share
from loaderdoctor.attribution.run_facts import wall_facts, worker_memory_facts
from loaderdoctor.attribution.step import step_facts, usable
from loaderdoctor.attribution.timeline import timelines_of_window
from loaderdoctor.attribution.workers import worker_facts
from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import StepFacts
from loaderdoctor.facts.step import Shares, StepTimeline
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.findings.capacity import why_unsafe
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire import worker_records
from loaderdoctor.instrument.wire.protocol import Note, Observed, WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report import RunFolder, trial_run
from loaderdoctor.report.model import Cluster, ReportWarning
from loaderdoctor.report.traces import Overlay, write_capture
from loaderdoctor.report.traces.tensorboard import BASELINE
from loaderdoctor.report.traces.worker_tracks import track_events
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.timings_file import SavedGroup
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import Trace, calibrate
from loaderdoctor.tryout import Outcome, Trial
from loaderdoctor.tryout.ablating import Ablation, LoopEvidence
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.windows import MIN_ROUNDS, WINDOWS_PER_BUDGET, sizes

# Three rounds of three windows, each with as much again for drop and warm-up.
ABLATION_WINDOWS = 18
# The fewest rounds may take this many times the time meant for them: with less they are worthless.
FEWEST_STRETCH = 2.0


class Sweeping(Protocol):
    """A sweep that has begun: of one machine, or of a cluster's."""

    @property
    def outcome(self) -> Outcome: ...

    def ranking(self) -> Ranking: ...


@dataclass(slots=True, kw_only=True)
class SweepEvidence:
    """Everything a sweep's report rests on; grows while the sweep runs."""

    observed: Observed
    notes: Sequence[Note] = ()  # of the measuring process; may grow
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    sweep: Sweeping | None = None
    traces: dict[int, Traced] = field(default_factory=dict)  # by trial index
    workers: WorkerFacts | None = None
    log: WorkerLog | None = None  # what the workers recorded, once measuring is over
    ablated: LoopEvidence | None = None

    @property
    def outcome(self) -> Outcome:
        """Of the sweep, so far."""
        assert self.sweep is not None
        return self.sweep.outcome

    @property
    def recorded(self) -> Sequence[Trial]:
        """Trials with every window that was timed, for the samples on disk."""
        return self.outcome.trials

    @property
    def groups(self) -> tuple[SavedGroup, ...] | None:
        """Of a cluster's sweep those measured to the end, for the samples on disk."""
        return None

    @property
    def where(self) -> Mapping[int, tuple[str, str]]:
        """(node, kind of hardware) of each trial of a cluster's sweep."""
        return {}

    @property
    def cluster(self) -> Cluster | None:
        """What the report says of the nodes; None on one machine."""
        return None

    def refused(self, trials: Sequence[Settings]) -> dict[Settings, str]:
        """Trials that would break or falsify the run, each with the reason."""
        facts = self._facts(None)
        unsafe = {settings: why_unsafe(facts, settings) for settings in trials}
        found = {settings: why.reason for settings, why in unsafe.items() if why is not None}
        stale = why_not_kept(facts)
        kept = [x for x in trials if x.persistent_workers and stale is not None]
        return {**dict.fromkeys(kept, stale or ""), **found}

    def ablate(self, script_run: ScriptRunLike, left_s: float, *, fewest: bool) -> None:
        """Plain, no-input and no-copy windows of the loop as it is, for at most `left_s`.

        With `fewest` no more rounds than an interval needs. At first those may take longer, but
        none are begun where even so they would not end. Called again, it goes on while the
        verdict is not settled.
        """
        first = self.ablated is None
        if self.ablated is None:
            budget_s = left_s * WINDOWS_PER_BUDGET / ABLATION_WINDOWS
            self.ablated = LoopEvidence(
                observed=self.observed, sizes=sizes(self.observed, budget_s=budget_s)
            )
        has_accelerator = self.observed.device is not None
        n_windows = MIN_ROUNDS * (3 if has_accelerator else 2)
        fewest_s = FEWEST_STRETCH * left_s if first else left_s
        too_slow = n_windows * self.ablated.sizes.window_s > fewest_s
        if left_s <= 0 or (fewest and too_slow):
            return  # trials first: what they leave may do
        ablation = Ablation(
            script_run, self.ablated, seed=self.seed + len(self.ablated.rounds), clock=self.clock
        )
        now = self.clock()
        ablation.ablate(until=now + fewest_s, with_copy=has_accelerator, most=MIN_ROUNDS)
        if not fewest:
            ablation.ablate(until=now + left_s, with_copy=has_accelerator)

    def conclude(self, folder: RunFolder, workers_dir: Path) -> None:
        """Once measuring is over: the workers' records, and every trace into the run folder."""
        assert self.sweep is not None
        outcome = self.sweep.outcome
        try:
            self.log = worker_records.read(workers_dir) if workers_dir.is_dir() else None
        except LoaderdoctorError as error:
            outcome.notes.append(("evidence-missing", str(error)))
        plain = [window for window in outcome.plain if usable(window)]
        if self.log is not None and plain:
            # The last one met warm caches, and steady workers.
            window = plain[-1]
            self.workers = worker_facts(
                self.log,
                window.start_ns,
                window.end_ns,
                n_steps=window.n_steps,
                fetches=window.fetches,
                sampled_in=[(w.start_ns, w.end_ns, w.fetches) for w in plain],
                loaders=self.observed.loaders,
            )
        main = self.observed.main_loader
        own_workers = main.settings.num_workers if main is not None else None
        self.traces = read_and_write(outcome, folder, self.log, own_workers=own_workers)

    def warnings(self) -> tuple[ReportWarning, ...]:
        """What the measuring process said, each once."""
        said = dict.fromkeys((note.kind, note.text) for note in self.notes)
        return tuple(ReportWarning(kind=kind, text=text) for kind, text in said)

    def facts(self, ranking: Ranking) -> Facts:
        """The loop as it is: trial 0's times, its trace, its ablation."""
        return self._facts(self._step(0, ranking))

    def _facts(self, step: StepFacts | None) -> Facts:
        return facts_of_run(
            command="sweep",
            step=step,
            trace=self.traces[0].facts if 0 in self.traces else None,
            ablation=self.ablated.ablation() if self.ablated is not None else None,
            workers=self.workers,
            observed=self.observed,
            wall=wall_facts(self.ablated.wall, step) if self.ablated is not None else None,
            worker_memory=worker_memory_facts(self._own_windows(), self.log),
        )

    def _own_windows(self) -> list[WindowDone]:
        """Of the loop with its own settings, so far."""
        if self.sweep is None:
            return []
        outcome = self.sweep.outcome
        own = (m.window for trial in outcome.trials[:1] for m in trial.measurements)
        return [*outcome.plain, *own]

    def trial_shares(self, ranking: Ranking, facts: Facts) -> dict[int, Shares]:
        """Where the step goes under each traced trial's settings, by index; 0 as in `facts`.

        Without an accelerator the wait of the timed windows replaces the profiled one.
        """
        found = {0: facts.shares}
        for index, traced in self.traces.items():
            if index:
                found[index] = best_shares(traced.facts, self._step(index, ranking), None)
        return {index: shares for index, shares in found.items() if shares is not None}

    def _step(self, index: int, ranking: Ranking) -> StepFacts | None:
        """Facts of the step under a trial's settings, from the windows that rank it."""
        assert self.sweep is not None
        trial, result = self.sweep.outcome.trials[index], ranking.results[index]
        step = step_facts(
            self.observed, [_as_plain(measurement.window) for measurement in trial.ranked]
        )
        if step is None or result.wall_ms is None or result.within_ms is None:
            return None
        # The trial's own boundary, as its row in the table has it: both must say the same.
        return replace(
            step,
            wall_ms=result.wall_ms,
            within_epoch_ms=result.within_ms,
            boundary_ms=result.boundary_ms,
        )


def _as_plain(window: WindowDone) -> WindowDone:
    """A timed trial window is a plain one of other settings: profiler off, nothing recorded."""
    return msgspec.structs.replace(window, mode="plain")


# Raw traces of the trials -> what they say, and the files people open in the run folder.
#
# One trace at a time: forty of them at once would not fit a small machine's memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A trial's first capture: what it says, and the plugin's file relative to the run folder."""

    facts: TraceFacts
    path: str
    steps: tuple[StepTimeline, ...] = ()  # for the pictures of report.html
    tensor_core_share: float | None = None  # of the time in kernels; None without any


def read_and_write(
    outcome: Outcome, folder: RunFolder, log: WorkerLog | None, *, own_workers: int | None
) -> dict[int, Traced]:
    """Every capture, by trial index; one that can't be read or written becomes a note.

    `own_workers` is what a trial has that leaves `num_workers` as it is.
    Further captures of the loop as it is (`--repeat`) are TensorBoard runs of their own.
    """
    found: dict[int, Traced] = {}
    for index, n_before, window, workers in _captures(outcome):
        run = trial_run(index) if index else BASELINE
        run += f"-{n_before + 1}" if n_before else ""
        try:
            traced = _one(window, run, folder, log, own_workers if workers is None else workers)
        except LoaderdoctorError as error:
            outcome.notes.append(("no-trace", f"trial {index}: {error}"))
        else:
            found.setdefault(index, traced)
    return found


def _captures(outcome: Outcome) -> Iterator[tuple[int, int, WindowDone, int | None]]:
    for trial in outcome.trials:
        for n_before, window in enumerate(trial.profiles):
            yield trial.index, n_before, window, trial.settings.num_workers


def _one(
    window: WindowDone, run: str, folder: RunFolder, log: WorkerLog | None, num_workers: int | None
) -> Traced:
    assert window.trace_path is not None
    source = Path(window.trace_path)
    trace = read_trace(source)
    path = write_capture(
        folder, run, source, at_ns=time.time_ns(), overlay=_tracks(trace, window, log)
    )
    attributed = attribute(trace)
    return Traced(
        facts=facts_of(attributed, num_workers=num_workers),
        path=str(path.relative_to(folder.path)),
        steps=timelines_of_window(attributed, window, log),
        tensor_core_share=tensor_core_share(trace),
    )


def _tracks(trace: Trace, window: WindowDone, log: WorkerLog | None) -> Overlay:
    """The workers' own records on the trace's clock, as tracks next to the profiler's."""
    if log is None or not window.clock_marks:
        return Overlay()
    return Overlay(worker_tracks=track_events(log, calibrate(trace, window.clock_marks), trace))
