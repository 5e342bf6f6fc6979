"""Evidence -> facts, verdict, findings, prescription: what the measuring records mean.

Of all ranks of a job: which one the others wait for, and its analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from loaderdoctor.advice import Prescription
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.attribution import Attributed, attribute, facts_of
from loaderdoctor.attribution.ablation import Round
from loaderdoctor.attribution.combine import facts_of_run
from loaderdoctor.attribution.gpu import gpu_limit_facts
from loaderdoctor.attribution.loop_stacks import loop_line_facts
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.attribution.ranks import (
    RankTrace,
    compare,
    rank_trace,
    slowest,
    without_peer_wait,
)
from loaderdoctor.attribution.run_facts import wall_facts, with_readers, worker_memory_facts
from loaderdoctor.attribution.step import step_facts, usable
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.attribution.worker_batches import shard_facts
from loaderdoctor.attribution.workers import other_worker_facts, worker_facts
from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.facts import Facts, RankFacts, RankStep
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import NO_TRIALS, LoopTrials, ShardFacts
from loaderdoctor.facts.step import Bound, VerdictSeverity
from loaderdoctor.findings import Finding
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.command.rank_connection import RankConnection
from loaderdoctor.instrument.wire import worker_records
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report.traces import Overlay
from loaderdoctor.report.traces.worker_tracks import track_events
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import calibrate
from loaderdoctor.tryout.ablating import LoopEvidence


@dataclass(slots=True, kw_only=True)
class Analysis:
    """Everything concluded from one run's evidence."""

    facts: Facts
    bound: Bound
    severity: VerdictSeverity
    findings: tuple[Finding, ...]
    prescription: Prescription
    attributed: Attributed | None  # the profiled window's trace
    log: WorkerLog | None
    problems: tuple[str, ...] = field(default=())  # evidence that could not be read

    @property
    def worth_trying(self) -> bool:
        """Whether there are settings that a trial in the running loop can tell of."""
        return bool(self.prescription.live_settings or self.prescription.live_code)

    @property
    def rest_ms(self) -> float | None:
        """What no loader setting can go below: the step without input, and copies if known."""
        ablation = self.facts.ablation
        if ablation is None:
            return None
        rest = ablation.no_copy_ms or ablation.no_input_ms
        return rest.value if rest is not None else None


def analyse(
    evidence: LoopEvidence,
    workers_dir: Path,
    *,
    ranks: tuple[RankFacts, ...] = (),
    peer_wait_ms: float | None = None,
    tried: LoopTrials = NO_TRIALS,
) -> Analysis:
    """Read the trace and the workers' records, and conclude. Never raises for missing evidence.

    With several `ranks` the evidence is of one of them, which waits so long for its peers. `tried`
    are other numbers of threads, once they are.
    """
    problems: list[str] = []
    evidence.learn_epoch()
    attributed = _attributed(evidence.profiled, problems)
    log = _worker_log(workers_dir, problems)
    step = step_facts(evidence.observed, evidence.steady, evidence.earlier)
    workers = _workers(log, evidence)
    facts = facts_of_run(
        command="diagnose",
        step=step,
        trace=(
            without_peer_wait(
                facts_of(attributed, num_workers=_num_workers(evidence)), peer_wait_ms
            )
            if attributed
            else None
        ),
        ablation=evidence.ablation(),
        workers=workers,
        other_workers=_other_workers(log, evidence, workers),
        observed=evidence.observed,
        loop_lines=loop_line_facts(
            [w.stacks for w in evidence.sampled if w.stacks is not None],
            has_accelerator=evidence.observed.device is not None,
        ),
        wall=wall_facts(evidence.wall, step),
        worker_memory=worker_memory_facts(evidence.all_plain, log),
    )
    facts = replace(
        facts,
        ranks=ranks,
        thread_trials=tried.threads,
        pool_trials=with_readers(
            tried.pools,
            log,
            workers.loader if workers is not None else None,
            [(w.start_ns, w.end_ns) for w in evidence.steady],
        ),
        shards=_shards(log, evidence),
        gpu_limits=gpu_limit_facts(evidence.steady),
    )
    bound, severity = judge_run(facts)
    findings = find(facts)
    return Analysis(
        facts=facts,
        bound=bound,
        severity=severity,
        findings=findings,
        prescription=prescribe(facts, findings),
        attributed=attributed,
        log=log,
        problems=tuple(problems),
    )


def overlay(analysis: Analysis, profiled: WindowDone) -> Overlay:
    """What goes on top of the recorded trace: waits, shares, and worker tracks on its clock."""
    attributed = analysis.attributed
    if attributed is None:
        return Overlay()
    of_workers: list[dict[str, Any]] = []
    if analysis.log is not None and profiled.clock_marks:
        clock = calibrate(attributed.trace, profiled.clock_marks)
        of_workers = track_events(analysis.log, clock, attributed.trace)
    return Overlay.of(tracks(attributed), of_workers)


def _num_workers(evidence: LoopEvidence) -> int | None:
    """Of the loader that feeds the step."""
    main = evidence.observed.main_loader
    return main.settings.num_workers if main is not None else None


def _attributed(profiled: WindowDone | None, problems: list[str]) -> Attributed | None:
    if profiled is None or profiled.trace_path is None:
        return None
    try:
        return attribute(read_trace(Path(profiled.trace_path)))
    except LoaderdoctorError as error:
        problems.append(str(error))
        return None


def _worker_log(workers_dir: Path, problems: list[str]) -> WorkerLog | None:
    if not workers_dir.is_dir():
        return None
    try:
        return worker_records.read(workers_dir)
    except LoaderdoctorError as error:
        problems.append(str(error))
        return None


def _workers(log: WorkerLog | None, evidence: LoopEvidence) -> WorkerFacts | None:
    """Facts of the longest plain window with nothing substituted; drops would distort them.

    Of those at the loop's steady pace, like the step they are compared with.
    """
    steady = evidence.steady
    plain = [w for w in evidence.plain if any(w is one for one in steady)] or steady
    if log is None or not plain:
        return None
    window = max(plain, key=lambda w: w.end_ns - w.start_ns)
    return worker_facts(
        log,
        window.start_ns,
        window.end_ns,
        n_steps=window.n_steps,
        fetches=window.fetches,
        sampled_in=[(start_ns, end_ns, ()) for start_ns, end_ns in _unprofiled(evidence)],
        loaders=evidence.observed.loaders,
    )


def _shards(log: WorkerLog | None, evidence: LoopEvidence) -> ShardFacts | None:
    """Of epochs before anything but the loop's own batches was measured."""
    if log is None:
        return None
    others = [w for r in evidence.rounds for w in (r.no_input, r.no_copy) if w is not None]
    if evidence.profiled is not None:
        others.append(evidence.profiled)
    first_ns = min((w.start_ns for w in others if w.start_ns), default=None)
    return shard_facts(log, evidence.observed.main_loader, until_ns=first_ns)


def _unprofiled(evidence: LoopEvidence) -> list[tuple[int, int]]:
    """From the start of the run to the last plain window, but for the profiled one.

    Stack samples of the loop's own iterators are as good between windows as within them, and rare:
    20 in 12 s of a loop of 150 ms a step.
    """
    end_ns = max((w.end_ns for w in evidence.all_plain), default=0)
    profiled = evidence.profiled
    if profiled is None:
        return [(0, end_ns)]
    return [(0, profiled.start_ns), (profiled.end_ns, max(end_ns, profiled.end_ns))]


def _other_workers(
    log: WorkerLog | None, evidence: LoopEvidence, workers: WorkerFacts | None
) -> tuple[WorkerFacts, ...]:
    plain = [w for w in evidence.all_plain if usable(w)]
    if log is None:
        return ()
    main = workers.loader if workers is not None else None
    return other_worker_facts(log, plain, evidence.observed.loaders, but=main)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnalysis:
    """The job: every rank next to the others, and the analysis of the slowest."""

    analysis: Analysis
    evidence: LoopEvidence  # the slowest rank's
    ranks: tuple[RankFacts, ...]  # those whose trace was read
    steps: tuple[RankStep, ...]
    traces: Mapping[int, Path]  # the profiled window of each rank in `ranks`


def analyse_group(
    evidence: LoopEvidence,
    connections: Sequence[RankConnection],
    tried: LoopTrials = NO_TRIALS,
) -> GroupAnalysis:
    """Compare the ranks by their profiled windows, and analyse the one that the others wait for.

    `evidence` is of the lowest rank; what the others measured in the same windows lies with them.
    """
    hosts = Counter(m.hello.host for m in connections if m.hello is not None)
    own = {
        m.rank: evidence_of(evidence, m, n_here=hosts[m.hello.host] if m.hello else 1)
        for m in connections
    }
    problems: list[str] = []
    traces = dict(_traces(own, connections, problems))
    ranks = compare(list(traces.values()), list(traces))
    if (
        len(ranks) > 1
        and all(r.peer_wait_ms is None for r in ranks)
        and any(r.shares.communication for r in ranks)
    ):
        problems.append(
            "the ranks' profiled windows share too few collectives, so what ranks wait for one "
            "another is not known: it counts as communication."
        )
    chosen = slowest(ranks) if ranks else None
    rank = chosen.rank if chosen is not None else connections[0].rank
    connection = next(m for m in connections if m.rank == rank)
    assert connection.hello is not None
    # Ranks are compared over the same windows.
    ids = frozenset(window.id for window in own[rank].earlier)
    own = {r: replace(one, earlier_ids=ids) for r, one in own.items()}
    analysis = analyse(
        own[rank],
        Path(connection.hello.run_dir) / "workers",
        ranks=ranks,
        peer_wait_ms=chosen.peer_wait_ms if chosen is not None else None,
        tried=tried,
    )
    return GroupAnalysis(
        analysis=replace(analysis, problems=(*analysis.problems, *problems)),
        evidence=own[rank],
        ranks=ranks,
        traces={r: path for r in traces if (path := _profiled(own[r])) is not None},
        steps=tuple(
            RankStep(
                rank=m.rank,
                host=m.hello.host if m.hello is not None else "",
                step=step_facts(own[m.rank].observed, own[m.rank].steady, own[m.rank].earlier),
            )
            for m in connections
        ),
    )


def evidence_of(
    evidence: LoopEvidence, connection: RankConnection, *, n_here: int = 1
) -> LoopEvidence:
    """The same windows as this rank measured them; `n_here` ranks are on its machine."""
    observed = connection.observed
    assert observed is not None
    environment = observed.environment
    told = max(n_here, environment.n_local_ranks or 1)  # some may not have been measured
    environment = msgspec.structs.replace(environment, n_local_ranks=told)
    observed = msgspec.structs.replace(observed, environment=environment)
    done = connection.done

    def mine(window: WindowDone | None) -> WindowDone | None:
        return done.get(window.id) if window is not None else None

    rounds = []
    for one in evidence.rounds:
        plain, no_input = mine(one.plain), mine(one.no_input)
        if plain is not None and no_input is not None and usable(plain) and usable(no_input):
            rounds.append(
                Round(
                    plain=plain,
                    no_input=no_input,
                    no_copy=mine(one.no_copy),
                    again=again if (again := mine(one.again)) and usable(again) else None,
                )
            )
    profiled = mine(evidence.profiled)
    return replace(
        evidence,
        observed=observed,
        plain=[w for one in evidence.plain if (w := mine(one)) is not None],
        profiled=profiled if profiled is not None and usable(profiled) else None,
        rounds=rounds,
        sampled=[w for one in evidence.sampled if (w := mine(one)) is not None],
    )


def _traces(
    evidence: Mapping[int, LoopEvidence], connections: Sequence[RankConnection], problems: list[str]
) -> dict[int, RankTrace]:
    found = {}
    for connection in connections:
        path = _profiled(evidence[connection.rank])
        if path is None:
            continue
        host = connection.hello.host if connection.hello is not None else ""
        if not path.is_file():
            problems.append(
                f"rank {connection.rank}: its trace lies on {host} and was not read, so its shares "
                "and waits are not in this report."
            )
            continue
        try:
            trace = rank_trace(attribute(read_trace(path)))
        except LoaderdoctorError as error:
            problems.append(f"rank {connection.rank}: {error}")
        else:
            found[connection.rank] = replace(trace, host=trace.host or host)
    return found


def _profiled(evidence: LoopEvidence) -> Path | None:
    """The trace file of the profiled window, where there was one."""
    profiled = evidence.profiled
    if profiled is None or profiled.trace_path is None:
        return None
    return Path(profiled.trace_path)
