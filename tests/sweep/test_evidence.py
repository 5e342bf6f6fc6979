"""What a sweep measures beside its trials: what the loader costs, within the same budget."""

from __future__ import annotations

import msgspec
import pytest

from loaderdoctor.instrument.wire.records import ScriptRecord
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.tryout import Options, Outcome
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.windows import MIN_ROUNDS
from tests.tryout.simulator import SimulatedRun, Truth, observed


def swept(
    *, budget_s: float, step_ms: float, keep_all: bool = False
) -> tuple[Outcome, SweepEvidence, SimulatedRun]:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=step_ms, startup_s=0.05 * (settings.num_workers or 0))

    seen = observed(step_ms=step_ms)
    script_run = SimulatedRun(truth, Truth(step_ms=step_ms), noise=0.01)
    evidence = SweepEvidence(observed=seen, clock=script_run.clock)
    sweep = Sweep(
        seen,
        default_trials(seen)[:6],
        Options(budget_s=budget_s, keep_all=keep_all),
        Equipment(script_run=script_run, clock=script_run.clock),
        ablate=evidence.ablate,
    )
    return sweep.run(), evidence, script_run


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize(
    ("budget_s", "step_ms"), [(25.0, 5.0), (25.0, 40.0), (60.0, 5.0), (120.0, 40.0), (120.0, 300.0)]
)
def test_a_short_sweep_measures_what_loading_costs_and_every_trial(
    budget_s: float, step_ms: float, keep_all: bool
) -> None:
    outcome, evidence, script_run = swept(budget_s=budget_s, step_ms=step_ms, keep_all=keep_all)
    assert evidence.ablated is not None
    assert len(evidence.ablated.rounds) >= MIN_ROUNDS
    assert outcome.n_ranked_rounds >= 3
    assert all(trial.measurements for trial in outcome.trials)
    assert script_run.now <= 1.1 * budget_s + 3.0


def test_steps_too_slow_for_both_leave_the_time_to_the_trials() -> None:
    outcome, evidence, script_run = swept(budget_s=25.0, step_ms=400.0)
    compared = [i for i, r in enumerate(script_run.log) if r.mode == "no_input"]
    trials = [i for i, r in enumerate(script_run.log) if r.mode == "trial"]
    assert all(trial.measurements for trial in outcome.trials)
    assert all(i > max(trials) for i in compared)
    assert evidence.ablated is not None


def test_workers_are_not_kept_where_the_script_tells_its_dataset_the_epoch() -> None:
    seen = observed(step_ms=5.0)
    assert seen.main_loader is not None
    text = (
        "from torch.utils.data import DataLoader\ndata = Rows()\nloader = DataLoader(data)\n"
        "for epoch in range(9):\n    data.set_epoch(epoch)\n    train(loader)\n"
    )
    seen = msgspec.structs.replace(
        seen,
        loaders=(msgspec.structs.replace(seen.main_loader, id="train.py:3"),),
        script=ScriptRecord(given="train.py", sources={"train.py": text}),
    )
    kept, new = Settings(num_workers=2, persistent_workers=True), Settings(num_workers=2)
    refused = SweepEvidence(observed=seen).refused([kept, new])
    assert list(refused) == [kept] and "train.py:5" in refused[kept]
