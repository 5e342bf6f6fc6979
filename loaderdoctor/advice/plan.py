"""What a prescription is made of: settings to try, code to change, and what is not advised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderdoctor.advice.code import CodeEdit
from loaderdoctor.findings.model import Kind
from loaderdoctor.settings import Settings

# What a prediction rests on: windows with ready batches, or where the step's time was seen to go.
PredictedFrom = Literal["ablation", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings worth trying: a prediction until a trial has measured them."""

    settings: Settings  # only what changes against the user's own
    kinds: tuple[Kind, ...]  # the findings it answers
    loader: str  # LoaderRecord.id
    predicted_step_ms: float | None  # None: only a trial can tell
    prediction: str  # how the prediction was made, or why there is none
    predicted_from: PredictedFrom = "trace"
    edits: tuple[CodeEdit, ...]  # the lines to write
    caution: str | None = None
    # Written into the dataset's code: tried next to the settings, and never added to them.
    in_code: bool = False
    # False: not in the running loop (process-wide, may crash or hang it, or needs data again that
    # can't be had twice); a child process or the user's next run can.
    live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAdvice:
    """A change of the user's code that no setting makes, with an example to copy."""

    kind: Kind | None  # the finding it answers; None: the verdict alone
    title: str
    example: str
    bound_ms: float | None  # at most this much of a step can be gained; None: not known
    predicted_from: PredictedFrom | None  # where the bound comes from; None: not known
    caution: str | None = None
    axis: str | None = None  # the axis that tries it in the running loop, where one does
    keeps_samples: bool = False  # each is made once: no dataset may be so whose samples vary
    evidence: str | None = None  # a sentence: what was recorded that speaks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAdvised:
    """A setting not advised because it would break the user's run, and why."""

    setting: str  # axis name
    settings: Settings
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """Everything to do about the findings. Nothing in `candidates` and `advice`: no change."""

    candidates: tuple[Candidate, ...]  # safe ones, as they are to be tried; those in code last
    not_advised: tuple[NotAdvised, ...]
    advice: tuple[CodeAdvice, ...]
    # What to do about the dataset where settings leave the loop waiting; largest saving first.
    routes: tuple[CodeAdvice, ...] = ()
    # Functions of the dataset's code that draw at random; whether its samples vary, a trial tells.
    randomness: tuple[str, ...] = ()
