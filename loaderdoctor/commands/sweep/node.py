"""What a node of a cluster does for a sweep: looks at the loop, or measures a group of trials.

Comes in: what the command asks, with its folder and environment. Goes out: what a sweep on one
machine measures, and the files it wrote.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loaderdoctor.cluster.nodes import RefusedError
from loaderdoctor.commands.sweep.measure import Asked, measure, opener
from loaderdoctor.commands.sweep.plan import why_no_dali
from loaderdoctor.commands.sweep.search import found_before, search
from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.instrument.wire.protocol import Note, Observed
from loaderdoctor.sweep.groups import Measured, TrialUpdate
from loaderdoctor.sweep.presets.resolve import Found
from loaderdoctor.tryout.trials import Progress

SCRIPT_OUTPUT = "script.txt"
SCRIPT_TAIL_BYTES = 64 << 10
# The script's threads and imports are to be what they are here. Ray sets the first by itself.
_CARRIED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """What a node is sent."""

    asked: Asked
    cwd: str
    environment: Mapping[str, str | None]  # None: not set here, so not there

    @staticmethod
    def of(asked: Asked) -> NodeWork:
        """In the folder and environment of this command."""
        carried = {name: os.environ.get(name) for name in _CARRIED}
        return NodeWork(asked=asked, cwd=str(Path.cwd()), environment=carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a node found that trials are planned from."""

    observed: Observed
    found: dict[str, Found]  # what our own searches recommend there, by row
    why_no_dali: str | None


def observe_on_node(work: NodeWork, tell: Callable[[Any], None]) -> Seen:
    """Start the script, wait until its loop is warm, end it; then what else planning asks for."""
    with _at_home(work) as (asked, folder), _refusing():
        open_process = opener(asked, folder)
        with open_process(None) as script_run:
            observed = script_run.observed
        assert observed is not None
        return Seen(
            observed=observed,
            found=found_before(asked.options, observed, asked.before[0])
            if asked.before is not None
            else search(asked.options, asked.target, observed, open_process, _nothing, _nothing),
            why_no_dali=why_no_dali(asked.options),
        )


def measure_on_node(work: NodeWork, tell: Callable[[Any], None]) -> Measured:
    """Measure one group, telling each measurement as it ends."""
    with _at_home(work) as (asked, folder):
        with _refusing():
            evidence = measure(
                asked, folder, say=_nothing, show=_nothing, watch=lambda found: _Teller(tell)
            )
        return Measured(
            observed=evidence.observed,
            notes=(*evidence.notes, *_niceness()),
            outcome=evidence.outcome,
            ablated=evidence.ablated,
            files=_files(folder),
        )


class _Teller:
    """Tells the command each measurement that it has not heard of."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._n_told: dict[int, int] = {}

    def __call__(self, progress: Progress) -> None:
        for trial in progress.trials:
            first = self._n_told.get(trial.index, 0)
            for measurement in trial.measurements[first:]:
                self._tell(TrialUpdate(trial=trial.index, measurement=measurement))
            self._n_told[trial.index] = len(trial.measurements)


@contextmanager
def _at_home(work: NodeWork) -> Iterator[tuple[Asked, Path]]:
    """The command's folder and environment, and our own folder, for the block."""
    before = Path.cwd()
    try:
        os.chdir(work.cwd)
        work.asked.target.script.check()
    except (OSError, LoaderdoctorError) as error:
        os.chdir(before)
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RefusedError(
            f"{socket.gethostname()} can't run it in {work.cwd} ({why}). The script and its data "
            "must lie in a folder that every node of the cluster has under the same path."
        ) from None
    saved = {name: os.environ.get(name) for name in work.environment}
    with suppress(OSError, AttributeError):  # not ours to change, or no such thing here
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        _set(work.environment)
        with tempfile.TemporaryDirectory(prefix="loaderdoctor-") as name:
            folder = Path(name)
            yield replace(work.asked, stdout=folder / SCRIPT_OUTPUT), folder
    finally:
        _set(saved)
        os.chdir(before)


@contextmanager
def _refusing() -> Iterator[None]:
    """A script that can't be measured here may run on another node."""
    try:
        yield
    except LoaderdoctorError as error:
        raise RefusedError(f"{socket.gethostname()}: {error}") from None


def _niceness() -> tuple[Note, ...]:
    """Ray starts its workers at niceness 15, and only root may take that back."""
    try:
        level = os.getpriority(os.PRIO_PROCESS, 0)
    except (OSError, AttributeError):
        return ()
    if level <= 0:
        return ()
    text = (
        f"trials ran at niceness {level}, as Ray starts its workers: anything else on the node "
        "went before them. Start its nodes with RAY_worker_niceness=0."
    )
    return (Note(kind="low-priority", text=text),)


def _set(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _files(folder: Path) -> dict[str, bytes]:
    """Traces, workers' records, and the end of what the script printed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            if path.is_file():
                data = path.read_bytes()
                tail = path.name == SCRIPT_OUTPUT and path.parent == folder
                found[str(path.relative_to(folder))] = data[-SCRIPT_TAIL_BYTES:] if tail else data
    return found


def _nothing(said: object) -> None:
    """What a node has to say comes with its result."""
