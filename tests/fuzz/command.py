"""Whole commands, run in this process: exit code, one line of refusal, what is printed and written.

A process for each would take forty times as long, most of it to start Python.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.cli import main
from loaderdoctor.errors import EXIT_USAGE
from loaderdoctor.report import decode_report
from tests.fuzz.subject import check_line, check_report, check_text

PREFIX = "loaderdoctor: "


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    stdout: str
    stderr: str


def run(*argv: str) -> Ended:
    """Run `loaderdoctor` with these arguments; its exit code and what it printed."""
    out, err = _stream(), _stream()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(argv))
        except SystemExit as left:
            code = left.code
    sys.stdout.flush()
    assert isinstance(code, int), code
    return Ended(code, _text(out), _text(err))


def analyzed(paths: Sequence[Path], *, output: Path | None = None, as_json: bool = False) -> bool:
    """`analyze`, the whole command; whether it was reported (and not refused). Checks both."""
    options = ["--max-memory", "1GiB"]
    if output is not None:
        shutil.rmtree(output, ignore_errors=True)
        options += ["--output", str(output), "--tensorboard", str(output.with_name("tb"))]
        shutil.rmtree(output.with_name("tb"), ignore_errors=True)
    if as_json:
        options += ["--json", "-"]
    ended = run("analyze", *options, *map(str, paths))
    if ended.code == EXIT_USAGE:
        _check_refusal(ended)
        return False
    assert ended.code == 0, ended
    if as_json:
        json.loads(ended.stdout)
        check_report(decode_report(ended.stdout.encode(), source=Path("stdout")))
        check_text(ended.stderr)
    else:
        assert ended.stderr == "", ended.stderr[:500]
        check_text(ended.stdout)
    if output is not None:
        (report,) = output.rglob("report.json")
        check_report(decode_report(report.read_bytes(), source=report))
        assert (report.parent / "report.html").stat().st_size > 1000
        assert list(report.parent.glob("perfetto/*.json.gz"))
    return True


def compared(before: Path, after: Path) -> bool:
    """`compare`, the whole command; whether it compared (and did not refuse)."""
    ended = run("compare", "--fail-on-regression", str(before), str(after))
    if ended.code == EXIT_USAGE and not ended.stdout:
        _check_refusal(ended)
        return False
    assert ended.code in (0, 2, 3), ended.code
    assert ended.stderr == "", ended.stderr[:500]
    check_text(ended.stdout)
    return True


def _check_refusal(ended: Ended) -> None:
    assert ended.stdout == "", ended.stdout[:500]
    assert ended.stderr.startswith(PREFIX), ended.stderr[:500]
    assert ended.stderr.endswith("\n"), ended.stderr[:500]
    check_line(ended.stderr[:-1])


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")


def _text(stream: io.TextIOWrapper) -> str:
    with suppress(ValueError):
        stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
