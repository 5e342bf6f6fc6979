"""The user's own ranges: counted once, with the device work launched inside them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.attribution.user_code import MAX_RANGES, is_users
from loaderdoctor.facts.trace import RangeFacts
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import Category
from tests.attribution.build import AUTOGRAD, BACKGROUND, MAIN, TraceBuilder

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.json.gz"))


def two_steps() -> TraceBuilder:
    """Two steps of 1 ms; the device's clock measures the second."""
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.kernel(10, 20, 30)
    b.step(2, 1000, 2000)
    return b


def ranges_of(b: TraceBuilder) -> dict[str, RangeFacts]:
    return {r.name: r for r in facts_of(attribute(b.trace())).ranges}


def test_a_range_has_the_device_work_launched_in_it_whenever_that_runs() -> None:
    b = two_steps()
    b.annotation(1100, 1200, "forward")
    b.kernel(1110, 1500, 1600)  # launched inside, runs later
    b.kernel(1300, 1610, 1700)  # launched outside
    b.copy(1150, 1160, 1400, 1450)
    (found,) = ranges_of(b).values()
    assert found.name == "forward"
    assert found.n_calls == 1
    assert found.host_ms_per_step == pytest.approx(0.1)
    assert found.gpu_ms_per_step == pytest.approx(0.15)
    assert found.n_kernels_per_step == 1


def test_outer_ranges_hold_what_inner_ones_launch_and_inner_ones_only_their_own() -> None:
    b = two_steps()
    b.annotation(1100, 1900, "outer")
    b.annotation(1200, 1400, "inner")
    b.annotation(1250, 1300, "innermost")
    b.annotation(1500, 1600, "inner")
    for at, end in ((1110, 1150), (1210, 1230), (1260, 1270), (1510, 1515)):
        b.kernel(at, end - 5, end)
    b.kernel(1700, 1800, 1850)
    found = ranges_of(b)
    assert list(found) == ["outer", "inner", "innermost"]  # costliest first
    assert [r.depth for r in found.values()] == [0, 1, 2]
    assert [r.n_calls for r in found.values()] == [1, 2, 1]
    kernel_us = [r.gpu_ms_per_step * 1000 for r in found.values() if r.gpu_ms_per_step is not None]
    assert kernel_us == pytest.approx([4 * 5 + 50, 3 * 5, 5])
    assert found["inner"].host_ms_per_step == pytest.approx(0.3)


def test_a_range_within_one_of_its_own_name_counts_once() -> None:
    b = two_steps()
    b.annotation(1100, 1500, "block")
    b.annotation(1200, 1400, "other")
    b.annotation(1250, 1350, "block")
    b.kernel(1300, 1600, 1610)
    found = ranges_of(b)
    assert found["block"].n_calls == 2
    assert found["block"].host_ms_per_step == pytest.approx(0.4)
    assert found["block"].gpu_ms_per_step == pytest.approx(0.01)


def test_what_autograd_launches_counts_with_the_range_around_backward() -> None:
    b = two_steps()
    b.annotation(1100, 1200, "backward")
    b.kernel(1150, 1300, 1340, thread=AUTOGRAD)
    b.kernel(1250, 1350, 1390, thread=AUTOGRAD)  # outside of any
    assert ranges_of(b)["backward"].gpu_ms_per_step == pytest.approx(0.04)


def test_what_a_background_loader_copies_is_not_the_training_threads_range() -> None:
    b = two_steps()
    b.annotation(1100, 1200, "forward")
    b.fetch(1100, 1140, thread=BACKGROUND)
    b.copy(1150, 1160, 1170, 1190, thread=BACKGROUND)
    assert ranges_of(b)["forward"].gpu_ms_per_step == 0


def test_ranges_on_a_thread_of_their_own_keep_their_work() -> None:
    b = two_steps()
    b.annotation(1100, 1500, "main", MAIN)
    b.annotation(1200, 1300, "theirs", AUTOGRAD)
    b.kernel(1250, 1300, 1320, thread=AUTOGRAD)
    b.kernel(1350, 1400, 1450, thread=AUTOGRAD)
    found = ranges_of(b)
    assert found["theirs"].gpu_ms_per_step == pytest.approx(0.02)
    assert found["main"].gpu_ms_per_step == 0


def test_only_ranges_of_the_measured_steps_count() -> None:
    b = two_steps()
    b.annotation(100, 200, "first step only")
    b.annotation(300, 400, "both")
    b.annotation(1300, 1400, "both")
    found = ranges_of(b)
    assert list(found) == ["both"]
    assert found["both"].n_calls == 1


def test_without_a_device_the_host_time_is_there_and_device_time_is_not_zero_but_absent() -> None:
    b = TraceBuilder()
    b.step(1, 0, 100)
    b.step(2, 100, 200)
    b.annotation(110, 140, "forward")
    b.op(115, 130)
    (found,) = ranges_of(b).values()
    assert found.host_ms_per_step == pytest.approx(0.015)
    assert found.gpu_ms_per_step is None


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#3", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad",
     "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "loaderdoctor: wait for batch",
     "loaderdoctor: create iterator", "DistributedDataParallel.forward", "nccl:all_reduce",
     "FSDP::all_gather", "FullyShardedDataParallel._pre_forward", "DataParallel.forward",
     "## Call CompiledFxGraph f3 ##", "Torch-Compiled Region: 0/0", "_compile.x (dynamo_timed)",
     "PyTorch Profiler (0)", "dynamo_data: compile_id=0/0",
     "pass.post_grad_passes.pass_pattern_0_data: compile_id=0/1",
     "entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/0"],
)  # fmt: skip
def test_what_torch_and_we_open_is_not_the_users(name: str) -> None:
    assert not is_users(name)


@pytest.mark.parametrize(
    "name", ["forward", "load_data: step=3", "model_inference", "## data ##", "torch", "steps"]
)
def test_the_rest_is(name: str) -> None:
    assert is_users(name)


@pytest.mark.parametrize("path", TRACES[::4], ids=lambda path: path.name.split(".")[0])
def test_recorded_loops_without_ranges_have_none(path: Path) -> None:
    assert facts_of(attribute(read_trace(path))).ranges == ()


def test_many_names_are_cut_with_their_number() -> None:
    b = two_steps()
    for i in range(MAX_RANGES + 7):
        b.annotation(1010 + 10 * i, 1012 + 10 * i + i / 100, f"batch {i}")
    facts = facts_of(attribute(b.trace()))
    assert len(facts.ranges) == MAX_RANGES
    assert facts.n_ranges_left_out == 7
    assert facts.ranges[0].name == f"batch {MAX_RANGES + 6}"


@st.composite
def nests(draw: st.DrawFn) -> list[tuple[float, float, str]]:
    """Properly nested ranges within [1000, 2000), some of equal names."""
    found: list[tuple[float, float, str]] = []

    def fill(begin: int, end: int, depth: int) -> None:
        at = begin
        while end - at >= 8 and draw(st.booleans()):
            low = draw(st.integers(at, end - 4))
            high = draw(st.integers(low + 2, end))
            found.append((low, high, draw(st.sampled_from("abc"))))
            if depth < 4:
                fill(low, high, depth + 1)
            at = high

    fill(1000, 1999, 0)
    return found


@given(nests(), st.lists(st.integers(1000, 1990), max_size=12))
def test_any_nest_gives_what_brute_force_does(
    nest: list[tuple[float, float, str]], launches: list[int]
) -> None:
    b = two_steps()
    for low, high, name in nest:
        b.annotation(low, high, name)
    for i, at in enumerate(launches):
        b.kernel(at + 0.25, 3000 + 100 * i, 3000 + 100 * i + i + 1)
    found = ranges_of(b)
    for name in "abc":
        mine = [(low, high) for low, high, other in nest if other == name]
        if not mine:
            assert name not in found
            continue
        gpu = sum(
            i + 1
            for i, at in enumerate(launches)
            if any(low <= at + 0.25 < high for low, high in mine)
        )
        host = len({us for low, high in mine for us in range(int(low), int(high))})
        assert found[name].n_calls == len(mine)
        assert found[name].host_ms_per_step == pytest.approx(host / 1000)
        if launches:
            assert found[name].gpu_ms_per_step == pytest.approx(gpu / 1000)


def test_ranges_of_a_real_loop_are_found_beside_torchs_own(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "trace.json"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=5, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
    ) as profiler:
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
            with torch.profiler.record_function("my step"):
                with torch.profiler.record_function("my forward"):
                    loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
            profiler.step()
    trace = read_trace(path)
    facts = facts_of(attribute(trace))
    assert [r.name for r in facts.ranges] == ["my step", "my forward"]
    assert [r.n_calls for r in facts.ranges] == [facts.n_steps, facts.n_steps]
    mine = trace.spans.of(Category.USER_ANNOTATION)
    mine = mine.where(mine.name == trace.names.index("my step"))
    assert facts.ranges[0].host_ms_per_step * facts.n_steps == pytest.approx(
        float(np.sum(mine.end_ns - mine.start_ns)) / 1e6
    )


@pytest.mark.parametrize("case", ["gpu_resident", "enough_workers", "side_stream_overlap"])
def test_a_range_around_each_recorded_step_has_all_its_kernels_backward_too(
    case: str, tmp_path: Path
) -> None:
    """H100 traces in which autograd's thread launches half of the kernels, with ranges added."""
    (path,) = [p for p in TRACES if p.name.startswith(case)]
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"]
    steps = [
        e for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")
    ]  # fmt: skip
    optimizers = [e for e in events if str(e["name"]).startswith("Optimizer.step#")]
    added = [
        {**e, "name": name, "ts": e["ts"] + 0.001, "dur": e["dur"] - 0.002}
        for name, chosen in (("whole step", steps), ("update", optimizers))
        for e in chosen
        if e["cat"] == "user_annotation"
    ]
    target = tmp_path / "trace.json"
    target.write_text(json.dumps({**document, "traceEvents": events + added}))
    trace = read_trace(target)
    facts = facts_of(attribute(trace))
    whole, update = facts.ranges
    assert (whole.name, whole.n_calls, whole.depth) == ("whole step", facts.n_steps, 0)
    assert (update.name, update.n_calls, update.depth) == ("update", facts.n_steps, 1)
    assert whole.n_kernels_per_step == pytest.approx(facts.kernels.n_per_step)
    assert facts.kernels.busy_ms <= (whole.gpu_ms_per_step or 0) * 1.001
    kernels = trace.spans.of(Category.KERNEL)
    launches = trace.spans.of(Category.RUNTIME)
    of_kernel = {int(c): int(t) for c, t in zip(launches.correlation, launches.thread, strict=True)}
    n_threads = len({of_kernel.get(int(c)) for c in kernels.correlation})
    assert n_threads >= 2  # or the test would not see autograd's
    assert 0 < (update.n_kernels_per_step or 0) < (whole.n_kernels_per_step or 0)
