"""SIGINT and SIGTERM at any moment: what there is is reported, and nothing stays behind."""

from __future__ import annotations

import signal

import pytest

from tests.faults.at_moment import MODES, MOMENTS
from tests.faults.running import AT_MOMENT, Place, script

slow = pytest.mark.slow
# Before the loop was measured there is nothing to report.
TOO_EARLY = ("folder", "starting", "warm-up")
QUICK = {("no-input", "SIGTERM")}
CASES = [
    pytest.param(moment, name, marks=[] if (moment, name) in QUICK else [slow])
    for moment in MOMENTS
    for name in ("SIGINT", "SIGTERM")
]


@pytest.mark.parametrize(("moment", "name"), CASES)
def test_a_signal_at_any_moment_leaves_a_report_and_no_process(
    moment: str, name: str, own_shm: Place
) -> None:
    # A loop whose workers keep up has nothing to try.
    path = script(own_shm.path, workers=0 if moment == "trial" else 1)
    done = own_shm.run(
        moment,
        name,
        "diagnose",
        "--budget",
        "90" if moment in MODES else "8",  # the signal ends it in the named window
        "--output",
        "out",
        path,
        module=AT_MOMENT,
    )
    assert done.code == 128 + getattr(signal, name), done.stderr
    done.check_clean()
    assert own_shm.in_shm() == []
    if moment in TOO_EARLY:
        assert done.last_line == "loaderdoctor: interrupted"
        assert done.report is None
        return
    assert done.said.step.wall_ms is not None or moment == "plain"  # the first of all windows
    assert "All of it: " in done.stdout or "All of it, and" in done.stdout
    assert (done.folder / "report.html").exists()
    if moment in MODES:
        assert "interrupted" in {w.kind for w in done.said.warnings}


@slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_spawned_workers_semaphores_are_given_back(name: str, own_shm: Place) -> None:
    path = script(own_shm.path, workers=2, options="multiprocessing_context='spawn'")
    done = own_shm.run(
        "plain", name, "diagnose", "--budget", "20", "--output", "out", path, module=AT_MOMENT
    )
    assert done.code == 128 + getattr(signal, name), done.stderr
    assert own_shm.in_shm() == []


@slow
@pytest.mark.parametrize("moment", ["plain", "trial"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_sweep_reports_its_trials_so_far(
    moment: str, name: str, own_shm: Place
) -> None:
    path = script(own_shm.path)
    done = own_shm.run(
        moment, name, "sweep", "--budget", "10", "--output", "out", path, module=AT_MOMENT
    )
    assert done.code == 128 + getattr(signal, name), done.stderr
    done.check_clean()
    assert own_shm.in_shm() == []
