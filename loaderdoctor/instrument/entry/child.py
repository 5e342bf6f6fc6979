"""Entry of the measuring process: connect to the command, hook torch, run the user's script.

Started by `MeasuringProcess`; torch is not imported here. Hooks go in right after the script's own
`import torch` (see `ImportWatch` of `session/hooks`), so that environment variables the script sets
before it (CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS) still count.

A script that read from its standard input can't be run again: nobody would answer. What it reads
with Python's own means is seen at once; what other processes or os.read take shows where standard
input is a file, by its position. Of a pipe or a terminal that is not known.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from loaderdoctor.instrument.entry import (
    ScriptEnd,
    disable_in_forks,
    record,
    run_target,
    verdict,
    waits_for_threads,
)
from loaderdoctor.instrument.entry.spawned import Spawner
from loaderdoctor.instrument.session import Session, script_process
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.session.no_dataloader import NoDataLoaderWatch
from loaderdoctor.instrument.session.script_process import exit_now, script_of
from loaderdoctor.instrument.system.processes import (
    EXIT_INTERRUPTED,
    die_with_parent,
    held,
    outlive_terminal_reads,
)
from loaderdoctor.instrument.wire.channel import Channel, LaunchConfig, take_launch_config

_FD = 0
INTERRUPTED = ScriptEnd("interrupted", EXIT_INTERRUPTED)


def main() -> NoReturn:
    parent = os.getppid()
    launch_config = take_launch_config()
    if launch_config.watch:
        try:
            end = _recorded(launch_config)
        except KeyboardInterrupt:
            end = INTERRUPTED
        if end.how == "interrupted":
            # By the signal itself, as the interpreter ends: a loop of the shell's ends with it.
            sys.excepthook = lambda *_: None  # it was told already
            raise KeyboardInterrupt
        sys.exit(end.code)
    outlive_terminal_reads()
    die_with_parent(parent, by_thread=launch_config.by_thread)
    session = _session(Channel.open(launch_config), launch_config)
    Hooks(session).watch()
    stdin = StdinWatch()
    stdin.watch()
    session.read_stdin = stdin.was_read
    if not launch_config.group:
        Spawner(launch_config).watch()
        session.no_dataloader = NoDataLoaderWatch(session).stepped
    disable_in_forks(session)
    sys.exit(_run(launch_config, session))


def _session(channel: Channel, launch_config: LaunchConfig) -> Session:
    run_dir, hello = Path(launch_config.run_dir), None
    if launch_config.group:
        hello = script_process.hello(launch_config)
        run_dir = Path(hello.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        channel.send(hello)
    session = Session(
        channel,
        run_dir=run_dir,
        records_workers=launch_config.record_workers,
        group=launch_config.group and not launch_config.watch,
        patient=launch_config.patient,
        follow_s=launch_config.follow_s,
    )
    session.script = script_of(launch_config, n_ranks=hello.n_ranks if hello is not None else 1)
    return session


def _recorded(launch_config: LaunchConfig) -> ScriptEnd:
    """How the script ended; the exit code is the command's where that was in order.

    This process has the place that the script's own would have: its parent, its signals, its
    terminal. Whatever happens to the one that listens, the script runs on.
    """
    try:
        channel: Channel | None = Channel.open(launch_config)
    except (OSError, EOFError):
        channel = None  # nobody listens
    if channel is None:
        end = run_target(launch_config)
        passed = verdict(None, launch_config) if launch_config.waits else 0
        return end._replace(code=end.code or passed)
    session = _session(channel, launch_config)
    record(session, launch_config)
    Hooks(session).watch()
    if not launch_config.group:
        Spawner(launch_config).watch()
    disable_in_forks(session)
    end = run_target(launch_config)
    interrupts = _wait_for_threads()
    with held() as came:  # whoever asks for the end now does not wait for the report
        came.extend(interrupts)
        end = INTERRUPTED if came else end
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # the report comes after all that the script said
        session.script_over(end.how, end.code, end.reason)
        passed = verdict(channel, launch_config, came) if launch_config.waits else 0
    return INTERRUPTED if came else end._replace(code=end.code or passed)


def _wait_for_threads() -> list[KeyboardInterrupt]:
    """The interpreter's own wait for the script's threads, and what ended it before they did.

    Before it joins them it lets those of executors go, and those that wait for the main thread.
    Only its own function can say that the main thread has ended; called again it does nothing.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt as interrupt:
        threading._shutdown = lambda: None  # type: ignore[attr-defined]  # nor is it waited again
        return [interrupt]
    except Exception:  # of what a library has called there: the interpreter tells it, and goes on
        traceback.print_exc()
    return []


def _run(launch_config: LaunchConfig, session: Session) -> int:
    """The script's exit code. Ended is sent once nothing of the script can run any more."""
    how, code, reason, stopped = run_target(launch_config)
    if stopped:
        if session.group:
            # A process group of the script's still has threads that talk to peers which leave at
            # this moment too; they may abort a process that tears down its interpreter.
            atexit._run_exitfuncs()
            exit_now()
        return 0
    if waits_for_threads():
        # Registered last, so it runs before the script's own exit handlers, but after the
        # interpreter has joined the script's threads, in which training may still be running.
        atexit.register(session.script_over, how, code, reason)
    else:
        session.script_over(how, code, reason)
    return code


class _NotedReads(io.FileIO):
    """Standard input, which remembers that it was read."""

    was_read = False

    def readinto(self, buffer: Any) -> int | None:
        self.was_read = True
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.was_read = True
        return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        self.was_read = True
        return super().read(-1 if size is None else size)


class StdinWatch:
    """Put in place before the script runs; asked once it is over."""

    def __init__(self) -> None:
        self._raw: _NotedReads | None = None
        self._asked = False
        self._at = _position()

    def watch(self) -> None:
        """Watch `sys.stdin` and `input`; where there is no standard input, nothing."""
        own = sys.stdin
        try:
            if own is None or own.fileno() != _FD:
                return
            raw = _NotedReads(_FD, closefd=False)
        except (OSError, ValueError):
            return
        raw.name = own.name
        self._raw = raw
        ours = io.TextIOWrapper(
            io.BufferedReader(raw),
            encoding=own.encoding,
            errors=own.errors,
            newline=None if os.name == "nt" else "\n",  # as the interpreter's own
            line_buffering=bool(own.line_buffering),
        )
        setattr(ours, "mode", own.mode)  # noqa: B010 - as the interpreter sets it
        sys.stdin = ours
        builtins.input = self._noting(builtins.input)

    def was_read(self) -> bool:
        """Whether the script read from it, as far as this process can tell."""
        return (
            self._asked or (self._raw is not None and self._raw.was_read) or _position() != self._at
        )

    def _noting(self, original: Callable[..., str]) -> Callable[..., str]:
        """`input`, which reads from a terminal without `sys.stdin`."""

        @wraps(original)
        def noting(*args: object) -> str:
            self._asked = True
            return original(*args)

        return noting


def _position() -> int | None:
    """Where a file stands; None of a pipe or a terminal."""
    try:
        return os.lseek(_FD, 0, os.SEEK_CUR)
    except OSError:
        return None
