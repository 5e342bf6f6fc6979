"""A diagnosis whose first window is slower than those of its rounds says so, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.attribution.ablation import Round
from loaderdoctor.attribution.step import step_facts
from loaderdoctor.diagnosis.analysis import analyse
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.tryout.ablating import LoopEvidence, slow_start
from loaderdoctor.tryout.windows import sizes
from tests.diagnosis.simulator import SimulatedRun
from tests.diagnosis.test_gather import gatherer
from tests.tryout.simulator import observed


def window(ms: float, *, faults: int = 0, waited_ms: float = 0.0) -> WindowDone:
    cpu = CpuRecord(
        wall_ns=1, main_ns=1, thread_faults=20 * faults, thread_waited_ns=int(20e6 * waited_ms)
    )
    return WindowDone(
        id=1, mode="plain", status="ok", n_steps=20, host_step_ns=(int(ms * 1e6),) * 20, cpu=cpu
    )


def evidence(first: WindowDone, rounds: Sequence[float]) -> LoopEvidence:
    seen = observed()
    found = LoopEvidence(observed=seen, sizes=sizes(seen, budget_s=30.0), plain=[first])
    found.rounds = [Round(plain=window(ms, faults=3), no_input=window(1.0)) for ms in rounds]
    return found


STEADY = (20.0, 20.4, 19.8, 20.2)


def test_a_slow_first_window_is_told_with_its_page_faults() -> None:
    told = slow_start(evidence(window(25.0, faults=1600), STEADY))
    assert told is not None
    assert told.startswith(
        "the loop took 25.0 ms a step at first (20 steps in 1 window) and 20.1 from then on; all "
        "figures of the step are of the later pace"
    )
    assert "1,600 page faults a step at first, 3 later" in told
    assert "which a run by itself may not come to. Until something larger was freed, by mea" in told
    plain = slow_start(evidence(window(25.0), STEADY))
    assert plain is not None
    assert "page faults" not in plain and plain.endswith("which the rest of training has")


def test_nothing_is_told_of_noise_of_other_programs_or_of_too_few_rounds() -> None:
    assert slow_start(evidence(window(20.3, faults=1600), STEADY)) is None
    assert slow_start(evidence(window(25.0), (20.0, 28.0, 17.0, 22.0))) is None
    assert slow_start(evidence(window(25.0, waited_ms=4.0), STEADY)) is None
    assert slow_start(evidence(window(25.0), STEADY[:2])) is None
    assert slow_start(evidence(window(15.0), STEADY)) is None


def diagnosed(script_run: SimulatedRun) -> tuple[LoopEvidence, Facts]:
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=False)
    return g.evidence, analyse(g.evidence, Path("there are no workers")).facts


SIMULATED = {"plain": 20.0, "no_input": 16.0}


def test_the_step_its_rounds_and_its_counts_are_of_the_pace_that_the_loop_kept() -> None:
    slow, facts = diagnosed(SimulatedRun(SIMULATED, noise=0.005, n_slow=3, slow=1.3))
    assert [w.n_steps for w in slow.earlier] == [w.n_steps for w in slow.plain]
    step = facts.step
    assert step is not None and facts.ablation is not None
    assert step.wall_ms.n == len(slow.rounds) == facts.ablation.n_rounds
    assert step.n_steps == sum(r.plain.n_steps for r in slow.rounds)
    assert step.wall_ms.value == pytest.approx(facts.ablation.plain_ms.value)
    assert step.wall_ms.low <= 20.0 <= step.wall_ms.high
    assert slow_start(slow) is not None


def test_rounds_before_the_change_are_left_out_of_the_comparison_with_ready_batches() -> None:
    g = gatherer(SimulatedRun(SIMULATED, noise=0.005, n_slow=5, slow=1.3))  # of plain: 3
    g.gather(until=60.0, ablate=True, with_copy=False)
    g.ablate(until=120.0, with_copy=False, most=len(g.evidence.rounds) + 4)
    ablation, rounds = g.evidence.ablation(), g.evidence.rounds
    assert ablation is not None and ablation.input_ms is not None
    assert len(g.evidence.earlier) == 3
    assert ablation.n_rounds == len(rounds) - 1
    assert ablation.plain_ms.value == pytest.approx(20.0, rel=0.02)
    assert ablation.input_ms.value == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_change_every_window_counts(seed: int) -> None:
    evidence, facts = diagnosed(SimulatedRun(SIMULATED, noise=0.03, seed=seed))
    assert not evidence.earlier
    assert facts.step == step_facts(evidence.observed, evidence.all_plain)
    assert facts.ablation is not None and facts.ablation.n_rounds == len(evidence.rounds)


def test_ranks_are_compared_over_the_same_windows() -> None:
    found = evidence(window(25.0), STEADY)
    one = found.rounds[0].plain
    named = [msgspec.structs.replace(w, id=i) for i, w in enumerate(found.all_plain)]
    found.plain, found.rounds = named[:1], [Round(plain=w, no_input=one) for w in named[1:]]
    assert [w.id for w in found.earlier] == [0]
    found.earlier_ids = frozenset({0, 1})  # as the slowest rank has it
    assert [w.id for w in found.earlier] == [0, 1]
    assert [w.id for w in found.steady] == [2, 3, 4]


def test_a_boundary_is_of_loaders_that_train() -> None:
    found = evidence(window(20.0), STEADY)
    train = next(x.id for x in found.observed.loaders if x.role == "train")

    def start(loader: str, ms: float) -> BoundaryRecord:
        return BoundaryRecord(
            loader=loader, create_ns=round(ms * 1e6), first_wait_ns=0, teardown_ns=0, at_ns=0
        )

    seen = (start(train, 8.0), start("validation", 500.0))
    found.observed = msgspec.structs.replace(found.observed, boundaries=seen)
    assert found.boundary_ms() == pytest.approx(8.0)
    assert found.own_boundary_ms() == pytest.approx(0.0)


@pytest.mark.parametrize("length", [None, 31_250])
def test_an_epoch_is_as_long_as_it_was_seen_to_be(tmp_path: Path, length: int | None) -> None:
    """Of a stream, and of a loader whose passes the loop leaves early."""
    seen = observed(steps_per_epoch=length)
    told = msgspec.structs.replace(
        window(10.0),
        epoch_length=50,
        host_step_ns=(*(10_000_000,) * 19, 110_000_000),
        boundary_steps=(19,),
    )
    found = LoopEvidence(observed=seen, sizes=sizes(seen, budget_s=30.0), plain=[told])
    step = analyse(found, tmp_path).facts.step
    assert step is not None
    assert step.steps_per_epoch == found.steps_per_epoch == 50
    assert step.wall_ms.value == pytest.approx(12.0)  # 100 ms more at each epoch's end
    unseen = msgspec.structs.replace(told, epoch_length=None)
    found = LoopEvidence(observed=seen, sizes=sizes(seen, budget_s=30.0), plain=[unseen])
    step = analyse(found, tmp_path).facts.step
    assert step is not None and step.steps_per_epoch == length
