"""Measures the trials of a sweep on one machine: this one, or a node of a cluster.

Starts the script, learns what its loop is, plans the trials unless they are given, and drives the
rounds. What a node of a cluster does differs in what it is asked only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.commands.sweep.plan import (
    SweepOptions,
    Target,
    budget_s,
    measuring,
    preset_of,
    searches,
    trials,
    why_no_dali,
)
from loaderdoctor.errors import RunError
from loaderdoctor.facts import meaning, own_settings
from loaderdoctor.instrument.command.job import JobRun
from loaderdoctor.instrument.command.launch_config import LaunchOptions
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import TrainingBeganError
from loaderdoctor.instrument.command.rank_group import start_ranks
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.system.machine import free_port
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep, timings_file
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.sweep.presets.published import Found
from loaderdoctor.sweep.timings_file import Description
from loaderdoctor.tryout import Measurement, Options, Part, Progress, Trial
from loaderdoctor.tryout.measuring import Equipment, FreshRuns, OpenFresh

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 600.0
ONCE = "--once keeps it to one run; without it the script is run again, and the sweep goes on."
SCRIPT_OUTPUT = "script.txt"  # what the script prints, in the run folder
# Of a process of a trial's own script, at least and as a part of the budget.
PROCESS_START_S = 60.0
PROCESS_START_SHARE = 0.2

Before = tuple[
    timings_file.Description, dict[int, list[Measurement]]
]  # what an interrupted sweep measured
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
    def open_process(script: Script | None) -> Iterator[ScriptRun | JobRun]:
        # A trial of many may not take as long to start as the loop itself.
        part_s = max(PROCESS_START_S, PROCESS_START_SHARE * budget_s(asked.options))
        start_s = START_TIMEOUT_S if script is None else min(START_TIMEOUT_S, part_s)
        chosen = script or asked.target.script
        options = LaunchOptions(stdout=asked.stdout)
        with _script_run(chosen, trace_dir, options) as script_run:
            _wait_warm(script_run, start_s)
            yield script_run

    return open_process


def _script_run(script: Script, run_dir: Path, options: LaunchOptions) -> ScriptRun | JobRun:
    """One process of the script, or a job of several under torch's launcher."""
    if script.n_ranks == 1:
        return ScriptRun(script, run_dir, options)
    # Another port: the user's job, or another trial that is just ending, may hold the usual.
    words = ("--nproc-per-node", str(script.n_ranks), "--master-port", str(free_port()))
    return JobRun(script, run_dir, options, start_ranks(words))


def measure(
    asked: Asked,
    trace_dir: Path,
    *,
    say: Callable[[str], None],
    show: Show,
    watch: Callable[[SweepEvidence], Show],
) -> SweepEvidence:
    """Everything but the reading of traces. Raises RunError where nothing was measured.

    `watch` is given the evidence while it grows and returns what each step of progress is told.
    """
    target = asked.target
    options = LaunchOptions(stdout=asked.stdout)
    script_run = RepeatedRun(
        start=lambda patient: ScriptRun(
            target.script, trace_dir, replace(options, patient=patient)
        ),
        say=say,
        budget_s=asked.budget_s or budget_s(asked.options),
        never=ONCE if asked.options.once else None,
    )
    with script_run:
        say(f"waiting for the first steps of {target.name}")
        _wait_warm(script_run, START_TIMEOUT_S)
        open_process = opener(asked, trace_dir)
        while True:
            try:
                return _measured(
                    asked, trace_dir, script_run, open_process, say=say, show=show, watch=watch
                )
            except TrainingBeganError as why:
                say(f"{why}: what was measured so far does not count")
            _wait_warm(script_run, START_TIMEOUT_S)


def _measured(
    asked: Asked,
    trace_dir: Path,
    script_run: RepeatedRun,
    open_process: OpenFresh,
    *,
    say: Callable[[str], None],
    show: Show,
    watch: Callable[[SweepEvidence], Show],
) -> SweepEvidence:
    """Of a warm loop. Raises as `measure` does, and TrainingBeganError.

    That is where training only then began, or went on with another loader.
    """
    options, target = asked.options, asked.target
    observed = script_run.observed
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
        timings_file.restore(planned, *asked.before)
    measured = replace(measured, part=asked.part, budget_s=asked.budget_s or measured.budget_s)
    if asked.part == "confirm":
        measured = replace(measured, trace_dir=None)
    n_measured = sum(trial.alive for trial in planned)
    say(f"{n_measured} trials, about {measured.budget_s:.0f} s of measuring")
    evidence = SweepEvidence(
        observed=observed,
        notes=script_run.notes,
        seed=options.seed,
        clock=script_run.measuring_clock,
    )
    evidence.sweep = sweep = Sweep(
        observed,
        planned,
        measured,
        Equipment(
            script_run=script_run,
            on_progress=watch(evidence),
            reopen=script_run.reopen if target.recipe is not None or options.rerun else None,
            fresh=FreshRuns(open_process),
            clock=script_run.measuring_clock,
        ),
        refused=evidence.refused([trial.settings for trial in planned]),
        ablate=evidence.ablate if asked.ablate and not options.no_ablation else None,
    )
    outcome = sweep.run()
    if not any(trial.measurements for trial in outcome.trials):
        if outcome.interrupt is not None:
            raise outcome.interrupt
        raise RunError(f"{target.name}: nothing was measured ({outcome.ended_reason}).")
    return evidence


def _given(planned: Sequence[Trial], observed: Observed) -> list[Trial]:
    """Trials planned on another machine, less what can't run here."""
    own, has_accelerator = own_settings(observed), observed.device is not None
    if not has_accelerator:
        own = replace(own, pin_memory=None)  # which does nothing then
    for trial in planned:
        full = meaning(trial.settings, own)
        if trial.index and (why := invalid_reason(full, has_accelerator=has_accelerator)):
            trial.fail("skipped", f"{why}; it was measured on {observed.environment.host}")
    return list(planned)


def _wait_warm(script_run: ScriptRun | JobRun | RepeatedRun, start_s: float) -> None:
    """Wait for the loop. Raises RunError; the exit code of a script that failed passes on."""
    try:
        script_run.wait_observed(start_s)
    except RunError as error:
        if script_run.ended is not None and script_run.ended.exit_code:
            raise ScriptFailedError(str(error), script_run.ended.exit_code) from error
        raise


# Of the budget, for each search. On an H200 with 16 CPUs a measurement takes 2 to 5 s: a quarter of
# 430 s went by with the first of each of the ladder's settings, and none was left to compare them.
SEARCH_SHARE = 0.28
OURS = "our own search"  # begins what is said of one that found nothing
NO_TIME = f"{OURS} had time to measure the settings, not to compare them: give a larger --budget"


def search(
    options: SweepOptions,
    target: Target,
    observed: Observed,
    open_process: OpenFresh,
    say: Callable[[str], None],
    show: Callable[[Progress], None],
) -> dict[str, Found]:
    """What is recommended, by the row that was searched from. One process after the other."""
    found = {}
    for source, script in searches(options, target, observed).items():
        say(f"searching settings for '{source}'")
        found[source] = _found(options, target, script, open_process, show)
    return found


def found_before(options: SweepOptions, observed: Observed, saved: Description) -> dict[str, Found]:
    """What the searches of an interrupted sweep had recommended: its rows stay what they were."""
    preset = preset_of(options)
    before = {trial.row: trial for trial in saved.trials if trial.row is not None}
    found = {}
    for row in preset.rows(observed) if preset is not None else ():
        trial = before.get(row.name)
        if trial is None or row.searched_from is None:
            continue
        # A row that was only not reached, or can't run, is decided again.
        why_not = trial.reason if (trial.reason or "").startswith(OURS) else None
        settings = msgspec.convert(trial.settings, Settings)
        found[row.searched_from] = Found(settings=settings, why_not=why_not)
    return found


def search_s(options: SweepOptions) -> float:
    """Seconds of measuring that each search takes from the budget."""
    return SEARCH_SHARE * budget_s(options)


def _found(
    options: SweepOptions,
    target: Target,
    script: Script,
    open_process: OpenFresh,
    show: Callable[[Progress], None],
) -> Found:
    try:
        with open_process(script) as script_run:
            seen = script_run.observed
            assert seen is not None
            choices = default_trials(seen, target.axes)
            elimination = Sweep(
                seen,
                choices,
                Options(
                    budget_s=search_s(options),
                    seed=options.seed,
                    search="auto",
                    allowance_share=None,  # its part of the budget is what it may take
                ),
                Equipment(script_run=script_run, on_progress=show),
                refused=SweepEvidence(observed=seen).refused(choices),
            )
            elimination.run()
            ranking = elimination.ranking()
    except RunError as error:
        return Found(settings=Settings(), why_not=f"{OURS} failed: {error}")
    best = ranking.recommended
    if best is None and elimination.outcome.n_ranked_rounds == 0:
        return Found(settings=Settings(), why_not=NO_TIME)
    return Found(settings=ranking.results[best].settings if best is not None else Settings())
