"""Cutting a trace's text into batches changes nothing, whatever its layout and the cuts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.event_batches import EventBatches, Scan, scan
from loaderdoctor.trace.events import Event, decode_leniently, decode_strictly

PATH = Path("run.json")

# Text that looks like structure: what a careless cutter falls for.
TRICKY = st.lists(
    st.sampled_from(
        [*'{}[],:"\\/', " ", "\n", "},{", "]}", '"traceEvents": [', "é", "𝄞", "\\u00e9", "x", "#0"]
    ),
    max_size=8,
).map("".join)
NUMBERS = st.one_of(
    st.integers(-(10**6), 10**13), st.floats(allow_nan=False, allow_infinity=False, width=32)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TRICKY),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TRICKY, inner, max_size=3)
    ),
    max_leaves=6,
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "M", "s", "i"]), "name": TRICKY},
    optional={
        "ts": st.one_of(NUMBERS, st.just("12.5"), st.none()),
        "dur": NUMBERS,
        "pid": st.one_of(st.integers(0, 99), TRICKY),
        "tid": st.integers(0, 99),
        "args": st.one_of(
            st.dictionaries(TRICKY, VALUES, max_size=3),
            st.fixed_dictionaries({"correlation": NUMBERS, "External id": VALUES}),
        ),
        "extra": VALUES,
    },
)
ELEMENTS = st.lists(st.one_of(EVENTS, EVENTS, EVENTS, VALUES), max_size=12)
SURROUNDINGS = st.dictionaries(TRICKY.filter(lambda key: key != "traceEvents"), VALUES, max_size=3)


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    """A trace in a random layout, its events and what surrounds them."""
    events = draw(ELEMENTS)
    before, after = draw(SURROUNDINGS), draw(SURROUNDINGS)
    for key in set(before) & set(after):
        del after[key]
    layout: dict[str, Any] = {
        "indent": draw(st.sampled_from([None, 0, 1, 4, "\t", " \r\n"])),
        "separators": draw(
            st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " :\n"), ("\n,", ":")])
        ),
        "ensure_ascii": draw(st.booleans()),
    }
    text = json.dumps({**before, "traceEvents": events, **after}, **layout)
    if draw(st.booleans()) and not before and not after:
        text = json.dumps(events, **layout)
    padding = st.sampled_from(["", " ", "\n\n", " \t\r\n " * 5])
    return draw(padding) + text + draw(padding), events, {**before, **after}


def read(text: bytes, block_bytes: int, batch_bytes: int) -> tuple[list[Event], dict[str, Any]]:
    blocks = (text[i : i + block_bytes] for i in range(0, len(text), block_bytes))
    batches = EventBatches(PATH, blocks, decode_strictly, decode_leniently, batch_bytes=batch_bytes)
    return [event for batch in batches for event in batch], batches.document


@settings(max_examples=150)
@given(texts(), st.integers(1, 300), st.integers(1, 300))
def test_batches_equal_one_decoding_of_the_whole(
    case: tuple[str, list[Any], dict[str, Any]], block_bytes: int, batch_bytes: int
) -> None:
    text, elements, surroundings = case
    events, document = read(text.encode(), block_bytes, batch_bytes)
    whole = decode_leniently(json.dumps(elements).encode())
    assert repr(events) == repr(whole)  # by text, since NaN differs from itself
    document.pop("traceEvents", None)
    assert repr(document) == repr(json.loads(json.dumps(surroundings)))


@settings(max_examples=100)
@given(st.lists(EVENTS, max_size=8), st.sampled_from([None, 1]))
def test_strict_and_lenient_decoding_agree(events: list[Any], indent: int | None) -> None:
    text = json.dumps(events, indent=indent).encode()
    try:
        strictly = decode_strictly(text)
    except ValueError:
        return
    assert repr(strictly) == repr(decode_leniently(text))


@settings(max_examples=150)
@given(texts(), st.data())
def test_a_truncated_trace_is_refused_wherever_it_ends(
    case: tuple[str, list[Any], dict[str, Any]], data: st.DataObject
) -> None:
    text = case[0].encode().rstrip()
    length = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(TraceError) as caught:
        read(text[:length], 64, data.draw(st.integers(1, 200)))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("run.json: ")


@settings(max_examples=150)
@given(texts(), st.data())
def test_a_damaged_byte_is_refused_or_read_as_json_reads_it(
    case: tuple[str, list[Any], dict[str, Any]], data: st.DataObject
) -> None:
    text = bytearray(case[0].encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
        st.one_of(st.sampled_from(b'{}[],:" \\0'), st.integers(0, 255))
    )
    batch_bytes = data.draw(st.integers(1, 200))
    try:
        events, _ = read(bytes(text), 64, batch_bytes)
    except TraceError:
        return
    try:
        document = json.loads(text.decode(), strict=False)
    except ValueError:
        # msgspec doesn't check the encoding of strings it skips; the structure is checked.
        document = json.loads(text.decode(errors="replace"), strict=False)
    elements = document if isinstance(document, list) else document["traceEvents"]
    whole = decode_leniently(json.dumps(elements).encode())
    assert repr(events) == repr(whole)


def scan_slowly(text: bytes) -> Scan:
    """The same as `scan`, a byte at a time."""
    depth, last_comma, in_string, escaped, after_element = 0, None, False, False, False
    for at, byte in enumerate(text):
        char = chr(byte)
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string, after_element = True, False
        elif char in "[{":
            depth, after_element = depth + 1, False
        elif char in "]}":
            depth -= 1
            after_element = depth == 1
            if depth <= 0:
                return Scan(None, at, inside_element=False)
        elif char == "," and after_element:
            last_comma, after_element = at, False
        elif char not in " \t\r\n":
            after_element = False
    return Scan(last_comma, None, inside_element=in_string or depth > 1)


@settings(max_examples=150)
@given(ELEMENTS, st.sampled_from([None, 0, 2]), st.data())
def test_scan_finds_what_reading_byte_by_byte_finds(
    elements: list[Any], indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(elements, indent=indent).encode() + b', "tail": [{}, {}]}'
    prefix = text[: data.draw(st.integers(1, len(text)))]
    assert scan(prefix) == scan_slowly(prefix)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*b'{}[],"\\ x']), max_size=40).map(bytes))
def test_scan_is_exact_for_escapes_in_strings(inner: bytes) -> None:
    quoted = json.dumps(inner.decode()).encode()
    text = b"[{" + quoted + b":" + quoted + b"} , {" + quoted + b":1}, "
    for length in range(1, len(text) + 1):
        assert scan(text[:length]) == scan_slowly(text[:length])


def kineto_layout(n_events: int) -> Iterator[str]:
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n  "traceEvents": [\n  '
    for n in range(n_events):
        yield (",\n  " if n else "") + (
            f'{{\n    "ph": "X", "cat": "cpu_op", "name": "aten::{n}", "pid": 1, "tid": 1,\n'
            f'    "ts": {n}.500, "dur": 0.250,\n'
            f'    "args": {{\n      "External id": {n}\n    }}\n  }}'
        )
    yield '\n  ],\n  "traceName": "x.json"\n}'


@pytest.mark.parametrize("compact", [False, True])
def test_usual_layouts_need_neither_the_lenient_decoder_nor_many_scans(
    compact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(kineto_layout(5000))
    if compact:
        text = json.dumps(json.loads(text))
    scans = []

    def counted(text: bytes | bytearray) -> Scan:
        scans.append(len(text))
        return scan(text)

    def never(_: object) -> list[Event]:
        raise AssertionError("a well-formed batch was refused")

    monkeypatch.setattr("loaderdoctor.trace.event_batches.scan", counted)
    batches = EventBatches(PATH, iter([text.encode()]), decode_strictly, never, batch_bytes=20_000)
    assert sum(len(batch) for batch in batches) == 5000
    assert len(scans) <= 2


def test_objects_in_lists_within_events_mislead_no_cut() -> None:
    event = {"ph": "X", "name": "n", "ts": 1, "args": {"list": [{"a": 1}, {"b": 2}] * 50}}
    text = json.dumps({"traceEvents": [event] * 40}).encode()
    for batch_bytes in range(500, 4000, 250):
        assert len(read(text, 1000, batch_bytes)[0]) == 40
