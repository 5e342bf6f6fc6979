"""Values no profiler should write: they are left out, cost no other row, and are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.errors import TraceError
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import ABSENT, Category
from tests.trace.events import memory, span, written


def test_unreadable_memory_events_cost_no_others(tmp_path: Path) -> None:
    odd = [memory(0, 1, "N/A", 5), memory(0, 1, 7, [1]), memory(0, 1, 3, 9)]
    trace = written(tmp_path, [span(), *odd])
    (peak,) = trace.memory_peaks
    assert (peak.allocated_bytes, peak.reserved_bytes) == (7, 9)
    assert len(trace.spans) == 1


def test_malformed_events_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    good = json.dumps(span())
    bad = [
        json.dumps(span(dur=-1)),
        json.dumps(span(ts=None)),
        json.dumps({"ph": "X", "name": "no time", "dur": 1}),
        json.dumps(span(dur="long")),
        json.dumps(span(dur=None)),
        json.dumps(span(tid=[1])),
        json.dumps(span(pid={})),
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


def test_what_begins_days_from_all_else_is_left_out_and_counted(tmp_path: Path) -> None:
    shape = {"blocks per SM": 2.0, "device": 0, "stream": 7}
    spans = [span(ts=5.1e12 + n, cat="kernel", args=shape) for n in range(9)]
    trace = written(tmp_path, [span(ts=-5e12, cat="kernel", args=shape), *spans])
    assert len(trace.spans) == 9 and trace.n_dropped_events == 1
    assert int(trace.spans.start_ns.max()) == 8000
    assert trace.kernel_shapes is not None and trace.kernel_shapes.blocks_per_sm.size == 9
    # What we make nothing of may have any time, as marks of the recording itself have.
    other = written(tmp_path, [span(ts=0.0, cat="Trace"), *spans])
    assert other.n_dropped_events == 0


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


def test_names_with_half_a_surrogate_pair_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([span("bad \ud800 name")]))
    assert read_trace(path).names[0].encode()


def test_sizes_that_no_memory_has_are_not_recorded(tmp_path: Path) -> None:
    sizes = {4096: 4096, 0: 0, -5: ABSENT, 1 << 50: ABSENT, (1 << 64) + 7: ABSENT, 10**400: ABSENT}
    copies = [span("Memcpy", "gpu_memcpy", ts=i, args={"bytes": n}) for i, n in enumerate(sizes)]
    assert written(tmp_path, copies).spans.bytes.tolist() == list(sizes.values())
    for n_bytes in (-1, 10**400, "much", None):
        trace = written(tmp_path, [span()], deviceProperties=[{"totalGlobalMem": n_bytes}])
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


def test_looks_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    sound: dict[str, Any] = {
        "marks": ["ProfilerStep#0"],
        "places": [["train.py", 31, "f"], ["train.py", 10**400, "f"], ["train.py", 0, "f"]],
        "looks": [[0, 5, 0], [0, 5, 1], [0, 5, 2], [1, 5, 0], [0, -1, 0]],
    }
    (look,) = written(tmp_path, [span()], loaderdoctorLooks=sound).stack_samples
    assert (look.mark, look.after_ns, look.line) == ("ProfilerStep#0", 5, 31)
    nonsense: tuple[Any, ...] = ({**sound, "\ud800": 1}, {**sound, "marks": [1]}, [], "x", None)
    for broken in nonsense:
        assert written(tmp_path, [span()], loaderdoctorLooks=broken).stack_samples == ()
