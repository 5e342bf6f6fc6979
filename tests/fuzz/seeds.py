"""Seeds for the fuzzer: real traces cut to a few kilobytes that still hold every kind of event.

A cut keeps what decides a report (step marks, fetches, optimizer spans, copies and kernels with the
calls that launched them) of the trace's first steps, and as many other events as fit.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parents[2] / "traces"
MARKS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")
N_STEPS = 8  # a verdict needs five; an end may be cut off
# What a lean cut keeps beside `ph`, `cat`, `name`, times and ids: what the reader reads.
ABOUT = ("deviceProperties", "baseTimeNanoseconds", "traceName")
OF_DEVICE = ("id", "name", "totalGlobalMem", "computeMajor")
ARGS = (
    "External id", "device", "stream", "correlation", "bytes", "name",
    "blocks per SM", "est. achieved occupancy %",
)  # fmt: skip


def cut(path: Path, max_bytes: int, *, lean: bool = False) -> bytes:
    """A trace of at most `max_bytes` out of a large one; valid, compact JSON.

    A `lean` one holds more events in as many bytes, without what nobody reads.
    """
    whole = json.loads(gzip.decompress(path.read_bytes()))
    if lean:
        whole = _lean(whole)
    events = [e for e in whole["traceEvents"] if isinstance(e, dict)]
    spans = [e for e in events if e.get("ph") == "X"]
    steps = sorted(
        (
            e
            for e in spans
            if e["name"].startswith("ProfilerStep") and e["cat"] != "gpu_user_annotation"
        ),
        key=lambda e: e["ts"],
    )[:N_STEPS]
    begin, end = (steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]) if steps else (0, 9e18)
    inside = [e for e in spans if begin <= e["ts"] <= end]
    calls = {
        e["args"]["correlation"]: e
        for e in inside
        if e.get("cat") == "cuda_runtime" and "correlation" in e.get("args", {})
    }
    marked = [e for e in inside if e["name"].startswith(MARKS)]
    shadows = [e for e in marked if e["cat"] == "gpu_user_annotation"]
    marks = [e for e in marked if e["cat"] != "gpu_user_annotation"]
    named = [e for e in events if e.get("ph") == "M"][:8]
    copies = [e for e in inside if e.get("cat") in ("gpu_memcpy", "gpu_memset")]
    kernels = [e for e in inside if e.get("cat") == "kernel"]
    rest = [e for e in inside if e.get("cat") == "cpu_op"]
    flows = [e for e in events if e.get("ph") in ("s", "f")][:6]
    about = {key: value for key, value in whole.items() if key != "traceEvents"}
    room = max_bytes - len(_text(about)) - 64
    groups = (
        (0.45, sorted(marks, key=lambda e: not e["name"].startswith("ProfilerStep"))),
        (0.05, shadows[:2]),
        (0.05, named),
        (0.15, _longest(copies, 24)),
        (0.2, _longest(kernels, 40)),
        (0.05, flows),
        (1.0, _spread(rest, 400)),
    )
    kept: list[dict[str, Any]] = []
    seen: set[int] = set()
    free = 0.0
    for share, group in groups:  # each its share of the room, and what those before left of theirs
        free = room * share + free if share < 1 else room - len(_text(kept))
        for event in group:
            call = calls.get(event.get("args", {}).get("correlation"))
            both = [e for e in (call, event) if e is not None and id(e) not in seen]
            size = sum(len(_text(e)) + 1 for e in both)
            if size <= free:
                free -= size
                seen.update(map(id, both))
                kept += both
    kept.sort(key=lambda e: e.get("ts", 0))
    return _text({**about, "traceEvents": kept})


def seeds(max_bytes: int, *, lean: bool = False) -> dict[str, bytes]:
    """A cut of each trace of the repository, by name."""
    return {
        p.name.partition(".")[0]: cut(p, max_bytes, lean=lean)
        for p in sorted(TRACES.glob("*.json.gz"))
    }


def _lean(whole: dict[str, Any]) -> dict[str, Any]:
    about = {key: value for key, value in whole.items() if key in ABOUT}
    about["deviceProperties"] = [
        {key: device[key] for key in OF_DEVICE} for device in whole["deviceProperties"]
    ]
    events = []
    for event in whole["traceEvents"]:
        if "args" in event:
            args = {key: value for key, value in event["args"].items() if key in ARGS}
            event = {**event, "args": args}
        if isinstance(event.get("name"), str):  # templates of kernels fill hundreds of bytes
            event = {**event, "name": event["name"][:48]}
        events.append(event)
    return {**about, "traceEvents": events}


def _spread(events: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """At most `n` of the events, from all of them evenly."""
    return events[:: max(1, len(events) // n)][:n]


def _longest(events: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """The `n` longest, so that a few make most of the device's work."""
    return sorted(events, key=lambda e: -float(e.get("dur", 0)))[:n]


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
