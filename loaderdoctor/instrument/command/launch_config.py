"""What is to run and how, and what its measuring process is told of that, in the environment."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.listener import ConnectionListener
from loaderdoctor.instrument.command.script_checks import check_script
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    LaunchConfig,
    encode_launch_config,
)

# Unless the user set it: keeps kineto's own lines off the user's terminal.
PROFILER_DEFAULTS = {"KINETO_LOG_LEVEL": "99"}
_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to run: a script or a module, with its own arguments."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    n_added_args: int = 0  # the first of them, which the user did not type: a recipe's
    n_ranks: int = 1  # more: so many processes of it, as one job by torch's own launcher

    def check(self, command: str = "diagnose") -> None:
        """Raise UsageError where there is no such script, or it can't be one.

        `command` is the one that was asked for.
        """
        if (self.script is None) == (self.module is None):
            raise UsageError("name either a script or, with -m, a module to run.")
        if self.script is not None:
            check_script(Path(self.script), command)

    @property
    def label(self) -> str:
        """`train.py`, or `-m pkg.train`."""
        return self.script if self.script is not None else f"-m {self.module}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How to run it."""

    # Where the script's stdout goes: "stderr" while ours holds the JSON, a file while a live
    # display would be torn by it. Its stderr always passes through.
    stdout: Literal["inherit", "stderr"] | Path = "inherit"
    record_workers: bool = True
    patient: bool = True  # wait for training to begin; False: any loop will do

    @contextmanager
    def open_stdout(self) -> Iterator[int | None]:
        """File descriptor for the script's stdout; None: ours."""
        if isinstance(self.stdout, Path):
            with self.stdout.open("ab") as file:
                yield file.fileno()
        else:
            yield _STDERR if self.stdout == "stderr" else None


def launch_config_for(
    target: Target,
    options: LaunchOptions,
    listener: ConnectionListener,
    run_dir: Path,
    *,
    group: bool,
) -> LaunchConfig:
    """What the measuring process, or each one of a group, is told."""
    return LaunchConfig(
        address=listener.address,
        authkey=base64.b64encode(listener.authkey).decode("ascii"),
        run_dir=str(run_dir.resolve()),
        kind="script" if target.script is not None else "module",
        target=target.script or target.module or "",
        args=target.args,
        n_added_args=target.n_added_args,
        record_workers=options.record_workers,
        patient=options.patient,
        group=group,
        host=socket.gethostname(),
    )


def environment_with(launch_config: LaunchConfig) -> dict[str, str]:
    """The environment of a process that measures."""
    return {
        **PROFILER_DEFAULTS,
        **os.environ,
        CHANNEL_VARIABLE: encode_launch_config(launch_config),
    }
