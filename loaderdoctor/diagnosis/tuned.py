"""What `run --tune` tried of a loader -> findings and settings to change that say so.

Without it they would send the user to what was tried, and given up, in the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from loaderdoctor.facts import Facts, own_settings_known
from loaderdoctor.findings import Came, Finding, Outcome
from loaderdoctor.instrument.wire.measured import TriedRecord, TuningRecord
from loaderdoctor.report.model import NotAdvised, Recommendation
from loaderdoctor.report.words.changes import changes_of
from loaderdoctor.report.words.run import came_of, settings_to_write, tried_words
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.answers import UNSAFE, check_predictions

_CAME: Final[Mapping[str, Came]] = {"kept": "faster", "slower": "no different"}  # else open
# What may be changed next to a setting and leaves it the same change.
_TOGETHER = frozenset({"persistent_workers", "prefetch_factor"})


def told_in_findings(
    findings: Iterable[Finding],
    facts: Facts,
    tuning: TuningRecord,
    not_advised: Iterable[NotAdvised] = (),
) -> tuple[Finding, ...]:
    """The findings with their predictions answered by what was tried.

    `not_advised` are settings that would break the run.
    """
    marks = {row.setting: UNSAFE for row in not_advised} | {
        name: f"predicted; tried in this run ({_changed(tuning, one).label()}): {came_of(one)}"
        for one in _tried(tuning)
        if one.step_ms is None or one.against_ms is None
        for name in _changed(tuning, one).changed()
    }
    return check_predictions(
        findings, tuple(_outcomes(tuning)), own=own_settings_known(facts), marks=marks
    )


def told_in_rows(
    rows: Iterable[Recommendation], tuning: TuningRecord
) -> tuple[Recommendation, ...]:
    """The settings to change with what came of them; without those that were no faster."""
    kept: list[Recommendation] = []
    for change in changes_of(tuple(rows)):
        one = None if change.is_code else _trial_of({r.setting: r.to for r in change.rows}, tuning)
        if one is None:
            kept += change.rows
        elif one.verdict != "slower":
            said = tried_words(one)
            kept += (msgspec.structs.replace(row, tuned=said) for row in change.rows)
    return tuple(kept)


def _tried(tuning: TuningRecord) -> Iterator[TriedRecord]:
    """What was begun at all."""
    return (one for one in tuning.tried if one.verdict != "refused")


def _changed(tuning: TuningRecord, one: TriedRecord) -> Settings:
    return settings_to_write(tuning.own, one.settings)


def _outcomes(tuning: TuningRecord) -> Iterator[Outcome]:
    for one in _tried(tuning):
        changed = _changed(tuning, one)
        if one.step_ms is None or one.against_ms is None or not changed.changed():
            continue
        came, said = _CAME.get(one.verdict, "undecided"), came_of(one)
        if one.verdict == "kept" and tuning.chosen is None:
            came, said = "undecided", "kept until the gain was not confirmed"
        yield Outcome(
            settings=changed,
            step_ms=one.step_ms,
            own_ms=one.against_ms,
            gain_low_ms=None,
            gain_high_ms=None,
            tuned=(came, said),
        )


def _trial_of(wanted: Mapping[str, Any], tuning: TuningRecord) -> TriedRecord | None:
    """The last trial of these settings: of just these, else with what belongs to them."""
    found = [(one, _changed(tuning, one).changed()) for one in _tried(tuning)]
    about = [
        (one, changed.keys() - wanted.keys())
        for one, changed in found
        if wanted.items() <= changed.items() and changed.keys() - wanted.keys() <= _TOGETHER
    ]
    return min(reversed(about), key=lambda x: len(x[1]), default=(None, None))[0]
