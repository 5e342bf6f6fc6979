"""A sweep in groups: each on a node of its own, with the loop's own settings next to its trials.

Comes in: what nodes measured, as it comes. Goes out: what a sweep on one machine gives, an outcome
and a ranking. Trials are compared by their ratio to their own node's baseline, and only with those
measured on hardware of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loaderdoctor.cluster import Hardware, Kinds
from loaderdoctor.facts import own_settings
from loaderdoctor.instrument.wire.protocol import Note, Observed
from loaderdoctor.sweep.timings_file import Description, SavedGroup, check_same
from loaderdoctor.tryout import Measurement, Outcome, Part, Trial
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.ranking import Ranking, rank

# A group costs a start of the script and a baseline: with one trial they are most of it.
MIN_TRIALS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials that one node measures together, next to the loop's own settings."""

    index: int
    trials: tuple[int, ...]  # of the whole sweep; without 0, which every group has
    part: Part = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a node sends back of its group. Trials are numbered within the group, 0 the baseline."""

    observed: Observed
    notes: tuple[Note, ...]
    outcome: Outcome
    ablated: LoopEvidence | None
    files: Mapping[str, bytes]  # traces and the workers' records, by path below its folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialUpdate:
    """What a node tells while it measures: one more measurement, or that a trial failed."""

    trial: int  # within the group
    measurement: Measurement | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class GroupState:
    """A group and what is known of it."""

    group: Group
    host: str | None = None
    measurements: list[tuple[int, Measurement]] = field(
        default_factory=list
    )  # told; by trial of the sweep
    measured: Measured | None = None
    failed: str | None = None
    kind: str | None = None
    n_lost: int = 0
    restored: bool = False  # measured by a sweep that was interrupted later

    @property
    def is_over(self) -> bool:
        """Whether it was measured to the end: not when its own sweep was interrupted."""
        if self.restored:
            return True
        return self.measured is not None and self.measured.outcome.ended == "done"


def split(
    planned: Sequence[Trial], n_machines: int, *, done: Sequence[GroupState] = ()
) -> tuple[Group, ...]:
    """Groups of the trials to be measured, without 0, for so many machines: at most one each.

    Trials are dealt in turn: neighbours in the list cost about the same, so groups do too. Rows of
    a preset that share a baseline stay together, in the rounds of one loop: that is what their
    claims compare. Such lots are dealt largest first, each to the machine with the least. What
    groups before have `done` is not dealt again.
    """
    over = {index for state in done for index in state.group.trials}
    others = [trial for trial in planned[1:] if trial.alive and trial.index not in over]
    first = len(done)
    if not any(trial.row is not None for trial in others):
        numbers = [trial.index for trial in others]
        n_groups = max(1, min(n_machines, len(numbers) // MIN_TRIALS))
        dealt = [numbers[i::n_groups] for i in range(n_groups)]
        return tuple(Group(index=first + i, trials=tuple(each)) for i, each in enumerate(dealt))
    lots: dict[str, list[int]] = {}
    for trial in others:
        lots.setdefault(trial.row.group if trial.row is not None else "", []).append(trial.index)
    dealt = [[] for _ in range(max(1, min(n_machines, len(lots))))]
    for lot in sorted(lots.values(), key=len, reverse=True):
        min(dealt, key=len).extend(lot)
    return tuple(Group(index=first + i, trials=tuple(sorted(each))) for i, each in enumerate(dealt))


class GroupedSweep:
    """The sweep so far; `outcome` and `ranking` may be asked at any time."""

    def __init__(self, observed: Observed, planned: Sequence[Trial]) -> None:
        self._observed = observed
        self._planned = planned
        self._own = own_settings(observed)
        self._steps_per_epoch = observed.steps_per_epoch
        self.kinds = Kinds()
        self.states: list[GroupState] = []
        self.interrupted: KeyboardInterrupt | None = None

    # ------------------------------------------------------------ what comes in

    def restore(
        self, saved: Description, measurements: Mapping[int, Sequence[Measurement]]
    ) -> None:
        """Take over groups that were measured to the end before. Raises UsageError.

        Others begin again: their baseline was a node's that may measure something else now.
        """
        check_same(self._planned, saved)
        for old in saved.groups:
            index = len(self.states)
            state = GroupState(
                group=Group(index=index, trials=old.trials, part=old.part),
                host=old.host,
                kind=self.kinds.of(old.hardware, old.loop),
                restored=True,
                measurements=[
                    (number, replace(measurement, group=index))
                    for number, seen in measurements.items()
                    for measurement in seen
                    if measurement.group == old.index
                ],
            )
            self.states.append(state)
            for number in old.trials if old.part == "rank" else ():
                trial, was = self._planned[number], saved.trials[number]
                trial.dropped = was.dropped
                trial.samples_per_step = was.samples_per_step
                trial.steps_per_epoch = was.steps_per_epoch
                if was.status != "ok" and trial.status == "ok":
                    trial.status, trial.reason = ("failed", was.reason)
                    if was.status == "skipped":
                        trial.status = "skipped"

    def add(self, group: Group) -> None:
        """A group that will be measured."""
        self.states.append(GroupState(group=group))

    def told(self, index: int, hardware: Hardware, said: TrialUpdate) -> None:
        """Word from a group at work."""
        state = self.states[index]
        state.host = hardware.host
        state.kind = self.kinds.of(hardware, self._own.label())
        if said.measurement is not None and _counts(state.group, said.measurement):
            measurement = replace(said.measurement, group=index)
            state.measurements.append((self._number(state, said.trial), measurement))

    def again(self, index: int) -> None:
        """Its node was lost: what it told is void, since its baseline went with it."""
        state = self.states[index]
        state.measurements.clear()
        state.host = state.kind = None
        state.n_lost += 1

    def done(self, index: int, hardware: Hardware, measured: Measured) -> None:
        """A group's own account, which replaces what it told."""
        state = self.states[index]
        state.measured, state.host = measured, hardware.host
        own = own_settings(measured.observed).label()
        state.kind = self.kinds.of(hardware, own)
        state.measurements = [
            (self._number(state, trial.index), replace(measurement, group=index))
            for trial in measured.outcome.trials
            for measurement in trial.measurements
            if _counts(state.group, measurement)
        ]

    def fail(self, index: int, why: str) -> None:
        """No node could measure the group."""
        state = self.states[index]
        state.failed = why
        state.measurements.clear()

    # ------------------------------------------------------------ what goes out

    @property
    def main_kind(self) -> str | None:
        """The kind of hardware on which most trials were measured; None before the first."""
        counts: dict[str, int] = {}
        for state in self.states:
            if state.kind is not None and state.group.part == "rank":
                counts[state.kind] = counts.get(state.kind, 0) + len(state.group.trials)
        return max(counts, key=lambda kind: counts[kind], default=None)

    @property
    def reference(self) -> GroupState | None:
        """The group whose loop, workers and traces the report's first part is of."""
        main = [s for s in self.states if s.measured is not None and s.kind == self.main_kind]
        main.sort(key=lambda s: s.measured is None or s.measured.ablated is None)
        return main[0] if main else None

    @property
    def outcome(self) -> Outcome:
        """As of one machine: trial 0 holds the baselines of the main kind's nodes."""
        reference = self.reference
        first = reference.measured.outcome if reference and reference.measured else None
        failed = [s.failed for s in self.states if s.failed is not None]
        found = Outcome(
            trials=self._trials(self.main_kind),
            plain=list(first.plain) if first is not None else [],
            plain_group=reference.group.index if reference is not None else None,
            n_ranked_rounds=max((o.n_ranked_rounds for o in self._outcomes()), default=0),
        )
        for state in self.states:
            if state.measured is not None:
                notes = state.measured.outcome.notes
                found.notes += [(kind, f"{state.host}: {text}") for kind, text in notes]
        found.notes += [
            ("group-lost", f"some trials could not be measured: {why}") for why in failed
        ]
        if self.interrupted is not None:
            found.ended, found.interrupt = "interrupted", self.interrupted
            found.ended_reason = "interrupted: what was measured until then stands"
        return found

    @property
    def saved(self) -> tuple[SavedGroup, ...]:
        """Groups measured to the end, as the samples on disk describe them."""
        kinds = {name: (hardware, loop) for name, hardware, loop in self.kinds.items()}
        return tuple(
            SavedGroup(
                index=state.group.index,
                trials=state.group.trials,
                part=state.group.part,
                host=state.host,
                hardware=kinds[state.kind][0],
                loop=kinds[state.kind][1],
            )
            for state in self.states
            if state.host is not None and state.kind is not None and state.is_over
        )

    @property
    def recorded(self) -> list[Trial]:
        """Every measurement of every node, for the samples on disk."""
        return self._trials(None)

    def ranking(self) -> Ranking:
        """Of the main kind; figures of other trials are by their own kind's baseline, `apart`."""
        main = self.main_kind
        leading = self.ranking_of(main)
        results = list(leading.results)
        for kind in dict.fromkeys(s.kind for s in self.states):
            if kind not in (None, main):
                other = self.ranking_of(kind)
                for index in self.trials_on(kind):
                    results[index] = replace(other.results[index], apart=True)
        for trial in self._planned:
            if trial.same_as is not None:  # of the kind where that trial was measured
                same, own = results[trial.same_as], results[trial.index]
                results[trial.index] = replace(same, index=own.index, settings=own.settings)
        return replace(leading, results=tuple(results))

    def ranking_of(self, kind: str | None) -> Ranking:
        """The trials measured on one kind of hardware, against each other."""
        trials = self._trials(kind)
        return rank(trials, own=self._own, steps_per_epoch=self._steps_per_epoch)

    def trials_on(self, kind: str | None) -> tuple[int, ...]:
        """Trials measured on a kind of hardware, without the loop's own settings."""
        found = [i for s in self.states if s.kind == kind for i in s.group.trials]
        return tuple(sorted(set(found)))

    def host_of(self, trial: int) -> str | None:
        """Where a trial was ranked."""
        state = self._state_of(trial)
        return state.host if state is not None else None

    def kind_of(self, trial: int) -> str | None:
        """On what kind of hardware a trial was ranked."""
        state = self._state_of(trial)
        return state.kind if state is not None else None

    def to_confirm(self) -> dict[str, int]:
        """The candidate of each kind of hardware whose gain is still to be confirmed."""
        found = {}
        for kind in dict.fromkeys(s.kind for s in self.states if s.kind is not None):
            ranking = self.ranking_of(kind)
            if ranking.candidate and not ranking.confirmed:
                found[kind] = ranking.candidate
        return found

    # ------------------------------------------------------------ inside

    def _trials(self, kind: str | None) -> list[Trial]:
        """The trials with their measurements; of trial 0 only those on this kind (None: all)."""
        made = [replace(trial, measurements=[], profiles=[]) for trial in self._planned]
        for state in self.states:
            alike = kind is None or state.kind in (None, kind)
            for index, measurement in state.measurements:
                if index or alike:
                    made[index].measurements.append(measurement)
            for index in state.group.trials:
                made[index].apart = made[index].apart or not alike
            self._conclude(state, made, alike=alike)
        return made

    def _conclude(self, state: GroupState, made: list[Trial], *, alike: bool) -> None:
        """What a group says of its trials beyond their measurements."""
        if state.failed is not None and state.group.part == "rank":
            for index in state.group.trials:
                made[index].fail("failed", state.failed)
        if state.measured is None:
            return
        for one in state.measured.outcome.trials:
            trial = made[self._number(state, one.index)]
            if one.index and state.group.part == "rank":
                trial.status, trial.reason, trial.dropped = one.status, one.reason, one.dropped
                trial.profiles = one.profiles
            if one.index or alike:
                trial.samples_per_step = one.samples_per_step
                trial.steps_per_epoch = one.steps_per_epoch
        if self.reference is state:
            made[0].profiles = state.measured.outcome.trials[0].profiles

    def _number(self, state: GroupState, local: int) -> int:
        return state.group.trials[local - 1] if local else 0

    def _state_of(self, trial: int) -> GroupState | None:
        if not trial:
            return self.reference
        return next(
            (s for s in self.states if trial in s.group.trials and s.group.part == "rank"), None
        )

    def _outcomes(self) -> list[Outcome]:
        return [s.measured.outcome for s in self.states if s.measured is not None]


def _counts(group: Group, measurement: Measurement) -> bool:
    """A group that confirms was ranked elsewhere: its first measurements only size its windows."""
    return group.part == "rank" or measurement.phase == "confirm"


def local_trials(planned: Sequence[Trial], group: Group) -> tuple[Trial, ...]:
    """The group's trials as its node numbers them: the baseline, then its own."""
    chosen = [planned[0], *(planned[index] for index in group.trials)]
    return tuple(
        replace(trial, index=i, measurements=[], profiles=[]) for i, trial in enumerate(chosen)
    )
