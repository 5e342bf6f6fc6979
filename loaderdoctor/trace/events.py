"""Trace events as the file has them: only the fields we read, decoded strictly, else leniently.

Decoding is by msgspec in its lax mode (`"7"` for 7 is accepted, as some writers quote numbers).
A batch that it refuses is decoded again one event at a time: what can't be read there takes its
default, and an event without a usable `ts` is dropped later, and counted. Names and threads are
numbered in the order first seen.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from enum import Enum
from sys import getsizeof
from typing import Any, Union

import msgspec

from loaderdoctor.trace.columns import ABSENT, Category
from loaderdoctor.trace.source import BYTES_PER_NAME

Buffer = bytes | bytearray | memoryview

# Names of kernels out of deep templates are a few thousand characters; people are shown less.
MAX_NAME_CHARS = 4000

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


def category_of(cat: str) -> Category:
    """The category that a file's `cat` stands for; OTHER for the ones we have no use for."""
    cat = cat.lower()
    if cat.endswith(("_runtime", "_driver")):
        return Category.RUNTIME
    return _CATEGORIES.get(cat, Category.OTHER)


class FileCategory(Enum):
    """`cat` by its usual spellings, which the decoder finds without making a string of each.

    `code` is the number of the Category; any other spelling is read as a member of the same code.
    """

    OTHER = ""
    CPU_OP = "cpu_op"
    USER_ANNOTATION = "user_annotation"
    CUDA_RUNTIME = "cuda_runtime"
    CUDA_DRIVER = "cuda_driver"
    KERNEL = "kernel"
    GPU_MEMCPY = "gpu_memcpy"
    GPU_MEMSET = "gpu_memset"
    GPU_USER_ANNOTATION = "gpu_user_annotation"
    PYTHON_FUNCTION = "python_function"
    DATALOADER_WORKER = "dataloader_worker"

    code: int

    def __init__(self, cat: str) -> None:
        self.code = int(category_of(cat))

    @classmethod
    def _missing_(cls, value: object) -> FileCategory | None:
        return _MEMBER_OF[category_of(value)] if isinstance(value, str) else None


_MEMBER_OF = {Category(member.code): member for member in FileCategory}


class Args(msgspec.Struct, frozen=True, gc=False):
    """The `args` of a span, in the order torch writes them: so they are found fastest.

    Not collected by gc: batches are large, short-lived and acyclic.
    """

    external_id: int = msgspec.field(default=ABSENT, name="External id")
    device: int = ABSENT
    stream: int | str = ABSENT  # text, an address, in runtime calls of ROCm
    correlation: int = ABSENT
    bytes: int = ABSENT
    # Of kernels, by the profiler's own reckoning from their launch.
    blocks_per_sm: float = msgspec.field(default=math.nan, name="blocks per SM")
    occupancy_percent: float = msgspec.field(default=math.nan, name="est. achieved occupancy %")


class Given(msgspec.Struct, frozen=True, gc=False):
    """The `args` of metadata."""

    name: str = ""  # given to a thread or process


class Memory(msgspec.Struct, frozen=True, gc=False):
    """The `args` of a memory event, with `profile_memory`: the allocator's totals after it."""

    reserved: int = msgspec.field(default=ABSENT, name="Total Reserved")
    allocated: int = msgspec.field(default=ABSENT, name="Total Allocated")
    device: int = msgspec.field(default=ABSENT, name="Device Id")
    device_type: int = msgspec.field(default=0, name="Device Type")  # 0: the CPU


NO_ARGS = Args()

# Elements of `traceEvents` are told apart by `ph`, their kind in the Chrome trace format, before
# anything else is decoded: of flows, a third of a trace, nothing is.


class Complete(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """A span. Times in microseconds; NaN where the file has none."""

    cat: FileCategory = FileCategory.OTHER
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = math.nan
    dur: float = 0.0
    args: Args = NO_ARGS


class Metadata(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """The name of a process or a thread, among others."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: Given = Given()


class Instant(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """A point in time; we use those named `[memory]`."""

    name: str = ""
    args: Memory = Memory()


class Unused(msgspec.Struct, frozen=True, gc=False):
    """Flows, counters, objects, spans whose begin and end are events (torch writes none), ..."""


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """Not an event, or of no known kind: what only the lenient decoder gives."""


Event = Complete | Metadata | Instant | Unused | Malformed

KINDS: dict[str, type[msgspec.Struct]] = {
    "X": Complete,
    "M": Metadata,
    "i": Instant,
    **{
        ph: msgspec.defstruct(
            "Unused", [], bases=(Unused,), tag_field="ph", tag=ph, frozen=True, gc=False
        )
        for ph in "BEstfICPNODbneSTpFRc()Vva"
    },
}

decode_strictly: Callable[[Buffer], list[Event]] = msgspec.json.Decoder(
    list[Union[tuple(KINDS.values())]],  # type: ignore[misc]  # noqa: UP007  # as many as listed
    strict=False,
).decode


def decode_leniently(data: Buffer) -> list[Any]:
    """Events of a JSON array of anything, one `Event` per element; unreadable parts are defaults.

    Accepts what torch has been seen to write beyond JSON: NaN, infinities, raw control characters.
    Raises ValueError (json.JSONDecodeError, UnicodeDecodeError, over-long numbers), RecursionError.
    """
    return [_event(item) for item in json.loads(bytes(data).decode(), strict=False)]


def printable(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """The text, not too long, with what no encoding can hold (half a surrogate pair) replaced."""
    return shortened(text, max_chars).encode(errors="replace").decode()


def shortened(text: str, max_chars: int) -> str:
    """The text, its middle left out where it is longer."""
    if len(text) <= max_chars:
        return text
    end = max_chars // 4
    return f"{text[: max_chars - end - 1]}…{text[-end:]}"


def _event(item: Any) -> msgspec.Struct:
    """An `Event`."""
    ph = item.get("ph") if isinstance(item, dict) else None
    kind = KINDS.get(ph) if isinstance(ph, str) else None
    if kind is None:
        return Malformed()
    fields = _readable(item, _FIELDS[kind])
    if isinstance(item.get("args"), dict):
        if kind is Complete:
            fields["args"] = Args(**_readable(item["args"], _FIELDS[Args]))
        elif kind is Metadata:
            fields["args"] = Given(**_readable(item["args"], _FIELDS[Given]))
        elif kind is Instant:
            fields["args"] = Memory(**_readable(item["args"], _FIELDS[Memory]))
    if kind is Complete and any(
        key in item and key not in fields and (key == "dur" or item[key] is not None)
        for key in ("dur", "pid", "tid")
    ):
        fields["dur"] = math.nan  # no number is not 0, nor what is no thread one without a name
    return kind(**fields)


# Field, its key in the file, its type.
Fields = tuple[tuple[str, str, Any], ...]
_DECODED: list[type[msgspec.Struct]] = [Args, Given, Memory, *KINDS.values()]
_FIELDS: dict[type[msgspec.Struct], Fields] = {
    kind: tuple(
        (f.name, f.encode_name, f.type) for f in msgspec.structs.fields(kind) if f.name != "args"
    )
    for kind in _DECODED
}


def _readable(item: dict[str, Any], fields: Fields) -> dict[str, Any]:
    found = {}
    for name, key, kind in fields:
        if key in item:
            with contextlib.suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(item[key], kind, strict=False)
    return found


class _Ids(dict[Any, int]):
    """Numbers things in the order first seen."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Names(_Ids):
    """Names, which may be many and long."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def __missing__(self, key: Any) -> int:
        self.n_bytes += BYTES_PER_NAME + 2 * getsizeof(key)
        return super().__missing__(key)


class Threads:
    """Numbers threads in the order first seen; by pid, then tid, as ints are found fastest."""

    def __init__(self) -> None:
        self.keys: list[tuple[int | str, int | str]] = []
        self._numbers: dict[int | str, dict[int | str, int]] = {}

    def of(self, rows: list[Complete]) -> list[int]:
        """The number of each row's thread."""
        numbers = self._numbers
        try:
            return [numbers[e.pid][e.tid] for e in rows]
        except KeyError:
            for pid, tid in dict.fromkeys((e.pid, e.tid) for e in rows):
                self.number(pid, tid)
            return [numbers[e.pid][e.tid] for e in rows]

    def number(self, pid: int | str, tid: int | str) -> int:
        """The number of a thread, a new one where it was not seen before."""
        of_process = self._numbers.setdefault(pid, {})
        if tid not in of_process:
            of_process[tid] = len(self.keys)
            self.keys.append((pid, tid))
        return of_process[tid]
