"""Claims against intervals: what agrees, what disagrees, what the noise hides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from loaderdoctor.estimate import Estimate, Noise
from loaderdoctor.sweep.presets import find_preset
from loaderdoctor.sweep.presets.model import (
    Change,
    Judged,
    all_hold,
    change_of_peaks,
    faster,
    is_lower,
    mean_of,
    not_faster,
    slower,
    unchanged,
)

NOISE = "not separable from noise"


def change(value: float, margin: float) -> Change:
    low, high = value - margin, value + margin
    return Change(estimate=Estimate(value=value, low=low, high=high, n=5))


@pytest.mark.parametrize(
    ("value", "margin", "verdict"),
    [
        (-0.20, 0.05, "agrees"),
        (-0.20, 0.25, NOISE),
        (0.20, 0.05, "disagrees"),
        (0.20, 0.25, NOISE),
        (0.0, 0.005, "disagrees"),  # surely no gain that matters
        (-0.005, 0.002, "disagrees"),
    ],
)
def test_faster_is_decided_by_the_interval(value: float, margin: float, verdict: str) -> None:
    assert faster(change(value, margin)).verdict == verdict


@pytest.mark.parametrize(
    ("value", "margin", "verdict"),
    [
        (-0.34, 0.02, "agrees"),
        (-0.60, 0.02, "agrees"),  # more than published
        (-0.20, 0.02, "agrees"),  # more than half of it
        (-0.05, 0.02, "disagrees"),  # the direction alone is not the claim
        (-0.10, 0.05, "disagrees"),
        (-0.15, 0.145, "disagrees"),
    ],
)
def test_a_published_size_must_be_met_by_half_or_reached_by_the_noise(
    value: float, margin: float, verdict: str
) -> None:
    assert faster(change(value, margin), published=-0.34).verdict == verdict


def test_an_interval_that_reaches_the_published_size_agrees_with_it() -> None:
    assert faster(change(-0.15, 0.1), published=-0.24).verdict == "agrees"
    assert faster(change(-0.10, 0.05), published=-0.14).verdict == "agrees"


@pytest.mark.parametrize(
    ("value", "margin", "verdict"),
    [(0.0, 0.03, "agrees"), (0.03, 0.04, NOISE), (0.10, 0.03, "disagrees"), (-0.1, 0.2, NOISE)],
)
def test_unchanged_needs_a_narrow_interval_around_nothing(
    value: float, margin: float, verdict: str
) -> None:
    assert unchanged(change(value, margin)).verdict == verdict


def test_slower_is_faster_the_other_way_round() -> None:
    assert slower(change(0.2, 0.05)).verdict == "agrees"
    assert slower(change(-0.2, 0.05)).verdict == "disagrees"
    assert slower(change(0.2, 0.05)).ours == "+20 ± 5 %"


def test_no_faster_allows_slower() -> None:
    assert not_faster(change(0.3, 0.1)).verdict == "agrees"
    assert not_faster(change(-0.3, 0.1)).verdict == "disagrees"
    assert not_faster(change(-0.05, 0.1)).verdict == NOISE


def test_one_window_separates_nothing() -> None:
    alone = Estimate(value=-0.5, low=-math.inf, high=math.inf, n=1)
    assert faster(Change(estimate=alone)).verdict == NOISE


def test_what_was_not_measured_is_not_testable_and_says_why() -> None:
    judged = faster(Change(reason="'3': needs an accelerator"))
    assert judged == Judged(verdict="not testable here", reason="'3': needs an accelerator")


def test_memory_is_compared_without_noise() -> None:
    assert is_lower(132.0, 251.0, published=1.32 / 2.51 - 1).verdict == "agrees"
    assert is_lower(240.0, 251.0, published=1.32 / 2.51 - 1).verdict == "disagrees"
    assert is_lower(246.0, 251.0).verdict == "agrees"
    assert is_lower(None, 251.0).verdict == "not testable here"


def test_peaks_that_differ_from_visit_to_visit_decide_nothing_within_their_range() -> None:
    mib = 2**20
    same = change_of_peaks([95 * mib, 86 * mib], [82 * mib, 98 * mib])
    assert unchanged(same).verdict == NOISE
    assert slower(same).verdict == NOISE
    assert slower(change_of_peaks([300 * mib, 290 * mib], [82 * mib, 98 * mib])).verdict == "agrees"
    assert unchanged(change_of_peaks([98 * mib], [98 * mib])).verdict == "agrees"
    assert unchanged(change_of_peaks([], [98 * mib])).verdict == "not testable here"


@pytest.mark.parametrize(
    ("before", "after", "spread", "verdict"),
    [
        (0.795, 0.862, 0.01, "agrees"),
        (0.731, 0.734, 0.08, NOISE),  # an H200 whose windows differ so: 66.6 → 84.2 % before
        (0.731, 0.734, 0.001, "disagrees"),
        (0.862, 0.795, 0.01, "disagrees"),
        (0.795, 0.815, 0.001, "disagrees"),  # far less than published
    ],
)
def test_shares_of_single_windows_are_as_uncertain_as_their_steps(
    before: float, after: float, spread: float, verdict: str
) -> None:
    noise = Noise(variance=spread**2, free=10_000)
    judged = slower(Change(estimate=noise.change(after, before)), published=86.2 / 79.5 - 1)
    assert judged.verdict == verdict
    nothing_known = Noise().change(after, before)
    assert nothing_known.margin > 0.08 > noise.change(after, before).margin or spread == 0.08


def test_a_claim_of_several_parts_holds_where_all_do() -> None:
    yes, no = Judged(verdict="agrees", ours="-3 %"), Judged(verdict="disagrees", ours="+3 %")
    noise = Judged(verdict="not separable from noise", ours="0 %")
    assert all_hold([yes, yes]).verdict == "agrees"
    assert all_hold([yes, noise]).verdict == NOISE
    assert all_hold([yes, noise, no]).verdict == "disagrees"
    assert all_hold([yes, no]).ours == "-3 %, +3 %"


def test_the_mean_of_changes_leaves_out_what_was_not_measured() -> None:
    mean = mean_of([change(-0.1, 0.03), change(-0.3, 0.04), Change(reason="skipped")])
    assert mean.value == pytest.approx(-0.2)
    assert mean.estimate is not None
    assert mean.estimate.margin == pytest.approx(0.025)
    assert mean_of([Change(reason="a"), Change(reason="b"), Change(reason="a")]).reason == "a; b"


@pytest.mark.parametrize(
    ("value", "margin", "ours"),
    [
        (-0.20, 0.05, "125 % [118, 133]"),  # four fifths of the time: five quarters of the samples
        (-0.80, 0.0, "500 % [500, 500]"),
        (0.25, math.inf, "80 %"),
        (-0.5, 0.6, "200 % [91, …]"),
    ],
)
def test_a_rung_is_told_in_the_unit_of_its_claim(value: float, margin: float, ours: str) -> None:
    class Measured:
        def change(self, name: str, base: str) -> Change:
            return change(value, margin)

    claims = find_preset("ladder").claims
    rungs = [claim for claim in claims if claim.text.startswith("samples/s with ")]
    assert [claim.published for claim in rungs] == ["144 %", "201 %", "230 %", "320 %", "505 %"]
    for claim in rungs:
        assert claim.rule(Measured()).ours == ours  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measured:
    """Figures of the workers' preset: what loading and the rest take, and its best row."""

    load: Estimate
    rest: Estimate
    best: Change

    def load_and_rest_ms(self) -> tuple[Estimate, Estimate]:
        return self.load, self.rest

    def change(self, name: str, base: str) -> Change:
        return self.best


@pytest.mark.parametrize(
    ("load_ms", "rest_ms", "best", "verdict"),
    [
        (20.0, 5.0, change(-0.4, 0.05), "agrees"),
        (20.0, 5.0, change(0.0, 0.005), "disagrees"),
        (5.0, 20.0, change(0.0, 0.02), "agrees"),
        (5.0, 20.0, change(-0.4, 0.05), "disagrees"),
        (5.0, 20.0, change(-0.2, 0.25), NOISE),  # what noise hides is no proof that nothing is
        (10.2, 10.0, change(-0.4, 0.05), NOISE),  # which of both is longer is not known
    ],
)
def test_workers_help_only_where_loading_is_known_to_take_longer(
    load_ms: float, rest_ms: float, best: Change, verdict: str
) -> None:
    (claim,) = find_preset("workers-pinning").claims
    figures = Measured(
        load=Estimate.around(load_ms, 0.5, n=5), rest=Estimate.around(rest_ms, 0.5, n=5), best=best
    )
    assert claim.rule(figures).verdict == verdict  # type: ignore[arg-type]
