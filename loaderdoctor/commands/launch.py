"""How `diagnose` starts the script: by itself, as ranks with torch's launcher, or as one rank.

Within `torchrun … -m loaderdoctor diagnose` there is a command for each rank: rank 0's drives all
of them and reports, the others start their rank and wait for its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loaderdoctor.instrument.command import POLITE_S, MeasuringProcess, rank_connection
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.launched_run import start_measuring
from loaderdoctor.instrument.command.rank_group import RankGroup, start_ranks
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.session.script_process import place
from loaderdoctor.instrument.system.processes import Signals
from loaderdoctor.instrument.wire.channel import LaunchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where this command stands: alone, above the launcher, or under it as one rank."""

    torchrun: tuple[str, ...] = ()  # the launcher's options; empty: don't use it
    rank: int | None = None  # under torchrun: this command's

    @staticmethod
    def find(torchrun: Sequence[str]) -> Launch:
        """From the options given and the environment. Raises UsageError."""
        if torchrun:
            return Launch(torchrun=tuple(torchrun))
        here = place()
        if here is None:
            return Launch()
        rank_connection.check_launcher()
        return Launch(rank=here[0])

    @property
    def follows(self) -> bool:
        """Whether another rank's command drives this one."""
        return self.rank is not None and self.rank > 0

    @property
    def once(self) -> str | None:
        """Why the script can't be run again, in a sentence; None: it can."""
        if self.rank is None:
            return None
        return (
            "Under torchrun a script runs once: give torchrun's options to `loaderdoctor "
            "diagnose` and it starts the ranks itself, as often as needed."
        )

    def script_run(
        self, target: Target, run_dir: Path, options: LaunchOptions
    ) -> ScriptRun | RankGroup:
        """What to measure with; nothing is started yet."""
        if self.torchrun:
            return RankGroup(target, run_dir, options, start_ranks(self.torchrun))
        if self.rank is None:
            return ScriptRun(target, run_dir, options, takes_lone=True)
        host = None if rank_connection.same_machine() else os.environ["MASTER_ADDR"]
        return RankGroup(target, run_dir, options, _start_first_rank, host)


def target_of(script: str, args: Sequence[str], *, as_module: bool) -> Target:
    """What the command line names: a script, or with -m a module."""
    if as_module:
        return Target(module=script, args=tuple(args))
    return Target(script=script, args=tuple(args))


def option_words(
    flags: Iterable[tuple[bool, str]], values: Iterable[tuple[object, str]]
) -> list[str]:
    """Options as the command line takes them: flags that are set, and values that are given."""
    words = [name for is_set, name in flags if is_set]
    for value, name in values:
        words += [name, str(value)] if value is not None else []
    return words


def several_machines(torchrun: Sequence[str]) -> bool:
    """Whether the launcher's options speak of more machines than this one."""
    words = list(torchrun)
    n_nodes = words[words.index("--nnodes") + 1] if "--nnodes" in words else "1"
    return n_nodes.rpartition(":")[2] != "1"


def launch_everywhere(torchrun: Sequence[str], diagnose: Sequence[str]) -> int:
    """Run torchrun over `loaderdoctor diagnose` itself: on each machine the same command is given.

    The launcher's exit code: it tells only whether a rank failed.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", *torchrun]
    process = subprocess.Popen([*launcher, "-m", "loaderdoctor", "diagnose", *diagnose])
    with Signals():
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its ranks, whose commands end theirs
                process.wait()


def follow(options: LaunchOptions) -> int:
    """Start this rank for rank 0's command, wait for its end; returns the script's exit code."""
    with Signals(), tempfile.TemporaryDirectory(prefix="loaderdoctor-") as own:
        launch_config = rank_connection.fetch()
        if not rank_connection.same_machine():
            # A rank of the first machine may use the shared folder as well as its own.
            launch_config = msgspec.structs.replace(launch_config, run_dir=own)
        with options.open_stdout() as stdout:
            process = start_measuring(launch_config, stdout)
        try:
            process.wait(None)
            return process.exit_code or 0
        finally:
            process.end(polite_s=POLITE_S if process.exit_code is None else 0.0)


def _start_first_rank(launch_config: LaunchConfig, stdout: int | None) -> MeasuringProcess:
    rank_connection.publish(launch_config)
    return start_measuring(launch_config, stdout)
