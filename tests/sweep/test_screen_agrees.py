"""A sweep's first screen says one thing: verdict, findings, list of changes and table agree."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from loaderdoctor.facts import AS_IS
from loaderdoctor.findings import Prediction
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Report
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.advise import recommended_rows, verdict_of_sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.report_rows import best_row, trial_rows
from loaderdoctor.tryout import Options, Search
from loaderdoctor.tryout.answers import answered
from loaderdoctor.tryout.measuring import Equipment
from tests.report import sample_facts, samples
from tests.tryout.simulator import SimulatedRun, Truth, observed

# One forecast for each trial, so that the findings repeat what came of all of them.
FORECASTS = tuple(
    Prediction(sentence=f"{n} workers help.", setting="num_workers", which="other", value=n)
    for n in (2, 3)
)
NOTHING = {  # sentence -> what a finding beside it may call a trial
    "No setting is shown to help": {"in the rounds, not confirmed"},
    "No setting gains enough": {"in the rounds, not confirmed", "by too little to matter"},
    "no settings gain 2 %": {"in the rounds, not confirmed"},
    "no settings beat the loop's own beyond the noise": set(),
}


def screen(fast_ms: float, noise: float, seed: int, budget_s: float, search: Search) -> Report:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=fast_ms if settings.num_workers == 2 else 9.9, startup_s=0.1)

    seen = observed()
    script_run = SimulatedRun(truth, Truth(step_ms=10.0), noise=noise, seed=seed)
    trials = (AS_IS, Settings(num_workers=2), Settings(num_workers=3))
    options = Options(budget_s=budget_s, seed=seed, search=search)
    sweep = Sweep(seen, trials, options, Equipment(script_run=script_run, clock=script_run.clock))
    sweep.run()
    evidence = SweepEvidence(observed=seen)
    evidence.sweep = sweep
    ranking = sweep.ranking()
    facts = evidence.facts(ranking)
    rows = trial_rows(ranking, {}, {})
    finding = replace(samples.IN_MAIN, predictions=FORECASTS, advice=None)
    return samples.built(
        facts=replace(facts, shares=sample_facts.facts().shares),
        target="train.py",
        bound="input",
        severity="high",
        findings=answered((finding,), facts, rows),
        recommendations=recommended_rows(ranking, seen, facts),
        trials=rows,
        best=best_row(ranking),
        environment=sample_facts.ENVIRONMENT,
        summary=verdict_of_sweep(ranking) if ranking.recommended is None else None,
    )


def test_no_screen_says_that_nothing_helps_beside_a_trial_that_did() -> None:
    said: Counter[str] = Counter()
    searches: tuple[Search, ...] = ("grid", "auto")
    for fast_ms, noise, seed, budget_s, search in itertools.product(
        (9.9, 9.8, 8.0), (0.003, 0.3), range(3), (4.0, 80.0), searches
    ):
        report = screen(fast_ms, noise, seed, budget_s, search)
        (finding,) = report.findings
        came = [t.partition(" as it is, ")[2] for t in finding.summary.split(" a step against ")]
        faster = [words for words in came if words.startswith("faster")]
        text = " ".join(console_text(report).split())
        if report.recommendations:
            assert "No change of settings" not in text
            assert any("faster when confirmed" in words for words in faster) or any(
                t.gain_confirmed is False for t in report.trials
            )
            said["helps"] += 1
            continue
        (sentence,) = [s for s in NOTHING if s in report.verdict.summary]
        said[sentence] += 1
        assert all(any(may in words for may in NOTHING[sentence]) for words in faster), (
            sentence,
            finding.summary,
        )
        gains = [t.gain_ms_ci for t in report.trials if t.gain_ms_ci is not None]
        measured_again = any(t.gain_confirmed for t in report.trials)
        beyond_noise = any(low > 0 for low, _ in gains)
        leads = "is first among the trials" in text  # said instead, with why it is not advised
        assert ("No change of settings is known to help." in text) == (
            not (faster or measured_again or beyond_noise or leads)
        )
    # None of them by chance alone: every sentence was put to the test.
    assert set(said) == {"helps", *NOTHING}, said
