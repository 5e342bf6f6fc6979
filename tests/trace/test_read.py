"""What `read_trace` makes of real traces and of every dialect of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import ABSENT, Category
from loaderdoctor.trace.events import category_of
from tests.trace.events import memory, span, written

RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_recorded_traces_hold_what_json_load_finds(path: Path) -> None:
    trace = read_trace(path)
    with gzip.open(path) as file:
        document = json.load(file)
    events = [e for e in document["traceEvents"] if e["ph"] == "X"]
    events.sort(key=lambda e: e["ts"])
    spans = trace.spans
    origin_ns = round(trace.origin_us * 1000)
    args = [e.get("args", {}) for e in events]

    assert len(spans) == len(events)
    assert trace.n_dropped_events == 0
    assert spans.start_ns[0] == 0
    starts = [round(e["ts"] * 1000) for e in events]
    assert (spans.start_ns + origin_ns).tolist() == starts
    assert (spans.end_ns - spans.start_ns).tolist() == [round(e["dur"] * 1000) for e in events]
    assert [trace.names[n] for n in spans.name] == [e["name"] for e in events]
    assert [trace.threads[t].tid for t in spans.thread] == [str(e["tid"]) for e in events]
    assert [trace.threads[t].pid for t in spans.thread] == [str(e["pid"]) for e in events]
    assert spans.correlation.tolist() == [a.get("correlation", ABSENT) for a in args]
    assert spans.external_id.tolist() == [a.get("External id", ABSENT) for a in args]
    assert spans.bytes.tolist() == [a.get("bytes", ABSENT) for a in args]
    host = ~np.isin(spans.category, (*range(4, 8),))
    assert (spans.stream[host] == ABSENT).all()
    assert (spans.stream[~host] != ABSENT).all()
    assert Counter(spans.category.tolist()) == Counter(category_of(e["cat"]) for e in events)
    assert trace.devices[0].name == document["deviceProperties"][0]["name"]
    assert trace.base_time_ns == document["baseTimeNanoseconds"]
    assert trace.has_accelerator


def test_threads_and_processes_take_their_names_from_metadata(tmp_path: Path) -> None:
    def named(kind: str, pid: Any, tid: Any, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}

    trace = written(
        tmp_path,
        [
            named("thread_name", 9, 9, "thread 9 (python)"),
            span(),
            span(pid="Spans", tid="PyTorch Profiler", cat="Trace"),
            named("thread_name", 9, 9, "thread 9 (pt_main) "),
            named("process_name", 9, 0, "python3"),
        ],
    )
    first, second = trace.threads
    assert (first.pid, first.tid, first.process_name) == ("9", "9", "python3")
    assert first.name == "thread 9 (pt_main)"  # the last one, as viewers show it
    assert (second.pid, second.tid, second.name) == ("Spans", "PyTorch Profiler", None)


def test_times_are_rounded_to_the_nanosecond_far_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    times = [f"4962063056809.{n:03d}" for n in range(1000)]
    event = json.dumps(span(ts="@", dur=200.753))
    path.write_text("[" + ",".join(event.replace('"@"', time) for time in times) + "]")
    trace = read_trace(path)
    assert trace.spans.start_ns.tolist() == list(range(1000))
    assert set((trace.spans.end_ns - trace.spans.start_ns).tolist()) == {200_753}
    assert trace.origin_us == 4962063056809.0


def test_rows_are_sorted_by_start_and_ties_keep_the_file_order(tmp_path: Path) -> None:
    trace = written(tmp_path, [span("c", ts=3), span("a", ts=1), span("b1"), span("b0"), span("d")])
    assert [trace.names[n] for n in trace.spans.name] == ["a", "c", "b1", "b0", "d"]


def test_launch_figures_stay_with_their_kernels_whatever_the_order_in_the_file(
    tmp_path: Path,
) -> None:
    def kernel(ts: int, **args: Any) -> dict[str, Any]:
        return span(f"k{ts}", "kernel", ts=ts, pid=0, tid=7, args={"device": 0, **args})

    trace = written(
        tmp_path,
        [
            kernel(9, **{"blocks per SM": 9, "est. achieved occupancy %": 90}),
            span(ts=1, args={"blocks per SM": 5.0}),
            kernel(3),
            span("no time", "kernel", ts="x", args={"blocks per SM": 7.0}),
            span("copy", "gpu_memcpy", ts=2, pid=0, tid=7),
            kernel(5, **{"blocks per SM": 0.25, "est. achieved occupancy %": "50"}),
        ],
    )
    assert trace.kernel_shapes is not None
    kernels = trace.spans.of(Category.KERNEL)
    assert [trace.names[n] for n in kernels.name] == ["k3", "k5", "k9"]
    np.testing.assert_array_equal(trace.kernel_shapes.blocks_per_sm, [np.nan, 0.25, 9.0])
    np.testing.assert_array_equal(trace.kernel_shapes.occupancy_percent, [np.nan, 50.0, 90.0])


def test_memory_events_give_the_peak_of_each_accelerator(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        [
            memory(0, 1, 500, 2000),
            span(),
            memory(-1, 0, 10_000, 0),  # the host's
            memory(1, 1, 70, 80),
            memory(0, 1, 900, 2000),
            memory(0, 1, 100, 2048),
            {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1, "s": "g"},
            {"ph": "i", "name": "[memory]", "ts": 1},
        ],
    )
    assert [(p.device, p.allocated_bytes, p.reserved_bytes) for p in trace.memory_peaks] == [
        (0, 900, 2048),
        (1, 70, 80),
    ]
    assert trace.n_dropped_events == 0
    assert written(tmp_path, [span()]).memory_peaks == ()


def test_kernels_that_say_nothing_of_their_launch_have_no_launch_figures(tmp_path: Path) -> None:
    assert written(tmp_path, [span("k", "kernel", pid=0, tid=7)]).kernel_shapes is None
    assert written(tmp_path, [span()]).kernel_shapes is None


def test_the_plugin_dialect_reads_as_the_trace_it_was_made_from(tmp_path: Path) -> None:
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    plain = [
        span(fetch, "user_annotation"),
        span("cudaLaunchKernel", "cuda_runtime", args={"correlation": 1, "External id": 0}),
        span("cuLaunchKernel", "cuda_driver", args={"correlation": 2, "External id": 0}),
        span("ProfilerStep#3", "gpu_user_annotation", pid=0, tid=7),
        span("make batch", "dataloader_worker", pid="DataLoader worker 0 (pid 12)"),
    ]
    dialect = [
        {**event, "cat": cat}
        for event, cat in zip(
            plain,
            ["cpu_op", "Runtime", "Runtime", "gpu_annotation", "dataloader_worker"],
            strict=True,
        )
    ]
    ours, theirs = written(tmp_path, plain).spans, written(tmp_path, dialect).spans
    assert ours.category.tolist() == theirs.category.tolist()
    assert ours.category.tolist() == [
        Category.USER_ANNOTATION,
        Category.RUNTIME,
        Category.RUNTIME,
        Category.GPU_ANNOTATION,
        Category.WORKER,
    ]


def test_rocm_and_xpu_rows_get_device_and_stream(tmp_path: Path) -> None:
    spans = written(
        tmp_path,
        [
            span("hipLaunchKernel", "cuda_runtime", args={"stream": "0x55d0", "correlation": 4}),
            span("gemm", "kernel", pid=2, tid=3, args={"device": 2, "stream": 3, "correlation": 4}),
            span("zeCommandListAppend", "xpu_runtime", args={"correlation": 5}),
            span("gemm_kernel", "kernel", pid=1, tid=64, args={"device": 1, "sycl queue": 64}),
            span("Memcpy M2D", "gpu_memcpy", pid=1, tid=64, args={"bytes": 4096}),
        ],
    ).spans
    assert spans.device.tolist() == [ABSENT, 2, ABSENT, 1, 1]
    assert spans.stream.tolist() == [ABSENT, 3, ABSENT, 64, 64]
    assert spans.category.tolist() == [
        Category.RUNTIME,
        Category.KERNEL,
        Category.RUNTIME,
        Category.KERNEL,
        Category.MEMCPY,
    ]
    assert spans.bytes[-1] == 4096


def test_events_that_are_no_spans_are_no_rows_and_no_faults(tmp_path: Path) -> None:
    others = [{"ph": ph, "name": ph, "ts": 1, "pid": 9, "tid": 9} for ph in "sftiICPNODbne"]
    pairs = [{"ph": ph, "name": "pair", "ts": 1, "pid": 9, "tid": 9} for ph in "BE"]
    trace = written(tmp_path, [*others, span(), *pairs])
    assert len(trace.spans) == 1
    assert trace.n_dropped_events == 0
    assert trace.origin_us == 10.0  # of the earliest row, not of what is left out


def test_rank_devices_and_host_come_from_the_document(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        [span()],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": "8"},
        deviceProperties=[{"id": 1, "name": "AMD Instinct", "totalGlobalMem": 5}, "odd", {}],
        host_name="node17",
        baseTimeNanoseconds=1790857026000000000,
    )
    assert (trace.rank, trace.n_ranks, trace.host_name) == (3, 8, "node17")
    assert [(d.index, d.memory_bytes) for d in trace.devices] == [(1, 5), (2, None)]
    assert trace.base_time_ns == 1790857026000000000
