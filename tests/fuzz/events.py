"""Mutations of a decoded trace: its events, one or many, and what surrounds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.fuzz.words import (
    ARGS,
    CATEGORIES,
    FIELDS,
    HEAD,
    HOSTILE,
    NAMES,
    PHASES,
)

if TYPE_CHECKING:
    from tests.fuzz.mutate import Mutator

Doc = dict[str, Any]
Event = dict[str, Any]
BARE = "\u2603list"  # a document that is written as its list of events only


def decoded(data: bytes) -> Doc | None:
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


def dicts(doc: Doc) -> list[Event]:
    events = doc.get("traceEvents")
    return [e for e in events if isinstance(e, dict)] if isinstance(events, list) else []


def nested(depth: int, as_list: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if as_list else {"args": value}
    return value


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
    for event in dicts(doc):
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
    for other in dicts(doc):
        if other.get("name") == old:
            other["name"] = new


def _recategorise(m: Mutator, doc: Doc) -> None:
    event = m.event(doc)
    if event is None:
        return
    old, new = event.get("cat"), m.rng.choice(CATEGORIES)
    every = m.rng.random() < 0.4
    for other in dicts(doc):
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
    doc["traceEvents"] = [e for e in dicts(doc) if e.get(key) != event.get(key)]


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
    for event in dicts(doc):
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
    for event in dicts(doc):
        if key in event:
            event[key] = value
        elif isinstance(event.get("args"), dict) and key in event["args"]:
            event["args"][key] = value


def _cross(m: Mutator, doc: Doc) -> None:
    """Events of another trace."""
    other = decoded(m.rng.choice(m.seeds)) if m.seeds else None
    if other is not None and isinstance(doc.get("traceEvents"), list):
        theirs = dicts(other)
        start = m.rng.randrange(len(theirs) or 1)
        doc["traceEvents"] += theirs[start : start + m.rng.choice((1, 10, 100))]


def _steps(m: Mutator, doc: Doc) -> None:
    """Step marks of our own: many, overlapping, empty, of other threads."""
    events = doc.get("traceEvents")
    times = [e["ts"] for e in dicts(doc) if type(e.get("ts")) in (int, float)]
    if not isinstance(events, list) or not times:
        return
    n = m.rng.choice((1, 2, 3, 10, 100))
    length = (max(times) - min(times)) / n
    pid, tid = m.rng.choice(dicts(doc)).get("pid", 1), m.rng.choice(dicts(doc)).get("tid", 1)
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
        event[m.rng.choice((*FIELDS, "zz"))] = nested(
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


def _stack_samples(m: Mutator, doc: Doc) -> None:
    """Something within what our sampler left, at any depth."""
    within = doc.setdefault("loaderdoctorLooks", {"marks": ["a"], "places": [], "looks": []})
    while isinstance(within, dict | list) and within:
        key = m.rng.choice(list(within) if isinstance(within, dict) else range(len(within)))
        if isinstance(within[key], dict | list) and within[key] and m.rng.random() < 0.8:
            within = within[key]
        else:
            within[key] = m.value()
            break


def _reorder_head(m: Mutator, doc: Doc) -> None:
    keys = list(doc)
    m.rng.shuffle(keys)
    for key in keys:
        doc[key] = doc.pop(key)


def _list_only(m: Mutator, doc: Doc) -> None:
    if isinstance(doc.get("traceEvents"), list) and m.rng.random() < 0.3:
        doc[BARE] = doc["traceEvents"]


STRUCTURED: tuple[Callable[[Mutator, Doc], None], ...] = (
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
    _stack_samples,
    _reorder_head,
    _list_only,
)
