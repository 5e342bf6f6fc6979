"""Names of a trace that would steer a terminal, run in a page, or break a document."""

from __future__ import annotations

import io
import json
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.commands.analyze import report_of_facts
from loaderdoctor.commands.run_folder import write_files
from loaderdoctor.report.console import render_report
from loaderdoctor.report.model import Report
from loaderdoctor.trace import read_trace

HOSTILE = (
    "[bold red]x[/] [link=http://evil.example]click[/link] [/nothing]",
    "\x1b[2J\x1b[31mred\x1b]0;title\x07\x9b31m",
    "abc\u202etxt.exe\u2066\u200b",
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>",
    "``` \n```\n# heading [a](javascript:alert(1))",
    "{{ 7*7 }} {% include '/etc/passwd' %} ${7*7}",
    "line one\r\nline two\x00\u2028\u2029",
)
LONG = "n" * 10_000_000


class Page(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def span(name: str, at: float, length: float, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 7, "ts": at,
        "dur": length, **more,
    }  # fmt: skip


def trace_of(names: tuple[str, ...]) -> str:
    """A loop whose every name is one of those: ranges, frames, ops, threads, devices, the host."""
    events = []
    for step in range(30):
        at = 10_000.0 * step
        events.append(span(f"ProfilerStep#{step}", at, 9_990.0))
        for n, name in enumerate(names):
            begin = at + 10 + n * 1300
            events.append(span(name, begin, 1200.0))
            events.append(span(f"{name}(3): f", begin + 1, 1000.0, cat="python_function"))
            events.append(span(f"{name}.py(3): {name}", begin + 2, 900.0, cat="python_function"))
            events.append(span(f"aten::{name}", begin + 5, 500.0, cat="cpu_op"))
    for n, name in enumerate(names):
        named = {"ph": "M", "pid": 7, "tid": n, "ts": 0, "args": {"name": name}}
        events += [{**named, "name": "process_name"}, {**named, "name": "thread_name"}]
    document = {
        "host_name": names[0],
        "deviceProperties": [{"id": 0, "name": names[-1]}],
        "distributedInfo": {"rank": 0, "world_size": 1, "backend": names[0]},
        "traceEvents": events,
    }
    return json.dumps(document)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "run.json"
    path.write_text(trace_of(HOSTILE))
    attributed = attribute(read_trace(path))
    report = report_of_facts(str(path), facts_of(attributed), ())
    run = write_files(path, attributed, report, output=folder / "run", tensorboard=None)
    assert run is not None
    return report, run


def steering(text: str, *, lines: str = "\n") -> set[str]:
    """Characters that no terminal or editor should be given."""
    return {
        char
        for char in text
        if char not in lines and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }


def test_the_names_are_in_the_report(written: tuple[Report, Path]) -> None:
    """Else the tests below would prove nothing."""
    text = (written[1] / "report.json").read_text()
    for sign in ("[bold red]", "\\u202etxt.exe", "<script>alert(1)", "{{ 7*7 }}", "javascript:"):
        assert sign in text, sign


def test_the_terminal_shows_them_as_text(written: tuple[Report, Path]) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, color_system=None, force_terminal=True)
    console.print(render_report(written[0]))
    shown = out.getvalue()
    assert steering(shown) == set()
    assert "[bold red]x[/]" in shown  # not taken for markup
    assert steering((written[1] / "console.txt").read_text()) == set()


def test_the_page_holds_no_element_or_attribute_of_theirs(written: tuple[Report, Path]) -> None:
    page = Page()
    text = (written[1] / "report.html").read_text()
    page.feed(text)
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    targets = [value or "" for name, value in page.attributes if name in ("href", "src")]
    assert not [value for value in targets if "javascript:" in value or "evil" in value]
    assert "49" not in text.partition("{{ 7*7 }}")[0][-20:]
    assert "<script" not in text
    assert steering(text, lines="\n\t") == set()


def test_the_json_is_json_for_everyone(written: tuple[Report, Path]) -> None:
    data = (written[1] / "report.json").read_bytes()
    assert json.loads(data)["schema"].startswith("loaderdoctor")
    assert steering(data.decode()) == set()  # `--json -` goes to a terminal, too
    shown = json.dumps(json.loads(data), ensure_ascii=False)
    assert "\u202etxt.exe" in shown  # nothing is lost


def test_tensorboard_is_given_them_as_verbatim_text(written: tuple[Report, Path]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    (events,) = (written[1] / "tensorboard").rglob("events.out.tfevents.*")
    reader, texts = PyRecordReader_New(str(events)), []
    while True:
        try:
            reader.GetNext()
        except Exception:
            break
        for value in Event.FromString(reader.record()).summary.value:
            texts += [item.decode() for item in value.tensor.string_val]
    (report,) = [text for text in texts if "alert(1)" in text]
    fence = report.partition("text\n")[0]
    assert set(fence) == {"`"}
    assert report.endswith(fence)
    assert report.count(fence) == 2  # nothing inside ends the block
    assert steering(report) == set()


def test_names_of_ten_million_characters_are_shortened_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    # In one step only: each event holds the text anew.
    head, _, tail = trace_of(("mark",)).partition('"mark"')
    text = head + '"mark"' + tail
    for kind in ("user_annotation", "cpu_op"):
        at = text.index(f'"{kind}", "name": ', len(head))
        text = text[:at] + text[at:].replace("mark", LONG, 1)
    path.write_text(text)
    attributed = attribute(read_trace(path))
    report = report_of_facts(str(path), facts_of(attributed), ())
    run = write_files(path, attributed, report, output=tmp_path / "run", tensorboard=None)
    assert run is not None
    shown = [(run / name).read_text() for name in ("report.json", "console.txt", "report.html")]
    assert "nnnn" in shown[0]
    assert not [text for text in shown if "n" * 500 in text]
