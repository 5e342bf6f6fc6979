"""`loaderdoctor run SCRIPT`: the whole, valid training, with the doctor on.

Comes in: a script or module with its arguments. Goes out: exactly what the script gives without us,
its exit code included; a line on stderr where something begins to cost; at the end a report of the
whole run, and a run folder that can be read at any moment before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from loaderdoctor.commands.launch import option_words, several_machines, target_of
from loaderdoctor.commands.output import STDOUT, check_target, share_rules
from loaderdoctor.commands.run import (
    ListenOptions,
    become,
    become_torchrun,
    check_system,
    config_of,
    listen_apart,
)
from loaderdoctor.commands.run.listen import listen
from loaderdoctor.commands.run.run_files import RECORDED
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.command.rank_connection import (
    check_launcher,
    fetch,
    publish,
    same_machine,
)
from loaderdoctor.instrument.session.script_process import place
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.report import RunFolder

if TYPE_CHECKING:
    from loaderdoctor.instrument.command import ConnectionListener


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    script: str
    args: tuple[str, ...] = ()
    as_module: bool = False
    profile: bool = False
    tune: Literal["", "on", "exact"] = ""
    metrics_file: Path | None = None
    fail_on: tuple[str, ...] = ()
    json_target: str | None = None
    verbose: bool = False
    output: Path | None = None
    torchrun: tuple[str, ...] = ()  # options of torch's launcher; with them it starts the ranks


def run(options: RunOptions) -> int:
    """Turn into the script, listened to. Raises LoaderdoctorError; else it does not return."""
    check_system()
    if several_machines(options.torchrun):
        become_torchrun(options.torchrun, _words(options))
    share_rules(options.fail_on)
    check_target("--json", options.json_target)
    target = target_of(options.script, options.args, as_module=options.as_module)
    target.check("run")
    metrics_file = options.metrics_file
    check_target("--metrics-file", metrics_file)
    if metrics_file is not None and metrics_file.exists() and not metrics_file.is_file():
        raise UsageError(f"--metrics-file {metrics_file}: not a file that can be replaced.")
    here = None if options.torchrun else place()
    if here is not None:
        check_launcher()
        if here[0] > 0:
            become(fetch())
    folder = RunFolder.create(target.label, output=options.output, at=time.time())
    recorded = folder.path / RECORDED
    sums = tempfile.mkdtemp(prefix="loaderdoctor-")  # written all the time: on a local disk
    group = here is not None or bool(options.torchrun)
    host = os.environ["MASTER_ADDR"] if here is not None and not same_machine() else None

    def configure(listener: ConnectionListener) -> LaunchConfig:
        return config_of(
            target,
            listener,
            recorded,
            sums,
            group=group,
            profile=options.profile,
            tune=options.tune,
            judged=bool(options.fail_on),
        )

    listening = ListenOptions(
        label=target.label,
        folder=folder.path,
        made=folder.made,
        sums=Path(sums),
        fail_on=options.fail_on,
        json_target=options.json_target,
        verbose=options.verbose,
        metrics_file=options.metrics_file.absolute() if options.metrics_file else None,
        began_s=time.time(),
    )
    try:
        launch_config = listen_apart(partial(listen, listening), configure, host)
    except RunError:
        folder.discard_if_empty()
        shutil.rmtree(sums, ignore_errors=True)
        raise
    if here is not None:
        # Only the first rank waits for the report.
        publish(msgspec.structs.replace(launch_config, waits=False))
    if options.json_target == STDOUT:
        os.dup2(2, 1)  # stdout is the JSON's; the process that listens has it
    become(launch_config, options.torchrun)


def _words(options: RunOptions) -> tuple[str, ...]:
    """The options as the command line takes them, but for the launcher's."""
    flags = (
        (options.as_module, "-m"),
        (options.profile, "--profile"),
        (options.verbose, "--verbose"),
    )
    values = (
        (options.metrics_file, "--metrics-file"),
        (options.json_target, "--json"),
        (options.output, "--output"),
        *((rule, "--fail-on") for rule in options.fail_on),
    )
    return (*option_words(flags, values), options.script, *options.args)
