"""What can't be read is said in one line that names the file and what to do."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loaderdoctor import trace
from loaderdoctor.errors import EXIT_USAGE, TraceError
from loaderdoctor.trace import event_batches, read_trace, source, with_events

EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}'
TRACE = f'{{"schemaVersion": 1, "traceEvents": [{", ".join([EVENT] * 200)}], "traceName": "x"}}'


def refusal(
    path: Path, *, max_bytes: int | None = None, max_memory_bytes: int | None = None
) -> str:
    """The message, after checks that hold for each: one line, the file, advice, the exit code."""
    with pytest.raises(TraceError) as caught:
        read_trace(path, max_bytes=max_bytes, max_memory_bytes=max_memory_bytes)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert message.endswith(".")
    assert message.count(". ") >= 1
    assert caught.value.exit_code == EXIT_USAGE
    return message.removeprefix(f"{path}: ")


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "run.json").startswith("no such file")


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith("is a folder")


@pytest.mark.parametrize("content", [b"", b"  \n", gzip.compress(b"", mtime=0)])
def test_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(content)
    assert refusal(path).startswith("is empty")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step,loss\n1,0.5\n", "is not a torch.profiler trace: it starts with neither"),
        ("PK\x03\x04 a zip", "is not a torch.profiler trace"),
        ("{'traceEvents': []}", "is not valid JSON after 1 bytes"),
        ('{"traceEvents": [' + EVENT + ",]}", "is not valid JSON after 1"),
        ('{"traceEvents": [' + EVENT + "]]}", "is not valid JSON"),
        ('{"traceEvents": [' + EVENT + " " + EVENT + "]}", "is not valid JSON"),
        (TRACE + "x", "is not valid JSON"),
        (
            '[{"ph": "X", "ts": null, "id": ' + "9" * 9999 + "}]",
            "is not valid JSON after 0 bytes: exc",
        ),
        ('{"id": ' + "9" * 9999 + ', "traceEvents": []}', "is not valid JSON"),
        ('{"a": nul, "traceEvents": []}', "is not valid JSON after 6 bytes"),
        ("[" + EVENT + "] x", "is not valid JSON after 91 bytes: text after the end of the list"),
    ],
)
def test_text_that_is_no_json(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    assert refusal(path).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "1.0", "nodes": [{"id": 1}]}', "it has no traceEvents"),
        ('{"inner": {"traceEvents": []}}', "it has no traceEvents"),
        ('{"traceEvents": 5}', "its traceEvents is no list"),
        ('{"traceEvents": [' + "[" * 100_000 + "]" * 100_000 + "]}", "it is nested too deeply"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deeply"),
        ('{"a": ' + "[" * 9_999 + "]" * 9_999 + ', "traceEvents": []}', "it is nested too deeply"),
    ],
)
def test_json_that_is_no_trace(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    message = refusal(path)
    assert message.startswith("is not a torch.profiler trace: ")
    assert says in message


def test_text_cut_within_an_event(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(TRACE[:10_000])
    assert refusal(path) == (
        "ends in the middle of an event (truncated at 10000 bytes). "
        "Export the trace again, or copy it again."
    )


@pytest.mark.parametrize("length", [1, 15, 30, 41, len(TRACE) - 30, len(TRACE) - 1])
def test_text_cut_elsewhere(tmp_path: Path, length: int) -> None:
    path = tmp_path / "run.json"
    path.write_text(TRACE[:length])
    assert f"(truncated at {length} bytes)" in refusal(path)


def test_gzip_cut_short(tmp_path: Path) -> None:
    packed = gzip.compress(TRACE.encode())
    path = tmp_path / "run.json.gz"
    for length in (3, 12, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        path.write_bytes(packed[:length])
        assert "stops early (truncated after" in refusal(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TRACE.encode()))
    path = tmp_path / "run.json.gz"
    for at in (2, len(packed) // 2, len(packed) - 6):  # header, data, checksum
        damaged = bytearray(packed)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        assert "damaged" in refusal(path)
    path.write_bytes(packed + b"more")
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("n_zeros", [1, 600_000])
@pytest.mark.parametrize("n_members", [1, 2])
def test_zeros_behind_a_large_member_are_padding(
    tmp_path: Path, n_zeros: int, n_members: int
) -> None:
    """In a process of its own: it once went on for ever."""
    path = tmp_path / "run.json.gz"
    text = TRACE.replace('"traceName"', " " * 9_000_000 + '"traceName"').encode()
    half = len(text) // n_members + 1
    pieces = [text[at : at + half] for at in range(0, len(text), half)]
    path.write_bytes(b"".join(gzip.compress(piece, 1) + b"\0" * n_zeros for piece in pieces))
    code = (
        "import sys; from pathlib import Path; from loaderdoctor.trace import read_trace; "
        "print(len(read_trace(Path(sys.argv[1])).spans))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "200\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(TRACE, encoding=encoding)
    assert refusal(path).startswith("is not UTF-8 text")


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(TRACE.encode().replace(b"aten::mm", b"aten::\xff"))
    assert refusal(path).startswith("is not UTF-8 text")


def test_a_file_that_unpacks_to_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"0" * 50_000_000 + b'", "traceEvents": []}'))
    assert path.stat().st_size < 100_000
    assert "holds more than 10.0 MB of text" in refusal(path, max_bytes=10_000_000)
    assert len(read_trace(path).spans) == 0


def test_one_piece_larger_than_any_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_PIECE_BYTES", 4 << 20)
    path = tmp_path / "run.json"
    path.write_text(json.dumps([{"ph": "X", "name": "n" * (9 << 20), "ts": 1}]))
    assert "one piece of it is over 4.2 MB" in refusal(path)


def test_more_memory_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    long = json.dumps({"ph": "X", "cat": "cpu_op", "name": "n" * 2_000_000, "ts": 1})
    for text in (
        "[" + ",".join([EVENT] * 110_000) + "]",
        "[" + ",".join([long.replace("n" * 9, f"n{i}", 1) for i in range(16)]) + "]",
    ):
        path.write_text(text)
        message = refusal(path, max_memory_bytes=200_000_000)
        assert message.startswith("needs more than 0.2 GB of memory")
        assert message.endswith("allow more with --max-memory.")
        assert len(read_trace(path).spans) > 0


def test_more_threads_than_any_trace_has(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(
        json.dumps([{"ph": "X", "cat": "cpu_op", "ts": i, "tid": i} for i in range(10_001)])
    )
    assert "it has more than 10,000 threads" in refusal(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # A candidate for the list at every turn, none of them the outermost's.
        ('{"a":[' + '{"traceEvents":[]},' * 100_000, "truncated"),
        ('{"a":"' + '\\"traceEvents\\":[' * 100_000, "truncated"),
        # Elements without commas between them: no cut is ever found.
        ('{"traceEvents":[' + "{}" * 1_000_000 + "]}", "is not valid JSON"),
        ('{"traceEvents":[' + "1," * 300_000 + "1]}", None),
        ('{"traceEvents":[' + "[]," * 100_000 + "[]]}", None),
    ],
    ids=["nested-lists", "in-a-string", "no-commas", "numbers", "empty-lists"],
)
def test_text_made_to_be_slow_is_read_in_one_go(
    tmp_path: Path, text: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is in proportion to the text: how often it is decoded or looked at is counted."""
    seen = {"decoded": 0, "matched": 0}
    loads, match = json.loads, event_batches._COMMA.match

    def counted(data: str, **options: bool) -> object:
        seen["decoded"] += len(data)
        return loads(data, **options)  # type: ignore[arg-type]

    class Comma:
        def match(self, text: bytes, position: int) -> object:
            seen["matched"] += 1
            return match(text, position)

    monkeypatch.setattr(json, "loads", counted)
    monkeypatch.setattr(event_batches, "_COMMA", Comma())
    path = tmp_path / "run.json"
    path.write_text(text)
    if says is None:
        assert read_trace(path).n_dropped_events > 0
    else:
        assert says in refusal(path)
    assert seen["decoded"] <= 2 * len(text)
    assert seen["matched"] < 1000


def test_more_spans_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_ROWS", 100)
    path = tmp_path / "run.json"
    path.write_text(TRACE)
    assert refusal(path).startswith("holds more than 0 million spans")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(TRACE)
    path.chmod(0)
    assert refusal(path).startswith("can't be read (Permission denied)")


def test_no_thread_outlives_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(b"{" + b"0" * 50_000_000))
    before = threading.active_count()
    refusal(path)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no events: nothing was recorded"),
        ('{"traceEvents": []}', "no events: nothing was recorded"),
        (
            '{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, '
            '"args": {"name": "python"}}]}',
            "no events: nothing was recorded",
        ),
        ("[1, 2]", "no events that can be read (2 are malformed)"),
        ("{}", "no events: it is an empty object"),
        (
            '[{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": 1, "tid": 0, '
            '"ts": 1, "dur": 2}]',
            "no events: nothing was recorded",
        ),
        (
            '[{"ph": "X", "cat": "toplevel", "name": "RunTask", "pid": 1, "tid": 1, "ts": 1, '
            '"dur": 2}]',
            "is not a torch.profiler trace: none of its 1 spans is an operator",
        ),
        (
            '[{"ph": "B", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1}, '
            '{"ph": "E", "pid": 1, "tid": 1, "ts": 2}]',
            'is not a torch.profiler trace: it has no complete events ("ph": "X")',
        ),
    ],
)
def test_a_file_without_one_span_holds_no_events(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        with_events(read_trace(path))
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
