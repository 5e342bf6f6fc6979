"""Raw samples of a sweep: `samples.npz` in the run folder, for anyone to analyse, and to go on.

One numpy archive (`numpy.load(path)`, no pickles in it). Row i of every array without a `flat_`
is one timed window; the flat arrays hold values of all windows one after the other, those of window
i in `flat[offsets[i]:offsets[i + 1]]`. Integers are nanoseconds of the measuring process's
perf_counter unless the name says otherwise; -1 stands for not recorded.

    trial, round            index into `trials` of the description; round, from 0
    visit                   which of the trial's measurements it is, from 0
    phase                   0 calibrate, 1 rank, 2 confirm
    group                   on a cluster: the group of trials that a node measured together
    n_steps, n_samples      of the window
    start_ns, end_ns        of the window
    startup_ns, boundary_ns opening to first batch; one epoch boundary as timed next to the window
    host_bytes, gpu_peak_allocated_bytes, gpu_peak_reserved_bytes, tensor_peak_bytes
    wall_s                  the whole measurement by the command's clock
    flat_host_step_ns       offsets in `step_offsets`; time of each step on the host
    flat_device_step_ns     same offsets; as the accelerator reached them, -1 without one
    flat_at_boundary        same offsets; 1 where an epoch of the loop's ended before the step,
                            2 where one of the trial's loader did, 3 where both did
    flat_wait_loader, flat_wait_start_ns, flat_wait_end_ns
                            offsets in `wait_offsets`; each fetch from a loader of the step
    description             JSON text: the command's options, and `trials` with their settings
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loaderdoctor.cluster import Hardware
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.report import write_bytes
from loaderdoctor.settings import Value
from loaderdoctor.tryout import Measurement, Part, Phase, Trial

NAME = "samples.npz"
SCHEMA = 1
PHASES: tuple[Phase, ...] = ("calibrate", "rank", "confirm")
# A thousand windows of a thousand steps are 50 MB; zip can claim a thousand times its size.
MAX_BYTES = 1 << 30
MAX_NUMBER = 1 << 60  # 36 years, an exabyte: sums stay far from the ends of int64
_REASON_LENGTH = 200
_ABSENT = -1
_OPTIONAL = (
    "startup_ns",
    "boundary_ns",
    "host_bytes",
    "gpu_peak_allocated_bytes",
    "gpu_peak_reserved_bytes",
    "tensor_peak_bytes",
)
_LATER = "tensor_peak_bytes"  # files of earlier versions lack it
Ints = NDArray[np.int64]


class SavedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as the description has it."""

    settings: dict[str, Value]
    status: str
    reason: str | None
    dropped: bool
    row: str | None = None
    group: str | None = None
    samples_per_step: float | None = None
    steps_per_epoch: int | None = None


class SavedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that one node of a cluster has measured, to the end. `index` is that of `group`."""

    index: int
    trials: tuple[int, ...]
    part: Part
    host: str
    hardware: Hardware  # the first machine of its kind
    loop: str  # the loop's own settings there


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What the numbers belong to. `options` are the command's, as `commands.sweep` wrote them."""

    schema: int
    options: dict[str, Any]
    trials: tuple[SavedTrial, ...]
    spent_s: float
    groups: tuple[SavedGroup, ...] = ()
    on_cluster: bool = False


def write(
    folder: Path,
    trials: Sequence[Trial],
    *,
    options: Mapping[str, Any],
    spent_s: float,
    groups: tuple[SavedGroup, ...] | None = None,
) -> None:
    """Write samples.npz, whole or not at all; `groups` of a cluster's sweep. Raises RunError."""
    description = Description(
        schema=SCHEMA,
        options=dict(options),
        trials=tuple(map(_saved, trials)),
        spent_s=spent_s,
        groups=groups or (),
        on_cluster=groups is not None,
    )
    text = msgspec.json.encode(description).decode()
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"description": np.array(text), **columns(trials)}
    np.savez_compressed(buffer, **arrays)
    write_bytes(folder / NAME, buffer.getvalue())


def columns(trials: Sequence[Trial]) -> dict[str, NDArray[Any]]:
    """Every window of every trial as the arrays described above."""
    at = [
        (trial.index, n, measurement)
        for trial in trials
        for n, measurement in enumerate(trial.measurements)
    ]
    windows = [measurement.window for _, _, measurement in at]
    found: dict[str, NDArray[Any]] = {
        "trial": _ints([index for index, _, _ in at]),
        "visit": _ints([n for _, n, _ in at]),
        "round": _ints([measurement.round for _, _, measurement in at]),
        "phase": _ints([PHASES.index(measurement.phase) for _, _, measurement in at]),
        "group": _ints([_ABSENT if v.group is None else v.group for _, _, v in at]),
        "wall_s": np.array([measurement.wall_s for _, _, measurement in at], dtype=np.float64),
    }
    for name in ("n_steps", "n_samples", "start_ns", "end_ns", *_OPTIONAL):
        values = [getattr(window, name) for window in windows]
        found[name] = _ints([_ABSENT if value is None else value for value in values])
    found["step_offsets"] = _offsets([len(w.host_step_ns) for w in windows])
    found["flat_host_step_ns"] = _ints([ns for w in windows for ns in w.host_step_ns])
    found["flat_device_step_ns"] = _ints(
        [
            ns
            for w in windows
            for ns in (
                w.device_step_ns
                if w.device_step_ns is not None
                else (_ABSENT,) * len(w.host_step_ns)
            )
        ]
    )
    found["flat_at_boundary"] = _ints(
        [
            int(i in w.boundary_steps) + 2 * int(i in w.crossed_steps)
            for w in windows
            for i in range(len(w.host_step_ns))
        ]
    )
    found["wait_offsets"] = _offsets([len(w.fetches) for w in windows])
    for name in ("loader", "start_ns", "end_ns"):
        found[f"flat_wait_{name}"] = _ints([getattr(f, name) for w in windows for f in w.fetches])
    return found


def read(folder: Path) -> tuple[Description, dict[int, list[Measurement]]]:
    """The description, and measurements by trial index. Raises UsageError with what is wrong."""
    path = folder / NAME
    try:
        arrays = _arrays(path)
        description = msgspec.json.decode(str(arrays["description"]), type=Description)
        measurements: dict[int, list[Measurement]] = {}
        for i in range(len(arrays["trial"])):
            measurements.setdefault(int(arrays["trial"][i]), []).append(_measurement(arrays, i))
        _check_numbers(description, measurements)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: no such file. Give the run folder of a sweep that was interrupted."
        ) from error
    except (
        OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError,
        msgspec.MsgspecError,
    ) as error:  # fmt: skip
        reason = ascii(str(error))[1:-1][:_REASON_LENGTH]
        raise UsageError(f"{path}: not the samples of a sweep ({reason}).") from error
    if description.schema != SCHEMA:
        raise UsageError(
            f"{path}: written by another version of loaderdoctor. Run the sweep again."
        )
    return description, measurements


def _check_numbers(description: Description, measurements: Mapping[int, object]) -> None:
    """Raise ValueError where windows or groups are of trials that there are not, or of two."""
    known = range(len(description.trials))
    if any(number not in known for number in measurements):
        raise ValueError("windows of a trial that it does not describe")
    ranked = [n for group in description.groups if group.part == "rank" for n in group.trials]
    named = [n for group in description.groups for n in group.trials]
    if any(n not in known or not n for n in named) or len(ranked) != len(set(ranked)):
        raise ValueError("groups of trials that do not fit together")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an archive. Raises OSError, and ValueError for anything else that is wrong."""
    try:
        # Opened here: of an archive that is none, numpy leaves its own file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            n_bytes = sum(entry.file_size for entry in archive.zip.infolist())
            if n_bytes > MAX_BYTES:
                raise ValueError(f"it unpacks to {n_bytes / 1e9:.0f} GB")
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError):
        raise
    except Exception as error:  # numpy and zipfile raise what their parsers raise
        raise ValueError(f"{type(error).__name__}: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind not in ("U" if name == "description" else "if"):
            raise ValueError(f"{name} holds {array.dtype}")
    return arrays


def restore(
    trials: Sequence[Trial], saved: Description, measurements: dict[int, list[Measurement]]
) -> None:
    """Put what was measured before into newly planned trials.

    Raises UsageError where they aren't those of the saved run: another machine, another script.
    """
    check_same(trials, saved)
    for trial, old in zip(trials, saved.trials, strict=True):
        trial.measurements = measurements.get(trial.index, [])
        trial.dropped = old.dropped and bool(trial.measurements)  # others only lacked the time
        trial.samples_per_step = old.samples_per_step
        trial.steps_per_epoch = old.steps_per_epoch
        # "Not reached" and what was refused is decided again; what crashed is not tried again.
        if old.status == "failed":
            trial.fail("failed", old.reason or "no reason recorded")


def check_same(trials: Sequence[Trial], saved: Description) -> None:
    """Raise UsageError where newly planned trials are not those of the saved run."""
    now = [trial.settings.changed() for trial in trials]
    if now != [old.settings for old in saved.trials]:
        raise UsageError(
            "--resume: the loop or the machine is not the same as then, so that other trials "
            "would be made. Run the sweep again."
        )


def _saved(trial: Trial) -> SavedTrial:
    return SavedTrial(
        settings=trial.settings.changed(),
        status=trial.status,
        reason=trial.reason,
        dropped=trial.dropped,
        row=trial.row.name if trial.row is not None else None,
        group=trial.row.group if trial.row is not None else None,
        samples_per_step=trial.samples_per_step,
        steps_per_epoch=trial.steps_per_epoch,
    )


def _measurement(arrays: Mapping[str, NDArray[Any]], i: int) -> Measurement:
    begin, end = (int(n) for n in arrays["step_offsets"][i : i + 2])
    first, last = (int(n) for n in arrays["wait_offsets"][i : i + 2])
    host = tuple(int(ns) for ns in arrays["flat_host_step_ns"][begin:end])
    device = tuple(int(ns) for ns in arrays["flat_device_step_ns"][begin:end])
    at_boundary = arrays["flat_at_boundary"][begin:end]
    known = {name: int(arrays[name][i]) for name in _OPTIONAL if name in arrays or name != _LATER}
    optional: dict[str, Any] = {n: None if v == _ABSENT else v for n, v in known.items()}
    fetches = zip(
        *(arrays[f"flat_wait_{name}"][first:last] for name in ("loader", "start_ns", "end_ns")),
        strict=True,
    )
    window = WindowDone(
        id=0,
        mode="trial",
        status="ok",
        n_steps=int(arrays["n_steps"][i]),
        n_samples=int(arrays["n_samples"][i]),
        start_ns=int(arrays["start_ns"][i]),
        end_ns=int(arrays["end_ns"][i]),
        host_step_ns=host,
        device_step_ns=None if _ABSENT in device else device,
        boundary_steps=tuple(int(n) for n in np.flatnonzero(at_boundary & 1)),
        crossed_steps=tuple(int(n) for n in np.flatnonzero(at_boundary & 2)),
        fetches=tuple(
            FetchRecord(loader=int(x), start_ns=int(a), end_ns=int(b), thread=0)
            for x, a, b in fetches
        ),
        **optional,
    )
    measurement = Measurement(
        phase=dict(enumerate(PHASES))[int(arrays["phase"][i])],
        round=int(arrays["round"][i]),
        window=window,
        wall_s=float(arrays["wall_s"][i]),
        group=group if (group := int(arrays["group"][i])) != _ABSENT else None,
    )
    _check(measurement)
    return measurement


def _check(measurement: Measurement) -> None:
    """Raises ValueError for a window that nobody measured."""
    window = measurement.window
    host, device = window.host_step_ns, window.device_step_ns
    steps = host if device is None else (*host, *device)
    if window.n_steps < 1 or {len(host), len(host if device is None else device)} != {
        window.n_steps
    }:
        raise ValueError(f"a window of {window.n_steps} steps has the times of {len(host)}")
    sizes = (getattr(window, name) for name in _OPTIONAL)
    numbers = (*steps, window.n_samples, measurement.round, *(n for n in sizes if n is not None))
    if not all(0 <= number < MAX_NUMBER for number in numbers) or not all(steps):
        raise ValueError("a window has times or sizes that can't be")
    if not 0 <= window.start_ns <= window.end_ns or not 0 <= measurement.wall_s < math.inf:
        raise ValueError("a window ends before it begins")


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _offsets(lengths: Sequence[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(_ints(lengths))]).astype(np.int64)
