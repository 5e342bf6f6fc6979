"""A GPU that stands still though it has work serves another process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loaderdoctor.attribution.claims import claimed
from loaderdoctor.attribution.cpu import machine_notes
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.trace import read_trace
from tests.attribution.build import H2D_PAGEABLE, TraceBuilder
from tests.findings.builders import healthy
from tests.trace_facts import trace_facts

TRACES = Path(__file__).parents[2] / "traces"
STEP = 10_000  # µs


def loop_of(
    *, launched: float = 200, turn: float = 3_000, copy: bool = False, offset: float = 0.0
) -> TraceFacts:
    """Two kernels of 3 ms a step; the second starts `turn` µs after the first ends.

    `offset`: the device's clock reads so much more than the host's.
    """
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.fetch(t, t + 50)
        b.kernel(t + 100, t + 120 + offset, t + 3_100 + offset)
        if copy:
            called = t + 150
            b.copy(called, t + 3_100 + turn, t + 3_090 + turn, t + 3_095 + turn, name=H2D_PAGEABLE)
        b.kernel(t + launched, t + 3_100 + turn + offset, t + 6_100 + turn + offset)
    return trace_facts(b.trace())


def test_work_that_waits_for_an_idle_gpu_is_held_up() -> None:
    facts = loop_of()
    assert facts.kernels.held_up_ms == pytest.approx(3.0)
    assert facts.shared_gpu
    assert facts.shares.other == pytest.approx(0.3)
    assert sum(x or 0.0 for x in facts.shares.as_dict().values()) == pytest.approx(1.0)


def test_work_launched_late_is_the_hosts() -> None:
    facts = loop_of(launched=6_050)
    assert facts.kernels.held_up_ms == 0.0
    assert not facts.shared_gpu
    assert facts.shares.host == pytest.approx(0.39, abs=0.02)


def test_clocks_that_differ_hold_nothing_up() -> None:
    """The host launches late, and the device's clock is 1 ms ahead: it stands idle for the host."""
    facts = loop_of(launched=6_050, offset=1_000.0)
    assert facts.kernels.held_up_ms == 0.0
    assert not facts.shared_gpu


def test_work_that_waits_is_held_up_whatever_the_clocks() -> None:
    assert loop_of(offset=1_000.0).kernels.held_up_ms == pytest.approx(3.0)
    assert loop_of(offset=-50.0).kernels.held_up_ms == pytest.approx(3.0)


def test_a_short_silence_is_nobodys_turn() -> None:
    assert loop_of(turn=150).kernels.held_up_ms == 0.0


def test_a_blocking_copy_may_have_taken_the_time_itself() -> None:
    facts = loop_of(launched=6_050, copy=True)
    assert facts.kernels.held_up_ms == 0.0
    assert facts.shares.copy == pytest.approx(0.3, abs=0.02)


def test_two_processes_on_one_gpu() -> None:
    """Recorded on an H200 beside another training; the batches are of 16 MB, not pinned."""
    facts = trace_facts(read_trace(Path(__file__).with_name("two_on_one_gpu.pt.trace.json.gz")))
    assert facts.kernels.held_up_ms == pytest.approx(
        1.34, abs=0.05
    )  # of 2.65, clocks taken for right
    assert facts.shared_gpu
    assert judge_trace(facts) == ("copy", "uncertain")


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda p: p.name.split(".")[0])
def test_a_gpu_of_ones_own_never_stands_still_with_work(path: Path) -> None:
    assert trace_facts(read_trace(path)).kernels.held_up_ms == 0.0


def test_no_verdict_of_copies_rests_on_a_shared_gpu() -> None:
    rounds = Estimate(value=2.0, low=1.5, high=2.5, n=5)
    step = Estimate(value=10.0, low=9.8, high=10.2, n=5)
    ablation = AblationFacts(
        plain_ms=step, no_input_ms=step, no_copy_ms=replace(step, value=8.0),
        input_ms=replace(rounds, value=0.0, low=0.0), copy_ms=rounds, n_rounds=5,
    )  # fmt: skip
    alone = claimed(ablation, loop_of(launched=6_050))
    shared = claimed(ablation, loop_of())
    assert alone is not None and alone.copy_ms is not None and alone.copy_ms.low > 0.0
    assert shared is not None and shared.copy_ms is not None and shared.copy_ms.low == 0.0


def test_it_is_said_and_its_time_is_no_verdict() -> None:
    facts = loop_of()
    ((kind, text),) = machine_notes(healthy(trace=facts))
    assert kind == "shared-gpu"
    assert text.startswith("It looks as if another process computes on this GPU")
    assert "3.0 of 10.0 ms a step (30 %)" in text
    assert judge_trace(facts)[0] not in ("copy", "input")
    assert machine_notes(healthy(trace=loop_of(launched=6_050))) == ()


def test_kernels_of_one_graph_launch_hold_each_other_up() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.fetch(t, t + 50)
        b.kernel(t + 100, t + 120, t + 3_100)
        launch = b.rows[-1]
        b.rows.append(replace(launch, start=t + 6_100, end=t + 9_000))
    assert trace_facts(b.trace()).kernels.held_up_ms == 0.0
