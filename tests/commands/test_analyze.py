"""`analyze` of a trace that a run of ours recorded: that run's trials answer its findings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.commands.analyze import report_of_facts, run_of
from loaderdoctor.report import encode_report
from loaderdoctor.report.model import Finding, Report, Trial
from loaderdoctor.report.words.verdict import headline
from loaderdoctor.settings import Settings
from loaderdoctor.trace import read_trace
from tests.attribution.build import TraceBuilder
from tests.report import samples

TRACE = Path(__file__).parents[2] / "traces" / "sync_loader_decode.pt.trace.json.gz"
PLACES = ("perfetto/baseline.json.gz", "tensorboard/baseline/host.1.pt.trace.json.gz")


def trial(settings: Settings, ms: float, gain: tuple[float, float] | None = None) -> Trial:
    return Trial(
        settings=settings.as_dict(),
        label=settings.label(),
        status="ok",
        step_ms=ms,
        step_ms_ci=(ms - 0.2, ms + 0.2),
        gain_ms=sum(gain) / 2 if gain else None,
        gain_ms_ci=gain,
    )


OWN = trial(Settings(), 13.1)
SLOWER = trial(Settings(num_workers=2), 16.3, (-3.6, -2.8))
FASTER = trial(Settings(num_workers=2), 5.0, (7.9, 8.3))


def run_folder(folder: Path, *trials: Trial, place: str = PLACES[0]) -> Path:
    """A run whose loop loads itself, and the trace in it."""
    report: Report = samples.input_bound()
    loader = msgspec.structs.replace(
        report.loaders[0], role="train", settings=Settings(num_workers=0).as_dict()
    )
    report = msgspec.structs.replace(
        report, loaders=(loader,), trials=trials, command="diagnose", target="mine.py"
    )
    trace = folder / place
    trace.parent.mkdir(parents=True)
    trace.write_bytes(TRACE.read_bytes())
    (folder / "report.json").write_bytes(encode_report(report))
    return trace


def analyzed(trace: Path) -> tuple[Report, Finding]:
    elsewhere, warnings = run_of(trace)
    report = report_of_facts(
        str(trace), facts_of(attribute(read_trace(trace))), warnings, elsewhere
    )
    finding = next(f for f in report.findings if f.kind == "loader-in-main-process")
    return report, finding


@pytest.mark.parametrize("place", PLACES)
def test_workers_that_its_run_measured_as_slower_are_not_advised(
    place: str, tmp_path: Path
) -> None:
    report, finding = analyzed(run_folder(tmp_path, OWN, SLOWER, place=place))
    assert finding.summary.endswith(
        "Tried in the run that this trace belongs to (num_workers=2): 16.3 ms a step against "
        "13.1 ms as it is, slower."
    )
    assert "keep up" not in finding.summary
    assert finding.advice is None
    assert "Let DataLoader workers" not in report.verdict.summary
    assert [(t.tried, t.outcome, t.refuted) for t in finding.tested] == [
        ("num_workers=2", "slower", True)
    ]


def test_workers_that_its_run_measured_as_faster_are_advised_with_the_figure(
    tmp_path: Path,
) -> None:
    _, finding = analyzed(run_folder(tmp_path, OWN, FASTER))
    assert "(num_workers=2): 5.00 ms a step against 13.1 ms as it is, faster." in finding.summary
    assert finding.advice == "Let DataLoader workers make the batches."


def test_a_trials_own_trace_is_compared_with_that_trial(tmp_path: Path) -> None:
    trace = run_folder(tmp_path, OWN, FASTER, place="tensorboard/trial-01/a.1.pt.trace.json.gz")
    elsewhere, _ = run_of(trace)
    assert elsewhere is not None
    assert elsewhere.recorded == 1


@pytest.mark.parametrize("trials", [(), (OWN,)])
def test_where_its_run_tried_nothing_the_command_that_does_is_named(
    trials: tuple[Trial, ...], tmp_path: Path
) -> None:
    report, finding = analyzed(run_folder(tmp_path, *trials))
    untested = "(not tested: `loaderdoctor diagnose mine.py` tries it in the running loop)"
    assert finding.advice == f"Let DataLoader workers make the batches {untested}."
    assert "would keep up" in finding.summary
    assert "(not tested)." in finding.summary
    assert untested.strip("()") in report.verdict.summary
    assert untested.strip("()") == report.recommendations[0].untested


def test_a_trace_from_elsewhere_is_told_from_one_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(TRACE.read_bytes())
    (tmp_path / "report.json").write_bytes(b"{}")  # not above a folder of ours
    report, finding = analyzed(tmp_path / "trace.json.gz")
    assert "`loaderdoctor diagnose train.py`" in str(finding.advice)
    assert not report.warnings


def test_a_damaged_report_beside_the_trace_is_a_warning(tmp_path: Path) -> None:
    trace = run_folder(tmp_path, OWN, SLOWER)
    (tmp_path / "report.json").write_bytes(b'{"schema": "loaderdoctor.report/1"')
    report, _ = analyzed(trace)
    assert [w.kind for w in report.warnings] == ["run-not-read"]


def test_the_command_cites_the_run_of_a_folder(tmp_path: Path) -> None:
    run_folder(tmp_path, OWN, SLOWER)
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "analyze", "--json", "-", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    (finding,) = json.loads(done.stdout)["findings"]
    assert "Tried in the run that this trace belongs to (num_workers=2)" in finding["summary"]


def test_a_loop_of_which_no_backward_pass_was_recorded_is_called_inference() -> None:
    for names, trains in ((("aten::addmm",), False), (("aten::addmm", "AddmmBackward0"), True)):
        built = TraceBuilder()
        for step in range(8):
            at = step * 1000.0
            built.step(step, at, at + 1000)
            built.fetch(at, at + 800)
            for i, name in enumerate(names):
                built.op(at + 810 + 50 * i, at + 850 + 50 * i, name=name)
        report = report_of_facts("t.json", facts_of(attribute(built.trace())), ())
        assert report.trains is trains
        assert ("inference" in headline(report)[0]) is not trains
        assert report.verdict.bound == "input"
