"""Trials in a process of their own: each visit starts the script again, and ends it.

For what is decided when a process starts (start method, thread counts, options of the script), for
what may take the process down, and to check figures from the running loop against. A process that
fails is a result of its trial, never the end of the sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.facts.own_settings import own_settings
from loaderdoctor.instrument.command.endings import took_down
from loaderdoctor.instrument.command.job import NoJobError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import Ended, Observed, WindowDone, WindowRequest
from loaderdoctor.tryout.trials import Trial, epoch_steps

# Beyond a window's own limit, until its process counts as hung: drop and warm-up of a slow loop.
SLACK_S = 30.0
# Opens a process of a script (None: the sweep's own), its loop warm. Raises RunError.
OpenFresh = Callable[[Script | None], AbstractContextManager[ScriptRunLike]]


class FreshRuns:
    """Measures each request in a process of its own."""

    def __init__(self, open_process: OpenFresh) -> None:
        self._open = open_process

    def measure_trial(self, trial: Trial, request: WindowRequest) -> WindowDone:
        """One window; `failed` where the process could not start, died or hung."""
        try:
            with self._open(trial.script) as script_run:
                observed = script_run.observed
                assert observed is not None
                _note_loop(trial, observed)
                timeout_s = None if request.limit_s is None else request.limit_s + SLACK_S
                done = next(iter(script_run.measure([request], timeout_s=timeout_s)), None)
                ended = script_run.ended
        except NoJobError as error:
            return msgspec.structs.replace(_failed(request, str(error)), status="skipped")
        except RunError as error:
            return _failed(request, str(error))
        if ended is not None and ended.how == "interrupted":
            raise KeyboardInterrupt
        if done is None:
            return _failed(request, f"its process {_how(ended)} before the window did")
        if (why := took_down(done, ended)) is not None:
            return _failed(request, why)
        if done.startup_ns is None and (startup_ns := _startup_ns(observed)) is not None:
            done = msgspec.structs.replace(done, startup_ns=startup_ns)
        return done


def _failed(request: WindowRequest, reason: str) -> WindowDone:
    return WindowDone(id=request.id, mode=request.mode, status="failed", reason=reason)


def _how(ended: Ended | None) -> str:
    if ended is None:
        return "ended"
    return f"was {ended.reason}" if ended.reason else f"ended with exit code {ended.exit_code}"


def _note_loop(trial: Trial, observed: Observed) -> None:
    """The script's options may change its batch and its epoch."""
    train = observed.main_loader
    if train is None or trial.script is None:
        return
    own = own_settings(observed)
    trial.steps_per_epoch = epoch_steps(trial.switched, own, train.steps_per_epoch)
    batch_size = trial.switched.batch_size or train.batch_size
    if batch_size is not None:  # of each rank
        trial.samples_per_step = float(batch_size * trial.script.n_ranks)


def _startup_ns(observed: Observed) -> int | None:
    """From the first iterator's creation to its first batch, as the script itself met it."""
    first = next((b for b in observed.boundaries if b.first), None)
    return first.create_ns + first.first_wait_ns if first is not None else None
