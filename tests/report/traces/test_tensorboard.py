"""Our dialect, judged by the plugin's own parser."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.event_parser import ProfileRole
from torch_tb_profiler.profiler.run_generator import RunGenerator

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.errors import TraceError, UsageError
from loaderdoctor.report.traces.tensorboard import WAIT_NAME, Wait, nested, write_plugin_trace
from loaderdoctor.trace import read_trace
from tests.report.conftest import CASES, Loaded, load, trace_path

MakeTrace = Callable[[list[dict[str, Any]]], Path]
TRACKS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 77001, "tid": 0, "args": {"name": "worker 0"}},
    {"ph": "X", "cat": "dataloader_worker", "name": "fetch", "pid": 77001, "tid": 77001,
     "ts": 4961860580960.0, "dur": 5000.0, "args": {}},
]  # fmt: skip


def parsed(path: Path) -> Any:
    """The plugin's own reading of a file, with every view it would show."""
    data = RunProfileData.parse("worker", "1", str(path), str(path.parent))
    assert RunGenerator("worker", "1", data).generate_run_profile().views
    return data


def figures(data: Any) -> dict[str, float]:
    """Mean time per step of each of the plugin's roles (us)."""
    return {role.name: data.avg_costs.costs[role] for role in ProfileRole}


def written(
    case: str,
    tmp_path: Path,
    *,
    waits: Sequence[Wait] = (),
    tracks: Sequence[dict[str, Any]] = (),
    name: str = "w",
) -> Path:
    target = tmp_path / f"{name}.1.pt.trace.json.gz"
    write_plugin_trace(trace_path(case), target, extra_waits=waits, tracks=tracks)
    return target


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The plugin's reading of each recorded trace in our dialect, once per case."""

    @cache
    def read(case: str) -> Any:
        return parsed(written(case, tmp_path_factory.mktemp(case)))

    return read


def host_spans(trace: Loaded, prefix: str) -> list[dict[str, Any]]:
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X"
        and event["name"].startswith(prefix)
        and event["cat"] in ("user_annotation", "cpu_op")
    ]


def steps_of(trace: Loaded) -> list[dict[str, Any]]:
    return sorted(host_spans(trace, "ProfilerStep#"), key=lambda event: float(event["ts"]))


# Four kinds are quick to show; the others are parsed by the plugin as well, by the slow tests.
QUICK = ("sync_loader_decode", "respawn_each_epoch", "pageable_nonblocking", "gpu_resident")
every_case = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)


@every_case
def test_plugin_counts_exactly_our_steps(case: str, plain: Callable[[str], Any]) -> None:
    data = plain(case)
    names = {step["name"].split("#")[1] for step in steps_of(load(trace_path(case)))}
    assert set(data.steps_names) == names
    assert len(data.steps_names) == len(names)
    assert data.has_kernel
    assert data.has_runtime


def union_us(spans: list[tuple[float, float]]) -> float:
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


@every_case
def test_plugin_loader_share_is_the_wait_the_trace_shows(
    case: str, plain: Callable[[str], Any]
) -> None:
    """Its figure is the wait outside kernels, copies and runtime calls, per step."""
    trace = load(trace_path(case))
    data = plain(case)
    busier = [
        (event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
    ]
    steps = steps_of(trace)
    first, last = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    waits = [
        (max(event["ts"], first), min(event["ts"] + event["dur"], last))
        for event in host_spans(trace, "enumerate(DataLoader)")
    ]
    exposed = union_us(busier + waits) - union_us(busier)
    assert figures(data)["DataLoader"] * len(steps) == pytest.approx(exposed, abs=len(steps))


@every_case
def test_our_figures_of_the_gpu_are_the_plugins(case: str, plain: Callable[[str], Any]) -> None:
    """To a hundred-thousandth: the plugin reckons in floats of microseconds, we in nanoseconds."""
    data = plain(case)
    theirs = data.gpu_metrics_parser
    attributed = attribute(read_trace(trace_path(case)))
    devices = facts_of(attributed).gpu_devices
    assert {device.index for device in devices} == theirs.gpu_ids
    (ours,) = devices
    assert ours.utilization_share == pytest.approx(theirs.gpu_utilization[0], abs=1e-5)
    assert ours.sm_efficiency_share == pytest.approx(
        theirs.avg_approximated_sm_efficiency_per_device[0], abs=1e-5
    )
    assert ours.occupancy_share == pytest.approx(theirs.avg_occupancy_per_device[0] / 100, abs=1e-5)
    assert ours.plugin_tensor_core_share == pytest.approx(data.tc_used_ratio, abs=1e-6)


def test_plugin_sees_the_loader_where_the_untouched_trace_hides_it(
    plain: Callable[[str], Any],
) -> None:
    before = figures(parsed(trace_path("sync_loader_decode")))
    after = figures(plain("sync_loader_decode"))
    assert before["DataLoader"] == 0
    assert after["DataLoader"] / after["Total"] > 0.7


@pytest.mark.parametrize("case", ["sync_loader_decode", "respawn_each_epoch", "gpu_resident"])
def test_worker_lanes_change_no_figure(
    case: str, tmp_path: Path, plain: Callable[[str], Any]
) -> None:
    ours = plain(case)
    with_tracks = parsed(written(case, tmp_path, tracks=TRACKS, name="lanes"))
    assert figures(ours) == figures(with_tracks)
    assert ours.steps_names == with_tracks.steps_names


@pytest.mark.parametrize("case", ["recreated_iterator", "respawn_each_epoch"])
def test_waits_outside_next_count_as_loader_time(
    case: str, tmp_path: Path, plain: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Added: all the time from a step's begin to its fetch, where workers start.

    What is left of these loops' 96-98 % is worker teardown, which follows the fetch.
    """
    trace = load(trace_path(case))
    fetches = sorted(host_spans(trace, "enumerate(DataLoader)"), key=lambda e: float(e["ts"]))
    waits: list[Wait] = []
    for step in steps_of(trace):
        inside = [f for f in fetches if step["ts"] <= f["ts"] < step["ts"] + step["dur"]]
        if inside and inside[-1]["ts"] - step["ts"] > 1000:
            gap = inside[-1]["ts"] - step["ts"] - 1
            waits.append((step["ts"] + 0.5, gap, step["pid"], step["tid"]))
    assert waits
    with caplog.at_level(logging.ERROR, "pytorch_profiler"):
        data = parsed(written(case, tmp_path, waits=waits))
    assert "should not intersect" not in caplog.text
    share = figures(data)["DataLoader"] / figures(data)["Total"]
    before = figures(plain(case))
    assert share > 0.65 > 0.3 > before["DataLoader"] / before["Total"]


def test_added_waits_have_ids_of_their_own(tmp_path: Path) -> None:
    trace = load(trace_path("gpu_resident"))
    step = steps_of(trace)[3]
    wait = (step["ts"] + 1, 5.0, step["pid"], step["tid"])
    out = load(written("gpu_resident", tmp_path, waits=[wait]))
    (added,) = [e for e in out["traceEvents"] if e["name"] == WAIT_NAME]
    ids = Counter(e.get("args", {}).get("External id") for e in out["traceEvents"])
    assert ids[added["args"]["External id"]] == 1
    assert added["cat"] == "cpu_op"


@every_case
def test_nothing_is_lost_and_other_events_are_untouched(case: str, tmp_path: Path) -> None:
    before = load(trace_path(case))
    after = load(written(case, tmp_path))
    renamed = {
        "cuda_runtime": "Runtime",
        "cuda_driver": "Runtime",
        "gpu_user_annotation": "gpu_annotation",
    }

    def expected(event: dict[str, Any]) -> str:
        cat = str(event.get("cat", ""))
        if event["name"].startswith("enumerate(DataLoader)"):
            return "cpu_op"
        return renamed.get(cat, cat)

    assert Counter(e.get("cat", "") for e in after["traceEvents"]) == Counter(
        map(expected, before["traceEvents"])
    )
    touched = set(renamed)
    same = [
        e
        for e in before["traceEvents"]
        if e.get("cat") not in touched and not e["name"].startswith("enumerate(DataLoader)")
    ]
    kept = iter(after["traceEvents"])
    assert all(event in kept for event in same)  # same events, same order


def test_layout_is_what_the_plugin_edits(tmp_path: Path) -> None:
    """It appends counters before the last `]`, which must close traceEvents."""
    text = gzip.decompress(written("gpu_resident", tmp_path).read_bytes())
    assert text.rstrip().endswith(b"]}")
    assert text.index(b'"traceName"') < text.index(b'"traceEvents"')
    data = parsed(tmp_path / "w.1.pt.trace.json.gz")
    profile = RunGenerator("w", "1", data).generate_run_profile()
    tail = json.loads(gzip.decompress(profile.append_gpu_metrics(text)))
    assert len(tail["traceEvents"]) > len(load(trace_path("gpu_resident"))["traceEvents"])


def test_odd_events_are_completed_or_dropped_not_fatal(
    write_trace: MakeTrace, tmp_path: Path
) -> None:
    source = write_trace(
        [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1,
             "ts": 10.0, "dur": 100.0, "args": {"External id": 7}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#mine", "pid": 1, "tid": 1,
             "ts": 20.0, "dur": 10.0},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 7, "ts": 30.0, "dur": 5.0},
            {"ph": "X", "name": "no category", "pid": 1, "tid": 1, "ts": 40.0, "dur": 1.0},
            {"ph": "X", "cat": "cpu_op", "name": "no duration", "pid": 1, "tid": 1, "ts": 41.0},
            {"ph": "X", "cat": "cpu_op", "name": "no time", "pid": 1, "tid": 1, "dur": 41.0},
            {"ph": "i", "pid": 1, "tid": 1, "ts": 41.0},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "tid": 1, "ts": 25.0,
             "dur": 2.0, "args": {"correlation": 9}},
        ]
    )  # fmt: skip
    target = tmp_path / "w.1.pt.trace.json.gz"
    result = write_plugin_trace(source, target)
    assert (result.n_steps, result.n_dropped) == (1, 1)
    events = {e["name"]: e for e in load(target)["traceEvents"]}
    assert events["k"]["args"]["device"] == 3
    assert events["no category"]["cat"]
    assert events["no duration"]["dur"] == 0
    assert events["launch"]["args"] == {"correlation": 9, "External id": 0}
    assert parsed(target).steps_names == ["5"]


def test_batches_fetched_by_a_background_thread_are_no_wait(
    write_trace: MakeTrace, tmp_path: Path
) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
            "ts": 0.0, "dur": 100.0, "args": {"External id": 1}}  # fmt: skip
    fetch = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 2,
             "ts": 10.0, "dur": 80.0, "args": {"External id": 2}}  # fmt: skip
    target = tmp_path / "w.1.pt.trace.json.gz"
    write_plugin_trace(write_trace([fetch, step]), target)
    assert figures(parsed(target))["DataLoader"] == 0
    write_plugin_trace(write_trace([fetch | {"tid": 1}, step]), target)
    assert figures(parsed(target))["DataLoader"] == 80


@pytest.mark.parametrize(
    "text",
    [
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "C:\\path\x01", "pid": 1,'
        b' "tid": 1, "ts": 1, "dur": 1, "args": {"bw": N/A, "x": -inf, "y": NaN}}]}',
        b'[{"ph": "X", "cat": "cpu_op", "name": "bad \xff utf-8", "pid": 1, "tid": 1,'
        b' "ts": 1, "dur": 1}]',
    ],
)
def test_text_that_is_not_quite_json_is_repaired(text: bytes, tmp_path: Path) -> None:
    source = tmp_path / "odd.json"
    source.write_bytes(text)
    target = tmp_path / "w.1.pt.trace.json.gz"
    assert write_plugin_trace(source, target).n_events == 1
    assert len(load(target)["traceEvents"]) == 1


@pytest.mark.parametrize("text", [b"", b"{}", b'{"traceEvents": [{"ph":', b"\x1f\x8b\x08", b"PK"])
def test_what_is_no_trace_is_refused_and_leaves_nothing(text: bytes, tmp_path: Path) -> None:
    source = tmp_path / "bad.json"
    source.write_bytes(text)
    with pytest.raises(TraceError, match=r"bad\.json"):
        write_plugin_trace(source, tmp_path / "w.1.pt.trace.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize("name", ["w.pt.trace.json.gz", "a.b.1.pt.trace.json.gz", "trace.json"])
def test_names_that_tensorboard_misreads_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_plugin_trace(trace_path("gpu_resident"), tmp_path / name)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(st.integers(0, 60), st.integers(1, 40), spans)
def test_pieces_of_a_wait_cover_it_and_cross_nothing(
    start: int, length: int, pairs: list[tuple[int, int]]
) -> None:
    laid: list[tuple[float, float]] = []
    for a, b in pairs:  # keep only spans that nest with those before: as on a real thread
        low, high = sorted((a, b))
        if all(not _cross((low, high), other) for other in laid):
            laid.append((low, high))
    pieces = nested(start, start + length, laid)
    assert sum(b - a for a, b in pieces) == length
    assert not any(_cross(piece, span) for piece in pieces for span in laid)


def _cross(one: tuple[float, float], two: tuple[float, float]) -> bool:
    return one[0] < two[0] < one[1] < two[1] or two[0] < one[0] < two[1] < one[1]


def test_fresh_cpu_trace_with_stacks_and_memory_is_read_as_recorded(tmp_path: Path) -> None:
    """The torch of today, recorded here: two workers, stacks, allocator events."""
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = tmp_path / "source.json"
    n_steps = 6
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=n_steps, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(source)),
        with_stack=True,
        profile_memory=True,
    ) as profiler:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            profiler.step()
    target = tmp_path / "w.1.pt.trace.json.gz"
    assert write_plugin_trace(source, target, tracks=TRACKS).n_steps == n_steps
    plugin = parsed(target)
    assert len(plugin.steps_names) == n_steps
    trace = load(source)
    steps = steps_of(trace)
    waited = sum(float(e["dur"]) for e in host_spans(trace, "enumerate(DataLoader)"))
    total = sum(float(step["dur"]) for step in steps)
    share = figures(plugin)["DataLoader"] / figures(plugin)["Total"]
    assert share == pytest.approx(waited / total, abs=0.05)
    assert plugin.memory_snapshot is not None
