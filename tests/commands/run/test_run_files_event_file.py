"""Our event file against TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from loaderdoctor.commands.run.run_files import EventFile


def test_tensorboard_reads_every_scalar(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "run")
    for i in range(300):
        events.add({"run/step_ms": 12.5 + i, "run/é": -0.25}, step=i * 1000, at_s=1e9 + i)
    found = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"run/step_ms", "run/é"}
    curve = found.Scalars("run/step_ms")
    assert [e.step for e in curve] == [i * 1000 for i in range(300)]
    assert curve[7].value == pytest.approx(19.5)
    assert curve[7].wall_time == pytest.approx(1e9 + 7)
