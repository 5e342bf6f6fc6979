"""Where steps begin and end, in traces whose steps are known by construction."""

from __future__ import annotations

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.report.words.method import warnings_of
from loaderdoctor.trace.columns import Category
from tests.attribution.build import AUTOGRAD, BACKGROUND, TraceBuilder
from tests.trace_facts import trace_facts


def running_ahead(n_steps: int = 12) -> TraceBuilder:
    """The host needs 100 us a step and the device 1000: after a while it is far behind."""
    b = TraceBuilder()
    for i in range(n_steps):
        t = i * 100
        b.step(i, t, t + 100)
        b.fetch(t, t + 80)
        b.kernel(t + 90, 1000 * i + 100, 1000 * i + 1100, thread=AUTOGRAD)
    return b


def test_the_device_cadence_is_the_step_however_far_the_host_runs_ahead() -> None:
    facts = trace_facts(running_ahead().trace())
    assert facts.step_clock == "device"
    assert set(facts.step_walls_ms) == {1.0}
    assert facts.n_steps == 11
    assert facts.shares.compute == 1.0
    assert facts.host.run_ahead_steps == 6
    # The host's own time in `__next__` is still told, per step.
    assert facts.fetching.raw_wait_ms == pytest.approx(0.08)
    assert facts.hidden.input_ms == pytest.approx(0.08)


def test_kernels_launched_before_the_trace_began_belong_to_no_step() -> None:
    b = running_ahead()
    before = TraceBuilder()
    before.kernel(0, 0, 100)
    b.rows += [r for r in before.rows if r.category == Category.KERNEL]
    assert trace_facts(b.trace()).wall_ms == 1.0


def test_a_last_step_whose_kernels_were_not_seen_to_run_is_dropped() -> None:
    b = running_ahead()
    last = max(r.start for r in b.rows if r.category == Category.KERNEL)
    b.rows = [r for r in b.rows if not (r.category == Category.KERNEL and r.start == last)]
    facts = trace_facts(b.trace())
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (10, 2)
    assert set(facts.step_walls_ms) == {1.0}


@pytest.mark.parametrize("n_ran", [2, 5, 19])
def test_steps_queued_but_not_seen_to_run_are_dropped_however_many(n_ran: int) -> None:
    b = running_ahead(20)
    end = n_ran * 1000 + 100
    b.rows = [r for r in b.rows if r.category != Category.KERNEL or r.end <= end]
    facts = trace_facts(b.trace())
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (n_ran - 1, 21 - n_ran)
    assert set(facts.step_walls_ms) == {1.0}


def test_where_one_step_alone_ran_it_is_all_there_is() -> None:
    b = running_ahead(20)
    b.rows = [r for r in b.rows if r.category != Category.KERNEL or r.end <= 1100]
    facts = trace_facts(b.trace())
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (1, 19)
    assert facts.step_walls_ms == (1.1,)


def test_launches_that_never_show_a_kernel_in_any_step_cut_nothing() -> None:
    b = running_ahead()
    for i in range(12):
        b.call(i * 100 + 85, i * 100 + 86, "cudaLaunchKernel")
    assert trace_facts(b.trace()).n_steps == 11


def test_copies_made_ahead_by_another_thread_do_not_move_the_boundaries() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.kernel(t + 100, t + 200, t + 900)
        b.copy(t + 950, t + 960, t + 960, t + 990, thread=BACKGROUND, stream=9)
    facts = trace_facts(b.trace())
    assert set(facts.step_walls_ms) == {1.0}
    assert facts.wall_ms == 1.0


def test_a_recording_that_pauses_gives_steps_on_both_sides_only() -> None:
    b = TraceBuilder()
    for part in range(3):
        for i in range(5):
            t = part * 100_000 + i * 1000
            b.step(part * 5 + i, t, t + 1000)
            b.fetch(t, t + 100)
            b.kernel(t + 200, t + 300, t + 600)
    facts = trace_facts(b.trace())
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (12, 3)
    assert set(facts.step_walls_ms) == {1.0}
    assert facts.shares.input == pytest.approx(0.1)


def test_without_step_marks_fetches_tell_steps() -> None:
    b = running_ahead()
    b.rows = [r for r in b.rows if not r.name.startswith("ProfilerStep")]
    facts = trace_facts(b.trace())
    assert facts.step_clock == "fetches"
    # Neither where the first begins on the device nor where the last ends is known.
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (10, 2)
    assert facts.wall_ms == 1.0


def test_one_mark_around_many_turns_of_the_loop_is_no_step() -> None:
    b = running_ahead()
    b.rows = [r for r in b.rows if not r.name.startswith("ProfilerStep")]
    b.step(0, 0, 1300)
    facts = trace_facts(b.trace())
    assert facts.step_clock == "fetches"
    assert facts.wall_ms == 1.0


def test_without_fetches_optimizer_steps_tell_steps() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.kernel(t + 200, t + 300, t + 600)
        b.optimizer(t + 700, t + 800)
        b.annotation(t + 710, t + 790, "Optimizer.step#Wrapped.step")
        b.annotation(t + 100, t + 110, "Optimizer.zero_grad#SGD.zero_grad")
    facts = trace_facts(b.trace())
    assert facts.step_clock == "optimizer"
    assert facts.n_steps == 5
    assert facts.wall_ms == 1.0


def test_without_any_mark_the_whole_window_is_given_and_no_step() -> None:
    b = TraceBuilder()
    for i in range(6):
        b.kernel(i * 1000 + 200, i * 1000 + 300, i * 1000 + 600)
    facts = trace_facts(b.trace())
    assert facts.step_clock == "window"
    assert (facts.n_steps, facts.step_walls_ms) == (0, ())
    assert facts.shares.compute == pytest.approx(6 * 0.3 / 5.4005, abs=1e-3)


def test_one_single_step_is_measured_by_the_host_to_the_end_of_its_work() -> None:
    b = TraceBuilder()
    b.step(0, 0, 1000)
    b.fetch(0, 100)
    b.kernel(200, 300, 1500)
    facts = trace_facts(b.trace())
    assert facts.n_steps == 1
    assert facts.wall_ms == 1.5


def test_a_step_without_device_work_ends_with_its_host_span() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 100)
        if i != 3:
            b.kernel(t + 200, t + 300, t + 1000)
    assert set(trace_facts(b.trace()).step_walls_ms) == {1.0}


@pytest.mark.parametrize("on_device", [True, False])
def test_a_mark_that_holds_the_profilers_end_alone_is_no_step(on_device: bool) -> None:
    """`step()` right before the profiler is stopped: what follows is no work of the loop."""
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 100)
        if on_device:
            b.kernel(t + 200, t + 300, t + 990)
        else:
            b.op(t + 200, t + 990)
    b.step(6, 6000, 16_000)
    b.call(6010, 9000, "cudaDeviceSynchronize")
    facts = trace_facts(b.trace())
    assert facts.n_steps == (5 if on_device else 6)
    assert facts.wall_ms == pytest.approx(1.0)
    assert facts.shares.host == pytest.approx(0.21 if on_device else 0.11)


def test_work_of_two_streams_that_ends_out_of_order_never_gives_a_negative_step() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.kernel(t + 200, t + 300, t + 400)
        if i == 2:
            b.kernel(t + 210, t + 300, t + 2500, stream=9)
    walls = trace_facts(b.trace()).step_walls_ms
    assert min(walls) >= 0
    assert sum(walls) == pytest.approx(5)


def test_a_mark_within_a_mark_is_no_step_of_its_own() -> None:
    b = running_ahead()
    for i in range(12):
        b.step(100 + i, i * 100 + 5, i * 100 + 95)
    facts = trace_facts(b.trace())
    assert facts.n_steps == 11
    assert facts.wall_ms == 1.0


def test_steps_in_a_hole_of_the_recording_are_left_out() -> None:
    """Buffers that are full drop kernels: such steps would idle, and another GPU user be blamed."""
    b = TraceBuilder()
    for i in range(20):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 10)
        for k in range(4):
            b.kernel(t + 20 + 10 * k, t + 100 + 220 * k, t + 310 + 220 * k)
    whole = trace_facts(b.trace())
    b.rows = [r for r in b.rows if r.category != Category.KERNEL or not 8_300 < r.start < 11_500]
    facts = trace_facts(b.trace())
    assert (whole.n_steps, facts.n_steps) == (19, 14)
    assert facts.shares.compute == pytest.approx(whole.shares.compute, abs=0.01)
    assert not facts.shared_gpu


@pytest.mark.parametrize("accelerated", [True, False])
def test_without_step_marks_a_pass_that_trains_nothing_is_no_step(accelerated: bool) -> None:
    b = TraceBuilder()
    for i in range(16):
        t, trains = i * 1000, i < 6 or i >= 10
        b.fetch(t, t + (100 if trains else 800))
        b.op(t + 810, t + 850, "aten::linear")
        if accelerated:
            b.kernel(t + 812, t + 815, t + 840)
        if trains:
            b.op(t + 860, t + 900, "autograd::engine::evaluate_function: MmBackward0", AUTOGRAD)
            b.optimizer(t + 910, t + 950)
    facts = trace_facts(b.trace())
    # On a device the first after each pause has no beginning; the last fetch has no end.
    assert facts.n_steps == (9 if accelerated else 11)
    assert facts.shares.input == pytest.approx(0.1, abs=0.05)


def with_pauses(*pauses: int, fetched: bool = False, computed: bool = False) -> TraceBuilder:
    """Twelve steps of 1 ms on a CPU, a fetch of 0.3 and an op of 0.4 in each; some take 50 more."""
    b, t = TraceBuilder(), 0
    for i in range(12):
        end = t + (51_000 if i in pauses else 1000)
        b.step(i, t, end)
        b.fetch(t, end - 700 if fetched else t + 300)
        b.op(end - 600 if not computed else t + 400, end - 200, "aten::mm")
        t = end
    return b


@pytest.mark.parametrize("where", [0, 5, 11])
def test_a_step_that_stood_still_once_is_none(where: int) -> None:
    """Its 50 ms are 4 a step, and no step took 5."""
    facts = trace_facts(with_pauses(where).trace())
    assert (facts.n_steps, facts.left_out.pause_ms) == (11, 51.0)
    assert facts.wall_ms == 1.0
    assert facts.shares.input == pytest.approx(0.3)


@pytest.mark.parametrize(
    "b",
    [with_pauses(3, 7), with_pauses(3, fetched=True), with_pauses(3, computed=True)],
    ids=["it-comes-again", "it-waits-for-a-batch", "it-computes"],
)
def test_a_long_step_that_tells_of_others_stays(b: TraceBuilder) -> None:
    facts = trace_facts(b.trace())
    assert (facts.n_steps, facts.left_out.pause_ms) == (12, 0.0)
    assert facts.wall_ms > 5.0


def validating() -> TraceBuilder:
    """Two epochs of six steps of 1 ms, a pass of 60 ms that trains nothing behind each."""
    b, t = TraceBuilder(), 0
    for _ in range(2):
        for _ in range(6):
            b.fetch(t, t + 300)
            b.op(t + 400, t + 700, "autograd::engine::evaluate_function: MmBackward0")
            t += 1000
        for _ in range(60):
            b.fetch(t, t + 300)
            b.op(t + 400, t + 900, "aten::mm")
            t += 1000
    return b


def test_what_lies_outside_the_steps_is_told_and_bears_no_sure_verdict() -> None:
    trace = trace_facts(validating().trace())
    assert trace.wall_ms == 1.0
    # The last pass lies behind the last step.
    assert trace.left_out.outside_ms == pytest.approx(60.0, rel=0.05)
    assert judge_trace(trace) == ("input", "uncertain")
    facts = facts_of_trace(trace)
    (said,) = (w for w in warnings_of(facts) if w.kind == "outside-the-steps")
    assert said.text.startswith("85 % of the recorded time")
