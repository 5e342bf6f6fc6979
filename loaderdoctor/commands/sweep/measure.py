"""Measures the trials of a sweep on one machine: this one, or a node of a cluster.

Starts the script, learns what its loop is, plans the trials unless they are given, and drives the
rounds. What a node of a cluster does differs in what it is asked only.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loaderdoctor.commands.diagnose.launch import Launch
from loaderdoctor.commands.sweep.plan import (
    SweepOptions,
    Target,
    budget_s,
    measuring,
    trials,
    why_no_dali,
)
from loaderdoctor.commands.sweep.search import found_before, search, search_s
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.job import JobBench
from loaderdoctor.instrument.command.rank_group import GroupBench
from loaderdoctor.instrument.command.script_run import Bench, BenchOptions
from loaderdoctor.instrument.command.script_run import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import invalid_reason
from loaderdoctor.sweep import samples
from loaderdoctor.sweep.evidence import Evidence
from loaderdoctor.sweep.fresh import FreshBench, OpenFresh
from loaderdoctor.sweep.grid import meaning, own_settings
from loaderdoctor.sweep.outcome import Part, Progress
from loaderdoctor.sweep.rounds import Sweep
from loaderdoctor.sweep.trials import Trial, Visit

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 600.0
# Of a process of a trial's own script, at least and as a part of the budget.
PROCESS_START_S = 60.0
PROCESS_START_SHARE = 0.2

Before = tuple[samples.Description, dict[int, list[Visit]]]  # what an interrupted sweep measured
Show = Callable[[Progress], None]
Stdout = Literal["inherit", "stderr"] | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one machine is to measure."""

    options: SweepOptions
    target: Target
    planned: tuple[Trial, ...] | None = None  # None: what the options and this machine ask for
    part: Part = "whole"
    budget_s: float | None = None  # None: the options'
    ablate: bool = True
    before: Before | None = None
    stdout: Stdout = "inherit"


class ScriptFailedError(RunError):
    """The script ended by itself before anything could be measured; its exit code is passed on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def opener(asked: Asked, trace_dir: Path) -> OpenFresh:
    """Starts a script (None: the sweep's own) and waits until its loop is warm."""

    @contextmanager
    def open_process(script: Script | None) -> Iterator[Bench | JobBench]:
        # A trial of many may not take as long to start as the loop itself.
        part_s = max(PROCESS_START_S, PROCESS_START_SHARE * budget_s(asked.options))
        start_s = START_TIMEOUT_S if script is None else min(START_TIMEOUT_S, part_s)
        chosen = script or asked.target.script
        options = BenchOptions(stdout=asked.stdout)
        with _bench(chosen, trace_dir, options) as bench:
            _wait_warm(bench, start_s)
            yield bench

    return open_process


def _bench(script: Script, run_dir: Path, options: BenchOptions) -> Bench | JobBench:
    """One process of the script, or a job of several under torch's launcher."""
    if script.n_ranks == 1:
        return Bench(script, run_dir, options)
    # A port of its own: the user's job, or another trial that is just ending, may hold the usual.
    words = ("--nproc-per-node", str(script.n_ranks), "--master-port", str(_free_port()))
    group = Launch(torchrun=words).bench(script, run_dir, options)
    assert isinstance(group, GroupBench)
    return JobBench(group, script.n_ranks)


def measure(
    asked: Asked,
    trace_dir: Path,
    *,
    say: Callable[[str], None],
    show: Show,
    watch: Callable[[Evidence], Show],
) -> Evidence:
    """Everything but the reading of traces. Raises RunError where nothing was measured.

    `watch` is given the evidence while it grows and returns what each step of progress is told.
    """
    options, target = asked.options, asked.target
    open_process = opener(asked, trace_dir)
    with ExitStack() as benches:

        def open_bench() -> Bench:
            bench = benches.enter_context(open_process(None))
            assert isinstance(bench, Bench)
            return bench

        say(f"waiting for the first steps of {target.name}")
        bench = open_bench()
        observed = bench.observed
        assert observed is not None
        measured = measuring(options, trace_dir)
        if asked.planned is not None:
            planned = _given(asked.planned, observed)
        else:
            if asked.before is not None:
                found = found_before(options, observed, asked.before[0])
            else:
                found = search(options, target, observed, open_process, say, show)
                left_s = measured.budget_s - len(found) * search_s(options)
                measured = replace(measured, budget_s=left_s)
            dali = why_no_dali(options)
            planned = trials(options, target, observed, found=found, dali=dali)
        if asked.before is not None:
            samples.restore(planned, *asked.before)
        measured = replace(measured, part=asked.part, budget_s=asked.budget_s or measured.budget_s)
        if asked.part == "confirm":
            measured = replace(measured, trace_dir=None)
        n_visited = sum(trial.alive for trial in planned)
        say(f"{n_visited} trials, about {measured.budget_s:.0f} s of measuring")
        evidence = Evidence(observed=observed, notes=bench.notes, seed=options.seed)
        evidence.sweep = sweep = Sweep(
            bench,
            observed,
            planned,
            measured,
            withheld=evidence.withheld([trial.settings for trial in planned]),
            on_progress=watch(evidence),
            # A script of the user's is not run a second time unasked.
            reopen=open_bench if target.recipe is not None or options.rerun else None,
            ablate=evidence.ablate if asked.ablate and not options.no_ablation else None,
            fresh=FreshBench(open_process),
        )
        outcome = sweep.run()
    if not any(trial.visits for trial in outcome.trials):
        if outcome.interrupt is not None:
            raise outcome.interrupt
        raise RunError(f"{target.name}: nothing was measured ({outcome.ended_reason}).")
    return evidence


def _given(planned: Sequence[Trial], observed: Observed) -> list[Trial]:
    """Trials planned on another machine, less what can't run here."""
    own, has_accelerator = own_settings(observed), observed.device is not None
    for trial in planned:
        full = meaning(trial.settings, own)
        if trial.index and (why := invalid_reason(full, has_accelerator=has_accelerator)):
            trial.fail("skipped", f"{why}; it was measured on {observed.environment.host}")
    return list(planned)


def _free_port() -> int:
    """A port of this machine's own address that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_warm(bench: Bench | JobBench, start_s: float) -> None:
    """Wait for the loop. Raises RunError; the exit code of a script that failed passes on."""
    try:
        bench.wait_observed(start_s)
    except RunError as error:
        if bench.ended is not None and bench.ended.exit_code:
            raise ScriptFailedError(str(error), bench.ended.exit_code) from error
        raise
