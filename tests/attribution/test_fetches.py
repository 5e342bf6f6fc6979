"""What torch records of a loader's life, and what it leaves out and we infer."""

from __future__ import annotations

import pytest

from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.trace.columns import Category
from tests.attribution.build import BACKGROUND, NEXT, NEXT_SINGLE, PIN, TraceBuilder
from tests.trace_facts import trace_facts

STEP = 1000


def work(b: TraceBuilder, t: float) -> None:
    """What every step does after its fetch: a copy at t, a kernel of 100 us, an optimizer span."""
    b.copy(t, t + 10, t + 10, t + 20)
    b.kernel(t + 30, t + 40, t + 140)
    b.optimizer(t + 141, t + 150)


def facts_of(b: TraceBuilder) -> TraceFacts:
    return trace_facts(b.trace())


def epochs(
    *, persistent: bool = False, shuffle: bool = False, startup: float = 600
) -> TraceBuilder:
    """Eight steps in epochs of two: exhausted `__next__` of 50 us, then a new iterator."""
    b = TraceBuilder()
    for i in range(9):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        if i and i % 2 == 0:
            b.fetch(t, t + 50)
            if not persistent:
                b.seed(t + 60)
            if shuffle:
                b.seed(t + 500)
                b.op(t + 503, t + 523, "aten::randperm")
                b.op(t + 504, t + 520, "aten::scalar_tensor")
            b.fetch(t + startup, t + startup + 100)
            work(b, t + 720)
        else:
            b.fetch(t, t + 20)
            work(b, t + 720)
    return b


def test_worker_startup_without_a_span_is_found_between_seed_and_next_fetch() -> None:
    facts = facts_of(epochs())
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (4, 4)
    assert facts.fetching.startup_ms == pytest.approx(
        [0.64] * 4
    )  # seed to the end of the first fetch
    # Exhausted 50 + seed to first fetch 540 + fetch 100, every second step; the other 20.
    assert facts.fetching.raw_wait_ms == pytest.approx((0.69 + 0.02) / 2)
    assert facts.fetching.n_per_step == 1
    assert facts.fetching.waits_ms == pytest.approx([0.02, 0.69] * 4)


def test_a_shuffling_sampler_primed_in_the_constructor_is_part_of_it() -> None:
    facts = facts_of(epochs(shuffle=True))
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (4, 4)
    assert facts.fetching.raw_wait_ms == pytest.approx((0.69 + 0.02) / 2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_persistent_workers_reset_between_epochs_and_create_nothing(shuffle: bool) -> None:
    facts = facts_of(epochs(persistent=True, shuffle=shuffle))
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (0, 4)
    assert facts.fetching.startup_ms == ()
    # The whole silence is the loader's: exhausted 50 + 550 + fetch 100.
    assert facts.fetching.raw_wait_ms == pytest.approx((0.7 + 0.02) / 2)


def test_work_between_epochs_is_not_the_loaders() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.fetch(t, t + 50)
        b.kernel(t + 100, t + 110, t + 300)  # validation, a scheduler: it parts the fetches
        b.fetch(t + 600, t + 700)
        work(b, t + 720)
    facts = facts_of(b)
    assert facts.fetching.n_exhausted == 0
    assert facts.fetching.raw_wait_ms == pytest.approx(0.15)
    assert facts.fetching.n_per_step == 2


def test_creation_ends_where_other_work_begins() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        if i == 3:
            b.seed(t)
            b.kernel(t + 200.5, t + 210, t + 300)  # its op begins half a microsecond earlier
        b.fetch(t + 600, t + 700)
        work(b, t + 720)
    facts = facts_of(b)
    assert facts.fetching.raw_wait_ms == pytest.approx(0.1 + 0.2 / 5)


def test_zipped_loaders_are_several_fetches_of_one_step_not_ends_of_epochs() -> None:
    b = TraceBuilder()
    for i in range(8):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        if i == 4:
            b.fetch(t, t + 10)  # this one ended the epoch
            b.seed(t + 12)
            b.seed(t + 20)
        b.fetch(t + 100, t + 200)
        b.fetch(t + 210, t + 230, name=NEXT_SINGLE)
        work(b, t + 720)
    facts = facts_of(b)
    assert facts.fetching.n_exhausted == 1
    assert facts.fetching.n_iterators_created == 2
    assert facts.fetching.n_per_step == 2
    assert facts.fetching.kind == "mixed"


def recreated(*, gap_after: float = 300, n_steps: int = 6, name: str | None = None) -> TraceBuilder:
    b = TraceBuilder()
    for i in range(n_steps):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.seed(t + 10)
        if name is None:
            b.fetch(t + 200, t + 300)
        else:
            b.fetch(t + 200, t + 300, name=name)
        work(b, t + 300 + gap_after)
    return b


def test_an_iterator_dropped_after_each_fetch_pays_its_teardown_there() -> None:
    facts = facts_of(recreated())
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (5, 0)
    assert facts.fetching.raw_wait_ms == pytest.approx(0.19 + 0.1 + 0.3)


def test_without_workers_there_is_nothing_to_tear_down() -> None:
    facts = facts_of(recreated(name=NEXT_SINGLE))
    assert facts.fetching.raw_wait_ms == pytest.approx(0.19 + 0.1)
    assert facts.fetching.kind == "single-process"


def left_early(before_creation: float) -> TraceBuilder:
    """Three steps per iterator; 100 us of Python before each fetch, more before a creation."""
    b = TraceBuilder()
    for i in range(9):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.op(t, t + 1, "aten::detach")
        fetch = t + 101
        if i % 3 == 0:
            b.seed(t + 1 + before_creation)
            fetch = t + before_creation + 101
        b.fetch(fetch, fetch + 100)
        work(b, fetch + 150)
    return b


def test_a_loop_left_early_pays_its_teardown_before_the_next_creation() -> None:
    # Two creations of 100 us within the 8 steps; what exceeds the usual 100 is teardown.
    assert facts_of(left_early(430)).fetching.raw_wait_ms == pytest.approx(
        0.1 + 2 * (0.1 + 0.33) / 8
    )
    assert facts_of(left_early(100)).fetching.raw_wait_ms == pytest.approx(0.1 + 2 * 0.1 / 8)


def test_spans_of_our_own_instrument_replace_inference() -> None:
    b = recreated()
    for i in range(6):
        t = float(i * STEP)
        b.annotation(t + 5, t + 150, "loaderdoctor: create iterator")
        b.annotation(t + 300, t + 400, "loaderdoctor: shut down workers")
    facts = facts_of(b)
    assert facts.fetching.n_iterators_created == 5
    assert facts.fetching.raw_wait_ms == pytest.approx(0.145 + 0.1 + 0.1)


def test_python_stacks_name_the_loaders_own_frames() -> None:
    b = recreated()
    for i in range(6):
        t = float(i * STEP)
        file = "torch/utils/data/dataloader.py"
        b.python(t + 5, t + 150, f"{file}(492): __iter__")
        b.python(t + 6, t + 149, f"{file}(433): _get_iterator")
        b.python(t + 300, t + 420, f"{file}(1705): __del__")
    facts = facts_of(b)
    assert facts.fetching.n_iterators_created == 5
    assert facts.fetching.raw_wait_ms == pytest.approx(0.145 + 0.1 + 0.12)


# ------------------------------------------------------------------------- background threads


def background(*, python_us: float = 0, keeps_up: bool = False) -> TraceBuilder:
    """A thread fetches; the training thread waits in silence until its batch is there."""
    b = TraceBuilder()
    for i in range(8):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        # Batch i is finished at t + 600; or it was long before, and the thread waits to put more.
        begin, end = (t - 400, t + 600) if not keeps_up else (t + 30, t + 90)
        b.fetch(begin + 1, end, thread=BACKGROUND)
        work(b, t + 600 + python_us)
    return b


def test_waiting_for_a_background_thread_is_input_until_the_batch_is_there() -> None:
    facts = facts_of(background(python_us=100))
    # From the optimizer's end at -150 to the batch at 600; the 100 after it are Python.
    assert facts.shares.input == pytest.approx(0.75, abs=0.001)
    assert facts.fetching.recorded
    assert facts.fetching.n_per_step == 1


def test_fetches_of_a_thread_that_makes_no_batches_leave_the_makers_calls_to_go_by() -> None:
    """One thread copies, of which nothing else was recorded; another, that computes, fetches."""
    b = TraceBuilder()
    for i in range(8):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.op(t + 10, t + 20, NEXT, thread=PIN)
        b.copy(t + 550, t + 600, t + 560, t + 590, thread=BACKGROUND)
        work(b, t + 600)
    facts = facts_of(b)
    assert facts.shares.input is not None
    assert facts.shares.input > 0.4  # the silence from 20 to the copy at 600


def test_a_background_thread_that_keeps_up_costs_nothing() -> None:
    facts = facts_of(background(keeps_up=True))
    assert facts.shares.input == 0.0
    assert facts.fetching.raw_wait_ms == 0.0


@pytest.mark.parametrize(("begins_us", "input_share"), [(-4900, 0.4), (500, 0.0)])
def test_a_batch_done_in_the_loops_silence_was_waited_for_if_its_maker_went_on(
    begins_us: float, input_share: float
) -> None:
    """A loader that falls short goes on at once; a full queue holds it up until the loop takes."""
    b = TraceBuilder()
    for i in range(9):
        t = i * 10_000.0
        b.op(t, t + 1000)  # takes a batch; then 9 ms of silence
        b.fetch(t + begins_us, t + 5000, thread=BACKGROUND)
        if i < 8:
            b.step(i, t, t + 10_000)
    assert facts_of(b).shares.input == pytest.approx(input_share, abs=0.001)


@pytest.mark.parametrize("accelerated", [True, False])
def test_a_thread_that_only_fetches_is_not_the_one_that_computes(accelerated: bool) -> None:
    """Inference without step marks or optimizer: only the background thread has annotations."""
    b = TraceBuilder()
    for i in range(8):
        t = float(i * STEP)
        # A batch takes 600 us, and is ready before the work of the step ends.
        b.fetch(t + 30, t + 630, thread=BACKGROUND)
        b.op(t + 40, t + 50, "aten::stack", BACKGROUND)
        if accelerated:
            b.kernel(t + 50, t + 60, t + 120)
        else:
            b.op(t + 50, t + 60)
        b.op(t + 70, t + 640, "aten::topk")  # after it the loop's own Python, in silence
    facts = facts_of(b)
    assert facts.n_steps == 0
    assert facts.shares.input == 0.0
    assert facts.shares.host is not None
    assert facts.shares.host > 0.3


def test_a_wait_marked_by_our_instrument_is_taken_as_it_is() -> None:
    b = background()
    for i in range(8):
        b.annotation(i * STEP, i * STEP + 200, "loaderdoctor: wait for batch")
    facts = facts_of(b)
    assert facts.fetching.raw_wait_ms == pytest.approx(0.2)
    assert facts.fetching.waits_ms == pytest.approx([0.2] * 7)


def test_a_pin_memory_thread_gives_away_a_loader_on_another_thread() -> None:
    b = TraceBuilder()
    for i in range(8):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.call(t + 590, t + 595, "cudaPointerGetAttributes", thread=PIN)
        work(b, t + 600)
    facts = facts_of(b)
    assert facts.fetching.recorded
    assert facts.shares.input == pytest.approx(0.845, abs=0.01)


def test_a_loader_without_any_mark_is_not_recorded_rather_than_free() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        work(b, t + 700)
    facts = facts_of(b)
    assert not facts.fetching.recorded
    assert facts.shares.input is None
    assert facts.fetching.raw_wait_ms is None
    assert facts.fetching.n_per_step is None
    # It may have been waiting: from the optimizer's end to the first copy.
    assert facts.fetching.unmarked_wait_ms == pytest.approx(0.85)


@pytest.mark.parametrize("zero_grad_us", [0, 10])
def test_without_step_marks_it_may_be_waiting_after_the_optimizer(zero_grad_us: float) -> None:
    b = TraceBuilder()
    for i in range(7):
        t = float(i * STEP)
        work(b, t + 700)  # to t + 850
        if zero_grad_us:
            end = t + 850 + zero_grad_us
            b.annotation(t + 850, end, "Optimizer.zero_grad#SGD.zero_grad")
    facts = facts_of(b)
    assert facts.step_clock == "optimizer"
    assert facts.shares.input is None
    assert facts.fetching.unmarked_wait_ms == pytest.approx(0.85 - zero_grad_us / 1000)
    assert judge_trace(facts) == ("host", "uncertain")


@pytest.mark.parametrize("marks", [True, False])
def test_all_before_a_batchs_copy_may_be_its_making(marks: bool) -> None:
    """A loop that makes its batches itself, with operators, and reads its loss before."""
    b = TraceBuilder()
    for i in range(7):
        t = float(i * STEP)
        if marks:
            b.step(i, t, t + STEP)
        b.call(t + 5, t + 50, "cudaStreamSynchronize")  # `.item()` behind the optimizer
        for k in range(30):
            b.op(t + 60 + 20 * k, t + 75 + 20 * k, "aten::select")
        work(b, t + 700)
    facts = facts_of(b)
    assert facts.shares.input is None
    # From the optimizer's end to the sync, and from there to the copy.
    assert facts.fetching.unmarked_wait_ms == pytest.approx(0.155 + 0.65)
    assert judge_trace(facts) == ("host", "uncertain")


def test_nothing_copied_to_the_device_means_no_loader_to_wait_for() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.kernel(t + 100, t + 200, t + 300)
        b.copy(t + 120, t + 121, t + 310, t + 311, n_bytes=8)  # a learning rate
    facts = facts_of(b)
    assert facts.shares.input == 0.0
    assert facts.fetching.raw_wait_ms is None


def test_the_watchdog_of_nccl_is_no_loader() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.call(t + 300, t + 301, "cudaEventQuery", thread=PIN)
        work(b, t + 700)
    assert not facts_of(b).fetching.recorded


def test_a_seed_drawn_by_the_model_is_no_iterator_of_the_loader() -> None:
    b = TraceBuilder()
    for i in range(6):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.fetch(t, t + 100)
        b.op(t + 200, t + 260, "MyModule::sample")
        b.seed(t + 210)  # inside an op
        work(b, t + 700)
    facts = facts_of(b)
    assert facts.fetching.n_iterators_created == 0
    assert facts.fetching.raw_wait_ms == pytest.approx(0.1)


def test_worker_lanes_are_not_the_training_process() -> None:
    b = epochs()
    for i in range(9):
        b.add(i * STEP, i * STEP + 900, Category.WORKER, "fetch batch", 2)
    assert facts_of(b).shares == facts_of(epochs()).shares


def test_a_wait_within_a_wait_is_one() -> None:
    """Found by the property test: of two that begin together, the shorter was a negative wait."""
    b = TraceBuilder()
    for end in (2.0, 1.0):
        b.annotation(0, end, "loaderdoctor: wait for batch")
    assert trace_facts(b.trace()).fetching.waits_ms == (0.002,)
