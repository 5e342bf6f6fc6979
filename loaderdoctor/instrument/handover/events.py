"""What happens to a loader that is handed over, as its tuner hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderdoctor.settings import Settings

Kind = Literal["switched", "failed", "refused", "draws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened to a loader's settings."""

    kind: Kind
    settings: Settings  # complete
    reason: str = ""
