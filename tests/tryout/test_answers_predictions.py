"""What a finding expects of a setting gives way to what a trial of that setting measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.findings import Finding, Kind, Outcome, Prediction
from loaderdoctor.findings.capacity import cpu_bound_ms, worker_limit, workers_needed
from loaderdoctor.findings.rules import RULES, find
from loaderdoctor.findings.rules.saturated import cpu_saturated_workers
from loaderdoctor.findings.rules.starved import loader_in_main_process
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.answers import UNSAFE, check_predictions
from tests.findings.builders import machine, step, with_exposed
from tests.findings.input_facts import BY_ITSELF, NO_WORKERS
from tests.findings.rules import (
    test_contention,
    test_contention_page_faults,
    test_copies,
    test_saturated,
    test_starved,
    test_threads,
)

OWN = Settings(num_workers=0)
LOADS_ITSELF = with_exposed(input_=0.7, loaders=NO_WORKERS, workers=BY_ITSELF)
CASES = tuple(
    case
    for module in (
        test_contention,
        test_copies,
        test_contention_page_faults,
        test_saturated,
        test_starved,
        test_threads,
    )
    for case in module.CASES
)


def outcome(
    settings: Settings, step_ms: float, low: float | None, high: float | None, own_ms: float = 10.0
) -> Outcome:
    return Outcome(
        settings=settings, step_ms=step_ms, own_ms=own_ms, gain_low_ms=low, gain_high_ms=high
    )


def the(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def test_untried_a_prediction_is_said_and_marked_as_one() -> None:
    (said,) = check_predictions([the(loader_in_main_process(LOADS_ITSELF))], (), own=OWN)
    assert "3 workers would keep up: 3.00 ms a step (predicted, not tried in this run)." in (
        said.summary
    )
    assert said.tested == ()


def test_a_prediction_of_what_would_break_the_run_is_marked_so() -> None:
    finding = the(loader_in_main_process(LOADS_ITSELF))
    (said,) = check_predictions([finding], (), own=OWN, marks={"num_workers": UNSAFE})
    assert f"3 workers would keep up: 3.00 ms a step ({UNSAFE})." in said.summary
    (other,) = check_predictions([finding], (), own=OWN, marks={"pin_memory": UNSAFE})
    assert UNSAFE not in other.summary


def test_a_slower_trial_replaces_the_prediction_and_what_was_advised() -> None:
    finding = the(loader_in_main_process(LOADS_ITSELF))
    slower = outcome(Settings(num_workers=3, persistent_workers=True), 14.0, -5.0, -3.0)
    (said,) = check_predictions([finding], [slower], own=OWN)
    assert "keep up" not in said.summary
    assert said.summary.endswith(
        "Tried in this run (num_workers=3, persistent_workers=True): 14.0 ms a step against "
        "10.0 ms as it is, slower."
    )
    (tested,) = said.tested
    assert tested.refuted
    assert tested.outcome.came == "slower"


@pytest.mark.parametrize(
    ("low", "high", "came"),
    [
        (1.0, 3.0, "faster"),
        (-3.0, -1.0, "slower"),
        (-1.0, 3.0, "no difference beyond the noise"),
        (None, None, "too few windows to tell"),
    ],
)
def test_the_interval_says_what_came_of_a_trial(
    low: float | None, high: float | None, came: str
) -> None:
    tried = outcome(Settings(num_workers=3), 8.0, low, high)
    (said,) = check_predictions([the(loader_in_main_process(LOADS_ITSELF))], [tried], own=OWN)
    assert said.summary.endswith(f"10.0 ms as it is, {came}.")


@pytest.mark.parametrize(
    ("confirmed", "step_ms", "low", "high", "words"),
    [
        (True, 8.0, 1.0, 3.0, "faster when confirmed"),
        (True, 9.9, 0.05, 0.15, "faster when confirmed, by too little to matter"),
        (True, 8.0, -1.0, 5.0, "within the noise when confirmed"),
        (True, 12.0, -3.0, -1.0, "slower when confirmed"),
        (False, 8.0, 1.0, 3.0, "faster in the rounds, not confirmed"),
        (False, 9.9, 0.05, 0.15, "faster in the rounds, not confirmed"),
        (False, 8.0, -1.0, 5.0, "no difference beyond the noise"),
        (None, 9.9, 0.05, 0.15, "faster"),
    ],
)
def test_a_gain_of_a_sweep_says_whether_it_was_confirmed(
    confirmed: bool | None, step_ms: float, low: float, high: float, words: str
) -> None:
    tried = replace(outcome(Settings(num_workers=3), step_ms, low, high), confirmed=confirmed)
    (said,) = check_predictions([the(loader_in_main_process(LOADS_ITSELF))], [tried], own=OWN)
    assert said.summary.endswith(f"10.0 ms as it is, {words}.")


def test_that_more_workers_cant_help_gives_way_to_a_trial_in_which_they_do() -> None:
    full = next(c for c in CASES if c.rule is cpu_saturated_workers).ill
    finding = the(cpu_saturated_workers(full))
    faster = outcome(Settings(num_workers=6), 7.0, 2.0, 4.0)
    own = Settings(num_workers=4)
    (said,) = check_predictions([finding], [faster], own=own)
    assert "No CPU is left" not in said.summary
    assert said.summary.endswith("faster.")
    (kept,) = check_predictions(
        [finding], [outcome(Settings(num_workers=2), 12.0, -3.0, -1.0)], own=own
    )
    assert "No CPU is left for more workers (predicted, not tried in this run)." in kept.summary


def test_the_trial_of_the_number_named_counts_before_others() -> None:
    finding = the(loader_in_main_process(LOADS_ITSELF))
    trials = [
        outcome(Settings(num_workers=5), 4.0, 5.0, 7.0),
        outcome(Settings(num_workers=3, pin_memory=True), 5.0, 4.0, 6.0),
        outcome(Settings(num_workers=3), 6.0, 3.0, 5.0),
    ]
    (said,) = check_predictions([finding], trials, own=OWN)
    assert "(num_workers=3): 6.00 ms a step" in said.summary
    (said,) = check_predictions([finding], trials[:1], own=OWN)
    assert "(num_workers=5): 4.00 ms a step" in said.summary


@pytest.mark.parametrize("case", [c for c in CASES if c.rule in RULES], ids=lambda c: c.name)
def test_every_forecast_of_a_setting_that_was_tried_gives_way(case: object) -> None:
    """Whatever a finding expects: refuted by a trial, neither summary nor advice repeats it."""
    ill = case.ill  # type: ignore[attr-defined]
    loader = ill.main_loader
    own = loader.settings if loader is not None else Settings()
    for finding in find(ill):
        for prediction in finding.predictions:
            tried = _tried(prediction, own)
            bad = (1.0, 2.0) if not prediction.gains else (-2.0, -1.0)
            (said,) = check_predictions([finding], [outcome(tried, 11.0, *bad)], own=own)
            assert prediction.sentence.removesuffix(".") not in said.summary
            assert ("faster." if not prediction.gains else "slower.") in said.summary
            if prediction.advised:
                assert said.advice == prediction.instead


def _tried(prediction: Prediction, own: Settings) -> Settings:
    value = prediction.value
    if value is None:
        before = own.as_dict()[prediction.setting]
        value = (before if isinstance(before, int) else 0) + 1
    return Settings(**{prediction.setting: value})  # type: ignore[arg-type]


def test_candidates_of_a_finding_are_settings_that_its_predictions_speak_about() -> None:
    """Else a trial would go by without the finding that asked for it hearing of it."""
    for case in CASES:
        found = {f.kind: f for f in find(case.ill)}
        for candidate in candidates(case.ill, found.values()):
            for kind in candidate.kinds:
                if kind is Kind.OVERHEAD_BOUND_LOADER or kind not in found:
                    continue  # fewer workers than the loop has: nothing is forecast of them
                about = {p.setting for p in found[kind].predictions}
                changed = set(candidate.settings.changed())
                if changed & {"threads", "worker_cpus", "reuse_buffers"}:
                    continue  # only a trial can tell
                assert about & changed or kind in _WITHOUT_FORECAST, (kind, changed)


# Their candidates are tries: the finding says that only a trial can tell.
_WITHOUT_FORECAST = {
    Kind.HEAD_OF_LINE_STALL,
    Kind.CPU_SATURATED_WORKERS,
    Kind.IDLE_WORKERS,
    Kind.LOADER_IN_MAIN_PROCESS,
}


# ---------------------------------------------------------------- the arithmetic of workers


def test_where_step_and_batch_fill_the_cpus_the_cpu_is_named_as_the_limit() -> None:
    """8 ms of CPU time a step, 9.5 a batch, two CPUs: 8.75 ms at best, whatever the pool."""
    facts = with_exposed(
        input_=0.6,
        loaders=NO_WORKERS,
        workers=replace(BY_ITSELF, batch_ms=9.5, cpu_share=1.0),
        step=step(main_cpu_cores=1.75, raw_wait_ms=6.0),
        machine=machine(usable_cpus=2.0),
    )
    assert cpu_bound_ms(facts) == pytest.approx((17.5 - 9.5 + 9.5) / 2)
    (prediction,) = the(loader_in_main_process(facts)).predictions
    assert prediction.sentence == (
        "The CPU is the limit: a step takes 8.00 ms of CPU time, its batch 9.50 ms, and 2 usable "
        "CPUs can't do that in less than 8.75 ms; 2 workers would come to 8.75 ms."
    )
    assert prediction.step_ms == pytest.approx(8.75)
    idle = replace(
        facts,
        machine=machine(usable_cpus=2.0),
        step=step(main_cpu_cores=1.6, worker_cpu_cores=0.0, raw_wait_ms=6.0),
    )
    (then,) = the(loader_in_main_process(idle)).predictions
    assert then.sentence.startswith("With enough workers the CPU is the limit")  # not yet
    more = replace(facts, step=step(main_cpu_cores=2.0, raw_wait_ms=6.0))
    (none,) = the(loader_in_main_process(more)).predictions
    assert not none.gains  # 10.0 ms at best, as it is now
    assert none.sentence.endswith("with any number of workers.")


def test_workers_are_limited_by_what_the_training_process_leaves() -> None:
    lone = with_exposed(
        input_=0.7,
        loaders=NO_WORKERS,
        workers=replace(BY_ITSELF, cpu_share=1.0),
        step=step(main_cpu_cores=1.0),
    )
    assert workers_needed(lone) == 3
    roomy = replace(lone, machine=machine(usable_cpus=16.0))
    busy = replace(roomy, step=step(main_cpu_cores=4.0))  # 33 of the 40 ms of CPU are the loop's
    assert worker_limit(roomy) == 15
    assert worker_limit(busy) == 16 - 11
