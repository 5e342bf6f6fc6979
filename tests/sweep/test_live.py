"""The live display on terminals, low terminals and pipes; the rows for the report."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from loaderdoctor.facts.step import Shares
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import LiveSweep, Sweep, trial_table
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.sweep.report_rows import best_row, trial_rows, warning_rows
from loaderdoctor.tryout import Options, Outcome, Progress
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import Ranking
from tests.tryout.simulator import SimulatedRun, Truth, observed


def truth(settings: Settings) -> Truth:
    if settings.num_workers == 3:
        return Truth(step_ms=1.0, crash="killed")
    return Truth(step_ms=10.0 - 2 * (settings.num_workers or 0), startup_s=0.1, boundary_ms=50.0)


def swept(**changed: float) -> tuple[Outcome, Ranking, list[Progress]]:
    script_run = SimulatedRun(truth, Truth(step_ms=10.0), **{"noise": 0.01, **changed})  # type: ignore[arg-type]
    seen = observed()
    told: list[Progress] = []
    sweep = Sweep(
        seen,
        default_trials(seen),
        Options(budget_s=40.0),
        Equipment(script_run=script_run, on_progress=told.append, clock=script_run.clock),
    )
    outcome = sweep.run()
    return outcome, sweep.ranking(), told


def shown(progress: Progress, *, height: int = 40, width: int = 80) -> str:
    console = Console(
        file=io.StringIO(), record=True, width=width, height=height, force_terminal=True
    )
    console.print(LiveSweep(console).render(progress))
    return console.export_text()


def test_the_table_lists_every_trial_with_the_fastest_on_top() -> None:
    _, ranking, told = swept()
    text = shown(next(p for p in told if p.phase == "confirm"))
    assert "as is (the loop's own)" in text
    assert "failed" in text
    assert "confirming the candidate" in text
    assert "left" in text
    first_row = text.splitlines()[1]
    assert ranking.best is not None
    assert ranking.results[ranking.best].settings.num_workers == 2
    assert "num_workers=2" in first_row


def test_no_time_is_left_once_the_budget_is_spent() -> None:
    _, _, told = swept()
    spent = replace(told[-1], left_s=0.0)
    assert "past the budget" in shown(spent)
    assert "about 12 s left" in shown(replace(spent, left_s=12.3))


def test_a_low_terminal_still_shows_the_loops_own_settings() -> None:
    _, _, told = swept()
    table = trial_table(told[-1], max_rows=5)
    assert table.row_count == 5
    text = shown(told[-1], height=11)
    assert "as is" in text
    assert "more" in text


def test_a_narrow_terminal_keeps_the_figures() -> None:
    _, _, told = swept()
    text = shown(told[-1], width=48)
    assert all(len(line.rstrip()) <= 48 for line in text.splitlines())
    assert "ms/step" in text


def test_a_pipe_gets_one_plain_line_for_each_phase_and_round() -> None:
    _, _, told = swept()
    out = io.StringIO()
    with LiveSweep(Console(file=out, width=80)) as live:
        for progress in told:
            live.show(progress)
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert len(lines) < 30
    assert any(line.startswith("round 1 of") for line in lines)
    assert (
        len(lines) <= len({line.rpartition(", ")[0] for line in lines}) + 1
    )  # "plain" comes twice


def test_report_rows_carry_every_trial_with_status_noise_and_reason() -> None:
    outcome, ranking, _ = swept()
    shares = Shares(compute=0.2, communication=None, copy=None, input=0.7, host=0.1, other=0.0)
    rows = trial_rows(ranking, {0: shares}, {0: "tensorboard/baseline"})
    assert rows[0].label == "as is"
    assert len(rows) == len(outcome.trials)
    assert rows[0].shares is not None
    assert rows[0].shares.copy is None
    assert (rows[0].trace, rows[1].trace) == ("tensorboard/baseline", None)
    failed = [row for row in rows if row.status == "failed"]
    assert failed
    assert all(row.step_ms is None and row.reason == "killed" for row in failed)
    for row in rows:
        if row.status == "ok":
            assert row.step_ms is not None
            assert row.step_ms_ci is not None
            assert row.step_ms_ci[0] <= row.step_ms <= row.step_ms_ci[1]
            assert row.n_windows == len(row.window_ms) >= 3
    best = best_row(ranking)
    assert best is not None
    assert best.trial == (ranking.best if ranking.recommended is None else ranking.recommended)
    assert warning_rows(outcome, ranking) == ()


def test_drift_is_told() -> None:
    outcome, ranking, _ = swept(drift_per_s=0.02)
    assert "drift" in {row.kind for row in warning_rows(outcome, ranking)}


def test_an_interrupted_sweep_says_so() -> None:
    outcome, ranking, _ = swept(interrupt_after=30)
    assert "sweep-interrupted" in {row.kind for row in warning_rows(outcome, ranking)}


def test_a_noisy_machine_is_told_and_a_quiet_one_not() -> None:
    outcome, ranking, _ = swept(noise=0.4)
    assert "noisy-machine" in {row.kind for row in warning_rows(outcome, ranking)}
    assert ranking.spread is not None
    assert 0.2 < ranking.spread < 0.8
