"""What a cluster's sweep says: evidence of one machine of it, figures of all, and the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from loaderdoctor.estimate import interval
from loaderdoctor.report import RunFolder, model
from loaderdoctor.report.model import ReportWarning
from loaderdoctor.sweep.advise import verdict_of_sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.groups import GroupedSweep, GroupState, Measured
from loaderdoctor.sweep.report_rows import best_row
from loaderdoctor.sweep.timings_file import SavedGroup
from loaderdoctor.tryout import Outcome, Trial
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.results import drift


@dataclass(slots=True, kw_only=True)
class GroupedEvidence(SweepEvidence):
    """Evidence of a GroupedSweep; files of nodes lie below `trace_dir`, a folder a group."""

    trace_dir: Path

    @property
    def grouped(self) -> GroupedSweep:
        """The sweep."""
        assert isinstance(self.sweep, GroupedSweep)
        return self.sweep

    @property
    def recorded(self) -> Sequence[Trial]:
        """Every window of every node."""
        return self.grouped.recorded

    @property
    def groups(self) -> tuple[SavedGroup, ...]:
        """Groups measured to the end."""
        return self.grouped.saved

    @property
    def where(self) -> Mapping[int, tuple[str, str]]:
        """(node, kind of hardware) of each trial that was measured."""
        sweep = self.grouped
        n_trials = len(sweep.recorded)
        found = {index: (sweep.host_of(index), sweep.kind_of(index)) for index in range(n_trials)}
        return {i: (host, kind) for i, (host, kind) in found.items() if host and kind}

    @property
    def cluster(self) -> model.Cluster:
        """Kinds of hardware with their own best, and each group with its node."""
        sweep = self.grouped
        return model.Cluster(
            hardware=tuple(
                _hardware_row(sweep, name, index)
                for index, (name, _, _) in enumerate(sweep.kinds.items())
            ),
            groups=tuple(_group_row(sweep, state) for state in sweep.states),
        )

    def keep(self, index: int, measured: Measured) -> Measured:
        """Write a group's files below `trace_dir`, and name its traces as they lie there."""
        folder = self.trace_dir / f"group-{index}"
        for name, data in measured.files.items():
            path = folder / _within(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for trial in measured.outcome.trials:
            trial.profiles = [
                msgspec.structs.replace(
                    window, trace_path=str(folder / Path(window.trace_path).name)
                )
                for window in trial.profiles
                if window.trace_path
            ]
        return replace(measured, files={})

    def conclude(self, folder: RunFolder, workers_dir: Path) -> None:
        """Read each group's traces with the records of its own workers; then the loop as it is."""
        sweep, reference = self.grouped, self.grouped.reference
        for state in sweep.states:
            if state.measured is None or state.group.part == "confirm":
                continue
            one = self._of_group(state)
            one.conclude(folder, self.trace_dir / f"group-{state.group.index}" / "workers")
            self.traces.update(one.traces)
            if state is reference:
                self.workers, self.log = one.workers, one.log
        self.refresh()

    def refresh(self) -> None:
        """Take the loop as it is from the reference group, as far as there is one."""
        reference = self.grouped.reference
        if reference is not None and reference.measured is not None:
            self.observed = reference.measured.observed
            self.ablated = reference.measured.ablated
            self.notes = tuple(
                msgspec.structs.replace(note, text=f"{s.host}: {note.text}")
                for s in self.grouped.states
                if s.measured is not None
                for note in s.measured.notes
            )

    def warnings(self) -> tuple[ReportWarning, ...]:
        """What nodes said, and that they are not alike, where they aren't."""
        said = SweepEvidence.warnings(self)
        sweep = self.grouped
        if len(sweep.kinds.first) < 2:
            return said
        parts = [f"on {kind.name} {kind.summary}" for kind in self.cluster.hardware if kind.summary]
        text = (
            f"the nodes are not alike ({sweep.kinds.difference()}): times of unlike machines are "
            "not compared. Trials are ranked within each kind of hardware, and the report's first "
            f"part is of {sweep.main_kind}. {' '.join(parts)}"
        )
        return (ReportWarning(kind="unlike-hardware", text=text.strip()), *said)

    def _of_group(self, state: GroupState) -> SweepEvidence:
        """A group's own evidence, its trials numbered as in the whole sweep."""
        assert state.measured is not None
        outcome = state.measured.outcome
        numbers = (0, *state.group.trials)
        trials = [replace(trial, index=numbers[trial.index]) for trial in outcome.trials]
        if state is not self.grouped.reference:
            trials[0] = replace(trials[0], profiles=[])  # one loop as it is, in the report
        return SweepEvidence(
            observed=state.measured.observed,
            sweep=_Over(replace(outcome, trials=trials)),
        )


@dataclass(frozen=True, slots=True)
class _Over:
    """A group's outcome as `SweepEvidence` wants it."""

    outcome: Outcome

    def ranking(self) -> Ranking:
        raise NotImplementedError("a group alone is not ranked")


def _hardware_row(sweep: GroupedSweep, name: str, index: int) -> model.Hardware:
    hardware, _ = sweep.kinds.first[index]
    ranking = sweep.ranking_of(name)
    own = ranking.results[0].wall_ms if ranking.results else None
    return model.Hardware(
        name=name,
        cpu=hardware.cpu,
        usable_cpus=hardware.usable_cpus,
        memory_bytes=hardware.memory_bytes,
        gpus=hardware.gpus,
        torch=hardware.torch,
        trials=sweep.trials_on(name),
        baseline_ms=own.value if own is not None else None,
        baseline_ms_ci=interval(own),
        best=best_row(ranking),
        summary=verdict_of_sweep(ranking),
    )


def _group_row(sweep: GroupedSweep, state: GroupState) -> model.Group:
    own = [measurement for index, measurement in state.measurements if index == 0]
    timed = [measurement.times.within_ms for measurement in own]
    baseline = Trial(index=0, settings=sweep.recorded[0].settings, measurements=own)
    status: Literal["ok", "failed", "running"]
    over = state.measured is not None or state.restored
    status = "failed" if state.failed else "ok" if over else "running"
    return model.Group(
        node=state.host,
        hardware=state.kind,
        purpose="confirm" if state.group.part == "confirm" else "rank",
        trials=state.group.trials,
        status=status,
        reason=state.failed,
        baseline_ms=sum(timed) / len(timed) if timed else None,
        drift=drift(baseline),
        n_lost=state.n_lost,
    )


def _within(name: str) -> Path:
    """A path that a node names, kept below the group's folder."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("..", "/", ".")]
    return Path(*parts)
