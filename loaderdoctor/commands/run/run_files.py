"""What a run leaves on disk while it goes on: small files that are whole at any moment.

The run so far as report.json has it, too, and as OpenMetrics text (for Prometheus' node exporter or
any reader of such files).

events.jsonl, events.1.jsonl   one line a minute, and one for each alert; the older half
.recorded/run.json             the run so far, replaced every minute
.recorded/loops.json           what each process said of its loop, and its first window
tensorboard/run/               scalars, one point a minute
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from loaderdoctor.alerts import Alert, Counted
from loaderdoctor.alerts.job import Account, History, Job
from loaderdoctor.instrument.wire.measured import LogBins, Surroundings, TuningRecord
from loaderdoctor.instrument.wire.protocol import Ended, Hello, Note, Observed, WindowDone
from loaderdoctor.report.run_model import (
    Quantiles,
    Run,
    RunAlert,
    RunEpoch,
    RunRank,
    RunStretch,
    RunTime,
)
from loaderdoctor.secrets import masked
from loaderdoctor.units import NS_PER_MS

RECORDED: Final = ".recorded"
EVENTS: Final = "events.jsonl"
OLDER: Final = "events.1.jsonl"
ROTATE_BYTES: Final = 2_000_000  # three days of lines


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    hello: Hello | None
    observed: Observed
    windows: tuple[WindowDone, ...]
    notes: tuple[Note, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report is made of, but for the run itself and what lies in files."""

    label: str
    began_s: float
    loops: tuple[Loop, ...]


class RunFiles:
    """Of one run folder. A full disk costs what can't be written, never the run."""

    def __init__(self, folder: Path, metrics_file: Path | None) -> None:
        self.folder = folder
        self.recorded = folder / RECORDED
        self._metrics_file = metrics_file
        self._events: EventFile | None = None
        self._complained = False
        self.recorded.mkdir(exist_ok=True)

    def event(self, line: Mapping[str, Any]) -> None:
        path = self.folder / EVENTS

        def write() -> None:
            with path.open("ab") as out:
                out.write(msgspec.json.encode(line) + b"\n")
            if path.stat().st_size > ROTATE_BYTES:
                path.replace(self.folder / OLDER)

        self._try(write)

    def state(self, run: Run) -> None:
        self._replace(self.recorded / "run.json", msgspec.json.encode(run))

    def loops(self, recorded: Recorded) -> None:
        """Without what looks like a secret: the file stays in the run folder."""
        kept = msgspec.structs.replace(recorded, loops=tuple(map(_unsecret, recorded.loops)))
        self._replace(self.recorded / "loops.json", msgspec.json.encode(kept))

    def scalars(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        def write() -> None:
            if self._events is None:
                self._events = EventFile(self.folder / "tensorboard" / "run")
            self._events.add(values, step=step, at_s=at_s)

        self._try(write)

    def metrics(self, text: str) -> None:
        if self._metrics_file is not None:
            self._replace(self._metrics_file, text.encode())

    def _replace(self, path: Path, data: bytes) -> None:
        def write() -> None:
            partial = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                partial.write_bytes(data)
                partial.replace(path)
            except OSError:
                with suppress(OSError):
                    partial.unlink()
                raise

        self._try(write)

    def _try(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            if not self._complained:
                self._complained = True
                with suppress(OSError):
                    sys.stderr.write(
                        f"loaderdoctor: {self.folder}: {error}; what it would hold is lost.\n"
                    )


def _unsecret(loop: Loop) -> Loop:
    replace, script = msgspec.structs.replace, loop.observed.script
    if script is None:
        return loop
    script = replace(script, args=masked(script.args))
    return replace(loop, observed=replace(loop.observed, script=script))


def read_recorded(folder: Path) -> tuple[Recorded | None, Run | None]:
    """What a run that is not over has left. Raises msgspec.MsgspecError for files not ours."""
    found: list[Any] = []
    for name, kind in (("loops.json", Recorded), ("run.json", Run)):
        path = folder / RECORDED / name
        found.append(msgspec.json.decode(path.read_bytes(), type=kind) if path.is_file() else None)
    return found[0], found[1]


QUANTILES = (0.5, 0.9, 0.99, 0.999)


def run_row(
    job: Job,
    alerts: Sequence[Alert],
    *,
    began_s: float,
    now_s: float,
    ended: Ended | None,
    hosts: Mapping[int, str],
    tuning: TuningRecord | None = None,
) -> Run | None:
    """The run so far; None where no beat has come."""
    histories = job.histories
    if not histories:
        return None
    first = next(iter(histories.values()))
    return Run(
        took_s=now_s - began_s,
        before_s=max(0.0, (first.first_beat_s or now_s) - began_s),
        time=_time(first.total),
        n_steps=first.n_steps,
        step_ms_quantiles=_quantiles_ms(first.step_bins),
        wait_ms_quantiles=_quantiles_ms(first.wait_bins),
        epochs=tuple(
            RunEpoch(first=e.first, last=e.last, time=_time(e.account)) for e in first.epochs
        ),
        timeline=tuple(
            RunStretch(
                start_s=t.start_s, end_s=t.end_s, time=_time(t.account), run_bytes=t.run_bytes
            )
            for t in first.times
        ),
        alerts=tuple(RunAlert(**{**asdict(a), "at_s": a.at_s - began_s}) for a in alerts),
        ranks=_ranks(histories, hosts) if len(histories) > 1 else (),
        last_step_ms=tuple(ns / NS_PER_MS for ns in job.last_step_ns),
        complete=ended is not None,
        tuning=tuning,
        how=ended.how if ended is not None else None,
        exit_code=ended.exit_code if ended is not None else None,
    )


def _ranks(histories: Mapping[int, History], hosts: Mapping[int, str]) -> tuple[RunRank, ...]:
    return tuple(
        RunRank(rank=rank, host=hosts.get(rank, ""), time=_time(h.total), n_steps=h.n_steps)
        for rank, h in histories.items()
    )


def _time(account: Account) -> RunTime:
    return RunTime(**asdict(account))


def _quantiles_ms(bins: LogBins) -> Quantiles | None:
    found = [bins.quantile_ns(q) for q in QUANTILES]
    known = [ns / NS_PER_MS for ns in found if ns is not None]
    return (known[0], known[1], known[2], known[3]) if len(known) == len(QUANTILES) else None


def openmetrics(run: Run, look: Surroundings | None, counted: Counted) -> str:
    """All figures that are known; those that are not are left out."""
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: dict[str, float | None]) -> None:
        known = {labels: value for labels, value in values.items() if value is not None}
        if known:
            lines.append(f"# TYPE loaderdoctor_{name} {kind}")
            lines.append(f"# HELP loaderdoctor_{name} {text}")
            suffix = "_total" if kind == "counter" else ""
            lines.extend(f"loaderdoctor_{name}{suffix}{k} {v:.9g}" for k, v in known.items())

    metric("steps", "counter", "Steps of the loop.", {"": float(run.n_steps)})
    time = run.time
    metric(
        "seconds",
        "counter",
        "Wall time by what it went to.",
        {
            '{to="step"}': time.step_s,
            '{to="input"}': time.input_s,
            '{to="copy"}': time.copy_s,
            '{to="epoch_start"}': time.starts_s,
            '{to="validation"}': time.validation_s,
            '{to="saving"}': time.saving_s,
            '{to="other"}': time.other_s,
        },
    )
    metric("gc_seconds", "counter", "Time in garbage collections.", {"": time.gc_s})
    for name, quantiles in (("step", run.step_ms_quantiles), ("wait", run.wait_ms_quantiles)):
        metric(
            f"{name}_seconds",
            "gauge",
            f"Quantiles of the {name} time since the run began.",
            {
                f'{{quantile="{q}"}}': ms / 1e3
                for q, ms in zip(QUANTILES, quantiles or (), strict=False)
            },
        )
    metric(
        "page_faults",
        "counter",
        "Page faults of the training process; major ones read from disk.",
        {'{kind="minor"}': counted.minor_faults, '{kind="major"}': counted.major_faults},
    )
    text = "Batches in the loader's queues at the last look."
    metric("ready_batches", "gauge", text, {"": counted.ready_batches})
    text = "Batches that its workers were asked for, those that are ready included."
    metric("asked_batches", "gauge", text, {"": counted.asked_batches})
    if look is not None:
        metric(
            "received_bytes_per_second",
            "gauge",
            "By the machine's network interfaces, but loopback.",
            {"": look.received_bytes_per_s},
        )
        metric("run_bytes", "gauge", "Memory of the run.", {"": look.run_bytes})
        metric("available_bytes", "gauge", "Memory left.", {"": look.available_bytes})
        metric("shm_free_bytes", "gauge", "Left in /dev/shm.", {"": look.shm_free_bytes})
        metric("own_cpus", "gauge", "CPUs that the run keeps busy.", {"": look.own_cpus})
        metric("other_cpus", "gauge", "CPUs that others keep busy.", {"": look.other_cpus})
        metric("throttled_share", "gauge", "Of the quota's periods.", {"": look.throttled_share})
        metric(
            "pressure_share",
            "gauge",
            "Time in which a process was held up.",
            {
                '{for="cpu"}': look.cpu_pressure,
                '{for="io"}': look.io_pressure,
                '{for="memory"}': look.memory_pressure,
            },
        )
        for gpu in look.gpus:
            metric(
                f"gpu{gpu.index}_sm_hertz",
                "gauge",
                "Clock of its processors.",
                {"": gpu.sm_mhz * 1e6 if gpu.sm_mhz is not None else None},
            )
    metric("alerts", "counter", "Changes that were told.", {"": float(len(run.alerts))})
    return "\n".join([*lines, "# EOF", ""])


_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


class EventFile:
    """TensorBoard's event file, for scalars alone: without TensorBoard, which takes 100 MB.

    Appended to; a reader may follow it. A record is its length, a masked CRC32C of that, the
    payload, and a masked CRC32C of it; the payload is an `Event` message of protocol buffers
    (tensorflow/core/util/event.proto).
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        version = _field(3, b"brain.Event:2")
        self._append(_double(1, time.time()) + version)

    def add(self, scalars: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Values at a step. Raises OSError."""
        values = b"".join(
            _field(1, _field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in scalars.items()
        )
        event = _double(1, at_s) + b"\x10" + _varint(step) + _field(5, values)
        self._append(event)

    def _append(self, payload: bytes) -> None:
        length = struct.pack("<Q", len(payload))
        record = length + _masked(length) + payload + _masked(payload)
        with self.path.open("ab") as out:
            out.write(record)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
