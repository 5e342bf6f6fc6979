"""Time outside the training steps: what it is, where, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.facts.host import CodeLine, LoopLineFacts, LoopPlace
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.loop_words import outside_words
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.outside import time_outside_steps, trains_elsewhere
from tests.findings.builders import healthy, loader, step, with_exposed
from tests.findings.case import Case, fires, stays_silent

VALIDATION = OutsideFacts(
    what="validation", site="train.py:9", seconds=0.2, n=12, every_steps=5, wait_share=0.04,
    n_batches=4,
)  # fmt: skip
SAVING = OutsideFacts(what="saving", site="train.py:30", seconds=1.0, n=3, every_steps=100)
OTHER = OutsideFacts(
    what="other", site=None, seconds=0.5, n=2, every_steps=100, at_epoch_end=True
)  # fmt: skip
TRAINING = OutsideFacts(
    what="training", site="tune.py:9", seconds=0.2, n=4, every_steps=20, wait_share=0.6,
    n_batches=20.0, with_grad=True,
)  # fmt: skip
ON_HOST = step(clock="host")
ONCE = replace(VALIDATION, n=1, every_steps=None)


def wall(*parts: OutsideFacts) -> WallFacts:
    """Next to a step of 10 ms."""
    return WallFacts(step_ms=10.0, outside=parts, n_steps=300)


def also(*parts: OutsideFacts) -> WallFacts:
    """The same, and training elsewhere."""
    return WallFacts(step_ms=10.0, outside=(), n_steps=300, elsewhere=parts)


CASES = (
    Case(
        rule=time_outside_steps,
        ill=healthy(wall=wall(VALIDATION, SAVING, OTHER)),
        share=55 / 65,
        severity=Severity.HIGH,
        evidence={
            "what": "validation",
            "site": "train.py:9",
            "outside_ms_per_step": 55.0,
            "validation_ms_per_step": 40.0,
            "saving_ms_per_step": 10.0,
            "total_ms_per_step": 65.0,
        },
        says=(
            "55.0 of 65.0 ms a training step lie outside the steps",
            "Validation (train.py:9), 40.0 ms: 200 ms every 5 steps, seen 12 times",
            "saving (train.py:30), 10.0 ms: 1.00 s every 100 steps, seen 3 times",
            "other work of the loop, 5.00 ms: 500 ms at an epoch's end, seen 2 times",
            "larger batches",
            "Save less often",
        ),
        silent={
            "nothing outside": healthy(wall=wall()),
            "rare": healthy(wall=wall(replace(VALIDATION, every_steps=1000))),
        },
        missing={
            "the wall": healthy(),
            "how often it comes": healthy(wall=wall(ONCE)),
        },
    ),
    Case(
        rule=trains_elsewhere,
        ill=healthy(step=ON_HOST, wall=also(TRAINING)),
        share=6 / 20,
        severity=Severity.HIGH,
        evidence={"n_seen": 4, "n_batches": 20.0, "wait_share": 0.6, "elsewhere_ms_per_step": 10.0},
        says=(
            "Steps are taken on other loaders too, 50 % of the time, and are not in the measured",
            "tune.py:9 (4 passes of 20 batches, 10.0 ms a batch, 6.00 ms of it to get it)",
            "Give this loader workers",
        ),
        silent={
            "validation": healthy(step=ON_HOST, wall=wall(VALIDATION)),
            "in each step": healthy(step=ON_HOST, wall=also(replace(TRAINING, in_steps=True))),
        },
        missing={"the wall": healthy()},
    ),
)

test_the_rule_fires = fires(CASES)
test_the_rule_stays_silent = stays_silent(CASES)


def advice(part: OutsideFacts, **settings: Any) -> str:
    other = replace_settings(settings)
    found = time_outside_steps(healthy(wall=wall(part), loaders=(loader(), other)))
    assert found is not None
    return found.advice or ""


def replace_settings(settings: dict[str, Any]) -> Any:
    import msgspec

    return msgspec.structs.replace(loader(settings=settings), id="train.py:9", role="other")


def test_advice_on_validation_fits_what_its_passes_do() -> None:
    waits = replace(VALIDATION, wait_share=0.9)
    assert "Give this loader workers" in advice(waits, num_workers=0)
    assert "persistent_workers=True" in advice(waits, num_workers=2)
    assert "more workers" in advice(waits, num_workers=2, persistent_workers=True)
    assert "no_grad" not in advice(VALIDATION)
    assert "no_grad" in advice(replace(VALIDATION, with_grad=True))
    assert "workers" not in advice(VALIDATION)


def test_workers_are_not_kept_by_a_loader_that_is_built_anew_or_whose_dataset_changes() -> None:
    """`persistent_workers=True` stood next to the reason why it is not advised."""
    waits = replace(VALIDATION, wait_share=0.9)
    other = replace_settings({"num_workers": 2})
    for change in ({"changed": "its length"}, {"rebuilt": frozenset({other.id})}):
        facts = healthy(wall=wall(waits), loaders=(loader(), other), step=step(**change))
        found = time_outside_steps(facts)
        assert found is not None and found.advice is not None
        assert "persistent" not in found.advice and "more workers" in found.advice


def test_a_pass_of_backward_passes_is_not_told_to_leave_them_out() -> None:
    told = advice(replace(VALIDATION, what="gradients", with_grad=True))
    assert "no_grad" not in told and "less often" in told


def test_of_training_elsewhere_on_a_device_the_cost_is_not_claimed() -> None:
    found = trains_elsewhere(healthy(step=step(clock="device"), wall=also(TRAINING)))
    assert found is not None
    assert (found.share, found.severity) == (None, Severity.LOW)
    assert "workers" not in (found.advice or "")


def test_what_was_seen_once_is_uncertain() -> None:
    found = time_outside_steps(healthy(wall=wall(replace(VALIDATION, n=1))))
    assert found is not None
    assert found.severity is Severity.UNCERTAIN


def test_next_to_training_elsewhere_what_lies_outside_is_a_smaller_part_of_all_the_time() -> None:
    both = replace(wall(VALIDATION), elsewhere=(replace(TRAINING, every_steps=4),))  # 40, 50 ms
    found = time_outside_steps(healthy(step=ON_HOST, wall=both))
    assert found is not None
    assert found.share == pytest.approx(0.4)
    assert "With 50.0 ms a step of training on other loaders, that is 40 %" in found.summary
    rare = replace(both, outside=(replace(VALIDATION, every_steps=100),))  # 2 of 62
    assert time_outside_steps(healthy(step=ON_HOST, wall=rare)) is None


def test_training_elsewhere_that_was_seen_once_is_uncertain_and_told_so() -> None:
    once = replace(TRAINING, n=1, at_epoch_end=True)
    found = trains_elsewhere(healthy(step=ON_HOST, wall=also(once)))
    assert found is not None
    assert found.severity is Severity.UNCERTAIN
    assert "too and are not in the measured step" in found.summary  # no share of the time
    assert "seen once, so how often it comes is not known: 50 % of the time if" in found.summary
    never = trains_elsewhere(healthy(step=ON_HOST, wall=also(replace(once, every_steps=None))))
    assert never is not None
    assert (never.severity, "50 %" in never.summary) == (Severity.LOW, False)


def test_next_to_passes_seen_again_one_seen_once_takes_no_part_in_the_share() -> None:
    alone = trains_elsewhere(healthy(step=ON_HOST, wall=also(TRAINING)))
    once = replace(TRAINING, site="other.py:3", n=1, seconds=2.0)
    also_once = trains_elsewhere(healthy(step=ON_HOST, wall=also(TRAINING, once)))
    assert alone is not None
    assert also_once is not None
    assert (also_once.share, also_once.severity) == (alone.share, alone.severity)
    assert also_once.loader == "tune.py:9"
    assert "other.py:3 (1 pass" in also_once.summary


def test_a_finding_of_the_step_is_no_graver_than_its_part_of_all_the_time() -> None:
    ill = with_exposed(input_=0.55, step=step(boundary_ms=40.0, steps_per_epoch=8))
    before = {f.kind: f.severity for f in find(ill)}
    after = {f.kind: f.severity for f in find(replace(ill, wall=wall(VALIDATION)))}
    assert after.pop(Kind.TIME_OUTSIDE_STEPS) is Severity.HIGH
    assert set(after) == set(before)
    high = [kind for kind, severity in before.items() if severity is Severity.HIGH]
    assert high
    assert all(after[kind] is Severity.MODERATE for kind in high)  # 10 % of all the time


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (VALIDATION, "200 ms every 5 steps, seen 12 times"),
        (replace(VALIDATION, every_steps=4.7), "200 ms every 4.70 steps, seen 12 times"),
        (replace(SAVING, every_steps=1, in_steps=True), "1.00 s each step, seen 3 times"),
        (ONCE, "200 ms, seen once"),
    ],
)
def test_how_often_in_words(part: OutsideFacts, words: str) -> None:
    assert outside_words(part) == words


def test_other_work_is_named_by_its_line_where_samples_agree() -> None:
    at = CodeLine(file="/u/train.py", line=80, function="main", code="time.sleep(0.1)")
    place = LoopPlace(
        named="line", at=at, called_from=at, what="sleep", calls="time.sleep", library=None,
        n_samples=95, of_samples=100, low_share=0.88,
    )  # fmt: skip
    seen = LoopLineFacts(
        n_samples=100, own_share=0.0, own_low_share=0.0, waiting_share=0.0, operator_share=0.0,
        places=(), outside=(place,), outside_share=0.5,
    )  # fmt: skip
    finding = time_outside_steps(healthy(wall=wall(OTHER), loop_lines=seen))
    assert finding is not None
    assert "Most of it is in time.sleep() (train.py:80)" in finding.summary
    assert finding.advice == "Take the sleep out of the loop."
    spread = replace(seen, outside=(replace(place, n_samples=45, low_share=0.35),))
    for facts in (healthy(wall=wall(OTHER), loop_lines=spread), healthy(wall=wall(OTHER))):
        finding = time_outside_steps(facts)
        assert finding is not None and "train.py:80" not in finding.summary
