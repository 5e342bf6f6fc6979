"""Evidence of all ranks of a job -> which one the others wait for, and its analysis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loaderdoctor.attribution.ablation import Round
from loaderdoctor.attribution.ranks import RankTrace, compare, rank_trace, slowest
from loaderdoctor.attribution.step import step_facts, usable
from loaderdoctor.attribution.trace_facts import attribute
from loaderdoctor.diagnosis.analysis import Analysis, analyse
from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.facts.loop import NO_TRIALS, LoopTrials
from loaderdoctor.facts.whole import RankFacts, RankStep
from loaderdoctor.instrument.command.rank_connection import RankConnection
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.trace.read import read_trace
from loaderdoctor.tryout.ablating import LoopEvidence


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
