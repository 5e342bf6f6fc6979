"""Trace events as the file has them: only the fields we read, decoded strictly, else leniently.

Decoding is by msgspec in its lax mode (`"7"` for 7 is accepted, as some writers quote numbers).
A batch that it refuses is decoded again one event at a time: what can't be read there takes its
default, and an event without a usable `ts` is dropped later, and counted.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from loaderdoctor.trace.columns import ABSENT, Category

Buffer = bytes | bytearray | memoryview


class Args(msgspec.Struct, frozen=True, gc=False):
    """The `args` of an event. Not collected by gc: batches are large, short-lived and acyclic."""

    correlation: int = ABSENT
    external_id: int = msgspec.field(default=ABSENT, name="External id")
    device: int = ABSENT
    stream: int | str = ABSENT  # text, an address, in runtime calls of ROCm
    bytes: int = ABSENT
    name: str = ""  # metadata events: the name given to a thread or process


NO_ARGS = Args()


# Kinds of events of the Chrome trace format: complete X, metadata M, begin B and end E, and those
# without use for us: flows, instants, counters, samples, objects, asynchronous events, ... A closed
# set decodes to strings that exist already (8 % of the decoding time); "" stands for any other.
# fmt: off
Phase = Literal[
    "", "X", "M", "B", "E", "s", "t", "f", "i", "I", "C", "P", "N", "O", "D", "b", "n", "e", "S",
    "T", "p", "F", "R", "c", "(", ")", "V", "v", "a",
]
# fmt: on


class Event(msgspec.Struct, frozen=True, gc=False):
    """One element of `traceEvents`. Times in microseconds; NaN where the file has none."""

    ph: Phase = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = math.nan
    dur: float = 0.0
    args: Args = NO_ARGS


# Names by torch >= 1.8 and by tools that write the TensorBoard plugin's dialect, lower case
# (early versions of torch wrote `Kernel`, and `gpu_user_Annotation`). Runtime and driver
# categories of all back ends end alike: cuda_runtime (ROCm's hip calls too), xpu_runtime, ...
_CATEGORIES = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "gpu_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "dataloader_worker": Category.WORKER,
}


HOST_CATEGORIES = frozenset(
    [
        Category.CPU_OP,
        Category.USER_ANNOTATION,
        Category.RUNTIME,
        Category.PYTHON,
        Category.WORKER,
    ]
)


def category_of(cat: str) -> Category:
    """The category that a file's `cat` stands for; OTHER for the ones we have no use for."""
    cat = cat.lower()
    if cat.endswith(("_runtime", "_driver")):
        return Category.RUNTIME
    return _CATEGORIES.get(cat, Category.OTHER)


decode_strictly: Callable[[Buffer], list[Event]] = msgspec.json.Decoder(
    list[Event], strict=False
).decode


def decode_leniently(data: Buffer) -> list[Event]:
    """Events of a JSON array of anything, one `Event` per element; unreadable parts are defaults.

    Accepts what torch has been seen to write beyond JSON: NaN, infinities, raw control characters.
    Raises ValueError (json.JSONDecodeError, UnicodeDecodeError, over-long numbers), RecursionError.
    """
    return [_event(item) for item in json.loads(bytes(data).decode(), strict=False)]


def printable(text: str) -> str:
    """The text with what no encoding can hold (half a surrogate pair) replaced."""
    return text.encode(errors="replace").decode()


def _event(item: Any) -> Event:
    if not isinstance(item, dict):
        return Event()
    fields = _readable(item, _EVENT_FIELDS)
    if isinstance(item.get("args"), dict):
        fields["args"] = Args(**_readable(item["args"], _ARGS_FIELDS))
    if "dur" in item and "dur" not in fields:
        fields["dur"] = math.nan  # a duration that is no number is not a duration of 0
    return Event(**fields)


# Field, its key in the file, its type.
Fields = tuple[tuple[str, str, Any], ...]
_ARGS_FIELDS: Fields = tuple((f.name, f.encode_name, f.type) for f in msgspec.structs.fields(Args))
_EVENT_FIELDS: Fields = tuple(
    (f.name, f.encode_name, f.type) for f in msgspec.structs.fields(Event) if f.name != "args"
)


def _readable(item: dict[str, Any], fields: Fields) -> dict[str, Any]:
    found = {}
    for name, key, kind in fields:
        if key in item:
            with contextlib.suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(item[key], kind, strict=False)
    return found
