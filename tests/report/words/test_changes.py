"""A trial that leads the table and is not recommended has its reason on the first screen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import html
from loaderdoctor.report.model import Report, Trial
from loaderdoctor.report.words.changes import (
    Change,
    changes_of,
    leader_not_advised,
    vocabulary,
)
from loaderdoctor.report.words.summary import _first_change
from loaderdoctor.report.words.whole_run import meaning
from tests.report import samples
from tests.report.samples import recommendation, trial


def tried(settings: dict[str, Any], step_ms: float, **more: Any) -> Trial:
    given: dict[str, Any] = {"settings": settings, "n_windows": 6, "gain_ms": 14.8 - step_ms}
    return trial("background host", step_ms, **(given | more))


def diagnosed(*trials: Trial, advised: tuple[Any, ...] = ()) -> Report:
    as_is = trial("as is", 14.8, settings={})
    return msgspec.structs.replace(
        samples.input_bound(), trials=(as_is, *trials), recommendations=advised
    )


HOST = {"background": "host"}
# As a busy machine gave it: 6.9 ms in the table, and no gain in turns with the loop as it is.
NOISY = tried(HOST, 6.9, step_ms_ci=(2.5, 11.4), gain_ms=2.6, gain_ms_ci=(-2.6, 7.9))


def test_a_lead_that_may_be_noise_says_so_on_every_first_screen() -> None:
    report = diagnosed(NOISY)
    said = leader_not_advised(report)
    assert said is not None
    assert said.startswith("Background host is first among the trials (7 ± 4 ms a step)")
    assert "it gained 3 ± 5 ms a step, which may be noise" in said
    before_trials = " ".join(console_text(report).partition("Trials, fastest first")[0].split())
    assert said in before_trials
    assert "it gained 3 ± 5 ms a step, which may be noise" in html(report)


@pytest.mark.parametrize(
    ("leader", "why"),
    [
        (tried(HOST, 6.9, gain_ms_ci=None), "only once"),
        (tried(HOST, 6.9, gain_ms=None), "not measured in turns"),
        (tried(HOST, 6.9, gain_ms_ci=(5.0, 9.0), gain_confirmed=False), "not confirmed"),
        (tried(HOST, 6.9, gain_ms_ci=(-1.0, 9.0), gain_confirmed=True), "when measured again"),
    ],
)
def test_each_reason_is_said_in_its_own_words(leader: Trial, why: str) -> None:
    assert why in (leader_not_advised(diagnosed(leader)) or "")


def test_beside_a_change_that_is_slower_in_the_table_it_is_said_too() -> None:
    change = recommendation("num_workers", 0, 2, measured_step_ms=9.0, measured_ci_ms=(8.5, 9.5))
    report = diagnosed(NOISY, advised=(change,))
    assert "Background host is first" in " ".join(console_text(report).split())
    sure = tried(HOST, 6.9, gain_ms_ci=(5.0, 9.0))
    said = leader_not_advised(diagnosed(sure, advised=(change,)))
    assert said is not None and "changes less" in said


@pytest.mark.parametrize(
    "other",
    [
        tried(HOST, 14.5),  # no clear lead
        tried(HOST, 6.9, step_ms_ci=(-2.0, 15.8)),  # no figure at all
        tried({"synthetic": True}, 1.0),  # answers a question, is no setting
        tried({"amp": True}, 6.9, changes_numerics=True),  # tried because it was asked for
        trial("background host", None, settings=HOST, status="failed"),
    ],
)
def test_what_does_not_lead_needs_no_reason(other: Trial) -> None:
    assert leader_not_advised(diagnosed(other)) is None


def test_what_is_advised_needs_none_either() -> None:
    change = recommendation("background", None, "host", measured_step_ms=6.9)
    assert leader_not_advised(diagnosed(NOISY, advised=(change,))) is None
    assert leader_not_advised(samples.healthy()) is None


def change_of(**more: Any) -> Change:
    to = more.pop("to", 4)
    return Change((recommendation(more.pop("setting", "num_workers"), 0, to, **more),))


UNTRIED: dict[str, Any] = {"measured_step_ms": None, "measured_ci_ms": None}


def test_what_was_not_tried_is_a_bound_but_for_threads() -> None:
    predicted = {"predicted_step_ms": 4.0, "predicted_from": "ablation", **UNTRIED}
    assert change_of(**predicted).prediction() == "at best 4.00 ms a step, predicted by ablation"
    threads = change_of(setting="num_threads", **predicted).prediction()
    assert threads == "4.00 ms a step, predicted by ablation"


def test_no_bound_stands_above_what_was_measured() -> None:
    met = change_of(predicted_step_ms=4.0, predicted_from="ablation", measured_step_ms=4.4)
    assert met.prediction_met() == "4.00 ms at best, predicted by ablation"
    beaten = change_of(predicted_step_ms=4.0, predicted_from="ablation", measured_step_ms=3.6)
    assert beaten.prediction_met() is None
    assert "ablation" not in (vocabulary((beaten,)) or "")


def test_what_was_seen_in_too_few_windows_stands_in_place_of_the_prediction() -> None:
    seen = change_of(
        predicted_step_ms=4.0, own_step_ms=81.1, seen_step_ms=41.6, **UNTRIED
    ).prediction()
    assert seen == "41.6 ms a step next to 81.1 ms as is, in too few windows to tell"


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ((73.5, 242.3), "brings the step to about 158 ms (73.5 to 242), about 2.1× as fast"),
        ((150.0, 166.0), "brings the step to 158 ms, 2.1× as fast"),
    ],
)
def test_a_headline_says_how_loosely_its_figure_was_measured(
    between: tuple[float, float], said: str
) -> None:
    row = recommendation(
        "num_workers", 4, 12, measured_step_ms=157.9, measured_ci_ms=between, own_step_ms=329.9
    )
    (change,) = changes_of((row,))
    assert said in _first_change(329.9, change)
    report = msgspec.structs.replace(samples.input_bound(), recommendations=(row,))
    assert ("becomes about" in (meaning(report) or "")) is ("about" in said)  # the last line too


@pytest.mark.parametrize(
    ("between", "promised", "said"),
    [
        ((1.4, 2.4), True, "1.40 to 2.4× in a new run"),
        ((0.83, 1.72), False, "a new run may gain less or nothing: 0.83 to 1.72×"),
        (None, True, None),
    ],
)
def test_what_runs_of_one_script_differ_by_is_no_promise(
    between: tuple[float, float] | None, promised: bool, said: str | None
) -> None:
    row = recommendation(
        "num_workers", 0, 2, measured_step_ms=10.0, measured_ci_ms=(9.8, 10.2), speed_up_ci=between
    )
    report = msgspec.structs.replace(samples.input_bound(), recommendations=(row,))
    change = Change((row,))
    assert (change.is_promised, change.in_new_runs()) == (promised, said)
    headline = _first_change(14.8, change)
    assert headline.endswith("measured here." if said is None else f"measured here; {said}.")
    assert ("Every hour of this training" in console_text(report)) is promised
    for page in (" ".join(console_text(report).split()), html(report)):
        assert said is None or said in page


@pytest.mark.parametrize("own_ms", [None, 17.1, 18.4, 19.0, 19.2, 19.4, 19.9, 25.0])
def test_figures_of_a_gain_divide_to_its_ratio(own_ms: float | None) -> None:
    row = recommendation(
        "num_workers", 0, 4, measured_step_ms=17.0, measured_ci_ms=(16.9, 17.1), own_step_ms=own_ms
    )
    (change,) = changes_of([row])
    said = _first_change(19.2, change)
    ratio = float(said.partition("×")[0].rsplit(maxsplit=1)[-1])
    _, beside, then = said.partition("in the same rounds, ")
    as_is = float(then.split()[0]) if beside else 19.2
    assert as_is / 17.0 == pytest.approx(ratio, rel=0.015)


@pytest.mark.parametrize("predicted_ms", [2.9, None])
def test_settings_that_were_predicted_apart_are_no_one_change(predicted_ms: float | None) -> None:
    """Of a loader that can't be read twice several are advised untried, often with one bound."""
    untried = {"measured_step_ms": None, "measured_ci_ms": None, "predicted_step_ms": predicted_ms}
    pool = recommendation("num_workers", 0, 3, summary="That is A.", **untried)
    kept = recommendation("persistent_workers", None, True, **untried)
    thread = recommendation("background", "off", "host", summary="That is B.", **untried)
    code = recommendation("Keep the samples", None, None, summary=None, **untried)
    found = changes_of((pool, kept, thread, code, kept))
    assert [change.rows for change in found] == [(pool, kept), (thread,), (code,), (kept,)]
