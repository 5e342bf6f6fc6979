"""Starts a recorded run: one process goes on to listen, this one becomes the script.

The script takes this process's place (exec), so its parent, its exit status, its signals, its
terminal and its stdin are those of `python train.py`. What listens is a grandchild in a session of
its own: no child that the script could wait for or end, and no signal of the terminal's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from loaderdoctor.errors import EXIT_RUN_FAILED, LoaderdoctorError, RunError, UsageError
from loaderdoctor.instrument.command import ConnectionListener, bootstrap
from loaderdoctor.instrument.command.launch_config import (
    PROFILER_DEFAULTS,
    LaunchOptions,
    Target,
    launch_config_for,
)
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    LaunchConfig,
    decode_launch_config,
    encode_launch_config,
)

# What listens, given where it is called and the pid of the process that becomes the script.
Listen = Callable[[ConnectionListener, int], None]


def check_system() -> None:
    """Raise UsageError where a process can't take another's place."""
    if not hasattr(os, "fork"):
        raise UsageError("run: needs fork and exec, which this system does not have.")


def config_of(
    target: Target,
    listener: ConnectionListener,
    recorded: Path,
    sums: str,
    *,
    group: bool,
    profile: bool,
    tune: Literal["", "on", "exact"] = "",
    judged: bool = False,
) -> LaunchConfig:
    """What the process that becomes the script, or each rank of a job, is told."""
    return msgspec.structs.replace(
        launch_config_for(target, LaunchOptions(), listener, recorded, group=group),
        sums_dir=sums,
        watch=True,
        waits=True,
        profile=profile,
        tune=tune,
        judged=judged,
    )


def listen_apart(
    listen: Listen, configure: Callable[[ConnectionListener], LaunchConfig], host: str | None
) -> LaunchConfig:
    """Leave `listen` running in a process of its own; what those who call it are told.

    Call it before any thread is started. Raises RunError where it can't be started.
    """
    pid = os.getpid()
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _listening_process(listen, configure, host, sending, pid)
    os.close(sending)
    os.waitpid(child, 0)
    with open(receiving, "rb") as told:  # noqa: PTH123 - a descriptor, not a path
        text = told.read()
    if not text:
        raise RunError("The process that listens to the run could not be started.")
    return decode_launch_config(text)


def become(launch_config: LaunchConfig, launcher: Sequence[str] = ()) -> NoReturn:
    """Turn into the script, or with its options into torch's launcher of so many ranks."""
    module = "entry.launcher" if launcher else "entry.child"
    environment = {**os.environ, CHANNEL_VARIABLE: encode_launch_config(launch_config)}
    if launch_config.profile:
        environment = {**PROFILER_DEFAULTS, **environment}
    _become(["-c", bootstrap(module), *launcher], environment)


def become_torchrun(launcher: Sequence[str], words: Sequence[str]) -> NoReturn:
    """Turn into torch's launcher of this command: on each machine the same one is given."""
    own = ["-m", "loaderdoctor", "run", *words]
    _become(["-m", "torch.distributed.run", *launcher, *own], dict(os.environ))


def _listening_process(
    listen: Listen,
    configure: Callable[[ConnectionListener], LaunchConfig],
    host: str | None,
    sending: int,
    pid: int,
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        listener = ConnectionListener(host)
        os.write(sending, encode_launch_config(configure(listener)).encode())
        os.close(sending)
        listen(listener, pid)
        code = 0
    except LoaderdoctorError as error:
        sys.stderr.write(f"loaderdoctor: {error}\n")
    finally:
        os._exit(code)


def _become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    # As multiprocessing starts its children: -u, -X and -W go on.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, *flags, *words], dict(environment))


class ListenOptions(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    folder: Path
    made: tuple[Path, ...]  # for it, innermost first: gone again where nothing is to tell
    sums: Path  # where workers keep theirs
    fail_on: tuple[str, ...]
    json_target: str | None
    verbose: bool
    metrics_file: Path | None
    began_s: float
    shown: bool = True  # False: the process that is recorded shows lines and report itself


def unjudged(options: ListenOptions) -> int:
    """The command's exit code where there is no report: with `--fail-on` no success, and said."""
    if not options.fail_on:
        return 0
    sys.stderr.write("loaderdoctor: --fail-on was not judged: there is no report of this run.\n")
    return EXIT_RUN_FAILED
