"""Mutates traces with an idea of what they are: events, fields, numbers, names; text; gzip.

`Mutator.mutate` is a pure function of its input and the seeded `random.Random`. The text is split
into events by decoding it where that is possible; what no longer decodes is mutated as bytes.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Doc = dict[str, Any]
Event = dict[str, Any]

# As written in JSON: what Python's encoder would not write is put in by text.
RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1e308",
    "-0.0",
    "0",
    "-1",
    "1",
    "null",
    "true",
    "false",
    '""',
    "[]",
    "{}",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551616",
    "4e15",
    "4.000001e15",
    "-4e15",
    "5e-324",
    "1" * 400,
    "0." + "3" * 300,
    '"7"',
    '"1e5"',
    '"-1"',
    '"NaN"',
    "2147483648",
    "-2147483649",
    '"\\ud800"',
    '"\\u0000"',
    '[[["x"]]]',
    '{"a":{"b":{}}}',
    '"0x7f3a"',
    "1.5",
    "-1e-300",
)
HOSTILE = (
    "[red]bold[/red]",
    "[/]",
    "[link=http://x]y[/link]",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "a\u202eb\u2066c",
    "<script>alert(1)</script>",
    '"><img src=x onerror=1>',
    "{{ 7*7 }}",
    "a\nb\r\nc",
    "\x00\x01\x7f\x9b31m",
    "\ud800",
    "\u2028\u2029",
    "%s%n{0}",
    "../../etc",
    "x" * 3000,
    "\U0001f600" * 50,
    "\u0301" * 200,
    "=cmd|' /C calc'!A0",
)
NAMES = (
    "ProfilerStep#0",
    "ProfilerStep#1",
    "ProfilerStep#99999999999999999999",
    "ProfilerStep#-1",
    "ProfilerStep#",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#SGD.zero_grad",
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoH (Device -> Pageable)",
    "Memcpy DtoD",
    "cudaMemcpyAsync",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "gloo:all_reduce",
    "c10d::allreduce_",
    "aten::to",
    "aten::item",
    "aten::_local_scalar_dense",
    "Memset (Device)",
    "PyTorch Profiler (0)",
    "torch/utils/data/dataloader.py(735): __next__",
    "nccl:all_reduce",
    "nccl:_all_gather_base",
    "torch/utils/data/dataloader.py(628): _get_iterator",
    "DataLoader worker 0 (pid 7)",
    "train.py(99999999999999999999): f",
    "train.py(" + "7" * 5000 + "): f",
    "a.py(3): \x1b[31mg",
    "train.py(12): main",
    "Pin memory thread",
    "nn.Module: Linear_0",
    "<built-in method x>",
    "autograd::engine::evaluate_function: AddBackward0",
    "cudaMemcpy",
    "hipMemcpyAsync",
)
CATEGORIES = (
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_user_annotation",
    "python_function",
    "dataloader_worker",
    "overhead",
    "fwdbwd",
    "ac2g",
    "Kernel",
    "xpu_runtime",
    "",
    "operator",
    "Trace",
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS = ("External id", "device", "stream", "correlation", "bytes", "name", "Python id")
PHASES = ("X", "M", "B", "E", "s", "f", "i", "C", "P", "", "Y", "XX")
HEAD = (
    "schemaVersion",
    "deviceProperties",
    "baseTimeNanoseconds",
    "distributedInfo",
    "host_name",
    "traceEvents",
    "traceName",
    "record_shapes",
    "with_stack",
)
OTHERS = (
    b"",
    b" ",
    b"{}",
    b"[]",
    b"null",
    b"0",
    b'""',
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b'{"traceEvents":null}',
    b'{"traceEvents":{}}',
    b'{"traceEvents":"x"}',
    b'{"traceEvents":[]}',
    b'{"traceEvents":[null,1,"x",[],{}]}',
    b'{"schema":"loaderdoctor.report/1","command":"analyze"}',
    b'[{"name":"a","ph":"B","ts":1,"pid":1,"tid":1},{"ph":"E","ts":2,"pid":1,"tid":1}]',
    b'{"a":{"traceEvents":[]},"traceEvents":[{"ph":"X","ts":1,"dur":1}]}',
    b'{"traceEvents":[{"ph":"X","ts":0,"dur":0}],"traceEvents":[{"ph":"X","ts":5,"dur":5}]}',
    b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"C","ts":0,"args":{"v":1}}],"otherData":{}}',
)
# Marks the place of a raw JSON value in encoded text.
_MARK = "\u2603raw"
_MARKS = re.compile(r'"(?:\u2603|\\u2603)raw(\d+)\."')
_BARE = "\u2603list"  # a document that is written as its list of events only


@dataclass(slots=True)
class Mutator:
    """Mutations of one kind of input. `large` lets rare ones make megabytes."""

    rng: random.Random
    seeds: Sequence[bytes]
    large: bool = True
    max_bytes: int = 1 << 20

    def mutate(self, data: bytes) -> bytes:
        """Another input, like `data`."""
        rng = self.rng
        if rng.random() < 0.004:
            data = rng.choice(OTHERS)
        doc = _decoded(data)
        if doc is not None and rng.random() < 0.85:
            for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
                with suppress(OverflowError):  # a number beyond floats, times a factor
                    rng.choice(_STRUCTURED)(self, doc)
            data = self.text(doc.get(_BARE, doc))
        elif doc is not None:
            data = self.text(doc.get(_BARE, doc))
        if rng.random() < (0.2 if doc is not None else 0.8):
            for _ in range(rng.choice((1, 1, 2, 4))):
                data = rng.choice(_TEXTUAL)(self, data)
        if rng.random() < 0.03:
            data = rng.choice(_PACKED)(self, data)
        return data[: self.max_bytes] if not self.large else data

    def text(self, value: Any) -> bytes:
        """`value` as JSON, in one of several layouts; marks become raw text."""
        rng = self.rng
        style = rng.random()
        try:
            text = json.dumps(
                value,
                separators=(",", ":") if style < 0.8 else (" ,\n", " :\t"),
                ensure_ascii=style < 0.7,
                indent=1 if style > 0.95 else None,
            )
        except (ValueError, RecursionError):
            return b"[" * 5000
        text = _MARKS.sub(lambda found: RAW[int(found[1])], text)
        return text.encode("utf-8", "surrogatepass" if style < 0.72 else "replace")

    def value(self) -> Any:
        """Something that may stand in any field."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            return f"{_MARK}{rng.randrange(len(RAW))}."
        if kind < 0.75:
            return rng.choice(HOSTILE)
        if kind < 0.85:
            return rng.choice(
                (rng.randint(-(2**70), 2**70), rng.random() * 10 ** rng.randint(-20, 25))
            )
        if kind < 0.93:
            return rng.choice(NAMES)
        if kind < 0.97:
            return _nested(rng.choice((3, 30, 300)), rng.random() < 0.5)
        return {rng.choice(FIELDS): rng.choice((1, "x", None)) for _ in range(3)}

    def event(self, doc: Doc) -> Event | None:
        """One of the events."""
        events = doc.get("traceEvents")
        if not isinstance(events, list) or not events:
            return None
        found = self.rng.choice(events)
        return found if isinstance(found, dict) else None


# ---------------------------------------------------------------- events


def _set_field(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        event[m.rng.choice(FIELDS)] = m.value()


def _set_arg(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        if not isinstance(event.get("args"), dict):
            event["args"] = {}
        event["args"][m.rng.choice(ARGS)] = m.value()


def _set_many(m: Mutator, doc: Doc) -> None:
    """One field of a good part of the events, to one value."""
    field, value, some = m.rng.choice(FIELDS), m.value(), m.rng.random()
    for event in _dicts(doc):
        if m.rng.random() < some:
            event[field] = value


def _rename(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        event["name"] = m.rng.choice(m.rng.choice((NAMES, HOSTILE)))


def _rename_all(m: Mutator, doc: Doc) -> None:
    """One name everywhere replaced: all steps, all kernels of a kind..."""
    event = m.event(doc)
    if event is None:
        return
    old, new = event.get("name"), m.rng.choice(m.rng.choice((NAMES, HOSTILE)))
    for other in _dicts(doc):
        if other.get("name") == old:
            other["name"] = new


def _recategorise(m: Mutator, doc: Doc) -> None:
    event = m.event(doc)
    if event is None:
        return
    old, new = event.get("cat"), m.rng.choice(CATEGORIES)
    every = m.rng.random() < 0.4
    for other in _dicts(doc):
        if other is event or (every and other.get("cat") == old):
            other["cat"] = new


def _rephase(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        event["ph"] = m.rng.choice(PHASES)


def _drop_field(m: Mutator, doc: Doc) -> None:
    event = m.event(doc)
    if event:
        event.pop(m.rng.choice(list(event)))


def _drop_events(m: Mutator, doc: Doc) -> None:
    events = doc.get("traceEvents")
    if isinstance(events, list) and events:
        start = m.rng.randrange(len(events))
        del events[start : start + m.rng.choice((1, 3, 10, len(events) // 2 + 1))]


def _drop_kind(m: Mutator, doc: Doc) -> None:
    """All events of a name or a category."""
    event = m.event(doc)
    if event is None:
        return
    key = m.rng.choice(("name", "cat", "ph", "tid"))
    doc["traceEvents"] = [e for e in _dicts(doc) if e.get(key) != event.get(key)]


def _repeat(m: Mutator, doc: Doc) -> None:
    """An event many times, in place or one after the other."""
    event = m.event(doc)
    if event is None:
        return
    n = m.rng.choice((1, 2, 10, 100, 1000) if m.rng.random() < 0.1 else (1, 2, 10))
    if m.large and m.rng.random() < 0.0005:
        n = 100_000
    step = m.rng.choice((0, 0.001, 1, 1000))
    for i in range(n):
        copy = dict(event)
        if step and isinstance(copy.get("ts"), int | float):
            copy["ts"] += i * step
        if m.rng.random() < 0.5 and isinstance(copy.get("name"), str) and "#" in copy["name"]:
            copy["name"] = f"{copy['name'].partition('#')[0]}#{i}"
        doc["traceEvents"].append(copy)


def _reorder(m: Mutator, doc: Doc) -> None:
    events = doc.get("traceEvents")
    if isinstance(events, list):
        m.rng.choice((m.rng.shuffle, list.reverse))(events)


def _swap(m: Mutator, doc: Doc) -> None:
    a, b = m.event(doc), m.event(doc)
    field = m.rng.choice(FIELDS)
    if a is not None and b is not None and field in a and field in b:
        a[field], b[field] = b[field], a[field]


def _retime(m: Mutator, doc: Doc) -> None:
    """All times scaled, shifted, or cut to whole units."""
    key = m.rng.choice(("ts", "dur", "both"))
    factor = m.rng.choice((0.0, -1.0, 1e-9, 1e3, 1e9, 1e300, 1.0, 0.5))
    shift = m.rng.choice((0.0, -1e15, 4e15, -4961976428018.0, 1e-3, -1.0))
    for event in _dicts(doc):
        for name in ("ts", "dur") if key == "both" else (key,):
            if isinstance(event.get(name), int | float):
                event[name] = event[name] * factor + (shift if name == "ts" else 0.0)


def _retime_one(m: Mutator, doc: Doc) -> None:
    event, other = m.event(doc), m.event(doc)
    if event is None or other is None:
        return
    if isinstance(other.get("ts"), int | float):
        event["ts"] = other["ts"]
    if isinstance(event.get("dur"), int | float):
        event["dur"] *= m.rng.choice((0, 1e-3, 10, 1e4, 1e9, -1))


def _merge_ids(m: Mutator, doc: Doc) -> None:
    """Every thread one thread, every correlation one, every stream one."""
    key, value = (
        m.rng.choice(("pid", "tid", "correlation", "External id", "stream", "device")),
        m.value(),
    )
    for event in _dicts(doc):
        if key in event:
            event[key] = value
        elif isinstance(event.get("args"), dict) and key in event["args"]:
            event["args"][key] = value


def _cross(m: Mutator, doc: Doc) -> None:
    """Events of another trace."""
    other = _decoded(m.rng.choice(m.seeds)) if m.seeds else None
    if other is not None and isinstance(doc.get("traceEvents"), list):
        theirs = _dicts(other)
        start = m.rng.randrange(len(theirs) or 1)
        doc["traceEvents"] += theirs[start : start + m.rng.choice((1, 10, 100))]


def _steps(m: Mutator, doc: Doc) -> None:
    """Step marks of our own: many, overlapping, empty, of other threads."""
    events = doc.get("traceEvents")
    times = [e["ts"] for e in _dicts(doc) if type(e.get("ts")) in (int, float)]
    if not isinstance(events, list) or not times:
        return
    n = m.rng.choice((1, 2, 3, 10, 100))
    length = (max(times) - min(times)) / n
    pid, tid = m.rng.choice(_dicts(doc)).get("pid", 1), m.rng.choice(_dicts(doc)).get("tid", 1)
    wide = m.rng.choice((0.0, 0.5, 1.0, 1.0, 3.0))
    for i in range(n):
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{i}",
                "pid": pid,
                "tid": tid,
                "ts": min(times) + i * length,
                "dur": length * wide,
            }
        )


def _nest(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        event[m.rng.choice((*FIELDS, "zz"))] = _nested(
            m.rng.choice((5, 100, 900)), m.rng.random() < 0.5
        )


def _long_name(m: Mutator, doc: Doc) -> None:
    if (event := m.event(doc)) is not None:
        n = 10_000_000 if m.large and m.rng.random() < 0.001 else m.rng.choice((300, 5_000, 20_000))
        event["name"] = (
            m.rng.choice((str(event.get("name")), "n")) + m.rng.choice("x[\u202e\x1b<") * n
        )


def _metadata(m: Mutator, doc: Doc) -> None:
    event = m.event(doc)
    if event is not None:
        doc["traceEvents"].append(
            {
                "ph": "M",
                "name": m.rng.choice(("process_name", "thread_name", "x")),
                "pid": event.get("pid"),
                "tid": event.get("tid"),
                "ts": 0,
                "args": m.rng.choice(
                    ({"name": m.rng.choice(HOSTILE)}, {"name": m.value()}, m.value())
                ),
            }
        )


def _strange_event(m: Mutator, doc: Doc) -> None:
    events = doc.get("traceEvents")
    if isinstance(events, list):
        events.insert(m.rng.randrange(len(events) + 1), m.value())


# ---------------------------------------------------------------- around the events


def _set_head(m: Mutator, doc: Doc) -> None:
    key = m.rng.choice(HEAD)
    if key != "traceEvents" or m.rng.random() < 0.1:
        doc[key] = m.value()


def _head_parts(m: Mutator, doc: Doc) -> None:
    doc["distributedInfo"] = {
        "rank": m.value(),
        "world_size": m.value(),
        "backend": m.rng.choice(HOSTILE),
    }
    doc["deviceProperties"] = [{"id": m.value(), "name": m.value(), "totalGlobalMem": m.value()}]


def _reorder_head(m: Mutator, doc: Doc) -> None:
    keys = list(doc)
    m.rng.shuffle(keys)
    for key in keys:
        doc[key] = doc.pop(key)


def _list_only(m: Mutator, doc: Doc) -> None:
    if isinstance(doc.get("traceEvents"), list) and m.rng.random() < 0.3:
        doc[_BARE] = doc["traceEvents"]


_STRUCTURED: tuple[Callable[[Mutator, Doc], None], ...] = (
    _set_field,
    _set_field,
    _set_field,
    _set_arg,
    _set_arg,
    _set_many,
    _rename,
    _rename,
    _rename_all,
    _recategorise,
    _recategorise,
    _rephase,
    _drop_field,
    _drop_events,
    _drop_events,
    _drop_kind,
    _repeat,
    _reorder,
    _swap,
    _swap,
    _retime,
    _retime_one,
    _retime_one,
    _merge_ids,
    _cross,
    _steps,
    _nest,
    _long_name,
    _metadata,
    _strange_event,
    _set_head,
    _head_parts,
    _reorder_head,
    _list_only,
)


# ---------------------------------------------------------------- text


def _truncate(m: Mutator, data: bytes) -> bytes:
    return data[: m.rng.randrange(len(data) + 1)]


def _flip(m: Mutator, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(m.rng.choice((1, 1, 4, 16))):
        changed[m.rng.randrange(len(changed))] = m.rng.choice(
            (m.rng.randrange(256), *b'{}[]",:\\ 0')
        )
    return bytes(changed)


def _insert(m: Mutator, data: bytes) -> bytes:
    at = m.rng.randrange(len(data) + 1)
    what = m.rng.choice(
        (
            b"\xff",
            b"\x00",
            b"\xc3",
            b"[" * 400,
            b"{",
            b"]",
            b"},{",
            b",",
            b'"',
            b"\\",
            b"\xed\xa0\x80",
            b"1e400",
            b"NaN",
            b'"traceEvents":[',
            b'"name":"n",',
            b'"ts":-1,',
            b'"ts":1e999,',
            b'"dur":-5,',
            b"/*",
            b"\x1b[31m",
            b"0" * 5000,
            m.rng.choice(OTHERS),
            m.rng.choice(RAW).encode(),
        )
    )
    return data[:at] + what + data[at:]


def _duplicate_key(m: Mutator, data: bytes) -> bytes:
    key = m.rng.choice(
        (b'"ts"', b'"dur"', b'"name"', b'"ph"', b'"args"', b'"traceEvents"', b'"pid"')
    )
    at = data.find(key, m.rng.randrange(len(data) + 1))
    if at < 0:
        return data
    return data[:at] + key + b":" + m.rng.choice(RAW).encode() + b"," + data[at:]


def _number(m: Mutator, data: bytes) -> bytes:
    """The value after a key, replaced as text."""
    key = m.rng.choice(
        (b'"ts":', b'"dur":', b'"correlation":', b'"bytes":', b'"tid":', b'"stream":')
    )
    at = data.find(key, m.rng.randrange(len(data) + 1))
    if at < 0:
        return data
    start = at + len(key)
    end = min((e for e in (data.find(c, start) for c in (b",", b"}")) if e >= 0), default=start)
    return data[:start] + m.rng.choice(RAW).encode() + data[end:]


def _remove(m: Mutator, data: bytes) -> bytes:
    start = m.rng.randrange(len(data) + 1)
    return data[:start] + data[start + m.rng.choice((1, 1, 7, 100, 2000)) :]


def _copy_within(m: Mutator, data: bytes) -> bytes:
    start = m.rng.randrange(len(data) + 1)
    piece = data[start : start + m.rng.choice((5, 80, 1000))]
    at = m.rng.randrange(len(data) + 1)
    return data[:at] + piece + data[at:]


def _encoding(m: Mutator, data: bytes) -> bytes:
    kind = m.rng.randrange(8)
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind < 4:
        return data.decode("utf-8", "replace").encode(("utf-16", "utf-16-be", "utf-32")[kind - 1])
    return m.rng.choice(
        (b"\xff" + data, data + b"\n\n", b"\n \t" + data, data + data, data + b"\0")
    )


_TEXTUAL: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    _truncate,
    _truncate,
    _flip,
    _flip,
    _insert,
    _insert,
    _duplicate_key,
    _number,
    _number,
    _remove,
    _copy_within,
    _encoding,
)


# ---------------------------------------------------------------- gzip


def _pack(m: Mutator, data: bytes) -> bytes:
    return gzip.compress(data, 1)


def _members(m: Mutator, data: bytes) -> bytes:
    at = m.rng.randrange(len(data) + 1)
    between = m.rng.choice((b"", b"", b"\0" * 100, b"x"))
    return gzip.compress(data[:at], 1) + between + gzip.compress(data[at:], 1)


def _damaged(m: Mutator, data: bytes) -> bytes:
    packed = gzip.compress(data, 1)
    return m.rng.choice((_truncate, _flip, _insert, _remove))(m, packed)


def _bomb(m: Mutator, data: bytes) -> bytes:
    n = 20_000_000 if m.large and m.rng.random() < 0.02 else 200_000
    filling = m.rng.choice((b" ", b"0", b'{"ph":"X","ts":1},', b"["))
    at = m.rng.randrange(len(data) + 1)
    return gzip.compress(data[:at] + filling * (n // len(filling)) + data[at:], 1)


_PACKED: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    _pack,
    _members,
    _damaged,
    _damaged,
    _bomb,
)


# ---------------------------------------------------------------- helpers


def _decoded(data: bytes) -> Doc | None:
    """A trace as an object, a list of events wrapped in one; None where it does not decode."""
    if len(data) > 1 << 20:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list):
        return {"traceEvents": value}
    return value if isinstance(value, dict) else None


def _dicts(doc: Doc) -> list[Event]:
    events = doc.get("traceEvents")
    return [e for e in events if isinstance(e, dict)] if isinstance(events, list) else []


def _nested(depth: int, as_list: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if as_list else {"args": value}
    return value
