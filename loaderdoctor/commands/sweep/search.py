"""Our own search within a preset: what it recommends for the rows that ask for it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loaderdoctor.commands.sweep.plan import SweepOptions, Target, budget_s, preset_of, searches
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.sweep.presets.resolve import Found
from loaderdoctor.sweep.run import Sweep
from loaderdoctor.sweep.timings_file import Description
from loaderdoctor.tryout.measuring import Equipment, OpenFresh
from loaderdoctor.tryout.trials import Options, Progress

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
