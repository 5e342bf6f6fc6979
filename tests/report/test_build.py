"""report.json: complete, JSON all through, and the same after reading it back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.estimate import Estimate
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.report import decode_report, encode_report, model, read_report
from loaderdoctor.report.build import Judged, Tried, build_report, step_of_plain
from loaderdoctor.report.words.changes import changes_of, vocabulary
from tests.findings.builders import step
from tests.report import sample_facts, samples

KEYS = {
    "schema", "command", "target", "verdict", "step", "loaders", "shares", "trace_shares",
    "hidden", "ablation", "profiler_overhead", "workers", "findings", "recommendations",
    "withheld", "trials", "best", "claims", "ranks", "warnings", "environment", "method",
}  # fmt: skip


def as_json(report: model.Report) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(encode_report(report))
    return loaded


@pytest.mark.parametrize(
    "make",
    [samples.input_bound, samples.healthy, samples.cpu_only, samples.sweep,
     samples.several_ranks, samples.nothing_recorded],
)  # fmt: skip
def test_every_field_is_there_and_reading_gives_the_same_report(make: Any) -> None:
    report = make()
    text = encode_report(report)
    assert set(json.loads(text)) >= KEYS
    again = decode_report(text, source=Path("x"))
    assert encode_report(again) == text
    assert "NaN" not in text.decode()
    assert "Infinity" not in text.decode()


def test_fields_are_named_as_the_contract_has_them() -> None:
    report = as_json(samples.input_bound())
    assert report["schema"] == "loaderdoctor.report/1"
    assert report["verdict"]["bound"] == "input"
    assert set(report["shares"]) == {
        "compute", "communication", "copy", "input", "host", "other",
    }  # fmt: skip
    assert sum(report["shares"].values()) == pytest.approx(1, abs=1e-6)
    first = report["recommendations"][0]
    assert (first["from"], first["to"]) == (0, 7)
    assert report["ablation"]["ci_ms"]["input_ms"] == pytest.approx([11.099, 11.599])
    assert report["loaders"][0]["settings"]["num_workers"] == 0
    assert report["step"]["wall_ms_ci"] == pytest.approx([12.908, 13.328])


def test_an_interval_without_samples_is_null() -> None:
    wall = Estimate(value=13.0, low=-math.inf, high=math.inf, n=1)
    report = as_json(samples.verdict("input", "uncertain", facts=sample_facts.facts(
        step=sample_facts.step_facts(wall))))  # fmt: skip
    assert report["step"]["wall_ms"] == 13.0
    assert report["step"]["wall_ms_ci"] is None


def test_without_plain_windows_the_step_is_the_traces_own() -> None:
    report = samples.verdict(
        "input", "high", facts=sample_facts.facts(step=None, command="analyze")
    )
    assert (report.step.count, report.step.wall_ms) == (20, 17.2)
    assert report.step.wall_ms_ci is None


def test_unknown_environment_fields_are_null_not_missing() -> None:
    environment = as_json(samples.input_bound())["environment"]
    assert environment["rank"] is None
    assert environment["usable_cpus"] == 16


def test_time_in_no_share_is_reported_as_our_defect() -> None:
    parts = sample_facts.shares(input=0.5, compute=0.45, other=0.05)
    report = samples.verdict("input", "high", facts=sample_facts.facts(shares=parts))
    (warning,) = report.warnings
    assert warning.kind == "unexplained-time"
    assert "5 %" in warning.text


def test_what_was_not_recorded_without_a_trace_is_no_defect() -> None:
    parts = sample_facts.shares(input=0.1, compute=None, host=None, communication=None, other=0.9)
    report = samples.verdict("input", "high", facts=sample_facts.facts(shares=parts))
    assert not report.warnings


def test_evidence_of_any_type_becomes_json() -> None:
    finding = Finding(
        kind=Kind.HEAD_OF_LINE_STALL,
        severity=Severity.LOW,
        share=0.01,
        summary="x",
        evidence={
            "waits_ms": (255.0, math.inf),
            "n": np.int64(3),  # type: ignore[dict-item]  # a rule may forget to convert
            "mean_ms": np.float64(1.5),
            "kind": Severity.LOW,
        },
    )
    evidence = as_json(samples.input_bound(findings=(finding,)))["findings"][0]["evidence"]
    assert evidence == {"waits_ms": [255.0, None], "n": 3, "mean_ms": 1.5, "kind": "low"}


def test_what_is_no_report_is_refused_with_its_name(tmp_path: Path) -> None:
    other = tmp_path / "report.json"
    for text in (b"{}", b"[", b'{"schema": "loaderdoctor.report/9"}', b'{"schema": 3}'):
        other.write_bytes(text)
        with pytest.raises(UsageError, match=r"report\.json"):
            read_report(tmp_path)
    with pytest.raises(UsageError, match="run folder"):
        read_report(tmp_path / "missing")


def test_a_loop_that_makes_its_iterator_each_step_has_no_epoch_boundary_beside_its_steps() -> None:
    plain = step(boundary_ms=263.0, steps_per_epoch=313, n_steps=22, n_iterators_created=0)
    assert step_of_plain(plain).boundary_ms == 263.0
    dropped = replace(plain, n_iterators_created=22)
    assert step_of_plain(dropped).boundary_ms is None
    assert step_of_plain(replace(dropped, steps_per_epoch=1)).boundary_ms == 263.0


@pytest.mark.parametrize(("traced", "said"), [(True, "the trace"), (False, "the loop's times")])
def test_a_prediction_is_not_said_to_come_from_a_trace_that_none_took(
    traced: bool, said: str
) -> None:
    """As a `run` without --profile."""
    row = samples.recommendation(
        "num_workers", 0, 4, predicted_step_ms=4.0, predicted_from="trace",
        measured_step_ms=None, measured_ci_ms=None,
    )  # fmt: skip
    facts = sample_facts.facts()
    report = build_report(
        facts if traced else replace(facts, trace=None, ablation=None),
        target="train.py",
        judged=Judged(bound="input", severity="high", findings=()),
        tried=Tried(recommendations=(row,)),
    )
    (change,) = changes_of(report.recommendations)
    assert change.prediction() == f"at best 4.00 ms a step, predicted from {said}"
    assert f"predicted from {said}" in report.verdict.summary
    assert f"predicted from {said}: computed from" in (vocabulary((change,)) or "")
    assert decode_report(encode_report(report), source=Path()) == report
