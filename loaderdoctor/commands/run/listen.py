"""The process that listens to a run: hears its beats, looks around, tells, writes, and reports.

Nothing that it does, and nothing that happens to it, changes the run. While it listens it imports
neither what draws nor what analyses: it is to stay small for a week.

As a program (`python -m`) it listens to a loop of a process that runs already, as a notebook does.
Comes in, on stdin, as JSON: ListenOptions and a pid. Goes out, on stdout: where to call.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final, TextIO

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.alerts import Alert, Counted
from loaderdoctor.alerts.job import Job
from loaderdoctor.commands.run import ListenOptions, config_of, unjudged
from loaderdoctor.commands.run.run_files import (
    RECORDED,
    Loop,
    Recorded,
    RunFiles,
    openmetrics,
    run_row,
)
from loaderdoctor.instrument.command import ConnectionListener
from loaderdoctor.instrument.command.launch_config import Target
from loaderdoctor.instrument.command.rank_connection import RecordedRun
from loaderdoctor.instrument.system.look_around import LookAround
from loaderdoctor.instrument.wire.measured import Surroundings, TuningRecord
from loaderdoctor.instrument.wire.protocol import Beat, Observed, WindowDone
from loaderdoctor.report import RunFolder
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words.run import (
    tuning_began,
    tuning_changed,
    tuning_left_alone,
    tuning_summary,
)

EVERY_S: Final = 60.0
CLEAR: Final = "\r\x1b[K"


class Teller:
    """Says on stderr what has changed: one line at a time, at most one a minute.

    The script writes to the same terminal, progress bars above all, which redraw one line over and
    over without ending it. So a line of ours first clears the one the cursor is in; the bar draws
    itself again below it. In a file a line begins on its own.
    """

    def __init__(
        self, stream: TextIO | None = None, *, say: Callable[[str], None] | None = None
    ) -> None:
        """`say`: whoever tells it instead."""
        self._stream = stream or sys.stderr
        self._say = say
        self._waiting: deque[Alert] = deque(maxlen=32)
        self._told_s = float("-inf")

    def add(self, alert: Alert) -> None:
        self._waiting.append(alert)

    def tell(self, now_s: float) -> Alert | None:
        """Tell the next one, if it is time; which that was."""
        if not self._waiting or now_s - self._told_s < EVERY_S:
            return None
        self._told_s = now_s
        alert = self._waiting.popleft()
        self.say(alert.line)
        return alert

    def say(self, text: str) -> None:
        if self._say is not None:
            self._say(text)
            return
        line = f"loaderdoctor: {fmt.plain(text)}\n"
        with suppress(OSError, ValueError):  # nobody reads it any more
            if self._stream.isatty():
                line = CLEAR + line
            elif _in_a_line(self._stream):
                line = "\n" + line
            self._stream.write(line)
            self._stream.flush()


def _in_a_line(stream: TextIO) -> bool:
    """Whether a file ends within a line, as where a bar draws into it."""
    try:
        number = stream.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return False
        with open(f"/proc/self/fd/{number}", "rb") as reader:  # noqa: PTH123 - opened again, to read
            if not reader.seek(0, os.SEEK_END):
                return False
            reader.seek(-1, os.SEEK_END)
            return reader.read(1) not in (b"\n", b"\r")
    except (OSError, ValueError):
        return False


class Tuned:
    def __init__(self) -> None:
        self.record: TuningRecord | None = None

    def heard(self, record: TuningRecord, step: int) -> list[Alert]:
        before, self.record = self.record, record
        if record.not_tuned is not None:
            text = tuning_left_alone(record) if before is None else None
        elif before is None or before.chosen != record.chosen:
            text = (
                tuning_began(record)
                if before is None and record.chosen is None
                else tuning_changed(record)
            )
        else:
            text = None
        if text is None:
            return []
        return [Alert(kind="tuned", at_s=time.time(), step=step, text=text)]


HEAR_S: Final = 0.5
LOOK_S: Final = 1.5  # eleven of them name a leak within half a minute
MAX_LOOK_SHARE: Final = 0.01  # of this process's time, where a run has hundreds of processes
METRICS_S: Final = 5.0
STATE_S: Final = 10.0
MINUTE_S: Final = 60.0


def listen(options: ListenOptions, listener: ConnectionListener, pid: int) -> None:
    """Until the run is over and its report is shown."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_IGN)
    run = RecordedRun(listener, pid, options.label)
    code = 0
    try:
        code = _Listening(options, run, pid).to_end()
    except Exception:  # ours: the run goes on, and whoever waits for the report is let go
        sys.stderr.write(f"loaderdoctor: the report failed:\n{traceback.format_exc()}")
        code = unjudged(options)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        RunFolder(options.folder, options.made).discard_if_empty()
        run.reported(code)
        run.close()
        shutil.rmtree(options.sums, ignore_errors=True)


class _Listening:
    def __init__(self, options: ListenOptions, run: RecordedRun, pid: int) -> None:
        self._options, self._run = options, run
        self._files = RunFiles(options.folder, options.metrics_file)
        self._around = LookAround(pid)
        self._job = Job(options.began_s)
        self._teller = Teller(say=None if options.shown else run.say)
        self._tuned = Tuned()
        self._alerts: list[Alert] = []
        self._look: Surroundings | None = None
        self._due_look_s = self._due_state_s = self._due_minute_s = self._due_metrics_s = 0.0
        self._minute: tuple[Run, Counted] | None = None  # as they were then

    def to_end(self) -> int:
        """Hear, look, tell and write until it is over; the command's exit code."""
        while not self._run.over:
            for connection, message in self._run.hear(HEAR_S):
                if isinstance(message, Beat):
                    if message.tuning is not None and connection.rank <= 0:
                        self._found(self._tuned.heard(message.tuning, message.n_steps))
                    self._found(self._job.beat(max(0, connection.rank), message))
                elif isinstance(message, (Observed, WindowDone)):
                    self._write_loops()
            self._now_and_then(time.monotonic())
        row = self._row()
        if row is not None:
            self._write_loops()
            self._files.state(row)
            self._write_metrics(row)  # how it ended, and all there is of a short run
        if self._tuned.record is not None and self._tuned.record.not_tuned is None:
            self._teller.say(tuning_summary(self._tuned.record))
        # Imported only now: it is most of this program.
        from loaderdoctor.commands.report import report_run

        return report_run(self._options, self._run, row)

    def _now_and_then(self, now_s: float) -> None:
        if now_s >= self._due_look_s:
            pids, cpu_s = self._job.worker_pids, time.thread_time()
            look = self._around.look(pids)
            # Pages are walked as often as that costs little; the other looks don't wait for it.
            took_s = time.thread_time() - cpu_s - self._around.walked_s
            self._due_look_s = now_s + max(LOOK_S, took_s / MAX_LOOK_SHARE)
            if look is not None:
                self._look = look
                self._found(self._job.look(look))
        told = self._teller.tell(now_s)
        if told is not None:
            self._files.event(
                {"kind": "told", "at_s": time.time(), "step": told.step, "text": told.line}
            )
        if now_s >= self._due_metrics_s and self._options.metrics_file is not None:
            self._due_metrics_s = now_s + METRICS_S
            row = self._row()
            if row is not None:
                self._write_metrics(row)
        if now_s >= self._due_state_s:
            self._due_state_s = now_s + STATE_S
            row = self._row()
            if row is None:
                return
            self._files.state(row)
            if now_s >= self._due_minute_s:
                self._due_minute_s = now_s + MINUTE_S
                self._write_minute(row)

    def _found(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            self._alerts.append(alert)
            self._teller.add(alert)
            self._files.event(asdict(alert))
            row = self._row()
            if row is not None:
                self._files.state(row)

    def _row(self) -> Run | None:
        run = self._run
        return run_row(
            self._job,
            self._alerts,
            began_s=self._options.began_s,
            now_s=time.time(),
            ended=run.ended if run.over else None,
            hosts={c.rank: c.hello.host for c in run.connections if c.hello is not None},
            tuning=self._tuned.record,
        )

    def _write_metrics(self, row: Run) -> None:
        self._files.metrics(openmetrics(row, self._look, self._job.counted))

    def _write_loops(self) -> None:
        loops = tuple(
            Loop(
                rank=max(0, c.rank),
                hello=c.hello,
                observed=c.observed,
                windows=tuple(c.done.values()),
                notes=tuple(c.notes),
            )
            for c in self._run.measured
            if c.observed is not None
        )
        options = self._options
        self._files.loops(Recorded(label=options.label, began_s=options.began_s, loops=loops))

    def _write_minute(self, row: Run) -> None:
        counted = self._job.counted
        before, self._minute = self._minute, (row, counted)
        old = before[0].time if before is not None else None
        n = row.time.n_steps - (old.n_steps if old is not None else 0)
        took_s = row.time.recorded_s - (old.recorded_s if old is not None else 0.0)
        if n <= 0 or took_s <= 0.0:
            return
        shares = {
            name: (getattr(row.time, f"{name}_s") - (getattr(old, f"{name}_s") if old else 0.0))
            / took_s
            for name in ("step", "input", "starts", "validation", "saving", "other", "gc")
        }
        line: dict[str, object] = {
            "kind": "minute",
            "at_s": time.time(),
            "step": row.n_steps,
            "step_ms": 1e3 * took_s / n,
            "shares": shares,
            **asdict(counted.since(before[1] if before is not None else Counted())),
            "around": self._look,
        }
        self._files.event(line)
        curves = {f"run/{name}_share": share for name, share in shares.items()}
        curves["run/step_ms"] = 1e3 * took_s / n
        if self._look is not None and self._look.run_bytes is not None:
            curves["run/memory_bytes"] = float(self._look.run_bytes)
        self._files.scalars(curves, step=row.n_steps, at_s=time.time())


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told as a program."""

    options: ListenOptions
    pid: int


def main() -> None:
    text = sys.stdin.buffer.read()
    told = msgspec.json.decode(text, type=Apart, dec_hook=lambda kind, value: kind(value))  # paths
    options = told.options
    listener = ConnectionListener()
    recorded = Path(options.folder) / RECORDED
    target = Target(script=options.label)
    launch_config = config_of(
        target, listener, recorded, str(options.sums), group=False, profile=False
    )
    sys.stdout.buffer.write(msgspec.json.encode(launch_config))
    sys.stdout.flush()
    os.dup2(2, 1)  # whoever reads it there waits for its end
    listen(options, listener, told.pid)


if __name__ == "__main__":
    main()
