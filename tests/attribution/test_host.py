"""Where exposed host time goes, by the deepest thing the trace names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.attribution.host import _largest_pairs, _self_time, is_user_frame
from loaderdoctor.attribution.identity import host_bounds, without_profiler
from loaderdoctor.facts.host import work_between
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.intervals import Intervals
from tests.attribution.build import AUTOGRAD, H2D_PAGEABLE, H2D_PINNED, TraceBuilder
from tests.trace_facts import trace_facts

STEP = 1000


def host_bound() -> TraceBuilder:
    """Per step: fetch 100, op 200, logging silence 300, backward on autograd's thread 100."""
    b = TraceBuilder()
    for i in range(5):
        t = float(i * STEP)
        b.step(i, t, t + STEP)
        b.fetch(t, t + 100)
        b.op(t + 100, t + 300, "aten::linear")
        b.op(t + 150, t + 250, "aten::addmm")
        b.optimizer(t + 600, t + 700)
        b.op(t + 750, t + 850, "autograd::engine::evaluate_function: MmBackward0", AUTOGRAD)
        b.kernel(t + 900.5, t + 905, t + 1000)
    return b


def hotspots(b: TraceBuilder) -> dict[str, float]:
    return {s.name: s.ms_per_step for s in trace_facts(b.trace()).host.hotspots}


def test_ops_silences_and_backward_are_named_largest_first() -> None:
    found = hotspots(host_bound())
    assert next(iter(found)) == "Python between aten::linear and SGD.step"
    assert found["Python between aten::linear and SGD.step"] == pytest.approx(0.3)
    assert found["aten::linear"] == pytest.approx(0.2)
    assert found["backward (autograd thread)"] == pytest.approx(0.1)
    assert found["Optimizer.step#SGD.step"] == pytest.approx(0.1)
    assert "aten::addmm" not in found
    facts = trace_facts(host_bound().trace())
    assert sum(found.values()) == pytest.approx(facts.host.exposed_ms, rel=0.01)


def test_a_users_annotation_names_the_silence_within() -> None:
    b = host_bound()
    for i in range(5):
        b.annotation(i * STEP + 350, i * STEP + 550, "log metrics")
    assert hotspots(b)["log metrics"] == pytest.approx(0.2)


@pytest.mark.parametrize("around", ["each step", "all steps"])
def test_an_annotation_around_the_whole_step_names_no_launching(around: str) -> None:
    """`record_function("train_step")`: its gaps between two ops are those of any other loop."""
    b = TraceBuilder()
    for i in range(6):
        t = float(i * 20_000)
        b.step(i, t, t + 20_000)
        b.fetch(t, t + 20)
        for k in range(100):
            b.kernel(t + 100 + 100 * k, t + 105 + 100 * k, t + 108 + 100 * k)
        b.optimizer(t + 10_100, t + 10_200)
        b.op(t + 15_000, t + 15_010, "aten::item")  # behind 4.8 ms of logging
    plain = trace_facts(b.trace())
    if around == "each step":
        for i in range(6):
            b.annotation(i * 20_000 + 30, i * 20_000 + 19_990, "train_step")
    else:
        b.annotation(10, 119_990, "train_step")
    noted = trace_facts(b.trace())
    named = {s.name: s.ms_per_step for s in noted.host.hotspots}
    assert named["train_step"] == pytest.approx(4.8 + 5.0, abs=0.2)  # its long silences alone
    assert work_between(noted)[0] == pytest.approx(work_between(plain)[0], abs=0.2)
    assert noted.shares == plain.shares


def test_backward_on_its_own_thread_is_no_work_of_an_annotation_around_it() -> None:
    b = host_bound()
    for i in range(5):
        b.annotation(i * STEP + 110, i * STEP + 990, "train_step")
    assert hotspots(b)["backward (autograd thread)"] == pytest.approx(0.1)


def test_python_stacks_name_the_deepest_frame_of_the_users_code() -> None:
    b = host_bound()
    for i in range(5):
        t = i * STEP
        b.python(t, t + STEP, "train.py(80): main")
        b.python(t + 320, t + 580, "train.py(57): log_metrics")
        b.python(t + 330, t + 570, "json/__init__.py(183): dumps")
        b.python(t + 340, t + 560, "<built-in method sleep of module object at 0x7f>")
    named = {s.name: s for s in trace_facts(b.trace()).host.hotspots}
    hotspot = named["train.py(57): log_metrics"]
    assert (hotspot.file, hotspot.line) == ("train.py", 57)
    assert hotspot.ms_per_step == pytest.approx(0.26)
    # The caller keeps only what its callee doesn't have.
    assert named["train.py(80): main"].ms_per_step == pytest.approx(0.805 - 0.26)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("train.py(57): log_metrics", True),
        ("/home/me/project/train.py(1): <module>", True),
        ("mypackage/data.py(12): __getitem__", True),
        ("torch/nn/modules/module.py(1775): _call_impl", False),
        ("/usr/lib/python3.11/json/__init__.py(1): dumps", False),
        ("/venv/lib/python3.11/site-packages/wandb/sdk.py(1): log", False),
        ("threading.py(300): wait", False),
        ("multiprocessing/queues.py(113): get", False),
        ("<built-in function len>", False),
        ("<frozen importlib._bootstrap>(1): _find", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_the_users_own_frames_are_told_from_libraries(name: str, user: bool) -> None:
    assert is_user_frame(name) is user


@given(st.data())
def test_self_time_is_what_no_child_covers(data: st.DataObject) -> None:
    nested: list[tuple[int, int]] = []

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        while at < end and depth < 4 and data.draw(st.booleans()):
            a = data.draw(st.integers(at, end - 1))
            b = data.draw(st.integers(a + 1, end))
            nested.append((a, b))
            fill(a, b, depth + 1)
            at = b

    fill(0, 30, 0)
    if not nested:
        return
    within = Intervals.span(data.draw(st.integers(0, 15)), data.draw(st.integers(10, 40)))
    nested.sort(key=lambda p: p[0])
    starts = np.asarray([a for a, _ in nested], np.int64)
    ends = np.asarray([b for _, b in nested], np.int64)
    own = _self_time(starts, ends, within)
    covered = Intervals.of(starts, ends).intersect(within)
    assert own.sum() == covered.total_ns
    assert (own >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=2, max_size=60))
def test_largest_pairs_are_the_same_counted_in_a_table_or_sorted(
    ops: list[tuple[int, int]],
) -> None:
    name = np.array([n for n, _ in ops], np.int32)
    between = np.array([ns for _, ns in ops[1:]], np.int64)
    expected: Counter[tuple[int, int]] = Counter()
    often: Counter[tuple[int, int]] = Counter()
    for before, after, ns in zip(name[:-1], name[1:], between, strict=True):
        expected[int(before), int(after)] += int(ns)
        often[int(before), int(after)] += ns > 0
    for table_size in (10**6, -(10**6)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("loaderdoctor.attribution.host.MAX_TABLE", table_size)
            found = list(_largest_pairs(name, name, between))
        largest = sorted((+expected).values(), reverse=True)[:10]
        assert [ns for *_, ns, _ in found if ns] == largest
        assert all(expected[before, after] == ns for before, after, ns, _ in found)
        assert all(often[before, after] == n for before, after, _, n in found)


def test_a_span_of_no_length_does_not_part_those_it_lies_in() -> None:
    """Found by the property test: two spans over the same time counted twice."""
    start = np.asarray([0, 0, 0], np.int64)
    end = np.asarray([0, 1000, 1000], np.int64)
    own = _self_time(start, end, Intervals.span(0, 1000))
    assert own.tolist() == [0, 0, 1000]


def test_a_call_of_the_runtime_outside_any_op_is_told_by_the_op_before_it() -> None:
    """As the event that ends a pinned copy, before the loop's own work begins."""
    b = host_bound()
    for i in range(5):
        b.call(i * STEP + 310, i * STEP + 311, "cudaEventRecordWithFlags")
    found = {s.name: s for s in trace_facts(b.trace()).host.hotspots}
    silence = found["Python between aten::linear and SGD.step"]
    assert silence.ms_per_step == pytest.approx(0.289)
    assert silence.n_per_step == pytest.approx(1)
    waiting = host_bound()
    for i in range(5):
        waiting.call(i * STEP + 310, i * STEP + 311, "cudaStreamSynchronize")
    assert "Python between cudaStreamSynchronize and SGD.step" in hotspots(waiting)


def silent_loop(
    silent_us: float, n_bytes: int, *, behind: str, pinned: bool = False, called: str = ""
) -> TraceFacts:
    """Steps of 60 ms whose thread is silent behind the fetch, or the copy, of a worker's batch.

    `called`: a Python frame that takes up the silence, in one of `train` that holds the step.
    """
    built = TraceBuilder()
    for step in range(8):
        at = step * 60_000.0
        built.step(step, at, at + 60_000)
        built.fetch(at, at + 200)
        silent_at = at + 201 + (0 if behind == "fetch" else 9_000)
        if called:
            built.python(at - 5, at + 59_990, "train.py(3): train")
            built.python(silent_at + 2, silent_at + silent_us - 5, called)
        at += 201 + (silent_us if behind == "fetch" else 0)
        name = H2D_PINNED if pinned else H2D_PAGEABLE
        built.op(at, at + 9_000, "aten::to")
        built.copy(at + 1, at + 8_998, at + 2, at + 8_997, name=name, n_bytes=n_bytes)
        at += 9_000 + (silent_us if behind == "copy" else 10)
        built.kernel(at, at + 20, step * 60_000.0 + 59_900)
    return trace_facts(built.trace())


@pytest.mark.parametrize("behind", ["fetch", "copy"])
def test_silence_next_to_pageable_copies_may_be_freeing_as_far_as_the_bytes_go(behind: str) -> None:
    found = silent_loop(8_000, 40_000_000, behind=behind)
    assert found.host.freeing_ms == pytest.approx(8.0, rel=0.05)
    # Or the loop's own, as no event tells: it stays where it was seen, and is not sure to be that.
    assert work_between(found)[0] == pytest.approx(8.0, rel=0.05)
    assert without_profiler(found).input == pytest.approx(found.shares.input, abs=0.02)
    assert host_bounds(found)[0] < 0.05
    # More than so many bytes take is the loop's own; so is any of it beside pinned batches.
    longer = silent_loop(30_000, 40_000_000, behind=behind)
    assert longer.host.freeing_ms < 0.6 * 30
    assert host_bounds(longer)[0] > 10 / 60
    for other in (
        silent_loop(8_000, 40_000_000, behind=behind, pinned=True),
        silent_loop(1_500, 40_000_000, behind=behind),
    ):
        assert other.host.freeing_ms == 0.0
    assert work_between(silent_loop(8_000, 500_000, behind=behind))[0] > 7  # of a small batch too


@pytest.mark.parametrize("behind", ["fetch", "copy"])
@pytest.mark.parametrize(
    "called",
    ["train.py(40): augment", "site/PIL/Image.py(9): resize", "<built-in function sleep>"],
)
def test_what_is_called_in_a_silence_frees_nothing(behind: str, called: str) -> None:
    assert silent_loop(8_000, 40_000_000, behind=behind, called=called).host.freeing_ms == 0.0
    alone = silent_loop(8_000, 40_000_000, behind=behind).host.freeing_ms
    assert alone == pytest.approx(8.0, rel=0.05)
