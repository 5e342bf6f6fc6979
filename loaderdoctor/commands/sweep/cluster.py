"""A sweep over a Ray cluster: groups of trials, each on its own node, with its own baseline.

    one node says what the loop is → trials planned → a group for each machine → candidate confirmed

Each node runs what a sweep on one machine runs (`measure`), on its group. A node that is lost
takes its group's figures with it; the group starts again elsewhere.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loaderdoctor.cluster import Place, RefusedError
from loaderdoctor.cluster.ray_cluster import RayCluster
from loaderdoctor.cluster.ray_tasks import Came
from loaderdoctor.commands.sweep.measure import (
    SCRIPT_OUTPUT,
    Asked,
    Before,
    Show,
    found_before,
    measure,
    opener,
    search,
)
from loaderdoctor.commands.sweep.plan import SweepOptions, Target, budget_s, trials, why_no_dali
from loaderdoctor.errors import LoaderdoctorError, RunError
from loaderdoctor.instrument.wire.protocol import Note, Observed
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
from loaderdoctor.sweep.presets.published import Found
from loaderdoctor.tryout import Progress, Trial

# Of the budget, for the pairs that confirm the candidate on one node afterwards.
CONFIRM_SHARE = 0.25


def measure_on_cluster(
    options: SweepOptions,
    target: Target,
    trace_dir: Path,
    *,
    say: Callable[[str], None],
    watch: Callable[[SweepEvidence], Show],
    before: Before | None = None,
) -> SweepEvidence:
    """Every trial, as far as nodes last. Raises RunError where nothing was measured.

    `before` is what an interrupted sweep measured: its whole groups are kept.
    """
    with RayCluster(options.ray_address) as cluster:
        places = cluster.wait_places()
        for why in cluster.unusable:
            say(f"not used: {why}")
        say(f"waiting for the first steps of {target.name} on a node")
        seen = _observe(cluster, Asked(options=options, target=target, before=before))
        observed = seen.observed
        planned = trials(options, target, observed, found=seen.found, dali=seen.why_no_dali)
        sweep = GroupedSweep(observed, planned)
        if before is not None:
            sweep.restore(*before)
        groups = split(planned, len({place.machine for place in places}), done=sweep.states)
        n_trials = 1 + sum(len(group.trials) for group in groups)
        say(
            f"{n_trials} trials in {len(groups)} groups, a machine for each, about "
            f"{budget_s(options):.0f} s of measuring"
        )
        evidence = GroupedEvidence(observed=observed, sweep=sweep, trace_dir=trace_dir)
        running = GroupsOnNodes(
            options,
            target,
            cluster=cluster,
            evidence=evidence,
            planned=planned,
            say=say,
            show=watch(evidence),
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
        raise RunError(f"{target.name}: nothing was measured ({'; '.join(reasons)}).")
    return evidence


def _observe(cluster: RayCluster, asked: Asked) -> Seen:
    """What the loop is, from one node: the script is started there and ended again."""
    for came in cluster.run(observe_on_node, [NodeWork.of(asked)], exclusive=True):
        if came.given_up is not None:
            raise RunError(f"{asked.target.name}: {came.given_up}")
        if came.result is not None:
            return came.result
    raise RunError(f"{asked.target.name}: no node answered.")


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


SCRIPT_TAIL_BYTES = 64 << 10
# The script's threads and imports are to be what they are here. Ray sets the first by itself.
_CARRIED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    asked: Asked
    cwd: str
    environment: Mapping[str, str | None]  # None: not set here, so not there

    @staticmethod
    def of(asked: Asked) -> NodeWork:
        """In the folder and environment of this command."""
        carried = {name: os.environ.get(name) for name in _CARRIED}
        return NodeWork(asked=asked, cwd=str(Path.cwd()), environment=carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a node found that trials are planned from."""

    observed: Observed
    found: dict[str, Found]  # what our own searches recommend there, by row
    why_no_dali: str | None


def observe_on_node(work: NodeWork, tell: Callable[[Any], None]) -> Seen:
    """Start the script, wait until its loop is warm, end it; then what else planning asks for."""
    with _at_home(work) as (asked, folder), _refusing():
        open_process = opener(asked, folder)
        with open_process(None) as script_run:
            observed = script_run.observed
        assert observed is not None
        return Seen(
            observed=observed,
            found=found_before(asked.options, observed, asked.before[0])
            if asked.before is not None
            else search(asked.options, asked.target, observed, open_process, _nothing, _nothing),
            why_no_dali=why_no_dali(asked.options),
        )


def measure_on_node(work: NodeWork, tell: Callable[[Any], None]) -> Measured:
    """Measure one group, telling each measurement as it ends."""
    with _at_home(work) as (asked, folder):
        with _refusing():
            evidence = measure(
                asked, folder, say=_nothing, show=_nothing, watch=lambda found: _Teller(tell)
            )
        return Measured(
            observed=evidence.observed,
            notes=(*evidence.notes, *_niceness()),
            outcome=evidence.outcome,
            ablated=evidence.ablated,
            files=_files(folder),
        )


class _Teller:
    """Tells the command each measurement that it has not heard of."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._n_told: dict[int, int] = {}

    def __call__(self, progress: Progress) -> None:
        for trial in progress.trials:
            first = self._n_told.get(trial.index, 0)
            for measurement in trial.measurements[first:]:
                self._tell(TrialUpdate(trial=trial.index, measurement=measurement))
            self._n_told[trial.index] = len(trial.measurements)


@contextmanager
def _at_home(work: NodeWork) -> Iterator[tuple[Asked, Path]]:
    """The command's folder and environment, and our own folder, for the block."""
    before = Path.cwd()
    try:
        os.chdir(work.cwd)
        work.asked.target.script.check()
    except (OSError, LoaderdoctorError) as error:
        os.chdir(before)
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RefusedError(
            f"{socket.gethostname()} can't run it in {work.cwd} ({why}). The script and its data "
            "must lie in a folder that every node of the cluster has under the same path."
        ) from None
    saved = {name: os.environ.get(name) for name in work.environment}
    with suppress(OSError, AttributeError):  # not ours to change, or no such thing here
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        _set(work.environment)
        with tempfile.TemporaryDirectory(prefix="loaderdoctor-") as name:
            folder = Path(name)
            yield replace(work.asked, stdout=folder / SCRIPT_OUTPUT), folder
    finally:
        _set(saved)
        os.chdir(before)


@contextmanager
def _refusing() -> Iterator[None]:
    """A script that can't be measured here may run on another node."""
    try:
        yield
    except LoaderdoctorError as error:
        raise RefusedError(f"{socket.gethostname()}: {error}") from None


def _niceness() -> tuple[Note, ...]:
    """Ray starts its workers at niceness 15, and only root may take that back."""
    try:
        level = os.getpriority(os.PRIO_PROCESS, 0)
    except (OSError, AttributeError):
        return ()
    if level <= 0:
        return ()
    text = (
        f"trials ran at niceness {level}, as Ray starts its workers: anything else on the node "
        "went before them. Start its nodes with RAY_worker_niceness=0."
    )
    return (Note(kind="low-priority", text=text),)


def _set(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _files(folder: Path) -> dict[str, bytes]:
    """Traces, workers' records, and the end of what the script printed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            if path.is_file():
                data = path.read_bytes()
                tail = path.name == SCRIPT_OUTPUT and path.parent == folder
                found[str(path.relative_to(folder))] = data[-SCRIPT_TAIL_BYTES:] if tail else data
    return found


def _nothing(said: object) -> None:
    """What a node has to say comes with its result."""
