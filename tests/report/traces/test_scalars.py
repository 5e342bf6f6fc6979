"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from loaderdoctor.report.traces.scalars import write_scalars
from tests.report import samples


def read(folder: Path) -> Any:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_each_trial_that_ran_is_a_run_with_its_figures(tmp_path: Path) -> None:
    report = samples.sweep()
    write_scalars(report, tmp_path, console_text="Input-bound", at=1000.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "baseline", "trial-00", "trial-01", "trial-02", "trial-03", "trial-04",
    ]  # fmt: skip
    best = read(tmp_path / "trial-02")
    (point,) = best.Scalars("step_ms")
    assert point.value == pytest.approx(2.31)
    assert best.Scalars("share/input")[0].value == pytest.approx(0.2)
    assert len(best.Scalars("step_ms_by_window")) == 2
    failed = read(tmp_path / "trial-04")
    assert failed.Tags()["scalars"] == []
    start = metadata.parse_session_start_info_plugin_data(
        best.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    )
    assert start.hparams["num_workers"].number_value == 7
    assert start.hparams["persistent_workers"].bool_value is True
    assert "background" not in start.hparams
    experiment = metadata.parse_experiment_plugin_data(
        read(tmp_path / "baseline").summary_metadata[metadata.EXPERIMENT_TAG].plugin_data.content
    )
    assert "step_ms" in {info.name.tag for info in experiment.metric_infos}


def test_the_report_is_there_as_text(tmp_path: Path) -> None:
    write_scalars(samples.healthy(), tmp_path, console_text="Compute-bound\n", at=1000.0)
    (event,) = read(tmp_path / "baseline").Tensors("report")
    assert b"Compute-bound" in event.tensor_proto.string_val[0]


def test_writing_again_replaces_the_earlier_files(tmp_path: Path) -> None:
    for at in (1000.0, 1000.0, 2000.0):
        write_scalars(samples.sweep(), tmp_path, console_text="x", at=at)
    for folder in tmp_path.iterdir():
        assert len(list(folder.iterdir())) == 1


def test_a_setting_that_is_a_path_of_no_utf8_costs_no_file(tmp_path: Path) -> None:
    other = samples.trial("reading /caf\udce9", 3.0, settings={"storage": "/caf\udce9"})
    report = samples.sweep()
    report = msgspec.structs.replace(report, trials=(*report.trials, other))
    write_scalars(report, tmp_path, console_text="x", at=1000.0)
    assert (tmp_path / "trial-06").is_dir()
