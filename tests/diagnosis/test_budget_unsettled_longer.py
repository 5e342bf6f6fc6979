"""An uncertain verdict is measured for longer while the budget lasts; else the reason is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from loaderdoctor.attribution.claims import claimed
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.analysis import analyse
from loaderdoctor.diagnosis.budget import (
    DiagnosisOptions,
    follow_seconds,
    lacks_rounds,
    unsettled,
)
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import Mechanisms
from loaderdoctor.instrument.command.launched_run import TrainingBeganError
from loaderdoctor.instrument.wire.protocol import Ended, ProfilerSchedule
from loaderdoctor.report.words.verdict import trust_sentence
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, MAX_ROUNDS
from loaderdoctor.tryout.windows import MIN_ROUNDS
from loaderdoctor.units import NS_PER_S
from tests.diagnosis.pool_run import PoolRun
from tests.diagnosis.simulator import SimulatedRun
from tests.diagnosis.test_gather import gatherer


def diagnosed(
    script_run: SimulatedRun,
    tmp_path: Path,
    *,
    budget_s: float,
    say: Callable[[str], None] | None = None,
) -> Diagnosis:
    made = Diagnosis(
        script_run,
        target="train.py",
        raw=tmp_path,
        options=DiagnosisOptions(budget_s=budget_s, profiler=ProfilerSchedule()),
        say=say,
        clock=lambda: script_run.now_s,
    )
    made.measure(script_run.observed)
    return made


def noisy(
    *,
    noise: float,
    no_input: float = 83.0,
    seed: int = 2,
    device: str | None = None,
    step_ms: float = 100.0,
) -> SimulatedRun:
    """A step of which the loader takes what `no_input` lacks, in percent."""
    return SimulatedRun(
        {"plain": step_ms, "no_input": step_ms * no_input / 100.0},
        trial_ms=lambda _: step_ms,
        noise=noise,
        seed=seed,
        device=device,
    )


def test_time_that_is_left_settles_what_was_uncertain(tmp_path: Path) -> None:
    script_run = noisy(noise=0.12)
    made = diagnosed(script_run, tmp_path, budget_s=200.0)
    assert made.evidence is not None
    report = made.report()
    assert report.ablation is not None
    assert report.ablation.n_rounds > MAX_ROUNDS
    assert (report.verdict.bound, report.verdict.severity) == ("input", "moderate")


def test_settings_are_tried_once_what_was_uncertain_is_settled(tmp_path: Path) -> None:
    """At first nothing was worth trying; time is kept to try it when it is."""
    script_run = noisy(noise=0.12)
    made = diagnosed(script_run, tmp_path, budget_s=120.0)
    assert made.evidence is not None
    modes = [r.mode for r in script_run.asked]
    assert len(made.evidence.rounds) > MAX_ROUNDS
    assert "no_input" not in modes[modes.index("trial") :]
    assert made.verification is not None and made.verification.complete
    assert made.report().verdict.severity == "moderate"
    assert script_run.now_s <= 120.0


def test_what_the_budget_did_not_suffice_for_names_a_larger_one(tmp_path: Path) -> None:
    script_run = noisy(noise=0.3, seed=2)
    made = diagnosed(script_run, tmp_path, budget_s=45.0)
    report = made.report()
    assert report.verdict.severity == "uncertain"
    assert "The budget of 45 s was used up: --budget 90" in report.verdict.summary
    # What was left could not have held another round.
    longest_s = 2 * 1.5 * 1.3
    assert script_run.now_s > 45.0 - 6.0 - 2 * longest_s


def test_what_no_longer_run_would_settle_is_not_answered_with_a_budget(tmp_path: Path) -> None:
    script_run = noisy(noise=0.45, no_input=75.0, seed=3)
    report = diagnosed(script_run, tmp_path, budget_s=3000.0).report()
    assert report.verdict.severity == "uncertain"
    assert report.ablation is not None and report.ablation.n_rounds == MAX_LONGER_ROUNDS
    assert "--budget" not in report.verdict.summary
    assert "30 rounds did not settle it" in report.verdict.summary


def test_a_script_that_ended_first_is_the_reason_given(tmp_path: Path) -> None:
    script_run = noisy(noise=0.3, seed=3)
    script_run.ends_after = 11
    made = Diagnosis(
        script_run,
        target="train.py",
        raw=tmp_path,
        options=DiagnosisOptions(budget_s=45.0, verify=False, profiler=ProfilerSchedule()),
        clock=lambda: script_run.now_s,
    )
    made.measure(script_run.observed)
    script_run.ended = Ended(how="script-ended", exit_code=0, n_steps=99)
    summary = made.report().verdict.summary
    assert "The script ended before more could be measured" in summary
    assert "--budget" not in summary


@pytest.mark.parametrize("budget_s", [20.0, 45.0, 120.0])
def test_ablation_gets_the_rounds_that_an_interval_needs_before_trials(
    tmp_path: Path, budget_s: float
) -> None:
    script_run = SimulatedRun({"plain": 25.0, "no_input": 10.0}, trial_ms=lambda _: 12.0)
    made = diagnosed(script_run, tmp_path, budget_s=budget_s)
    assert made.evidence is not None
    assert len(made.evidence.rounds) >= MIN_ROUNDS
    assert script_run.now_s <= budget_s


def test_the_first_round_may_take_longer_and_no_other() -> None:
    script_run = noisy(noise=0.3)
    g = gatherer(script_run)
    g.ablate(until=0.0, first_until=1e9, with_copy=False)
    assert len(g.evidence.rounds) == 1
    g.ablate(until=0.0, first_until=1e9, with_copy=False)
    assert len(g.evidence.rounds) == 1
    g.ablate(until=1e9, with_copy=False, most=5)
    assert len(g.evidence.rounds) == 5


def test_rounds_that_only_make_a_clear_verdict_finer_have_a_time_of_their_own() -> None:
    script_run = noisy(noise=0.01, no_input=20.0)
    g = gatherer(script_run)
    g.ablate(until=1e9, finer_until=0.0, with_copy=False)
    assert len(g.evidence.rounds) == 1 and g.settled
    g.ablate(until=1e9, with_copy=False)
    assert len(g.evidence.rounds) == MIN_ROUNDS
    open_ = gatherer(noisy(noise=0.02))
    open_.ablate(until=1e9, finer_until=0.0, with_copy=False)
    assert len(open_.evidence.rounds) > 1


def test_health_that_may_be_none_is_measured_longer_too(tmp_path: Path) -> None:
    script_run = noisy(noise=0.3, seed=11)
    made = diagnosed(script_run, tmp_path, budget_s=45.0)
    assert made.evidence is not None
    assert len(made.evidence.rounds) > MAX_ROUNDS
    assert made.report().verdict.severity == "none"


def test_on_an_accelerator_open_shares_get_what_no_trial_needs_before_the_profile(
    tmp_path: Path,
) -> None:
    """Rounds of sixteen workers' queues take seconds, none may follow the profile: 3 had to do."""
    for seed in range(2):
        script_run = PoolRun(rest_ms=34.0, batch_ms=188.0, workers=16, cpus=10.0, seed=seed)
        made = diagnosed(script_run, tmp_path, budget_s=45.0)
        modes = [r.mode for r in script_run.asked]
        before = modes[: modes.index("profiled")]
        assert before.count("no_input") >= 5
        assert "trial" not in modes
        assert made.evidence is not None and made.evidence.profiled is not None
        assert script_run.now_s <= 45.0


def test_rounds_that_nothing_recorded_bears_ask_for_no_longer_run(tmp_path: Path) -> None:
    script_run = noisy(noise=0.01, no_input=50.0)
    made = diagnosed(script_run, tmp_path, budget_s=45.0)
    analysis, evidence = made.analysis, made.evidence
    assert analysis is not None and analysis.facts.ablation is not None
    measured = analysis.facts.ablation.raw
    assert measured is not None and measured.n_rounds > 1
    waited = Mechanisms(
        wait_ms=Estimate.around(0.4, 0.1, n=5),
        exposed=False,
        run_queue_ms=None,
        cpu_ms=None,
        interpreter_ms=None,
    )
    facts = replace(analysis.facts, ablation=claimed(replace(measured, mechanisms=waited)))
    said = unsettled(
        replace(analysis, facts=facts, severity="uncertain"),
        evidence,
        script_run,
        budget_s=45.0,
        ablates=True,
        interrupted=False,
    )
    assert said is not None and "rounds show it, but not by what" in said
    assert "--budget" not in said


@pytest.mark.parametrize("budget_s", [45.0, 200.0])
def test_no_round_follows_the_profile_on_an_accelerator(tmp_path: Path, budget_s: float) -> None:
    """Its loop is slower from then on: one interval over both would be of neither."""
    script_run = noisy(noise=0.3, device="cuda:0")
    made = diagnosed(script_run, tmp_path, budget_s=budget_s)
    modes = [r.mode for r in script_run.asked]
    assert "no_input" not in modes[modes.index("profiled") :]
    assert made.evidence is not None
    assert MIN_ROUNDS <= len(made.evidence.rounds) <= MAX_LONGER_ROUNDS


def test_open_shares_get_more_rounds_before_the_profile_on_an_accelerator(tmp_path: Path) -> None:
    script_run = noisy(noise=0.3, device="cuda:0")
    made = diagnosed(script_run, tmp_path, budget_s=200.0)
    assert made.evidence is not None and made.evidence.profiled is not None
    assert len(made.evidence.rounds) > MAX_ROUNDS
    short = noisy(noise=0.3, device="cuda:0")
    summary = diagnosed(short, tmp_path, budget_s=45.0).report().verdict.summary
    assert "What rounds may take of the budget of 45 s was used up: --budget 90" in summary


def slow(step_ms: float, *, device: str | None = None) -> SimulatedRun:
    """Ready batches save a twelfth of the step."""
    true_ms = {"plain": step_ms, "no_input": step_ms * 11 / 12}
    return SimulatedRun(true_ms, trial_ms=lambda _: step_ms, device=device)


def test_too_few_rounds_to_tell_anything_are_made_up_for_beyond_the_budget(tmp_path: Path) -> None:
    said: list[str] = []
    script_run = slow(700.0)
    made = diagnosed(script_run, tmp_path, budget_s=45.0, say=said.append)
    assert said == [
        "45 s do not suffice to tell what the loader costs: it is measured for longer, until 90 s "
        "at most."
    ]
    assert 45.0 < script_run.now_s <= 90.0
    assert made.evidence is not None and len(made.evidence.rounds) >= MIN_ROUNDS
    ablation = made.report().ablation
    assert ablation is not None and ablation.ci_ms["input_ms"] is not None
    low, high = ablation.ci_ms["input_ms"]
    assert low < 700.0 / 12 < high < 0.3 * 700.0


def test_on_an_accelerator_they_are_made_up_for_before_the_profile(tmp_path: Path) -> None:
    """One round of 16 workers on six CPUs: "28 % (0 to 78 %)", and none may follow the profile."""
    said: list[str] = []
    script_run = slow(700.0, device="cuda:0")
    made = diagnosed(script_run, tmp_path, budget_s=45.0, say=said.append)
    assert len(said) == 1 and "do not suffice" in said[0]
    assert 45.0 < script_run.now_s <= 90.0
    assert made.evidence is not None and len(made.evidence.rounds) >= MIN_ROUNDS
    modes = [r.mode for r in script_run.asked]
    assert "no_input" not in modes[modes.index("profiled") :]
    noise = noisy(noise=0.3, device="cuda:0", step_ms=700.0)
    summary = diagnosed(noise, tmp_path, budget_s=45.0).report().verdict.summary
    assert "What rounds may take of twice the budget was used up: --budget 180" in summary


@pytest.mark.parametrize("device", [None, "cuda:0"])
def test_why_no_round_came_stays_the_reason(device: str | None, tmp_path: Path) -> None:
    script_run = slow(100.0, device=device)
    script_run.failing = frozenset({"no_input"})
    said: list[str] = []
    made = diagnosed(script_run, tmp_path, budget_s=45.0, say=said.append)
    assert said == []
    assert made.evidence is not None and not made.evidence.rounds
    assert made.evidence.ablation_reason == "broken"


@pytest.mark.parametrize(
    ("script_run", "budget_s"),
    [
        (slow(100.0), 45.0),  # rounds enough
        (slow(700.0), 120.0),
        (slow(100.0, device="cuda:0"), 45.0),
    ],
)
def test_rounds_enough_need_no_second_cap(
    script_run: SimulatedRun, budget_s: float, tmp_path: Path
) -> None:
    said: list[str] = []
    diagnosed(script_run, tmp_path, budget_s=budget_s, say=said.append)
    assert said == []
    assert script_run.now_s <= budget_s


def test_a_share_is_open_too_where_the_verdict_is_of_something_else(tmp_path: Path) -> None:
    made = diagnosed(slow(700.0), tmp_path, budget_s=45.0)
    evidence = made.evidence
    assert evidence is not None
    enough = analyse(evidence, tmp_path / "workers")
    assert not lacks_rounds("high", enough.facts, evidence)
    del evidence.rounds[1:]
    one = analyse(evidence, tmp_path / "workers")
    assert lacks_rounds("high", one.facts, evidence)
    evidence.rounds.clear()
    none = analyse(evidence, tmp_path / "workers")
    assert not lacks_rounds("none", none.facts, evidence)  # not for want of time


def test_a_loop_too_slow_for_any_round_is_not_called_healthy_without_a_word(tmp_path: Path) -> None:
    report = diagnosed(slow(9000.0), tmp_path, budget_s=45.0).report()
    assert report.ablation is None
    (warning,) = (w for w in report.warnings if w.kind == "not-compared")
    assert "there was no time for it" in warning.text
    assert "worker" not in warning.text and "the caches" in warning.text
    trust = trust_sentence(structs.replace(report, warnings=(warning,)))
    assert trust is not None and "told by its waits alone" in trust
    compared = diagnosed(slow(100.0), tmp_path, budget_s=45.0).report()
    assert not [w for w in compared.warnings if w.kind == "not-compared"]


def test_of_a_loop_with_workers_something_else_is_not_known(tmp_path: Path) -> None:
    script_run = slow(9000.0)
    loaders = tuple(
        structs.replace(x, settings=Settings(num_workers=4)) for x in script_run.observed.loaders
    )
    script_run.observed = structs.replace(script_run.observed, loaders=loaders)
    report = diagnosed(script_run, tmp_path, budget_s=45.0).report()
    (warning,) = (w for w in report.warnings if w.kind == "not-compared")
    assert "what its workers take of the CPUs" in warning.text


@pytest.mark.parametrize("step_ms", [20.0, 700.0])
def test_another_loader_is_measured_within_the_second_cap_of_the_first(
    step_ms: float, tmp_path: Path
) -> None:
    budget_s, said = 45.0, list[str]()
    script_run = slow(step_ms)
    made = Diagnosis(
        script_run,
        target="train.py",
        raw=tmp_path,
        options=DiagnosisOptions(budget_s=budget_s),
        say=said.append,
        clock=lambda: script_run.now_s,
    )
    began_s = script_run.now_s - sum(script_run.observed.step_ns) / NS_PER_S
    made.measure(script_run.observed)
    script_run.now_s = began_s + follow_seconds(budget_s)
    said.clear()
    made.start_over(TrainingBeganError("training goes on with b.py:2", followed=True))
    assert said == [
        "training goes on with b.py:2, after 30 s: what was measured so far does not count, and it "
        "is measured anew, until 90 s at most."
    ]
    assert made.evidence is None
    made.measure(script_run.observed)
    assert script_run.now_s - began_s <= 2 * budget_s
    assert made.report().ablation is not None


def test_what_is_before_training_is_none_of_the_budget(tmp_path: Path) -> None:
    script_run, said = slow(100.0), list[str]()
    made = diagnosed(script_run, tmp_path, budget_s=45.0, say=said.append)
    script_run.now_s = 80.0
    made.start_over(TrainingBeganError("training begins only now"))
    made.measure(script_run.observed)
    assert said == []
    assert made.report().ablation is not None
    assert 80.0 < script_run.now_s <= 80.0 + 45.0


def test_a_verdict_left_open_behind_the_second_cap_asks_for_more_than_that(tmp_path: Path) -> None:
    script_run = noisy(noise=0.3, seed=2)
    made = diagnosed(script_run, tmp_path, budget_s=45.0)
    assert made.analysis is not None
    said = unsettled(
        replace(made.analysis, severity="uncertain"),
        made.evidence,
        script_run,
        budget_s=45.0,
        ablates=True,
        interrupted=False,
        beyond=True,
    )
    assert said == "Twice the budget was used up: --budget 180 measures longer."
