"""The forms a trace's text comes in: packed or plain, a pipe, a bare list, nothing at all."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from loaderdoctor.trace import read_trace
from tests.trace.events import span, written


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run"])
def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, name: str, packed: bool) -> None:
    text = json.dumps({"traceEvents": [span()]}).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if packed else text)
    assert len(read_trace(path).spans) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_as_a_file(tmp_path: Path, packed: bool) -> None:
    text = json.dumps({"traceEvents": [span()] * 5000}).encode()
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = gzip.compress(text) if packed else text
    writer = threading.Thread(target=path.write_bytes, args=(content,))
    writer.start()
    assert len(read_trace(path).spans) == 5000
    writer.join()


def test_gzip_of_several_members_and_padding_is_one_text(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [span()] * 9}).encode()
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]) + b"\0" * 512)
    assert len(read_trace(path).spans) == 9


@pytest.mark.parametrize("prefix", ["", "\ufeff", " \n\n"])
def test_a_bare_list_of_events_is_a_trace(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(prefix + json.dumps([span(), span()]) + "\n", encoding="utf-8")
    assert len(read_trace(path).spans) == 2


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"traceEvents" :[ ] , "a": 1}'])
def test_a_trace_without_events_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    trace = read_trace(path)
    assert len(trace.spans) == 0
    assert (trace.names, trace.threads, trace.origin_us) == ((), (), 0.0)


def test_a_trace_says_how_large_its_text_is(tmp_path: Path) -> None:
    """Of every kind of event; what writing it anew takes depends on that."""
    flows = [{"ph": "s", "id": i} for i in range(5)]
    path = tmp_path / "run.json"
    trace = written(tmp_path, [span(), *flows])
    assert (trace.text.n_bytes, trace.text.n_events) == (path.stat().st_size, 6)
    assert trace.text.is_strict
    assert not written(tmp_path, [span(dur="x"), *flows]).text.is_strict
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(path).text.n_bytes == len(gzip.decompress(path.read_bytes()))
