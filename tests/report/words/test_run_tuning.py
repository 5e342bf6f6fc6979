"""What `--tune` says: what serves, since when, what it brought, and what is not known."""

from __future__ import annotations

import msgspec

from loaderdoctor.instrument.wire.measured import TuningRecord
from loaderdoctor.report.words.run import (
    DRAWS,
    EXACT,
    tuning_began,
    tuning_changed,
    tuning_left_alone,
    tuning_summary,
)
from loaderdoctor.settings import Settings

OWN = Settings(num_workers=2, prefetch_factor=2, persistent_workers=False, pin_memory=False)
CHOSEN = TuningRecord(
    loader="train.py:14",
    exact=True,
    own=OWN,
    chosen=Settings(num_workers=4, prefetch_factor=2, persistent_workers=False, pin_memory=False),
    chosen_at_step=150,
    own_ms=(35.1, 34.0, 36.2),
    chosen_ms=(10.0, 9.9, 10.1),
    proven=True,
    n_steps=5000,
    lost_steps=31.6,
    saved_s=120.0,
)


def test_only_what_differs_is_named() -> None:
    text = tuning_changed(CHOSEN)
    assert "num_workers=4" in text
    assert "prefetch_factor" not in text
    assert "35.1 ms a step became 10.0 ms" in text


def test_the_end_says_since_when_what_was_saved_and_what_trying_took() -> None:
    text = tuning_summary(CHOSEN)
    assert "since step 150" in text
    assert "2 min" in text
    assert "32 of 5000 steps" in text
    assert "not yet" not in text


def test_what_was_not_held_against_the_loops_own_once_more_is_said() -> None:
    assert "not yet held against" in tuning_summary(msgspec.structs.replace(CHOSEN, proven=False))


def test_other_draws_of_workers_are_said_wherever_a_choice_is() -> None:
    drawn = msgspec.structs.replace(CHOSEN, exact=False, draws=True)
    assert DRAWS in tuning_changed(drawn)
    assert DRAWS not in tuning_changed(CHOSEN)


def test_the_end_says_of_the_choice_since_when_and_not_of_its_draws() -> None:
    drawn = msgspec.structs.replace(CHOSEN, exact=False, draws=True, proven=False)
    text = tuning_summary(drawn)
    assert (
        f"became 10.0 ms since step 150; not yet held against its own settings once more. {DRAWS}"
        in text
    )
    assert f"{DRAWS} Saved so far" in text
    unsure = msgspec.structs.replace(drawn, chosen_ms=None)
    assert "goes on with num_workers=4 since step 150;" in tuning_summary(unsure)


def test_a_loop_that_keeps_its_settings_and_one_that_is_left_alone() -> None:
    kept = TuningRecord(loader="train.py:14", exact=True, own=OWN, n_steps=900)
    assert EXACT in tuning_began(kept)
    assert "kept train.py:14 at its own settings" in tuning_summary(kept)
    alone = TuningRecord(loader="", exact=True, not_tuned="no training was seen")
    assert (
        tuning_left_alone(alone)
        == tuning_summary(alone)
        == "The loader is not tuned: no training was seen."
    )
