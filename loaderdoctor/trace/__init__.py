"""Any torch.profiler trace file -> typed columns, in one pass and little memory. Imports no torch.

Text is decompressed in blocks (`source`), cut between events (`event_batches`), decoded (`events`),
and each batch becomes arrays at once (`column_builder`): only one batch at a time exists as text or
objects. Of a large file several processes read a part each (`parts`), where they can.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.column_builder import ColumnBuilder
from loaderdoctor.trace.columns import Category, Device, LineStackSample, Spans, Text, Trace
from loaderdoctor.trace.event_batches import EventBatches
from loaderdoctor.trace.events import decode_strictly, printable
from loaderdoctor.trace.parts import Parts
from loaderdoctor.trace.source import (
    DEFAULT_MAX_BYTES,
    PART_MAX_BYTES,
    MemoryLimit,
    OnShare,
    blocks,
    not_a_trace,
)

# 61 bytes each, twice that while they are sorted: 6 GB. A gzip file of a few megabytes can hold as
# many tiny events, within any sensible limit on text.
MAX_ROWS = 50_000_000
# Beyond this, and with fewer sound events than malformed ones, it is something else: what is wrong
# is decoded one by one, which takes minutes for each gigabyte.
MAX_MALFORMED = 1_000_000
# 146 years: a trace of an hour with fifty threads in spans a hundred deep holds two.
MAX_TOTAL_NS = 1 << 62
# Of machines and devices.
MAX_LABEL_CHARS = 200
# A trace has some tens of threads and streams; loops over them are not made for millions.
MAX_THREADS = 10_000
# A few times what the measuring side leaves.
MAX_STACK_SAMPLES = 100_000
MAX_LINE = 1_000_000_000


def read_trace(
    path: Path,
    *,
    max_bytes: int | None = None,
    in_parts: bool = True,
    max_memory_bytes: int | None = None,
    kept_bytes: int | None = None,
    on_share: OnShare | None = None,
) -> Trace:
    """The trace in a .json or .json.gz file (recognised by content), of any device or of none.

    `max_bytes` bounds the text after decompression (None: 8 GiB), `max_memory_bytes` what the
    trace and its analysis will take (None: 50 million spans, whatever they take). Of a trace that
    takes more than `kept_bytes` the part that comes first in time is kept, as much as they hold,
    and the rest is counted (`n_later_events`); None: it is whole or refused. Without
    `in_parts` no process is started: for callers that read several traces at a time. `on_share` is
    told now and then how much of the file has been read (0…1). Raises
    TraceError, whose one line says what is wrong with which file, for everything that is not a
    whole trace.
    """
    memory = MemoryLimit(max_memory_bytes)
    kept = _n_kept(memory, kept_bytes)
    limit = max_bytes
    if limit is None:
        limit = DEFAULT_MAX_BYTES if kept is None else PART_MAX_BYTES
    if in_parts and not _takes_more(path, kept) and (parts := Parts.of(path, limit, memory)):
        with suppress(TraceError):  # of the whole, read below, positions and reasons are exact
            return _read(path, parts.blocks(on_share), parts, memory, None)
    return _read(path, blocks(path, limit, on_share=on_share), None, memory, kept)


# Spans that torch.profiler writes of itself, whatever it records.
_ABOUT_ITSELF = "PyTorch Profiler", "Record Window End", "Iteration Start"


def with_events(trace: Trace) -> Trace:
    """The trace itself. Raises TraceError where it holds no span that torch.profiler records.

    What other tools write in the same form (Chrome, VizTracer, TensorFlow) is no trace of ours.
    """
    n_spans, n = len(trace.spans), trace.n_dropped_events
    if (trace.spans.category != Category.OTHER).any():
        return trace
    if n_spans and not any(name.startswith(_ABOUT_ITSELF) for name in trace.names):
        raise not_a_trace(
            trace.source,
            f"none of its {n_spans:,} spans is an operator, a call of the runtime, a kernel or an "
            "annotation",
        )
    if not n_spans and (n_begun := trace.text.n_begun):
        raise not_a_trace(
            trace.source,
            f'it has no complete events ("ph": "X"), which torch.profiler writes: its {n_begun:,} '
            "spans are pairs of a begin and an end",
        )
    what = f" that can be read ({n} are malformed)" if n else ""
    raise TraceError(
        f"{trace.source}: no events{what}: nothing was recorded. Export the trace after at least "
        "one step under torch.profiler."
    )


# Fewer rows are too little to judge by: some 500 steps that launch 250 kernels are as many.
MIN_KEPT_ROWS = 500_000
# Text a row of a trace whose names are short (`launch_bound_tiny`, flows and all): 345 bytes.
TEXT_BYTES_PER_ROW = 345


def _n_kept(memory: MemoryLimit, kept_bytes: int | None) -> int | None:
    """How many rows may be kept; None where all are, or where too few would be left."""
    if kept_bytes is None:
        return None
    least = kept_bytes if memory.n_bytes is None else min(kept_bytes, memory.n_bytes)
    n_rows = MemoryLimit(least).n_rows
    return n_rows if n_rows >= MIN_KEPT_ROWS else None


def _takes_more(path: Path, kept: int | None) -> bool:
    """Whether more rows than may be kept are in this plain file, by its size.

    Then it is read in one: parts are read at a time, and none of them knows what is early.
    """
    size = path.stat().st_size if path.is_file() else 0
    return kept is not None and size > kept * TEXT_BYTES_PER_ROW


def _read(
    path: Path,
    text: Generator[bytes],
    parts: Parts | None,
    memory: MemoryLimit,
    kept: int | None,
) -> Trace:
    rows = ColumnBuilder()
    batches = EventBatches(
        path, text, decode_strictly, rows.decode_leniently, max_piece_bytes=memory.piece_bytes
    )
    try:
        with closing(text):
            for events in batches:
                rows.add(events)
                # Half of it, so that what follows is seldom more again.
                if kept is not None and rows.n_rows > kept and rows.keep_earliest(kept // 2):
                    continue
                _check_size(path, rows, memory)
        if parts is not None:
            parts.append_to(rows, batches.list_end)
            _check_size(path, rows, memory)
        spans, kernel_shapes, origin_us = rows.columns()
        if rows.until_ns is not None:
            spans = _without_cut_steps(spans, rows.names(), rows.until_ns - round(origin_us * 1000))
        _check_lengths(path, spans)
    except RecursionError:
        raise not_a_trace(path, "it is nested too deeply") from None
    except MemoryError:
        raise TraceError(
            f"{path}: needs more memory than there is. Profile fewer steps, or read it on a "
            "larger machine."
        ) from None
    about = batches.document
    host = about.get("host_name")
    group = about.get("distributedInfo")
    group = group if isinstance(group, dict) else {}
    return Trace(
        source=path,
        spans=spans,
        names=rows.names(),
        threads=rows.threads(),
        devices=_devices(about.get("deviceProperties")),
        origin_us=origin_us,
        base_time_ns=_count(about.get("baseTimeNanoseconds")) or 0,
        rank=_count(group.get("rank")),
        n_ranks=_count(group.get("world_size")),
        n_dropped_events=rows.n_dropped,
        host_name=printable(host, MAX_LABEL_CHARS) if isinstance(host, str) else None,
        n_memory_events=rows.n_memory_events,
        n_later_events=rows.n_later,
        kernel_shapes=kernel_shapes,
        memory_peaks=rows.memory_peaks(),
        stack_samples=line_stack_samples(about.get("loaderdoctorLooks")),
        text=Text(
            n_bytes=batches.n_bytes if parts is None else path.stat().st_size,
            n_events=rows.n_events,
            n_begun=rows.n_begun,
            is_strict=rows.is_strict,
        ),
    )


_STEP = "ProfilerStep#"


def _without_cut_steps(spans: Spans, names: tuple[str, ...], until_ns: int) -> Spans:
    """Less marks of steps that go on behind what was kept: they would look idle there."""
    step = np.fromiter((name.startswith(_STEP) for name in names), np.bool_, len(names))
    return spans.where(~(step[spans.name] & (spans.end_ns > until_ns)))


def _check_size(path: Path, rows: ColumnBuilder, memory: MemoryLimit) -> None:
    if not memory.holds(rows.n_rows, rows.other_bytes):
        raise TraceError(
            f"{path}: needs more than {memory} of memory, the limit for one trace. Profile fewer "
            "steps, or allow more with --max-memory."
        )
    if rows.n_dropped > max(MAX_MALFORMED, rows.n_rows):
        raise not_a_trace(
            path, f"of its events more than {MAX_MALFORMED / 1e6:.0f} million are malformed"
        )
    if rows.n_threads > MAX_THREADS:
        raise not_a_trace(path, f"it has more than {MAX_THREADS:,} threads")
    if rows.n_rows > MAX_ROWS:
        raise TraceError(
            f"{path}: holds more than {MAX_ROWS / 1e6:.0f} million spans, the limit "
            "for one trace. Profile fewer steps."
        )


def _check_lengths(path: Path, spans: Spans) -> None:
    """So that no sum of lengths, of whatever rows, leaves int64."""
    if float((spans.end_ns - spans.start_ns).sum(dtype=np.float64)) > MAX_TOTAL_NS:
        raise not_a_trace(path, "its events last more than a hundred years in all")


def _devices(properties: Any) -> tuple[Device, ...]:
    if not isinstance(properties, list):
        return ()
    devices = []
    for position, entry in enumerate(properties):
        if isinstance(entry, dict):
            index = _count(entry.get("id"))
            devices.append(
                Device(
                    index=position if index is None else index,
                    name=printable(str(entry.get("name", "unnamed device")), MAX_LABEL_CHARS),
                    memory_bytes=_count(entry.get("totalGlobalMem")),
                    compute_major=_count(entry.get("computeMajor")),
                )
            )
    return tuple(devices)


def _count(value: Any) -> int | None:
    """A whole number, also where the file quotes it; None for anything that counts nothing."""
    try:
        count = -1 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return count if 0 <= count < 1 << 63 else None


class _Written(msgspec.Struct):
    marks: list[str]
    places: list[tuple[str, int, str]]
    # mark, ns since it, place
    stack_samples: list[tuple[int, int, int]] = msgspec.field(name="looks")


def line_stack_samples(value: Any) -> tuple[LineStackSample, ...]:
    """The stack samples of a trace, as `loop_lines` of the measuring side leaves them there.

    Empty where it has none, or none that make sense.
    """
    try:
        written = msgspec.convert(value, _Written)
    except (msgspec.ValidationError, UnicodeEncodeError):  # half a surrogate pair as a key
        return ()
    marks, places = written.marks, written.places
    return tuple(
        LineStackSample(
            mark=marks[mark],
            after_ns=after_ns,
            file=printable(places[place][0]),
            line=places[place][1],
            function=printable(places[place][2]),
        )
        for mark, after_ns, place in written.stack_samples[:MAX_STACK_SAMPLES]
        if 0 <= mark < len(marks) and 0 <= place < len(places) and 0 <= after_ns < 1 << 62
        if 0 < places[place][1] < MAX_LINE
    )
