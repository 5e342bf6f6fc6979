"""The loop's own work: of a trace's exposed host time, told from launching and from waiting.

And by line, as stack samples of windows without the profiler saw it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.trace import HostHotspot, TraceFacts

# Host time per kernel that the profiled launches of `traces/` take (55-112 µs a kernel, H100): host
# work inside ops and between two of them is launching up to this.
LAUNCH_ALLOWANCE_US = 120.0
# Python between two ops takes microseconds; half a millisecond in one place is work.
MIN_HOTSPOT_MS = 0.5

# Between two ops lie tens of microseconds of Python where they are launched one after another, up
# to some hundred where a module's own code is long: ten times that in one place, once a step or
# twice, is no launching. In traces of an H100 and an H200 a loop with such work is silent for
# 6.7 ms once a step; loops without for 0.63 ms at most (0.02 to 0.39 where each step has one), but
# for the autograd thread's wait of up to 1.63 ms, which ends at the optimizer and does not count.
MIN_SILENCE_MS = 1.0
MAX_SILENCES_PER_STEP = 2.0
# Silences of this length occur where a loop only launches (up to 0.39 ms where each step has one):
# beyond it they need not be the profiler's, nor launching.
LONGER_SILENCE_MS = 0.3

# Silences that come once a step; `aten::ones_like` begins the backward pass, whose ops run on
# autograd's own thread.
_BACKWARD = ("backward", "Python between aten::ones_like and ", "autograd::")
# Between two of its nodes nothing of the loop's own runs; silence is a wait for the GIL or a CPU.
_WITHIN_BACKWARD = re.compile(r"Python between autograd::.* and autograd::")
_ONCE_A_STEP = re.compile(r"the fetch|\.step\b|\.zero_grad\b|outside any op")
_WAITING = ("cuda", "hip", "ProfilerStep", "Optimizer.")
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


def work_between(trace: TraceFacts | None) -> tuple[float, HostHotspot | None]:
    """Exposed host work that is not launching, ms a step of the trace, and its largest place.

    A silence that comes once a step, or an annotation of the user's, counts as it is. A frame of
    the user's code and an op hold launches too: they count beyond what launching takes.
    """
    if trace is None or trace.wall_ms <= 0:
        return 0.0, None
    smallest_ms = max(MIN_HOTSPOT_MS, MODERATE_SHARE * trace.wall_ms)
    hotspots = [
        x for x in trace.host.hotspots if x.ms_per_step >= smallest_ms and not _is_waiting(x)
    ]
    sure = [x for x in hotspots if not _holds_launches(x)]
    mixed = [x for x in hotspots if _holds_launches(x)]
    launching_ms = trace.kernels.n_per_step * LAUNCH_ALLOWANCE_US / 1000
    beyond_ms = sum(x.ms_per_step for x in mixed) - launching_ms
    if beyond_ms < smallest_ms:
        mixed, beyond_ms = [], 0.0
    largest = max([*sure, *mixed], key=lambda x: x.ms_per_step, default=None)
    return sum(x.ms_per_step for x in sure) + beyond_ms, largest


def longer_silences_ms(trace: TraceFacts) -> float:
    """Exposed host time, ms a step, that may be none of launching: all but ops one after another.

    Frames and annotations of the user's, and silences longer than any between two launches.
    """
    total = 0.0
    for x in trace.host.hotspots:
        n = x.n_per_step
        among_ops = "::" in x.name or x.name.startswith(_WAITING)
        if x.file is not None or not among_ops or (n and x.ms_per_step / n >= LONGER_SILENCE_MS):
            total += 0.0 if _is_waiting(x) else x.ms_per_step
    return total


def _is_waiting(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return False
    return hotspot.name.startswith((*_BACKWARD, *_WAITING)) or bool(
        _WITHIN_BACKWARD.match(hotspot.name)
    )


def _holds_launches(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return True
    if "::" not in hotspot.name:
        return False
    if "Python" in hotspot.name and _ONCE_A_STEP.search(hotspot.name):
        return False
    return not _long_silence(hotspot)


def _long_silence(hotspot: HostHotspot) -> bool:
    """Whether it comes no more than once a step or two, and each time as long as many launches."""
    n = hotspot.n_per_step
    if n is None or n <= 0 or n > MAX_SILENCES_PER_STEP:
        return False
    return hotspot.ms_per_step / n >= MIN_SILENCE_MS


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
