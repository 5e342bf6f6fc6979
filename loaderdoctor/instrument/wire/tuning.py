"""What a run that sets its loader tells: what was tried, what serves, what it brought."""

from __future__ import annotations

import msgspec

from loaderdoctor.settings import Settings


class TriedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting. Milliseconds are means of its windows' steps."""

    settings: Settings  # complete
    verdict: str  # tuning.outcome.Verdict
    at_step: int
    step_ms: float | None = None
    against_ms: float | None = None  # the best before it
    reason: str = ""


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So far. `not_tuned`: why nothing is tried at all; all else says nothing then."""

    loader: str  # LoaderRecord.id; empty where none was chosen
    exact: bool
    not_tuned: str | None = None
    own: Settings = Settings()  # complete
    chosen: Settings | None = None  # None: the loader's own settings serve
    chosen_at_step: int | None = None  # of the loop
    proven: bool = False
    own_ms: tuple[float, float, float] | None = None  # mean and interval; None: too few windows
    chosen_ms: tuple[float, float, float] | None = None
    n_steps: int = 0  # since tuning began
    lost_steps: float = 0.0
    saved_s: float = 0.0
    draws: bool = False  # samples are made with other random draws than untuned
    tried: tuple[TriedRecord, ...] = ()
