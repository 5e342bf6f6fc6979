"""The table of a run's epochs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loaderdoctor.report.run_model import RunEpoch, RunTime
from loaderdoctor.report.words.run import MAX_ROWS, epoch_rows

NONE = RunTime(
    recorded_s=0.0,
    n_steps=0,
    step_s=0.0,
    input_s=0.0,
    starts_s=0.0,
    validation_s=0.0,
    saving_s=0.0,
    other_s=0.0,
    gc_s=0.0,
    waited_s=0.0,
)


@pytest.mark.parametrize(("copy_s", "each"), [(5.0, "20.0 ms"), (None, "15.0 ms")])
def test_a_step_holds_its_wait_and_its_copies(copy_s: float | None, each: str) -> None:
    known = {"recorded_s": 15.0 + (copy_s or 0.0), "step_s": 10.0, "input_s": 5.0, "waited_s": 5.0}
    time = replace(NONE, n_steps=1000, copy_s=copy_s, **known)
    ((_, _, _, a_step, _),) = epoch_rows([RunEpoch(first=0, last=0, time=time)])
    assert a_step == each


def test_epochs_of_a_long_run_that_are_not_shown_are_named() -> None:
    epochs = [RunEpoch(first=2 * i, last=2 * i + 1, time=NONE) for i in range(40)]
    rows = epoch_rows(epochs)
    assert [row[0] for row in rows[5:8]] == ["10–11", "12–67", "68–69"]
    assert len(rows) == MAX_ROWS + 1
    assert len(epoch_rows(epochs[:MAX_ROWS])) == MAX_ROWS
