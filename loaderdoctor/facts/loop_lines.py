"""The loop's own work by line, as stack samples of windows without the profiler saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a place of the loop does, told from what it calls.
What = Literal[
    "item",
    "to-host",
    "sync",
    "save",
    "print",
    "tracking",
    "metrics",
    "plot",
    "table",
    "deepcopy",
    "sleep",
    "files",
    "network",
    "process",
    "collect",
    "image",
    "text",
    "numpy",
    "library",
    "elements",
]

# With an accelerator these wait for what it has yet to compute.
WAITS: tuple[What, ...] = ("item", "to-host", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A line of the user's code."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """Samples of the loop's own work that have a line, a function or a library in common."""

    named: Literal["line", "function", "library"]  # what they have in common
    at: CodeLine  # the line of it that most of them are at
    called_from: CodeLine  # the line of the loop that leads there, most often; may be the same
    what: What
    calls: str | None  # what most of them call: "copy.deepcopy", "frame.iloc[]"
    library: str | None  # the package it is of
    n_samples: int
    of_samples: int  # all within steps, waiting for batches included
    low_share: float  # lower 95 % bound of n_samples / of_samples
    # In operators of torch that the same function of the loop's calls: element by element, where
    # the function is mostly such calls.
    n_operators: int = 0
    between: tuple[str, str] | None = None  # what of the step lies before and behind it

    @property
    def share(self) -> float:
        """Of the step, 0…1; hidden behind the accelerator or not."""
        return self.n_samples / self.of_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLineFacts:
    """Where the training thread was, in samples; shares are of those within steps."""

    n_samples: int
    own_share: float  # the loop's own work: neither fetching, nor the model, nor torch's operators
    own_low_share: float  # its lower 95 % bound
    waiting_share: float  # reading values that the accelerator has yet to compute
    operator_share: float  # torch's operators that the loop itself calls: loss, preprocessing
    places: tuple[LoopPlace, ...]  # of own work, costliest first
    waits: tuple[LoopPlace, ...] = ()  # of such reading
    outside: tuple[LoopPlace, ...] = ()  # of what runs between epochs; shares are of all of that
    outside_share: float = 0.0  # of all samples, within steps and between epochs
