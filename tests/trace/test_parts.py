"""Reading a file in parts, by processes of their own, gives what reading it in one gives."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from loaderdoctor.errors import TraceError
from loaderdoctor.trace import parts, read_trace
from loaderdoctor.trace.columns import Trace
from loaderdoctor.trace.parts import Parts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parts are read on Linux only")
RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*.json.gz"))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MIN_PART_BYTES", 2_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def assert_equal(ours: Trace, theirs: Trace) -> None:
    for column in fields(ours.spans):
        mine, other = getattr(ours.spans, column.name), getattr(theirs.spans, column.name)
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other), column.name
    assert (ours.kernel_shapes is None) == (theirs.kernel_shapes is None)
    if ours.kernel_shapes is not None and theirs.kernel_shapes is not None:
        for column in fields(ours.kernel_shapes):
            mine = getattr(ours.kernel_shapes, column.name)
            other = getattr(theirs.kernel_shapes, column.name)
            assert np.array_equal(mine, other, equal_nan=True), column.name
    for part in fields(ours):
        if part.name not in ("spans", "kernel_shapes"):
            assert getattr(ours, part.name) == getattr(theirs, part.name), part.name


def in_one(path: Path) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        return read_trace(path)


def event(n: int, name: str = "aten::mm", **fields: Any) -> dict[str, Any]:
    cat = "kernel" if n % 3 else "cpu_op"
    args = {"correlation": n, "External id": n, "device": 0, "stream": n % 5}
    place = {"pid": n % 4, "tid": f"thread {n % 7}"}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": n, "dur": 2, "args": args, **fields}


def written(folder: Path, events: list[Any], **after: Any) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps({"host_name": "h", "traceEvents": events, **after}))
    assert Parts.of(path, 1 << 30) is not None
    return path


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many later parts each read took over."""
    taken: list[int] = []
    append_to = Parts.append_to

    def counted(self: Parts, *args: Any) -> None:
        taken.append(len(self._later))
        append_to(self, *args)

    monkeypatch.setattr(Parts, "append_to", counted)
    return taken


@pytest.mark.parametrize("path", RECORDED[::4], ids=lambda path: path.name.split(".")[0])
def test_recorded_traces_read_alike(path: Path, tmp_path: Path, merged: list[int]) -> None:
    plain = tmp_path / "run.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert_equal(read_trace(plain), in_one(plain))
    assert merged == [3]


def test_names_threads_and_metadata_of_all_parts_are_joined(
    tmp_path: Path, merged: list[int]
) -> None:
    def thread_name(tid: int, name: str) -> dict[str, Any]:
        where = {"pid": 1, "tid": f"thread {tid}"}
        return {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}

    events = [event(n, f"op {n % 11}") for n in range(60)]
    events[10:10] = [thread_name(1, "early"), {"ph": "B"}, {"name": "no kind"}]
    events[50:50] = [thread_name(1, "late"), {"ph": "E"}, event(0, dur=-1)]
    path = written(tmp_path, events, distributedInfo={"rank": 3}, tail=[{"a": 1}, {"b": 2}])
    trace = read_trace(path)
    assert_equal(trace, in_one(path))
    assert merged == [3]
    assert (trace.rank, trace.n_dropped_events) == (3, 2)
    assert "late" in {thread.name for thread in trace.threads}


@pytest.mark.parametrize(
    "events",
    [
        [event(n, "},{" * 40 + '"}, {"ph": "X"') for n in range(60)],
        [event(n, extra=[{"a": [{"ts": 1}, {"ts": 2}]}, {"ph": "X"}] * 20) for n in range(60)],
        [event(n, args={"list": [{"ph": "X", "ts": n}, {"ph": "X"}] * 20}) for n in range(60)],
    ],
    ids=["seams in strings", "lists in events", "lists in args"],
)
def test_wrong_guesses_change_nothing(events: list[Any], tmp_path: Path) -> None:
    path = written(tmp_path, events)
    assert_equal(read_trace(path), in_one(path))


def test_seams_in_what_follows_the_list_are_no_events(tmp_path: Path) -> None:
    others = [{"ph": "X", "ts": n, "dur": 1} for n in range(400)]
    path = written(tmp_path, [event(n) for n in range(3)], others=others)
    assert len(read_trace(path).spans) == 3


@pytest.mark.parametrize("damage", ["cut", "in the first part", "in the last part"])
def test_what_is_wrong_is_said_as_by_one_reader(damage: str, tmp_path: Path) -> None:
    path = written(tmp_path, [event(n) for n in range(100)])
    text = bytearray(path.read_bytes())
    if damage == "cut":
        del text[-300:]
    else:
        text[len(text) * (1 if "first" in damage else 9) // 10] = ord("\\")
    path.write_bytes(text)
    with pytest.raises(TraceError) as alone:
        in_one(path)
    with pytest.raises(TraceError) as together:
        read_trace(path)
    assert str(together.value) == str(alone.value)


def no_process() -> int:
    raise OSError("no more processes")


@pytest.mark.parametrize("failure", ["fork", "child"])
def test_a_part_that_no_process_reads_is_read_here(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: list[int]
) -> None:
    path = written(tmp_path, [event(n) for n in range(100)])
    expected = in_one(path)
    if failure == "fork":
        monkeypatch.setattr(os, "fork", no_process)
    else:
        monkeypatch.setattr(parts, "_send_part", lambda *_: os._exit(1))
    assert_equal(read_trace(path), expected)
    assert merged == [0]


def children() -> set[int]:
    """Child processes of this one, those that ended and were not waited for included."""
    return {child.pid for child in psutil.Process().children()}


def test_no_process_outlives_a_read(tmp_path: Path) -> None:
    before = children()
    path = written(tmp_path, [event(n) for n in range(100)])
    read_trace(path)
    path.write_text(path.read_text()[:-200])
    with pytest.raises(TraceError):
        read_trace(path)
    assert children() <= before, "a process of the reader is left, running or not waited for"


def test_gzip_pipes_and_threaded_programs_are_read_in_one(tmp_path: Path) -> None:
    path = written(tmp_path, [event(n) for n in range(100)])
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(os.urandom(20_000)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert Parts.of(packed, 1 << 30) is None
    assert Parts.of(pipe, 1 << 30) is None
    assert Parts.of(path, 10) is None  # over the limit: refused by the ordinary reader
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert Parts.of(path, 1 << 30) is None
    finally:
        done.set()
        other.join()
