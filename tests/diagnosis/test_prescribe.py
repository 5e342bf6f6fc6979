"""What a diagnosis recommends after trials, and after too few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs

from loaderdoctor.advice import Candidate, CodeAdvice, Prescription
from loaderdoctor.advice.ideas import CHANGES
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.diagnosis.budget import lacks
from loaderdoctor.diagnosis.prescribe import not_advised_rows, prescribed_rows, trial_rows
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.estimate import Noise, Sample
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.findings import Kind
from loaderdoctor.findings.rules import find
from loaderdoctor.report.model import Recommendation
from loaderdoctor.report.words.changes import changes_of
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Trial
from loaderdoctor.tryout.comparing import Compared, by_speed
from tests.findings.builders import (
    healthy,
    loader,
    machine,
    shares,
    step,
    trace,
    with_exposed,
    workers,
)
from tests.findings.routes_facts import DECODING, starved
from tests.findings.rules.test_host_loop_work import lines, place


def compared_(
    settings: Settings,
    plain_ms: Sequence[float] = (),
    step_ms: Sequence[float] = (),
    *,
    in_code: bool = False,
    failed: str | None = None,
    refused: bool = False,
) -> Compared:
    trial = Trial(index=1, settings=settings, in_code=in_code)
    if failed is not None:
        trial.fail("skipped" if refused else "failed", failed)
    own, steps = (
        tuple((n, Sample(value=ms)) for n, ms in enumerate(times)) for times in (plain_ms, step_ms)
    )
    return Compared(
        trial=trial,
        own=own,
        steps=steps,
        noise=Noise.of([[x for _, x in own], [x for _, x in steps]]),
    )


FOUR, SIX = Settings(num_workers=4), Settings(num_workers=6)


def prescribed(*tried: Compared) -> tuple[Recommendation, ...]:
    candidates = tuple(
        Candidate(
            settings=s,
            kinds=(),
            loader="train.py:41",
            predicted_step_ms=4.0,
            prediction="the batch's cost",
        )
        for s in (SIX, FOUR)
    )
    prescription = Prescription(candidates=candidates, not_advised=(), advice=())
    found = Verification(tried=tried, best=None, complete=False)
    return prescribed_rows(healthy(), prescription, found)


def test_what_was_seen_once_and_looked_faster_stays_a_prediction_that_says_so() -> None:
    rows = prescribed(compared_(settings=FOUR, plain_ms=[5.0], step_ms=[4.3]))
    assert [r.to for r in rows] == [4]
    assert rows[0].measured_step_ms is None
    assert "(1) took 4.3 ms a step next to 5 as is: too few" in (rows[0].summary or "")


def test_a_prediction_follows_the_pace_of_the_rounds_in_which_it_was_tried() -> None:
    """The step took 10 ms when its parts were measured; all of it may be faster another time.

    A slower loop tells nothing of the least that a step takes: the change may end what slows it.
    """
    rows = prescribed(compared_(settings=FOUR, plain_ms=[8.0], step_ms=[7.0]))
    assert rows[0].predicted_step_ms == pytest.approx(4.0 * 8.0 / 10.0)
    assert rows[0].own_step_ms == pytest.approx(8.0)
    rows = prescribed(compared_(settings=FOUR, plain_ms=[15.0], step_ms=[13.0]))
    assert rows[0].predicted_step_ms == pytest.approx(4.0)
    assert rows[0].own_step_ms == pytest.approx(15.0)


def test_what_was_seen_once_and_looked_slower_is_not_recommended() -> None:
    rows = prescribed(compared_(settings=FOUR, plain_ms=[7.0], step_ms=[7.5]))
    assert [r.to for r in rows] == [6]  # the one that was not tried


def test_what_had_all_its_visits_and_did_not_help_is_not_recommended() -> None:
    same = [7.0, 7.1, 6.9]
    rows = prescribed(
        *(compared_(settings=s, plain_ms=same, step_ms=[7.0, 6.9, 7.1]) for s in (FOUR, SIX))
    )
    assert rows == ()


CACHE, UINT8 = Settings(cache=True), Settings(uint8=True)
PLAIN = [10.0, 10.1, 9.9]


def starving(*tried: Compared, best: Compared | None = None) -> tuple[Prescription, Verification]:
    """The loader costs 7 of 10 ms; a cache and whole batches may be tried."""
    facts = starved()
    verification = Verification(tried=tried, best=best, complete=True)
    return prescribe(facts, find(facts)), verification


def rows_of(*tried: Compared, best: Compared | None = None) -> list[Recommendation]:
    return list(prescribed_rows(starved(), *starving(*tried, best=best)))


def cached(step_ms: float = 3.6) -> Compared:
    times = [step_ms, step_ms + 0.05, step_ms - 0.05]
    return compared_(settings=CACHE, in_code=True, plain_ms=PLAIN, step_ms=times)


def settings(step_ms: float) -> Compared:
    times = [step_ms, step_ms + 0.05, step_ms - 0.05]
    return compared_(settings=FOUR, plain_ms=PLAIN, step_ms=times)


@pytest.mark.parametrize(("validates_s", "bound"), [(0.2, "outside"), (0.005, "input")])
def test_what_the_verdict_speaks_of_goes_before_settings_for_another_cause(
    validates_s: float, bound: str
) -> None:
    validation = OutsideFacts(
        what="validation", site="train.py:9", seconds=validates_s, n=12, every_steps=5,
        wait_share=0.04, n_batches=4,
    )  # fmt: skip
    facts = replace(starved(), wall=WallFacts(step_ms=10.0, outside=(validation,), n_steps=300))
    assert judge_run(facts)[0] == bound
    rows = prescribed_rows(facts, prescribe(facts, find(facts)), None)
    assert any(row.to is not None for row in rows)  # a setting for the loader is among them
    assert rows[0].setting.startswith("Validate less often") == (bound == "outside")


def test_where_no_setting_helps_routes_are_named_with_the_most_they_save() -> None:
    slower = compared_(settings=FOUR, plain_ms=PLAIN, step_ms=[11.0, 11.1, 10.9])
    rows = rows_of(slower)
    assert [r.to for r in rows] == [None] * 3
    saved = [10.0 - (r.predicted_step_ms or 0.0) for r in rows]
    assert saved == sorted(saved, reverse=True)
    assert all(r.predicted_from == "ablation" and r.summary for r in rows)
    assert all(bool(r.code) != bool(r.idea) for r in rows)
    assert all("At most" in (r.summary or "") for r in rows)


@pytest.mark.parametrize(("settings_ms", "first"), [(8.0, "cache"), (4.5, "num_workers")])
def test_code_goes_before_settings_where_it_is_much_faster(settings_ms: float, first: str) -> None:
    """A run of the tutorial: workers 1.3 times as fast, samples kept in memory 4.5 times."""
    workers, cache = settings(settings_ms), cached(3.6)
    rows = rows_of(workers, cache, best=workers)
    assert rows[0].setting == first
    assert {"cache", "num_workers"} <= {row.setting for row in rows}


def test_a_cache_that_helps_is_recommended_as_measured_with_the_line_to_write() -> None:
    first, *rest = rows_of(cached())
    assert (first.setting, first.to, first.measured_step_ms) == ("cache", True, 3.6)
    assert "+ loader = DataLoader(Cached(train_set), batch_size=64, shuffle=True)" in first.code
    assert not any("in memory as they" in r.setting for r in rest)
    assert any("whole batch" in r.setting for r in rest)


def test_settings_come_before_code_and_code_only_where_it_is_faster() -> None:
    four = settings(5.0)
    assert [r.setting for r in rows_of(four, cached(), best=four)][:2] == ["num_workers", "cache"]
    assert "cache" not in [r.setting for r in rows_of(four, cached(4.97), best=four)]


def test_routes_go_where_settings_leave_nothing_to_gain() -> None:
    four = settings(3.05)
    assert [r.setting for r in rows_of(four, best=four)] == ["num_workers"]
    four = settings(6.0)
    assert len(rows_of(four, best=four)) == 4


def test_what_one_line_undoes_comes_before_a_dataset_rewritten() -> None:
    # A batch takes 9 ms of CPU, and its worker waits for the one CPU the rest of 60 ms.
    pinned = starved(
        n_workers=4,
        workers_={"cores": ((0,),) * 4, "batch_ms": 60.0, "cpu_share": 0.15},
        machine_=machine(device_name=None, usable_cpus=4.0),
    )
    prescription = prescribe(pinned, find(pinned))
    assert prescription.routes
    rows = prescribed_rows(pinned, prescription, None)
    code = [r.setting for r in rows if r.code]
    assert any("as one tensor" in name or "without PIL" in name for name in code)
    # Of this script no line is known for it: an idea, and the first of them; to be tried, so said
    # once, as the setting that tries it.
    assert next(r.setting for r in rows if not r.code) == "worker_cpus"
    assert not any(r.setting == "Give the workers all CPUs again" for r in rows)


def test_a_cache_that_was_refused_is_withheld_with_the_reason() -> None:
    refused = compared_(
        settings=CACHE, in_code=True, failed="sample 3 came out differently", refused=True
    )
    prescription, verification = starving(refused)
    told = {w.setting: w.reason for w in not_advised_rows(prescription, verification)}
    assert told["cache"] == "sample 3 came out differently"
    assert [t.label for t in trial_rows(starved(), verification)] == ["as is"]
    assert not any("in memory as they" in r.setting for r in rows_of(refused))
    assert not any("as one tensor" in r.setting for r in rows_of(refused))


def test_whole_batches_that_could_not_be_tried_are_still_advised() -> None:
    refused = compared_(
        settings=UINT8, in_code=True, failed="no Compose ends in ToTensor", refused=True
    )
    assert any("whole batch" in r.setting for r in rows_of(refused))


def test_samples_that_their_code_draws_are_kept_only_once_a_trial_found_them_alike() -> None:
    facts = starved()
    drawing = replace(
        facts,
        loaders=tuple(structs.replace(x, randomness=("Photos.augment",)) for x in facts.loaders),
    )
    prescription = prescribe(drawing, find(drawing))
    assert any(way.keeps_samples for way in prescription.routes)
    hidden = compared_(
        settings=CACHE, in_code=True, plain_ms=[10.0, 17.0, 6.0], step_ms=[3.0, 4.0, 5.5]
    )
    for tried, keeps in (((), False), ((hidden,), True)):
        verification = Verification(tried=tried, best=None, complete=True)
        titles = [r.setting for r in prescribed_rows(drawing, prescription, verification)]
        assert any("as one tensor" in title for title in titles) is keeps
        assert any("in memory as they" in title for title in titles) is keeps
        told = {w.setting: w.reason for w in not_advised_rows(prescription, verification)}
        assert ("Photos.augment draws at random" in told.get("cache", "")) is not keeps


def test_a_cache_that_crashed_is_a_failed_trial_and_nothing_withheld() -> None:
    crashed = compared_(settings=CACHE, in_code=True, failed="ValueError: broken")
    prescription, verification = starving(crashed)
    assert "cache" not in [w.setting for w in not_advised_rows(prescription, verification)]
    assert [t.status for t in trial_rows(starved(), verification)] == ["ok", "failed"]


def test_no_dataset_is_to_be_rewritten_for_a_cost_that_noise_may_be() -> None:
    sure = starved()
    unsure = replace(sure, shares_low={"input": -0.1, "copy": 0.0})
    slower = compared_(settings=FOUR, plain_ms=PLAIN, step_ms=[11.0, 11.1, 10.9])
    verification = Verification(tried=(slower,), best=None, complete=True)
    for facts, n_routes in ((sure, 3), (unsure, 0)):
        prescription = prescribe(facts, find(facts))
        assert any(c.in_code for c in prescription.candidates)  # trying costs nothing
        assert len(prescribed_rows(facts, prescription, verification)) == n_routes


def test_a_cache_that_noise_hid_is_advised_with_its_bound() -> None:
    noisy = compared_(
        settings=CACHE, in_code=True, plain_ms=[10.0, 17.0, 6.0], step_ms=[3.0, 4.0, 5.5]
    )
    assert noisy.promising and not noisy.helps
    rows = rows_of(noisy)
    (kept,) = [r for r in rows if "in memory as they" in r.setting]
    assert kept.measured_step_ms is None and kept.predicted_step_ms is not None
    same = compared_(settings=CACHE, in_code=True, plain_ms=PLAIN, step_ms=PLAIN)
    assert not any("in memory as they" in r.setting for r in rows_of(same))


@pytest.mark.parametrize("helps", [True, False])
def test_what_is_tried_with_code_of_ours_gives_the_idea_no_figure(helps: bool) -> None:
    change = CHANGES[Kind.BATCH_PAGE_FAULTS]
    idea = CodeAdvice(
        kind=Kind.BATCH_PAGE_FAULTS,
        title=change.title,
        idea=change.idea,
        code=None,
        axis="reuse_buffers",
        bound_ms=3.0,
        predicted_from="ablation",
    )
    times = [5.0, 5.05, 4.95] if helps else PLAIN
    reused = Settings(reuse_buffers=True)
    tried = compared_(settings=reused, in_code=True, plain_ms=PLAIN, step_ms=times)
    prescription = Prescription(candidates=(), not_advised=(), advice=(idea,))
    found = Verification(tried=(tried,), best=None, complete=True)
    rows = prescribed_rows(healthy(), prescription, found)
    assert [row.setting for row in rows] == [change.title] * helps
    assert all(row.measured_step_ms is None and row.predicted_step_ms for row in rows)


def test_a_gain_is_against_the_loop_in_the_same_rounds_whatever_pace_it_had_before() -> None:
    four = compared_(settings=FOUR, plain_ms=[8.0, 8.1, 7.9], step_ms=[4.0, 4.1, 3.9])
    found = Verification(tried=(four,), best=four, complete=True)
    rows = prescribed_rows(healthy(), Prescription(candidates=(), not_advised=(), advice=()), found)
    (change,) = changes_of(rows)
    assert change.first.own_step_ms == pytest.approx(8.0)
    assert healthy().step_ms == 10.0
    assert change.times_as_fast(10.0) == pytest.approx(2.0)  # not 2.5
    assert change.compared(10.0) == " as the loop as it is in the same rounds, 8.00 ms"
    # 8.2 and 4.0 would be 2.05 times.
    assert change.compared(8.2) == " as the loop as it is in the same rounds, 8.00 ms"
    assert change.compared(8.05) == ""


def test_what_was_tried_at_different_paces_is_ranked_by_its_part_of_the_loop_then() -> None:
    slow = compared_(settings=FOUR, plain_ms=[10.0, 10.1, 9.9], step_ms=[5.0, 5.1, 4.9])
    fast = compared_(settings=SIX, plain_ms=[7.0, 7.1, 6.9], step_ms=[4.9, 5.0, 4.8])
    assert [t.settings for t in by_speed([fast, slow])] == [FOUR, SIX]


def decodes(*tried: Compared) -> tuple[list[Recommendation], dict[str, str]]:
    """Of a folder of images whose code of our own is known to fit: what is said of decoding."""
    facts = starved(machine_=machine(), loader_={"dataset": "ImageFolder"})
    found = prescribe(facts, find(facts))
    routes = tuple(
        replace(way, code="+ decoded") if way.axis == "device_decode" else way
        for way in found.routes
    )
    assert any(way.code == "+ decoded" for way in routes)
    prescription = replace(found, routes=routes)
    verification = Verification(tried=tried, best=None, complete=True)
    rows = prescribed_rows(facts, prescription, verification)
    told = {w.setting: w.reason for w in not_advised_rows(prescription, verification)}
    about = [r for r in rows if r.setting == "device_decode" or "the image files" in r.setting]
    return about, told


DECODE = Settings(device_decode=True)


def test_files_that_no_trial_looked_at_are_decoded_on_the_device_in_words_alone() -> None:
    (row,), told = decodes()
    assert not row.code and "JPEG files: hand them out" in (row.idea or "")
    assert "device_decode" not in told


def test_decoding_that_was_refused_is_not_advised_at_all() -> None:
    why = "its files are no JPEG files"
    refused = compared_(settings=DECODE, in_code=True, failed=why, refused=True)
    rows, told = decodes(refused)
    assert rows == []
    assert told["device_decode"] == why


@pytest.mark.parametrize("step_ms", [[4.0, 4.05, 3.95], [8.6]])
def test_decoding_that_ran_has_its_code(step_ms: list[float]) -> None:
    """Shown to help, or seen too seldom to tell."""
    plain = PLAIN[: len(step_ms)]
    ran = compared_(settings=DECODE, in_code=True, plain_ms=plain, step_ms=step_ms)
    (row,), _ = decodes(ran)
    assert row.code == "+ decoded" and row.idea is None
    assert (row.measured_step_ms is not None) is ran.helps


def host_bound(step_ms: float, *, own: float) -> list[Recommendation]:
    """Of 10 ms 7 are the host's, a line of the loop takes `own` of them; settings were measured."""
    split = shares(host=0.7, input_=0.06)
    facts = healthy(shares=split, trace=trace(shares=split), workers=workers())
    facts = replace(facts, loop_lines=lines(place(n_samples=round(400 * own)), own=own))
    assert judge_run(facts)[0] == "host"
    tried = settings(step_ms)
    found = Verification(tried=(tried,), best=tried, complete=True)
    return list(prescribed_rows(facts, prescribe(facts, find(facts)), found))


@pytest.mark.parametrize(
    ("step_ms", "own", "first"),
    [
        (8.5, 0.6, "Let the loader's workers do it"),  # 1.5 of 10 ms measured, 6 in the loop's line
        (3.5, 0.6, "num_workers"),  # gained more than the line takes
        (8.5, 0.2, "num_workers"),  # too little of the host's time to be its cause
    ],
)
def test_the_loops_own_work_goes_before_measured_settings_of_another_cause(
    step_ms: float, own: float, first: str
) -> None:
    rows = host_bound(step_ms, own=own)
    assert rows[0].setting.startswith(first)
    assert {row.measured_step_ms for row in rows if row.to is not None} == {step_ms}
    (idea,) = [row for row in rows if row.to is None and "workers do it" in row.setting]
    assert "shape_words (train.py:16), called from train.py:31" in (idea.summary or "")


def test_it_goes_on_where_code_is_advised_first_and_something_was_not_tried() -> None:
    facts = starved()
    prescription = replace(prescribe(facts, find(facts)), candidates=())
    known = cast("Analysis", SimpleNamespace(facts=facts, prescription=prescription))
    first = prescribed_rows(facts, prescription, None)[0]
    assert first.to is None and first.measured_step_ms is None
    assert lacks(known, None, undecided=True) is not None
    assert lacks(known, None, undecided=False) is None


def test_what_only_a_trial_can_tell_comes_behind_what_is_predicted_until_it_was_tried() -> None:
    pinned = loader(
        settings={"num_workers": 16, "prefetch_factor": 2, "pin_memory": True},
        dataset="ImageFolder",
        n_samples=80_000,
    )
    facts = with_exposed(
        input_=0.25,
        loaders=(pinned,),
        step=step(raw_wait_ms=0.2, worker_cpu_cores=5.1, main_cpu_cores=1.2),
        machine=machine(usable_cpus=16.0),
        workers=workers(
            n_workers=16, batch_ms=55.0, fetch_ms=49.0, idle_share=0.65, lines=(DECODING,)
        ),
    )
    prescription = prescribe(facts, find(facts))
    without = Settings(pin_memory=False)
    assert without in {c.settings for c in prescription.candidates}
    rows = prescribed_rows(facts, prescription, None)
    at = next(i for i, row in enumerate(rows) if row.setting == "pin_memory")
    assert at > 0 and all(row.predicted_step_ms is not None for row in rows[:at])
    assert all(row.predicted_step_ms is None for row in rows[at:])
    faster = compared_(without, [10.0, 10.1, 9.9], [8.0, 8.1, 7.9])
    tried = Verification(tried=(faster,), best=faster, complete=True)
    first, *_ = prescribed_rows(facts, prescription, tried)
    assert (first.setting, first.to) == ("pin_memory", False)
