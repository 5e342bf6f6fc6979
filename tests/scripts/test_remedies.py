"""Where no setting helps, the command says what does; a cache is tried before it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import STARVED, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]


def test_digits_through_pil_get_a_cache_that_was_tried_and_code_in_their_own_names(
    tmp_path: Path,
) -> None:
    done = diagnose(STARVED / "digits.py", "fixed", cwd=tmp_path, budget_s=60)
    assert done.said.verdict.bound == "input", done.summary
    evidence = done.finding("dataset-format-bound").evidence
    assert (evidence["format"], evidence["stored_in"]) == ("pil-round-trip", "data")
    assert evidence["conversion_share_of_batch"] > 0.33
    as_is, *tried = done.said.trials
    cached = [t for t in tried if t.settings.get("cache")]
    # A machine with much other work leaves no time for it; then it is advised with its bound.
    assert cached or "not-all-tried" in done.warnings
    for t in cached:
        assert t.step_ms is not None and as_is.step_ms is not None
        assert t.step_ms < 0.7 * as_is.step_ms
    (cache,) = [r for r in done.said.recommendations if "Cached(train_set)" in r.code]
    assert cache.measured_step_ms is not None or cache.predicted_step_ms is not None
    assert "+ train_loader = DataLoader(Cached(train_set), batch_size=64" in cache.code
    slices = done.settings["Slice whole batches out of train_set.data, without PIL between"]
    assert "Batches(train_set)" in slices.code
    assert slices.predicted_from == "ablation" and "At most" in (slices.summary or "")


def test_random_crops_are_never_cached(tmp_path: Path) -> None:
    done = diagnose(STARVED / "digits.py", "random", cwd=tmp_path, budget_s=20)
    assert "cache" not in done.settings
    assert not any(t.settings.get("cache") for t in done.said.trials)
    withheld = {w.setting: w.reason for w in done.said.not_advised}
    assert "RandomCrop must be drawn again in each epoch" in withheld["cache"]
    assert not any("one tensor" in name or "Slice" in name for name in done.settings)
