"""report.json as stored. Refreshed by LOADERDOCTOR_REFRESH_GOLDEN=1 pytest tests/report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderdoctor.report import decode_report, encode_report, model
from tests.report import samples

GOLDEN = Path(__file__).parent / "golden"
REPORTS: dict[str, Callable[[], model.Report]] = {
    "input_bound": samples.input_bound,
    "sweep": samples.sweep,
    "nothing_recorded": samples.nothing_recorded,
}


@pytest.mark.parametrize("name", REPORTS)
def test_report_is_encoded_as_stored(name: str) -> None:
    text = encode_report(REPORTS[name]())
    stored = GOLDEN / f"{name}.json"
    if os.environ.get("LOADERDOCTOR_REFRESH_GOLDEN") == "1":
        stored.write_bytes(text)
    assert text.decode() == stored.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_what_is_stored_reads_as_the_report(name: str) -> None:
    stored = GOLDEN / f"{name}.json"
    assert encode_report(decode_report(stored.read_bytes(), source=stored)) == stored.read_bytes()
