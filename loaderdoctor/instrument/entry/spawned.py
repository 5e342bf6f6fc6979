"""Ranks that the script starts itself: by `torch.multiprocessing.spawn`, or as processes of Python.

The measuring process does not train then, its children do. What starts them is replaced so that
each child watches itself, and becomes one of a group, as under torch's launcher, when its loop has
begun. Children that are no ranks and train each by itself call too: where several do at once, one
is measured. A child without a training loop is never heard of. The first process goes on waiting
for its children, as the script wants it to, and for the command's Stop.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from loaderdoctor.instrument.command import bootstrap
from loaderdoctor.instrument.command.endings import in_one_line
from loaderdoctor.instrument.entry import (
    ScriptEnd,
    disable_in_forks,
    exit_code_of,
    record,
    strip_frames,
)
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks, ImportWatch
from loaderdoctor.instrument.session.script_process import (
    StopTraining,
    exit_after_grace,
    exit_now,
    place,
    process_group,
    script_of,
)
from loaderdoctor.instrument.system.machine import note_started_ranks
from loaderdoctor.instrument.system.processes import die_with_parent
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    Channel,
    ConnectionLostError,
    LaunchConfig,
    encode_launch_config,
)
from loaderdoctor.instrument.wire.protocol import (
    RENDEZVOUS,
    Ended,
    FromRun,
    Hello,
    Note,
    Observed,
    Ready,
    Spawned,
    Stop,
    ToRun,
)

LISTEN_S = 0.5
_SPAWN = "torch.multiprocessing.spawn"
_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
# Options of the interpreter that take no value; command lines with others are let be.
_FLAGS = re.compile(r"^-[BEIOPRSbdqsuv]+$")
# Processes that these start run no training loop of the script's: workers, pools, managers.
_NOT_THE_SCRIPTS = ("torch.", "multiprocessing.", "concurrent.", "loaderdoctor.")


class Spawner:
    """In the process that starts the ranks: has each of them watched, and hears Stop."""

    def __init__(self, launch_config: LaunchConfig) -> None:
        self._launch_config = msgspec.structs.replace(launch_config, group=True, waits=False)
        self._link: Channel | None = None  # our own, next to the session's
        self._stopping = False
        self._pid = os.getpid()

    def watch(self) -> None:
        """Replace what starts processes; for as long as this process lives."""
        self._hook_process()
        self._hook_subprocess()
        ImportWatch({_SPAWN: self._hook_spawn}).install()

    # ------------------------------------------------------------ what is replaced

    def _hook_spawn(self, module: ModuleType) -> None:
        original, join = module.start_processes, module.ProcessContext.join

        @functools.wraps(original)
        def start_processes(
            fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any
        ) -> Any:
            if self._listens():
                fn = WatchedTarget(fn, self._launch_config, nprocs)
            return original(fn, args, nprocs, *more, **options)

        module.start_processes = start_processes  # type: ignore[attr-defined]
        module.ProcessContext.join = self._leaving(join)

    def _hook_process(self) -> None:
        start = BaseProcess.start

        @functools.wraps(start)
        def started(process: Any) -> None:
            target = process._target
            module = getattr(target, "__module__", None) or ""
            foreign = not module.startswith(_NOT_THE_SCRIPTS)
            if target is not None and foreign and self._listens():
                process._target = WatchedTarget(target, self._launch_config)
            start(process)

        process: Any = BaseProcess
        process.start, process.join = started, self._leaving(process.join)

    def _hook_subprocess(self) -> None:
        popen: Any = subprocess.Popen
        init = popen.__init__

        @functools.wraps(init)
        def __init__(process: Any, args: Any, *more: Any, **options: Any) -> None:  # noqa: N807
            env = options.get("env")
            env = os.environ if env is None else env
            plain = not more and not options.get("shell")
            script = _script_in(args, self._launch_config) if plain else None
            if script is not None and place(env) is not None and self._listens():
                args, launch_config = script
                launch_config = msgspec.structs.replace(launch_config, by_thread=_in_thread())
                options["env"] = {**env, CHANNEL_VARIABLE: encode_launch_config(launch_config)}
            init(process, args, *more, **options)

        popen.__init__ = __init__
        popen.wait, popen.poll = self._leaving(popen.wait), self._leaving(popen.poll)

    def _leaving(self, waits: Callable[..., Any]) -> Callable[..., Any]:
        """`waits`, which ends the script where the command has stopped its ranks meanwhile."""

        @functools.wraps(waits)
        def call(*args: Any, **options: Any) -> Any:
            result = waits(*args, **options)
            if self._stopping and threading.current_thread() is threading.main_thread():
                self._stopping = False  # once: exit handlers wait for processes too
                raise StopTraining
            return result

        return call

    # ------------------------------------------------------------ the command's Stop

    def _listens(self) -> bool:
        """Whether the command hears of what is started here; connects at the first call."""
        if os.getpid() != self._pid:
            return False  # a forked child: of ours, or a worker
        if self._link is None:
            try:
                self._link = Channel.open(self._launch_config)
            except (OSError, EOFError):
                return False  # the command is measuring this very process
            self._link.send(Spawned())
            threading.Thread(target=self._listen, name="loaderdoctor-spawner", daemon=True).start()
        return not self._link.lost

    def _listen(self) -> None:
        link = self._link
        assert link is not None
        while True:
            try:
                message = link.receive(LISTEN_S)
            except ConnectionLostError:
                return
            if isinstance(message, Stop):
                self._stopping = True
                link.send(Ready(id=RENDEZVOUS, n_steps=0))
                exit_after_grace()
                return


class WatchedTarget:
    """What a process runs in place of the script's function; travels as a pickle.

    `n_ranks`: `spawn` starts so many, and gives each its rank; None: it may turn out to be one.
    """

    def __init__(
        self, fn: Callable[..., Any], launch_config: LaunchConfig, n_ranks: int | None = None
    ) -> None:
        self._fn, self._launch_config, self._n_ranks = fn, launch_config, n_ranks
        self._parent, self._by_thread = os.getpid(), _in_thread()

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._n_ranks is None:
            link = RankLink(self._launch_config, f"process{os.getpid()}", None)
        else:
            link = RankLink(self._launch_config, f"rank{args[0]}", (args[0], self._n_ranks))
        if not self._launch_config.watch:
            die_with_parent(self._parent, by_thread=self._by_thread)
        return _watched(link, self._fn, *args, **options)


def _in_thread() -> bool:
    """Whether what is started here may outlive the thread that starts it."""
    return threading.current_thread() is not threading.main_thread()


def _watched(link: RankLink, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    launch_config = link.launch_config
    if Hooks.active is not None:
        Hooks.active.remove()  # forked: the parent's, which do nothing here but would wrap ours
    session = Session(
        link,
        run_dir=link.run_dir,
        records_workers=launch_config.record_workers,
        group=not launch_config.watch,
    )
    if launch_config.watch:
        record(session, launch_config)
    session.script = script_of(launch_config)
    Hooks(session).watch()
    disable_in_forks(session)
    end = ScriptEnd()
    try:
        return fn(*args, **options)
    except StopTraining:
        exit_now()  # at once, as ranks of a launcher leave: see `child`
    except SystemExit as error:
        end = ScriptEnd(code=exit_code_of(error))
        raise
    except BaseException as error:
        strip_frames(error)
        end = ScriptEnd("script-failed", 1, in_one_line(error))
        raise
    finally:
        session.script_over(end.how, end.code, end.reason)


class RankLink:
    """A session's connection that is opened by the first message of a training loop.

    A process that is not a rank of several calls once its own loop trains and is warm; one without
    such a loop is never heard of. Nor is one that comes when the command no longer listens: it runs
    on unwatched.
    """

    def __init__(
        self, launch_config: LaunchConfig, folder: str, spawned_as: tuple[int, int] | None
    ) -> None:
        self.launch_config = launch_config
        self.lost = False
        # The script, and the command that started it; the script is at the top where it took the
        # command's place.
        self.n_above = 2 - launch_config.watch
        self.run_dir = Path(launch_config.run_dir) / folder
        self._spawned_as = spawned_as
        self._channel: Channel | None = None
        self._notes: list[Note] = []

    def send(self, message: FromRun) -> None:
        """Send one message, after Hello if it is the first."""
        if self._channel is None and not self.lost:
            if isinstance(message, Ended):
                return
            if isinstance(message, Note):
                self._notes.append(message)
                return
            self._open(message)
        if self._channel is not None:
            self._channel.send(message)
            self.lost = self._channel.lost

    def receive(self, timeout_s: float) -> ToRun | None:
        if self._channel is None:
            return None
        try:
            return self._channel.receive(timeout_s)
        except ConnectionLostError:
            self.lost = True
            raise

    def forget_in_fork(self) -> None:
        self.lost = True
        if self._channel is not None:
            self._channel.forget_in_fork()

    def _open(self, message: FromRun) -> None:
        group = process_group()
        where = group if group is not None and group[1] > 1 else place() or self._spawned_as
        alone = where is None
        if alone and self.launch_config.watch:
            self.lost = True
            return
        if alone and not (isinstance(message, Observed) and message.trains):
            return
        rank, n_ranks = where or (0, 1)
        if n_ranks > 1:  # those of other machines are not known from here; spawn tells its own
            note_started_ranks(self._spawned_as[1] if self._spawned_as else n_ranks)
        try:
            channel = Channel.open(self.launch_config)
        except (OSError, EOFError):
            self.lost = True
            return
        self.run_dir.mkdir(parents=True, exist_ok=True)
        channel.send(
            Hello(
                rank=rank,
                n_ranks=n_ranks,
                host=socket.gethostname(),
                run_dir=str(self.run_dir),
                alone=alone,
            )
        )
        for note in self._notes:
            channel.send(note)
        self._channel = channel


def _script_in(args: object, launch_config: LaunchConfig) -> tuple[list[str], LaunchConfig] | None:
    """What runs the script of a command line, and what that process is told.

    None where it is not Python's in a plain form: `python [flags] script.py args…`, or with `-m`.
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        return None
    words = [os.fspath(x) if isinstance(x, os.PathLike) else x for x in args]
    if not words or not all(isinstance(x, str) for x in words):
        return None
    if not _PYTHON.match(Path(words[0]).name) and words[0] != sys.executable:
        return None
    n = 1
    while n < len(words) and _FLAGS.match(words[n]):
        n += 1
    rest = words[n:]
    kind = "script"
    if rest[:1] == ["-m"] and len(rest) > 1:
        kind, rest = "module", rest[1:]
    elif not rest or not rest[0].endswith(".py"):
        return None
    told = msgspec.structs.replace(launch_config, kind=kind, target=rest[0], args=tuple(rest[1:]))
    return [*words[:n], "-c", bootstrap("entry.child")], told
