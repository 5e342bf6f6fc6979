"""`--memory-history`, as the command drives it: what is asked for, and what is concluded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions
from loaderdoctor.diagnosis.gather import MAX_ENTRIES, N_ROUNDS, NAME, NOT_APPLICABLE, record
from loaderdoctor.instrument.wire.measured import SnapshotRecord
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowDone, WindowRequest
from loaderdoctor.report.model import Report
from tests.diagnosis.simulator import SimulatedRun
from tests.diagnosis.test_gather import gatherer


class RecordingRun(SimulatedRun):
    """Steps take `cost` times as long while the history is recorded."""

    cost = 1.2
    refuses: str | None = None

    def _one(self, request: WindowRequest) -> WindowDone:
        done = super()._one(request)
        if not request.memory_entries:
            return done
        if self.refuses is not None:
            return WindowDone(
                id=request.id, mode=request.mode, status="skipped", reason=self.refuses
            )
        steps = tuple(round(ns * self.cost) for ns in done.host_step_ns)
        saved = None
        if request.snapshot_path is not None:
            n = min(request.memory_entries, 321)
            saved = SnapshotRecord(path=request.snapshot_path, n_entries=n)
        return msgspec.structs.replace(done, host_step_ns=steps, snapshot=saved)


def script_run(device: str | None = "cuda:0", **options: object) -> RecordingRun:
    return RecordingRun({"plain": 10.0}, device=device, **options)  # type: ignore[arg-type]


def test_the_cost_is_measured_in_rounds_and_the_last_one_saves(tmp_path: Path) -> None:
    b = script_run(noise=0.004)
    found = record(gatherer(b), b.measure, tmp_path / "snapshot.pickle")
    assert found.path == tmp_path / "snapshot.pickle"
    assert found.n_entries == 321
    assert found.overhead is not None
    assert found.overhead.low <= 1.2 <= found.overhead.high
    assert found.overhead.low > 1.1
    assert [r.mode for r in b.asked] == ["plain"] * 2 * N_ROUNDS
    recording = [r for r in b.asked if r.memory_entries]
    assert [r.snapshot_path is not None for r in recording] == [False, False, True]
    assert {r.memory_entries for r in recording} == {MAX_ENTRIES}


def test_neither_kind_of_window_always_comes_first() -> None:
    first = set()
    for seed in range(8):
        b = script_run()
        record(gatherer(b), b.measure, Path("s.pickle"), seed=seed)
        first |= {bool(r.memory_entries) for r in b.asked[::2]}
    assert first == {True, False}


@pytest.mark.parametrize("device", [None, "mps:0", "xpu:0"])
def test_without_cuda_it_does_not_apply_and_nothing_is_measured(device: str | None) -> None:
    b = script_run(device=device)
    found = record(gatherer(b), b.measure, Path("s.pickle"))
    assert found.reason == NOT_APPLICABLE
    assert found.path is None
    assert b.asked == []


def test_a_script_that_records_its_own_is_left_alone_with_the_reason() -> None:
    b = script_run()
    b.refuses = "the script records torch's memory history itself"
    found = record(gatherer(b), b.measure, Path("s.pickle"))
    assert (found.path, found.overhead) == (None, None)
    assert found.reason == f"--memory-history: {b.refuses}."
    assert len(b.asked) == 2


def test_a_script_that_ends_meanwhile_is_said() -> None:
    b = script_run(ends_after=3)
    found = record(gatherer(b), b.measure, Path("s.pickle"))
    assert found.path is None
    assert found.reason is not None
    assert "ended" in found.reason


def test_a_lost_plain_window_costs_only_its_round() -> None:
    b = script_run(noise=0.0)

    def without_first_plain(requests: Sequence[WindowRequest]) -> list[WindowDone]:
        done = b.measure(requests)
        if len(b.asked) > 2:
            return done
        lost = WindowDone(id=0, mode="plain", status="failed", reason="lost")
        return [
            d if r.memory_entries else msgspec.structs.replace(lost, id=d.id)
            for r, d in zip(requests, done, strict=True)
        ]

    found = record(gatherer(b), without_first_plain, Path("s.pickle"))
    assert found.overhead is not None
    assert found.overhead.n == N_ROUNDS - 1
    assert found.overhead.value == pytest.approx(1.2)


def diagnosed(b: RecordingRun, folder: Path, *, wanted: bool = True) -> Report:
    """The report of a diagnosis of this run; its trace was never written, and it says so."""
    diagnosis = Diagnosis(
        b,
        target="train.py",
        raw=folder,
        options=DiagnosisOptions(
            budget_s=10.0,
            ablate=False,
            verify=False,
            profiler=ProfilerSchedule(),
            memory_history=folder / NAME if wanted else None,
        ),
    )
    diagnosis.measure(b.observed)
    return diagnosis.report()


def test_the_report_holds_the_snapshots_place_size_and_cost(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"12345")
    history = diagnosed(script_run(noise=0.004), tmp_path).memory_history
    assert history is not None
    assert (history.path, history.n_bytes, history.n_entries) == (NAME, 5, 321)
    assert history.overhead == pytest.approx(1.2, abs=0.03)
    assert history.overhead_ci is not None
    assert history.overhead_ci[0] < 1.2 < history.overhead_ci[1]


def test_the_report_says_that_it_does_not_apply_without_an_accelerator(tmp_path: Path) -> None:
    report = diagnosed(script_run(device=None), tmp_path)
    assert report.memory_history is None
    assert {w.kind: w.text for w in report.warnings}["memory-history"] == NOT_APPLICABLE
    unasked = diagnosed(script_run(device=None), tmp_path, wanted=False)
    assert "memory-history" not in {w.kind for w in unasked.warnings}


def test_windows_with_the_history_on_take_no_part_in_the_step_time(tmp_path: Path) -> None:
    b = script_run(noise=0.0)
    b.cost = 3.0
    assert diagnosed(b, tmp_path).step.wall_ms == pytest.approx(10.0)
