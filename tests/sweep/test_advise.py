"""What a sweep's winner means for the user's code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import AS_IS, meaning, own_settings
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.advise import nearness_sentence, recommended_rows, verdict_of_sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.report_rows import best_row
from loaderdoctor.tryout import Options
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import needed_changes
from tests.tryout.simulator import SimulatedRun, Truth, observed

OWN = Settings(num_workers=0)


@pytest.mark.parametrize(
    ("own", "asked", "needed"),
    [
        (
            OWN,
            Settings(num_workers=2, prefetch_factor=2, persistent_workers=True),
            Settings(num_workers=2, persistent_workers=True),
        ),
        (
            Settings(num_workers=2),
            Settings(num_workers=2, prefetch_factor=4, persistent_workers=False),
            Settings(prefetch_factor=4),
        ),
        (
            OWN,
            Settings(num_workers=0, background="host", pin_memory=False),
            Settings(background="host"),
        ),
        (OWN, Settings(num_workers=1, start_method="fork"), Settings(num_workers=1)),
    ],
)
def test_only_what_must_be_written_is_recommended(
    own: Settings, asked: Settings, needed: Settings
) -> None:
    seen = own_settings(observed(own=own))
    changes = needed_changes(asked, seen)
    assert changes == needed
    assert meaning(changes, seen) == meaning(asked, seen)


def swept(fast_ms: float, noise: float = 0.01) -> tuple[Sweep, SweepEvidence]:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=fast_ms if settings.num_workers else 10.0, startup_s=0.1)

    seen = observed()
    script_run = SimulatedRun(truth, Truth(step_ms=10.0), noise=noise)
    trials = (AS_IS, Settings(num_workers=2, prefetch_factor=2), Settings(num_workers=3))
    sweep = Sweep(
        seen,
        trials,
        Options(budget_s=30.0),
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    sweep.run()
    evidence = SweepEvidence(observed=seen)
    evidence.sweep = sweep
    return sweep, evidence


def test_a_recommendation_has_the_line_of_code_and_the_confirmed_gain() -> None:
    sweep, evidence = swept(4.0)
    ranking = sweep.ranking()
    (row,) = recommended_rows(ranking, evidence.observed, evidence.facts(ranking))
    assert (row.setting, row.from_, row.to) == ("num_workers", 0, 2)
    assert row.code == "" and "`num_workers=2`" in (row.idea or "")
    assert "prefetch_factor" not in (row.idea or "")
    assert row.measured_step_ms == pytest.approx(4.0, rel=0.05)
    assert row.measured_ci_ms is not None
    assert "confirmed" in (row.summary or "")
    assert "num_workers=2" in verdict_of_sweep(ranking)


def test_without_a_gain_there_is_nothing_to_write() -> None:
    sweep, evidence = swept(10.0)
    ranking = sweep.ranking()
    assert recommended_rows(ranking, evidence.observed, evidence.facts(ranking)) == ()
    assert verdict_of_sweep(ranking).startswith("Nothing worth changing")


def test_a_gain_that_may_be_noise_is_named_but_not_recommended() -> None:
    sweep, _ = swept(9.0, noise=0.5)
    ranking = sweep.ranking()
    assert not ranking.worth_changing
    assert ranking.candidate == 1
    assert "within the noise" in verdict_of_sweep(ranking)


@pytest.mark.parametrize(
    ("low", "high", "confirmed", "said"),
    [
        (0.05, 0.15, True, "No setting gains enough to be worth it"),
        (-0.5, 1.5, True, "within the noise"),
        (-1.5, -0.5, True, "it is slower"),
        (-0.5, 1.5, False, "too little was measured to confirm it"),
    ],
)
def test_a_candidate_that_is_not_recommended_is_told_as_it_was_measured(
    low: float, high: float, confirmed: bool, said: str
) -> None:
    ranking = swept(4.0)[0].ranking()
    gain = Estimate(value=(low + high) / 2, low=low, high=high, n=3)
    told = replace(ranking, gain_ms=gain, gain_share=gain.scaled(0.1), confirmed=confirmed)
    assert told.candidate
    assert not told.worth_changing
    assert said in verdict_of_sweep(told)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (1.04, "is 4 % faster, too little for what more it takes"),
        (1.72, "took 42 % less time in the rounds, but too little was measured"),
    ],
)
def test_a_fastest_that_is_much_faster_is_never_called_too_little(part: float, said: str) -> None:
    ranking = swept(4.0)[0].ranking()
    own, fastest, chosen = ranking.results
    assert fastest.cost_ms is not None
    results = (own, fastest, replace(chosen, cost_ms=fastest.cost_ms.scaled(part)))
    told = replace(ranking, results=results, best=1, candidate=2, tied_with=(), slower={})
    assert told.worth_changing
    assert said in nearness_sentence(told, OWN)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.001, "took no longer"), (0.03, "took 3 % longer"), (0.18, "took 18 ± 20 % longer, which")],
)
def test_what_simplicity_is_not_worth_is_told_with_its_noise(value: float, said: str) -> None:
    ranking = swept(4.0)[0].ranking()
    slower = {2: Estimate.around(value, 0.2, n=5)}
    told = replace(ranking, best=1, candidate=2, slower=slower, n_equal=2)
    assert "lie within 5 % of the fastest, as far as noise tells" in nearness_sentence(told, OWN)
    assert said in nearness_sentence(told, OWN)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({}, "was not measured there"),
        ({1: 0.14}, "took 14 ± 20 % longer there"),
        ({1: 0.01}, "gained too little over the loop as it is"),
    ],
)
def test_why_it_is_none_of_the_simpler_ones_is_told(beside: dict[int, float], said: str) -> None:
    """Trial 1 has fewer workers than trial 2, which is recommended; the fastest is a third."""
    ranking = swept(4.0)[0].ranking()
    fastest = replace(ranking.results[1], index=3)
    slower = {i: Estimate.around(value, 0.2, n=5) for i, value in {2: 0.03, **beside}.items()}
    told = replace(
        ranking,
        results=(*ranking.results, fastest),
        best=3,
        candidate=2,
        tied_with=(1, 2),
        slower=slower,
        n_equal=2,
    )
    text = nearness_sentence(told, OWN)
    assert f"The simpler num_workers=2, prefetch_factor=2 {said}" in text
    alone = nearness_sentence(replace(told, tied_with=(2,)), OWN)
    assert text.startswith(alone) and "simpler num" not in alone


def test_the_top_level_step_is_that_of_trial_0() -> None:
    sweep, evidence = swept(4.0)
    ranking = sweep.ranking()
    step = evidence.facts(ranking).step
    assert step is not None
    assert step.wall_ms == ranking.results[0].wall_ms
    assert step.boundary_ms == ranking.results[0].boundary_ms


ALIKE = (
    AS_IS,
    *(
        Settings(num_workers=n, prefetch_factor=p, persistent_workers=kept)
        for n in (2, 3)
        for p in (2, 4)
        for kept in (False, True)
    ),
)


def alike(seed: int) -> tuple[Sweep, SweepEvidence]:
    """Eight settings that bring 10 ms to about 6, in windows that vary by 15 %."""

    def truth(settings: Settings) -> Truth:
        kept = 0.995 if settings.persistent_workers else 1.0
        return Truth(step_ms=6.0 * kept * (1 + 0.005 * (settings.num_workers or 0)))

    seen = observed()
    script_run = SimulatedRun(truth, Truth(step_ms=10.0), noise=0.15, seed=seed)
    equipment = Equipment(script_run=script_run, clock=script_run.clock)
    sweep = Sweep(seen, ALIKE, Options(budget_s=30.0), equipment)
    sweep.run()
    return sweep, SweepEvidence(observed=seen, sweep=sweep)


def test_sweeps_of_one_loop_recommend_the_same_and_the_simplest() -> None:
    rankings = [alike(seed)[0].ranking() for seed in range(5)]
    said = [
        r.results[r.recommended].settings if r.recommended is not None else None for r in rankings
    ]
    assert said.count(Settings(num_workers=2, prefetch_factor=2, persistent_workers=False)) >= 4
    assert len({r.best for r in rankings}) > 1  # which is the fastest, noise decides


def test_the_tables_best_is_what_is_recommended_and_a_line_says_how_near_others_are() -> None:
    for seed in range(3):
        sweep, evidence = alike(seed)
        ranking = sweep.ranking()
        if ranking.recommended is None or ranking.recommended == ranking.best:
            continue
        best = best_row(ranking)
        assert best is not None
        assert best.trial == ranking.recommended
        assert ranking.best in best.tied_with or not best.tied_with
        rows = recommended_rows(ranking, evidence.observed, evidence.facts(ranking))
        fastest = ranking.results[ranking.best or 0].settings.label()
        assert fastest in (rows[0].summary or "")
        return
    raise AssertionError("in each sweep the simplest was the fastest too")
