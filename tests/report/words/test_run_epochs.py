"""The table of a run's epochs."""

from __future__ import annotations

import pytest

from loaderdoctor.report.run_model import RunEpoch, RunTime
from loaderdoctor.report.words.run import epoch_rows


@pytest.mark.parametrize(("copy_s", "each"), [(5.0, "20.0 ms"), (None, "15.0 ms")])
def test_a_step_holds_its_wait_and_its_copies(copy_s: float | None, each: str) -> None:
    time = RunTime(
        recorded_s=10.0 + 5.0 + (copy_s or 0.0),
        n_steps=1000,
        step_s=10.0,
        input_s=5.0,
        copy_s=copy_s,
        starts_s=0.0,
        validation_s=0.0,
        saving_s=0.0,
        other_s=0.0,
        gc_s=0.0,
        waited_s=5.0,
    )
    ((_, _, _, a_step, _),) = epoch_rows([RunEpoch(first=0, last=0, time=time)])
    assert a_step == each
