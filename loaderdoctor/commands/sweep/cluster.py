"""A sweep over a Ray cluster: groups of trials, each on its own node, with its own baseline.

    one node says what the loop is → trials planned → a group for each machine → candidate confirmed

Each node runs what a sweep on one machine runs (`measure`), on its group. A node that is lost
takes its group's figures with it; the group starts again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from loaderdoctor.cluster.nodes import Place
from loaderdoctor.cluster.ray_cluster import RayCluster
from loaderdoctor.cluster.ray_tasks import Came
from loaderdoctor.commands.sweep.measure import Asked, Before, Show
from loaderdoctor.commands.sweep.node import NodeWork, Seen, measure_on_node, observe_on_node
from loaderdoctor.commands.sweep.plan import SweepOptions, Target, budget_s, trials
from loaderdoctor.errors import RunError
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.grouped_evidence import GroupedEvidence
from loaderdoctor.sweep.groups import (
    Group,
    GroupedSweep,
    Measured,
    TrialUpdate,
    local_trials,
    split,
)
from loaderdoctor.sweep.live import LiveSweep
from loaderdoctor.tryout.trials import Progress, Trial

# Of the budget, for the pairs that confirm the candidate on one node afterwards.
CONFIRM_SHARE = 0.25


class ClusterMeasuring:
    """One sweep over a cluster; `measure` once."""

    def __init__(
        self,
        options: SweepOptions,
        target: Target,
        trace_dir: Path,
        live: LiveSweep,
        watch: Callable[[SweepEvidence], Show],
    ) -> None:
        self._options, self._target, self._trace_dir = options, target, trace_dir
        self._live, self._watch = live, watch

    def measure(self, before: Before | None = None) -> SweepEvidence:
        """Every trial, as far as nodes last. Raises RunError where nothing was measured.

        `before` is what an interrupted sweep measured: its whole groups are kept.
        """
        with RayCluster(self._options.ray_address) as cluster:
            places = cluster.wait_places()
            for why in cluster.unusable:
                self._live.say(f"not used: {why}")
            seen = self._observe(cluster, before)
            observed = seen.observed
            planned = trials(
                self._options,
                self._target,
                observed,
                found=seen.found,
                dali=seen.why_no_dali,
            )
            sweep = GroupedSweep(observed, planned)
            if before is not None:
                sweep.restore(*before)
            groups = split(planned, len({place.machine for place in places}), done=sweep.states)
            n_trials = 1 + sum(len(group.trials) for group in groups)
            self._live.say(
                f"{n_trials} trials in {len(groups)} groups, a machine for each, about "
                f"{budget_s(self._options):.0f} s of measuring"
            )
            evidence = GroupedEvidence(observed=observed, sweep=sweep, trace_dir=self._trace_dir)
            running = GroupsOnNodes(
                self._options,
                self._target,
                cluster=cluster,
                evidence=evidence,
                planned=planned,
                say=self._live.say,
                show=self._watch(evidence),
            )
            try:
                running.measure(groups)
                running.confirm()
            except KeyboardInterrupt as interrupt:
                sweep.interrupted = interrupt
        if not any(trial.measurements for trial in sweep.recorded):
            if sweep.interrupted is not None:
                raise sweep.interrupted
            reasons = dict.fromkeys(s.failed for s in sweep.states if s.failed is not None)
            raise RunError(f"{self._target.name}: nothing was measured ({'; '.join(reasons)}).")
        return evidence

    def _observe(self, cluster: RayCluster, before: Before | None) -> Seen:
        """What the loop is, from one node: the script is started there and ended again."""
        self._live.say(f"waiting for the first steps of {self._target.name} on a node")
        work = NodeWork.of(Asked(options=self._options, target=self._target, before=before))
        for came in cluster.run(observe_on_node, [work], exclusive=True):
            if came.given_up is not None:
                raise RunError(f"{self._target.name}: {came.given_up}")
            if came.result is not None:
                return came.result
        raise RunError(f"{self._target.name}: no node answered.")


class GroupsOnNodes:
    """Groups of trials under way on the nodes; what comes goes into the evidence at once."""

    def __init__(
        self,
        options: SweepOptions,
        target: Target,
        *,
        cluster: RayCluster,
        evidence: GroupedEvidence,
        planned: Sequence[Trial],
        say: Callable[[str], None],
        show: Show,
    ) -> None:
        self._options, self._target = options, target
        self._cluster, self._evidence, self._planned = cluster, evidence, planned
        self._say, self._show = say, show
        self._n_groups, self._n_restored = 0, len(evidence.grouped.states)

    def measure(
        self,
        groups: Sequence[Group],
        allowed: Callable[[int, Place], bool] = lambda index, place: True,
    ) -> None:
        """Measure these groups, each where it is `allowed`."""
        sweep = self._evidence.grouped
        self._n_groups += len(groups)
        for group in groups:
            sweep.add(group)
        works = [NodeWork.of(self._asked(group)) for group in groups]
        coming = self._cluster.run(measure_on_node, works, exclusive=True, allowed=allowed)
        with closing(coming):
            for came in coming:
                self._take(groups[came.index], came)
                self._show(self._progress())

    def _take(self, group: Group, came: Came[Measured]) -> None:
        """One thing that came of a group."""
        sweep = self._evidence.grouped
        named = f"group {group.index + 1} (trials {', '.join(map(str, group.trials))})"
        if came.given_up is not None:
            sweep.fail(group.index, came.given_up)
            self._say(f"{named}: {came.given_up}")
        elif came.place is None:
            return
        elif came.again is not None:
            sweep.again(group.index)
            self._say(f"{named} begins again: {came.place.host}: {came.again}")
        elif came.late:
            self._say(f"{named} waits for {came.place.host}: other work of Ray may hold it")
        elif came.result is not None:
            kept = self._evidence.keep(group.index, came.result)
            sweep.done(group.index, self._cluster.hardware(came.place), kept)
            self._evidence.refresh()
            self._say(f"{named}: done on {came.place.host}")
        elif isinstance(came.told, TrialUpdate):
            sweep.told(group.index, self._cluster.hardware(came.place), came.told)

    def confirm(self) -> None:
        """The candidate of each kind of hardware next to the loop's own settings, on one node."""
        sweep = self._evidence.grouped
        kinds = list(sweep.to_confirm().items())
        first = len(sweep.states)
        groups = [
            Group(index=first + i, trials=(candidate,), part="confirm")
            for i, (_, candidate) in enumerate(kinds)
        ]
        if not groups:
            return
        hosts = {kind: {s.host for s in sweep.states if s.kind == kind} for kind, _ in kinds}
        alike = {name: hardware for name, hardware, _ in sweep.kinds.items()}
        self._say("confirming the candidate next to the loop's own settings")
        self.measure(
            groups,
            allowed=lambda index, place: (
                place.host in hosts[kinds[index][0]]
                or not self._cluster.hardware(place).differences(alike[kinds[index][0]])
            ),
        )

    def _asked(self, group: Group) -> Asked:
        whole_s = budget_s(self._options)
        confirming = group.part == "confirm"
        return Asked(
            options=self._options,
            target=self._target,
            planned=local_trials(self._planned, group),
            part=group.part,
            budget_s=CONFIRM_SHARE * whole_s if confirming else whole_s,
            ablate=group.index == self._n_restored,  # the loop as it is: once is enough
        )

    def _progress(self) -> Progress:
        sweep = self._evidence.grouped
        over = [s for s in sweep.states if s.measured is not None or s.failed is not None]
        n_over, n_groups = len(over), max(1, self._n_groups)
        return Progress(
            phase="nodes",
            round=n_over,
            n_rounds=n_groups,
            trial=None,
            done_share=n_over / n_groups,
            left_s=budget_s(self._options) * (1 - n_over / n_groups),
            trials=sweep.recorded,
        )
