"""What `read_trace` makes of real traces and of every dialect of them."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.columns import ABSENT, Category, Trace
from loaderdoctor.trace.read import read_trace
from loaderdoctor.trace.wire import category_of

RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*.json.gz"))


def written(folder: Path, events: list[Any], **about: Any) -> Trace:
    path = folder / "run.json"
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return read_trace(path)


def span(name: str = "aten::mm", cat: str = "cpu_op", **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": 10, "dur": 5, **fields}


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
    assert trace.n_dropped_events == trace.n_unpaired_events == 0
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


def memory(device: int, kind: int, allocated: Any, reserved: Any) -> dict[str, Any]:
    """As torch 2.x writes it with `profile_memory`."""
    args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": 8, "Addr": 1,
            "Device Id": device, "Device Type": kind}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1,
            "tid": 1, "ts": 3, "args": args}  # fmt: skip


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


def test_unreadable_memory_events_cost_no_others(tmp_path: Path) -> None:
    odd = [memory(0, 1, "N/A", 5), memory(0, 1, 7, [1]), memory(0, 1, 3, 9)]
    trace = written(tmp_path, [span(), *odd])
    (peak,) = trace.memory_peaks
    assert (peak.allocated_bytes, peak.reserved_bytes) == (7, 9)
    assert len(trace.spans) == 1


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


def test_malformed_events_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    good = json.dumps(span())
    bad = [
        json.dumps(span(dur=-1)),
        json.dumps(span(ts=None)),
        json.dumps({"ph": "X", "name": "no time", "dur": 1}),
        json.dumps(span(dur="long")),
        json.dumps(span()).replace('"ts": 10', '"ts": NaN'),
        json.dumps(span()).replace('"dur": 5', '"dur": Infinity'),
        json.dumps(span()).replace('"ts": 10', '"ts": 1e300'),
        '{"name": "no kind"}',
        "{}",
        "null",
        '"text"',
        "[1, 2]",
    ]
    path.write_text(f'{{"traceEvents": [{good}, {", ".join(bad)}, {good}]}}')
    trace = read_trace(path)
    assert len(trace.spans) == 2
    assert trace.n_dropped_events == len(bad)


def test_events_that_are_no_spans_are_no_rows_and_no_faults(tmp_path: Path) -> None:
    others = [{"ph": ph, "name": ph, "ts": 1, "pid": 9, "tid": 9} for ph in "sftiICPNODbne"]
    pairs = [{"ph": ph, "name": "pair", "ts": 1, "pid": 9, "tid": 9} for ph in "BE"]
    trace = written(tmp_path, [*others, span(), *pairs])
    assert len(trace.spans) == 1
    assert trace.n_dropped_events == 0
    assert trace.n_unpaired_events == 2
    assert trace.origin_us == 10.0  # of the earliest row, not of what is left out


def test_quoted_numbers_and_missing_parts_are_read(tmp_path: Path) -> None:
    trace = written(
        tmp_path,
        [
            span(
                cat="cuda_runtime",
                ts="10.5",
                dur="1",
                args={"correlation": "7", "External id": None},
            ),
            {"ph": "X", "name": "bare", "ts": 20},
        ],
    )
    assert trace.spans.start_ns.tolist() == [0, 9_500]
    assert trace.spans.end_ns.tolist() == [1_000, 9_500]
    assert trace.spans.correlation.tolist() == [7, ABSENT]
    assert trace.spans.category.tolist() == [Category.RUNTIME, Category.OTHER]
    assert (trace.base_time_ns, trace.devices, trace.rank, trace.n_ranks) == (0, (), None, None)
    assert not trace.has_accelerator


def test_ids_too_large_for_their_column_still_join(tmp_path: Path) -> None:
    huge = 2**64 - 5
    spans = written(
        tmp_path,
        [
            span("launch", "cuda_runtime", args={"correlation": huge, "stream": "(nil)"}),
            span("kernel", "kernel", args={"correlation": huge, "stream": 2**40 + 7, "device": 0}),
        ],
    ).spans
    assert spans.correlation[0] == spans.correlation[1] != ABSENT


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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run"])
def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, name: str, packed: bool) -> None:
    text = json.dumps({"traceEvents": [span()]}).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if packed else text)
    assert len(read_trace(path).spans) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_as_a_file(tmp_path: Path, packed: bool) -> None:
    text = json.dumps({"traceEvents": [span()] * 5000}).encode()
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = gzip.compress(text) if packed else text
    writer = threading.Thread(target=path.write_bytes, args=(content,))
    writer.start()
    assert len(read_trace(path).spans) == 5000
    writer.join()


def test_gzip_of_several_members_and_padding_is_one_text(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [span()] * 9}).encode()
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]) + b"\0" * 512)
    assert len(read_trace(path).spans) == 9


@pytest.mark.parametrize("prefix", ["", "\ufeff", " \n\n"])
def test_a_bare_list_of_events_is_a_trace(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(prefix + json.dumps([span(), span()]) + "\n", encoding="utf-8")
    assert len(read_trace(path).spans) == 2


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"traceEvents" :[ ] , "a": 1}'])
def test_a_trace_without_events_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    trace = read_trace(path)
    assert len(trace.spans) == 0
    assert (trace.names, trace.threads, trace.origin_us) == ((), (), 0.0)


def test_names_with_half_a_surrogate_pair_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([span("bad \ud800 name")]))
    assert read_trace(path).names[0].encode()


def test_sizes_that_no_memory_has_are_not_recorded(tmp_path: Path) -> None:
    sizes = {4096: 4096, 0: 0, -5: ABSENT, 1 << 50: ABSENT, (1 << 64) + 7: ABSENT, 10**400: ABSENT}
    copies = [span("Memcpy", "gpu_memcpy", ts=i, args={"bytes": n}) for i, n in enumerate(sizes)]
    assert written(tmp_path, copies).spans.bytes.tolist() == list(sizes.values())
    for memory in (-1, 10**400, "much", None):
        trace = written(tmp_path, [span()], deviceProperties=[{"totalGlobalMem": memory}])
        assert trace.devices[0].memory_bytes is None
    assert written(tmp_path, [span()], distributedInfo={"rank": -3}).rank is None


def test_peaks_of_devices_that_no_machine_has_are_left_out(tmp_path: Path) -> None:
    def peak(device: int, total: int) -> dict[str, Any]:
        args = {"Device Type": 1, "Device Id": device, "Total Allocated": total}
        return {"ph": "i", "name": "[memory]", "ts": 1, "args": args}

    events = [peak(0, 7), peak(1024, 8), peak(-1, 9), peak(0, 10**30), span()]
    found = written(tmp_path, events).memory_peaks
    assert [(one.device, one.allocated_bytes) for one in found] == [(0, 7)]


def test_events_that_last_a_hundred_years_in_all_are_no_trace(tmp_path: Path) -> None:
    """So that no sum of lengths, whichever rows it takes, leaves 64 bits."""
    year_us = 365 * 86_400e6
    assert len(written(tmp_path, [span(dur=70 * year_us)] * 2).spans) == 2
    with pytest.raises(TraceError, match="last more than a hundred years in all"):
        written(tmp_path, [span(dur=70 * year_us)] * 3)


def test_a_trace_says_how_large_its_text_is(tmp_path: Path) -> None:
    """Of every kind of event; what writing it anew takes depends on that."""
    flows = [{"ph": "s", "id": i} for i in range(5)]
    path = tmp_path / "run.json"
    trace = written(tmp_path, [span(), *flows])
    assert (trace.text.n_bytes, trace.text.n_events) == (path.stat().st_size, 6)
    assert trace.text.is_strict
    assert not written(tmp_path, [span(dur="x"), *flows]).text.is_strict
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(path).text.n_bytes == len(gzip.decompress(path.read_bytes()))


def test_looks_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    sound: dict[str, Any] = {
        "marks": ["ProfilerStep#0"],
        "places": [["train.py", 31, "f"], ["train.py", 10**400, "f"], ["train.py", 0, "f"]],
        "looks": [[0, 5, 0], [0, 5, 1], [0, 5, 2], [1, 5, 0], [0, -1, 0]],
    }
    (look,) = written(tmp_path, [span()], loaderdoctorLooks=sound).looks
    assert (look.mark, look.after_ns, look.line) == ("ProfilerStep#0", 5, 31)
    nonsense: tuple[Any, ...] = ({**sound, "\ud800": 1}, {**sound, "marks": [1]}, [], "x", None)
    for broken in nonsense:
        assert written(tmp_path, [span()], loaderdoctorLooks=broken).looks == ()
