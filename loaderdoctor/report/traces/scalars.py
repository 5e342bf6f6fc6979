"""Trials as TensorBoard event files: scalars, HParams and the report as text.

These tabs work without internet, unlike the profiler plugin's page. One run for each trial
(`trial-NN`), next to the trial's trace where it was traced, and `baseline` for the loop as it is.
"""

from __future__ import annotations

import io
import math
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import Discrete, HParam, Metric, hparams_config_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from loaderdoctor.format import plain
from loaderdoctor.report import make_folder, trial_run, write_bytes
from loaderdoctor.report.model import Report, Shares, Trial
from loaderdoctor.report.traces.tensorboard import BASELINE

# TensorBoard finds event files by the first part and orders them by the number after it.
_FILE = "events.out.tfevents.{at:010d}.{host}.loaderdoctor"
_OURS = "events.out.tfevents.*.loaderdoctor"

_METRICS: tuple[tuple[str, str], ...] = (
    ("step_ms", "step (ms)"),
    ("samples_per_s", "samples/s"),
    ("share/input", "input share"),
    ("share/copy", "copy share"),
    ("share/compute", "compute share"),
    ("share/host", "host share"),
    ("memory/gpu_peak_allocated_bytes", "GPU memory, allocated (bytes)"),
    ("memory/gpu_peak_reserved_bytes", "GPU memory, reserved (bytes)"),
    ("memory/host_bytes", "host memory (bytes)"),
    ("epoch_s", "epoch (s)"),
    ("startup_s", "worker start-up (s)"),
)


def write_scalars(report: Report, tensorboard: Path, *, console_text: str, at: float) -> None:
    """Write the event files of a report below `tensorboard`, replacing those of an earlier call.

    Called again after more trials it leaves one file per run. Trials that were skipped have no
    run; failed ones are listed as failed, without figures. `at` is seconds since the epoch.
    """
    tried = [(i, trial) for i, trial in enumerate(report.trials) if trial.status != "skipped"]
    top = [
        text_pb("report", _as_it_is(console_text)),
        _scalars(_step_metrics(report)),
    ]
    if tried:
        top.append(_experiment([trial for _, trial in tried]))
    _write_events(tensorboard / BASELINE, [(0, summary) for summary in top], at)
    for index, trial in tried:
        _write_events(tensorboard / trial_run(index), list(_trial(index, trial)), at)


def _trial(index: int, trial: Trial) -> Iterator[tuple[int, Summary]]:
    yield 0, _session_start(index, trial)
    figures = _trial_metrics(trial) if trial.status == "ok" else {}
    yield 0, _scalars(figures)
    for n, window_ms in enumerate(trial.window_ms):
        yield n, _scalars({"step_ms_by_window": window_ms})
    if trial.reason:
        yield 0, text_pb("reason", _as_it_is(plain(trial.reason)))
    yield 0, _session_end(trial)


def _as_it_is(text: str) -> str:
    """Markdown that shows the text as it is; nothing in it ends the fence."""
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def _trial_metrics(trial: Trial) -> dict[str, float | int | None]:
    return {
        "step_ms": trial.step_ms,
        "samples_per_s": trial.samples_per_s,
        **_share_metrics(trial.shares),
        "memory/gpu_peak_allocated_bytes": trial.gpu_peak_allocated_bytes,
        "memory/gpu_peak_reserved_bytes": trial.gpu_peak_reserved_bytes,
        "memory/host_bytes": trial.host_bytes,
        "epoch_s": trial.epoch_s,
        "startup_s": trial.startup_s,
    }


def _step_metrics(report: Report) -> dict[str, float | int | None]:
    return {"step_ms": report.step.wall_ms, **_share_metrics(report.shares)}


def _share_metrics(shares: Shares | None) -> dict[str, float | int | None]:
    if shares is None:
        return {}
    return {f"share/{name}": getattr(shares, name) for name in shares.__struct_fields__}


def _scalars(figures: Mapping[str, float | int | None]) -> Summary:
    """One point for each figure; a figure that was not recorded has no point."""
    return Summary(
        value=[
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in figures.items()
            if value is not None and math.isfinite(value)
        ]
    )


def _experiment(trials: Sequence[Trial]) -> Summary:
    """What varied and what was measured: the columns of the HParams table."""
    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in _hparams(trial).items():
            values.setdefault(name, []).append(value)
    hparams = []
    for name, seen in values.items():
        one_type = len({type(value) for value in seen}) == 1
        hparams.append(HParam(name, Discrete(sorted(set(seen))) if one_type else None))
    recorded = {
        tag for trial in trials for tag, value in _trial_metrics(trial).items() if value is not None
    }
    metrics = [Metric(tag, display_name=text) for tag, text in _METRICS if tag in recorded]
    return hparams_config_pb(hparams=hparams, metrics=metrics, time_created_secs=1.0)


def _hparams(trial: Trial) -> dict[str, bool | float | str]:
    """The settings a trial changed; one left as the user has it has no value in the table."""
    out: dict[str, bool | float | str] = {}
    for name, value in trial.settings.items():
        if isinstance(value, bool):
            out[name] = value
        elif isinstance(value, int | float):
            out[name] = float(value)
        elif value is not None:
            out[name] = plain(str(value))
    return out


def _session_start(index: int, trial: Trial) -> Summary:
    name = f"{trial_run(index)} {plain(trial.label)}"
    start = plugin_data_pb2.SessionStartInfo(group_name=name)
    for name, value in _hparams(trial).items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    return _hparams_summary(
        metadata.SESSION_START_INFO_TAG,
        plugin_data_pb2.HParamsPluginData(session_start_info=start),
    )


def _session_end(trial: Trial) -> Summary:
    status = api_pb2.STATUS_SUCCESS if trial.status == "ok" else api_pb2.STATUS_FAILURE
    return _hparams_summary(
        metadata.SESSION_END_INFO_TAG,
        plugin_data_pb2.HParamsPluginData(
            session_end_info=plugin_data_pb2.SessionEndInfo(status=status)
        ),
    )


def _hparams_summary(tag: str, data: Any) -> Summary:
    summary = Summary()
    summary.value.add(
        tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR
    )
    return summary


def _write_events(folder: Path, summaries: Sequence[tuple[int, Summary]], at: float) -> None:
    """One event file in `folder`, whole or not at all, instead of an earlier one of ours."""
    make_folder(folder)
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    writer.write(Event(wall_time=at, file_version="brain.Event:2").SerializeToString())
    for step, summary in summaries:
        if summary.value:
            event = Event(wall_time=at, step=step, summary=summary)
            writer.write(event.SerializeToString())
    name = _FILE.format(at=int(at), host=socket.gethostname())
    earlier = [path for path in folder.glob(_OURS) if path.name != name]
    write_bytes(folder / name, buffer.getvalue())
    for path in earlier:
        with suppress(OSError):
            path.unlink()
