"""A trace in the dialect that TensorBoard's PyTorch profiler plugin counts correctly.

torch-tb-profiler 0.4.3, the last release, misreads what torch >= 2 writes, without any error:
it counts the steps' shadows on the GPU as steps, drops DataLoader spans that are annotations, and
drops the runtime calls that join kernels to steps. Every rewriting below answers one of these and
nothing else; all other events pass through byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from loaderdoctor.errors import UsageError
from loaderdoctor.report import atomic_writer
from loaderdoctor.report.traces.raw_trace import (
    RawTrace,
    gzip_writer,
    read_raw,
    write_raw,
    written_of,
)
from loaderdoctor.trace.source import OnShare

# (start, duration, pid, tid): microseconds on the file's own clock.
Wait = tuple[float, float, int, int]

BASELINE = "baseline"  # the run of the loop as it is; trials are `files.trial_run`
RANKS = "ranks"  # the run of a job: one worker for each rank
FILE_NAME = re.compile(r"[^.]+\.\d+\.pt\.trace\.json\.gz")
WAIT_NAME = "enumerate(DataLoader)#outside-next.__next__"

# Calls of the device runtime, in any back end's name: cuda_runtime, cuda_driver, xpu_runtime, ...
_RUNTIME = ("runtime", "driver")
# Categories the plugin places in its tree of host spans, where it wants an integer tid.
_HOST = frozenset({"cpu_op", "operator", "python", "python_function", "user_annotation"})
_STEP = re.compile(r"ProfilerStep#\d+")
_BATCH = ("enumerate(DataLoader)", "enumerate(DataPipe)")


class _Args(msgspec.Struct):
    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_torch1: Any = msgspec.field(name="external id", default=None)
    device: Any = None


class _Event(msgspec.Struct):
    """Only what decides how an event is written; any value where files disagree on the type."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: _Args | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_leniently = msgspec.json.Decoder(_Event, strict=False).decode
_decode_whole = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PluginTrace:
    """What was written: `n_steps` profiler steps; `n_dropped` events nothing could be made of."""

    n_events: int
    n_steps: int
    n_dropped: int


def write_plugin_trace(
    source: Path,
    target: Path,
    *,
    extra_waits: Sequence[Wait] = (),
    tracks: Sequence[Mapping[str, Any]] = (),
    on_share: OnShare | None = None,
) -> PluginTrace:
    """Write `source`, any torch.profiler trace, to `target` as the plugin understands it.

    `extra_waits` are times the training thread got a batch outside `__next__` (iterator creation,
    worker start-up); each becomes one or more spans that nest with what is there. `tracks` are
    complete trace events of ours (of workers), appended as they are; they must have a category
    the plugin does not know and an integer tid. Memory: that of `read_raw`.
    Raises TraceError for the source, UsageError for a name TensorBoard would not pick up.
    """
    if not FILE_NAME.fullmatch(target.name):
        raise UsageError(f"{target.name}: TensorBoard wants <worker>.<digits>.pt.trace.json.gz.")
    raw = read_raw(source)
    dialect = _Dialect(waits=extra_waits)
    with atomic_writer(target) as out, gzip_writer(out) as packed:
        n_events = write_raw(
            packed,
            raw.metadata,
            _rewritten(raw, dialect, tracks),
            on_written=written_of(len(raw.events), on_share),
        )
    return PluginTrace(n_events=n_events, n_steps=dialect.n_steps, n_dropped=dialect.n_dropped)


def _rewritten(
    raw: RawTrace, dialect: _Dialect, tracks: Sequence[Mapping[str, Any]]
) -> Iterator[msgspec.Raw | bytes]:
    for event in raw.events:
        written = dialect.event(event)
        if written is not None:
            yield written
    yield from dialect.held_back()
    for track in tracks:
        yield _encode(track)


@dataclass(slots=True)
class _Dialect:
    """Rewrites one event after the other; keeps only what the added waits need."""

    waits: Sequence[Wait]
    n_steps: int = 0
    n_dropped: int = 0
    _last_id: int = 0
    _step_threads: set[tuple[Any, Any]] = field(default_factory=set)
    _batches: list[tuple[tuple[Any, Any], msgspec.Raw | bytes]] = field(default_factory=list)
    _spans: dict[tuple[Any, Any], list[tuple[float, float]]] = field(init=False)

    def __post_init__(self) -> None:
        self._spans = {(pid, tid): [] for _, _, pid, tid in self.waits}

    def event(self, raw: msgspec.Raw) -> msgspec.Raw | bytes | None:
        """The event as the plugin wants it; None where it is dropped or held back."""
        text: msgspec.Raw | bytes = raw
        try:
            event = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                text = bytes(raw).decode("utf-8", "replace").encode()
                event = _decode_leniently(text)
                text = _changed(text, ts=event.ts, dur=event.dur)  # numbers that were quoted
            except msgspec.DecodeError:
                self.n_dropped += 1
                return None
        try:
            if event.ph != "X":
                return text if event.name is not None else _changed(text, name="")
            return self._span(event, text)
        except msgspec.DecodeError:  # in a field that we don't read
            self.n_dropped += 1
            return None

    def held_back(self) -> Iterator[msgspec.Raw | bytes]:
        """DataLoader spans, once the training thread is known, and the added waits."""
        for thread, text in self._batches:
            # Batches fetched by another thread (a background prefetcher) are no wait of the loop.
            waited = thread in self._step_threads or not self._step_threads
            try:
                yield _changed(text, cat="cpu_op" if waited else "user_annotation")
            except msgspec.DecodeError:
                self.n_dropped += 1
        for start, duration, pid, tid in self.waits:
            for a, b in nested(start, start + duration, self._spans[pid, tid]):
                # Not rounded: start + duration must be the very double that a span it touches ends
                # at, or they cross by one unit in the last place.
                self._last_id += 1
                yield _encode(
                    {
                        "ph": "X", "cat": "cpu_op", "name": WAIT_NAME, "pid": pid, "tid": tid,
                        "ts": a, "dur": b - a,
                        "args": {"External id": self._last_id},
                    }
                )  # fmt: skip

    def _span(self, event: _Event, text: msgspec.Raw | bytes) -> msgspec.Raw | bytes | None:
        if event.ts is None:
            self.n_dropped += 1
            return None
        name = event.name or ""
        category = (event.cat or "other").lower()
        changes: dict[str, Any] = {}
        if event.name is None:
            changes["name"] = name
        if event.cat is None:
            changes["cat"] = category
        if event.dur is None:
            changes["dur"] = 0
        external_id = event.args and (
            event.args.external_id
            if event.args.external_id is not None
            else event.args.external_id_torch1
        )
        if isinstance(external_id, int):
            self._last_id = max(self._last_id, external_id)
        thread = (_plain(event.pid), _plain(event.tid))
        if thread in self._spans:
            self._spans[thread].append((event.ts, event.ts + (event.dur or 0.0)))

        if category.endswith(_RUNTIME):
            changes["cat"] = "Runtime"
            if external_id is None:
                changes["args"] = {"External id": 0}
        elif category == "gpu_user_annotation":
            changes["cat"] = "gpu_annotation"
        elif category == "kernel":
            if not (event.args and isinstance(event.args.device, int)):
                changes["args"] = {"device": event.pid if isinstance(event.pid, int) else 0}
        elif category in _HOST:
            if name.startswith(_BATCH):
                self._batches.append((thread, _changed(text, **changes) if changes else text))
                return None
            if name.startswith("ProfilerStep#"):
                if _STEP.fullmatch(name):
                    self.n_steps += 1
                    self._step_threads.add(thread)
                else:  # the plugin reads a number there and gives the whole run up if there is none
                    changes["cat"] = "annotation"
        return _changed(text, **changes) if changes else text


def nested(
    start: float, end: float, spans: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """[start, end) cut where it would cross one of `spans`, so that every piece nests with all.

    Thread spans must be nested or disjoint: the plugin leaves crossing ones out of its tree.
    """
    cuts = {start, end}
    for a, b in spans:
        if a < start < b < end:
            cuts.add(b)
        elif start < a < end < b:
            cuts.add(a)
    at = sorted(cuts)
    return [(a, b) for a, b in pairwise(at) if b > a]


def _changed(text: msgspec.Raw | bytes, **changes: Any) -> bytes:
    """The event with these keys changed; those of `args` are added to its args."""
    event = _decode_whole(text)
    extra_args = changes.pop("args", None)
    event.update(changes)
    if extra_args:
        args = event.get("args")
        event["args"] = {**(args if isinstance(args, dict) else {}), **extra_args}
    return _encode(event)


def _plain(identity: Any) -> Any:
    """A process or thread id; None for what can't be one (a list)."""
    return identity if isinstance(identity, int | float | str) else None
