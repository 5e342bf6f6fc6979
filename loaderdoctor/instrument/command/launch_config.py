"""What the command gives to a process that measures: its handover, in the environment."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

from loaderdoctor.instrument.command.listener import ConnectionListener
from loaderdoctor.instrument.command.target import LaunchOptions, Target
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    LaunchConfig,
    encode_launch_config,
)

# Unless the user set it: keeps kineto's own lines off the user's terminal.
PROFILER_DEFAULTS = {"KINETO_LOG_LEVEL": "99"}


def launch_config_for(
    target: Target,
    options: LaunchOptions,
    listener: ConnectionListener,
    run_dir: Path,
    *,
    group: bool = False,
) -> LaunchConfig:
    """What the measuring process, or each one of a group, is told."""
    return LaunchConfig(
        address=listener.address,
        authkey=base64.b64encode(listener.authkey).decode("ascii"),
        run_dir=str(run_dir.resolve()),
        kind="script" if target.script is not None else "module",
        target=target.script or target.module or "",
        args=target.args,
        record_workers=options.record_workers,
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
