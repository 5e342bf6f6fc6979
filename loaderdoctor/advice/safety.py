"""Advice that would break a user's run: what speaks against settings, before anyone tries them."""

from __future__ import annotations

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.loader_change import change_of
from loaderdoctor.hazards import Hazard, hazard
from loaderdoctor.settings import Settings


def why_unsafe(facts: Facts, changes: Settings) -> Hazard | None:
    """The setting that must not be advised and the reason; None where nothing speaks against it.

    What was not checked counts as safe: it is the trial's business to fail without harm.
    """
    loader = facts.main_loader
    return hazard(change_of(facts, loader, changes)) if loader is not None else None
