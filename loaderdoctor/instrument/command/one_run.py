"""One of the runs of a script: what is asked of it, and whether the next one is its like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from loaderdoctor.instrument.command.endings import NOT_BEGUN
from loaderdoctor.instrument.command.launched_run import OnEvent
from loaderdoctor.instrument.wire.protocol import (
    SCRIPT_ENDED,
    Ended,
    Note,
    Observed,
    WindowDone,
    WindowRequest,
)

# Of the steps asked for: a window cut shorter than this is measured again in the next run.
ENOUGH_OF_WINDOW = 0.5


class OneRun(Protocol):
    """What is needed of each run (ScriptRun, RankGroup)."""

    notes: list[Note]

    @property
    def observed(self) -> Observed | None: ...

    @property
    def ended(self) -> Ended | None: ...

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed: ...

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]: ...

    def stop(self, to_end: bool = False) -> None: ...

    def __enter__(self) -> OneRun: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTold:
    """One run of the script, for the records of the run folder."""

    took_s: float  # from its start to its end, pauses of the loop between windows included
    to_warm_s: float | None  # of it, until its loop was warm; None: it never was
    n_windows: int = 0  # measured in it
    n_steps: int = 0
    how: str = ""  # Ended.how


def is_cut(request: WindowRequest, done: WindowDone | None) -> bool:
    """Whether a window is to be measured in another run: the script's end left too little of it."""
    if done is None:
        return True
    if done.reason not in (SCRIPT_ENDED, NOT_BEGUN):
        return False
    return done.n_steps < ENOUGH_OF_WINDOW * request.n_steps


def unlike(first: Observed, later: Observed) -> str | None:
    """How the loop of a later run differs from the first one's, in words; None: it does not.

    By what its code and its loader are, not by its pace: that varies with the machine.
    """
    if first.trains and not later.trains:
        return "it trained nothing"
    if first.definition != later.definition:
        return f"its step is {later.definition}, and was {first.definition}"
    if first.device != later.device:
        return f"it ran on {later.device or 'the CPU'}"
    one, other = first.main_loader, later.main_loader
    if one is None or other is None:
        return None
    for what, was, now in (
        ("settings", one.settings, other.settings),
        ("batch size", one.batch_size, other.batch_size),
        ("samples", one.n_samples, other.n_samples),
        ("steps an epoch", one.steps_per_epoch, other.steps_per_epoch),
    ):
        if was is not None and now is not None and was != now:
            figures = "" if what == "settings" else f" ({now}, and {was} at first)"
            return f"its loader has other {what}{figures}"
    return None
