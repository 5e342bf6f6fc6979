"""What a sweep measures, window by window, and what it says of it, pinned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import Observed, ProfilerSchedule
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.advise import not_advised, recommended_rows, verdict_of_sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.grid import asked_trials, default_trials
from loaderdoctor.sweep.report_rows import trial_rows, warning_rows
from loaderdoctor.tryout import Options, Progress, Row, Trial
from loaderdoctor.tryout.measuring import Equipment, FreshRuns
from tests.tryout.pinned import asked, check, rounded, rows
from tests.tryout.simulator import SimulatedRun, Truth, observed
from tests.tryout.sweeping import all_the_same, workers_help

OWN = Truth(step_ms=10.0)
Plan = Callable[[Observed], Sequence[Settings | Trial]]


def saturating(settings: Settings) -> Truth:
    """Workers help until they meet the computation; each costs a little."""
    workers = settings.num_workers or 0
    draw = random.Random(settings.label())
    step_ms = max(4.0, 16.0 / max(1, min(workers, 4))) * (1 + 0.02 * workers)
    return Truth(step_ms=step_ms + draw.uniform(0, 0.3), startup_s=0.05 * workers)


def crashing(settings: Settings) -> Truth:
    if settings.num_workers == 2:
        return Truth(step_ms=1.0, crash="RuntimeError: worker killed")
    return workers_help(settings)


def dying(settings: Settings) -> Truth:
    return replace(workers_help(settings), dies=settings.num_workers == 2)


def hanging(settings: Settings) -> Truth:
    return replace(workers_help(settings), hangs=settings.num_workers == 2)


def many(seen: Observed) -> Sequence[Settings]:
    return (
        Settings(),
        *(Settings(num_workers=n, prefetch_factor=p) for n in range(1, 9) for p in (2, 4, 8)),
    )


def grid(*words: str) -> Plan:
    return lambda seen: asked_trials(words, seen)


def preset(*settings: Settings, copies: int = 1) -> Plan:
    """Rows of one group for each copy; one shares another's figures, one is skipped."""

    def planned(seen: Observed) -> list[Trial]:
        trials = [Trial(index=0, settings=Settings())]
        for copy in range(copies):
            for i, one in enumerate(settings):
                row = Row(name=str(i), group=str(copy), host_memory=not copy, tensor_memory=i == 0)
                trials.append(Trial(index=len(trials), settings=one, row=row))
        trials[-1].same_as = 1
        return trials

    return planned


def in_processes(*n_workers: int) -> Plan:
    def planned(seen: Observed) -> list[Trial]:
        return [
            Trial(index=i, settings=Settings(num_workers=n) if n else Settings(), place="process")
            for i, n in enumerate(n_workers)
        ]

    return planned


@dataclass(frozen=True, kw_only=True)
class Case:
    trials: Plan = default_trials
    truth: Callable[[Settings], Truth] = workers_help
    own: Truth = OWN
    run: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    ablate: bool = False
    reopens: bool = False
    traced: bool = False


THREE = grid("num_workers=1,2,3")
BOTH = (Settings(num_workers=2), Settings(num_workers=4, prefetch_factor=4))
CASES = {
    "grid": Case(),
    "grid of three": Case(trials=THREE, options={"budget_s": 30.0, "n_rounds": 5}),
    "grid, traced and compared": Case(
        trials=grid("num_workers=1,2", "persistent_workers=true,false"),
        ablate=True,
        traced=True,
        options={"profiler": ProfilerSchedule(repeat=2, warmup=3, with_stack=True)},
    ),
    "grid, seconds": Case(options={"budget_s": 12.0}),
    "grid, too short": Case(options={"budget_s": 2.0}),
    "grid, no rounds": Case(
        truth=lambda s: Truth(step_ms=10.0, startup_s=2.0), own=OWN, options={"budget_s": 20.0}
    ),
    "all the same": Case(trials=THREE, truth=all_the_same, run={"noise": 0.05}),
    "loop opens once": Case(trials=THREE, run={"own_reopens": False}),
    "batch sizes and portions": Case(
        trials=grid("batch_size=32,64,128", "portion=0.5,1"),
        truth=lambda s: Truth(step_ms=(s.batch_size or 64) / 7),
    ),
    "slow starts": Case(
        trials=grid("cache=true,false", "keep_iterator=true,false", "num_workers=0,2"),
        options={"trial_limit_s": 20.0},
    ),
    "epochs of few steps": Case(
        trials=grid("num_workers=2,8", "prefetch_factor=2,8"),
        seen={"steps_per_epoch": 40},
        truth=saturating,
    ),
    "accumulating": Case(trials=THREE, seen={"accumulation": 3}),
    "accelerator": Case(seen={"device": "cuda:0", "usable_cpus": 4.0}, truth=saturating),
    "crash": Case(truth=crashing, options={"budget_s": 20.0}),
    "death": Case(truth=dying, trials=THREE),
    "death, opened again": Case(truth=dying, trials=THREE, reopens=True),
    "hang": Case(truth=hanging, trials=THREE, options={"trial_limit_s": 5.0}, reopens=True),
    "interrupted": Case(run={"interrupt_after": 30}),
    "script ends": Case(run={"ends_after": 30}),
    "slow start": Case(trials=THREE, run={"slow_start": 1.5, "plain_factor": 0.8}),
    "drift": Case(trials=THREE, run={"drift_per_s": 0.01}),
    "search": Case(trials=many, truth=saturating, options={"search": "auto"}),
    "search, ablated": Case(
        trials=many, truth=saturating, ablate=True, traced=True, options={"search": "auto"}
    ),
    "search, seconds": Case(
        trials=many, truth=saturating, options={"search": "auto", "budget_s": 8.0}
    ),
    "search, by time": Case(
        trials=many,
        truth=saturating,
        options={"search": "auto", "budget_s": 30.0, "allowance_share": None},
        run={"noise": 0.05},
    ),
    "search, nothing better": Case(
        trials=many, truth=all_the_same, options={"search": "auto", "budget_s": 100.0}
    ),
    "search, a crash": Case(truth=crashing, options={"search": "auto", "seed": 3}),
    "ranked only": Case(trials=THREE, options={"part": "rank", "budget_s": 20.0}),
    "confirmed only": Case(
        trials=grid("num_workers=2"), options={"part": "confirm", "budget_s": 15.0}
    ),
    "confirmed in noise": Case(
        trials=grid("num_workers=1"),
        truth=lambda s: Truth(step_ms=9.0),
        run={"noise": 0.15},
        options={"budget_s": 40.0},
    ),
    "preset": Case(
        trials=preset(*BOTH, copies=2),
        traced=True,
        ablate=True,
        truth=saturating,
        seen={"device": "cuda:0", "steps_per_epoch": 50},
        options={"keep_all": True, "n_rounds": 3},
    ),
    "preset, seconds": Case(
        trials=preset(*BOTH, *(Settings(num_workers=n) for n in range(1, 9)), copies=2),
        truth=saturating,
        options={"keep_all": True, "n_rounds": 3, "budget_s": 15.0},
    ),
    "loader alone": Case(
        trials=preset(*BOTH, Settings(num_workers=0, synthetic=True)),
        truth=saturating,
        traced=True,
        options={"keep_all": True, "loader_only": True, "n_rounds": 3},
        seen={"steps_per_epoch": 30},
    ),
    "processes": Case(
        trials=in_processes(0, 1, 2),
        truth=saturating,
        traced=True,
        options={"budget_s": 900.0, "n_rounds": 3},
    ),
}


WITH_ROWS = ("grid of three", "batch sizes and portions", "crash", "preset")


@pytest.mark.parametrize("name", CASES)
def test_a_sweep_is_as_pinned(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    seen = observed(step_ms=case.own.step_ms, **case.seen)
    run = SimulatedRun(case.truth, case.own, **{"noise": 0.02, "seed": 1, **case.run})
    evidence = SweepEvidence(observed=seen, seed=1, clock=run.clock)
    phases: Counter[str] = Counter()

    def show(progress: Progress) -> None:
        phases[progress.phase] += 1

    def reopen() -> ScriptRunLike:
        run.ended = None
        run.now += 3.0
        return run

    @contextmanager
    def open_process(script: Script | None) -> Iterator[ScriptRunLike]:
        fresh = replace(run, now=0.0, seed=len(run.log), log=run.log, observed=seen)
        yield fresh
        run.now += 8.0 + fresh.now

    options = {"budget_s": 60.0, "seed": 1, **case.options}
    planned = case.trials(seen)
    sweep = evidence.sweep = Sweep(
        seen,
        planned,
        Options(trace_dir=tmp_path if case.traced else None, **options),
        Equipment(
            script_run=run,
            on_progress=show,
            reopen=reopen if case.reopens else None,
            fresh=FreshRuns(open_process),
            clock=run.clock,
        ),
        refused={Settings(num_workers=3, prefetch_factor=2): "it may not be run"},
        ablate=evidence.ablate if case.ablate else None,
    )
    found, ranking = sweep.run(), sweep.ranking()
    facts = evidence.facts(ranking)
    outcome = {
        "trials": [
            [
                t.settings.label(),
                t.status,
                t.reason,
                t.dropped,
                " ".join(f"{m.phase[0]}{m.round}" for m in t.measurements),
                len(t.profiles),
                rounded(ranking.results[t.index].cost_ms),
            ]
            for t in found.trials
        ],
        "ended": [found.ended, found.ended_reason],
        "rounds": [found.n_ranked_rounds, found.elimination, found.grid_steps, len(found.plain)],
        "notes": found.notes,
        "progress": dict(phases),
        "best": [ranking.best, ranking.tied_with, ranking.candidate, ranking.recommended],
        "gain": [rounded(ranking.gain_ms), ranking.confirmed],
        "verdict": verdict_of_sweep(ranking),
        "recommendations": rows(recommended_rows(ranking, seen, facts)),
        "withheld": rows(not_advised(ranking)),
        "rows": rows(trial_rows(ranking, evidence.trial_shares(ranking, facts), {}))
        if name in WITH_ROWS
        else [],
        "warnings": rows(warning_rows(found, ranking)),
        "left": round(run.now, 4),
    }
    check(
        "pinned_sweep",
        name,
        {"asked": asked(run.log, [t.settings for t in found.trials]), "outcome": outcome},
    )
