"""Time outside the steps, as the reader gets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from loaderdoctor.commands.output import share_of, share_rules
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.report.build import Judged, build_report
from loaderdoctor.report.comparison import compare
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.words import wall_sentence
from loaderdoctor.report.words.summary import cost_sentence, verdict_sentence
from loaderdoctor.report.words.verdict import headline
from loaderdoctor.report.words.whole_run import meaning
from tests.findings.builders import healthy

VALIDATION = OutsideFacts(
    what="validation", site="train.py:9", seconds=0.2, n=12, every_steps=5
)  # fmt: skip
WALL = WallFacts(step_ms=10.0, outside=(VALIDATION,), n_steps=300)
ONCE = replace(VALIDATION, n=1, every_steps=None)
FASTER = Recommendation(
    setting="num_workers", from_=0, to=4, code="", predicted_step_ms=None,
    measured_step_ms=5.0, measured_ci_ms=(4.9, 5.1), own_step_ms=10.0,
)  # fmt: skip


def report(wall: WallFacts | None = WALL, bound: str = "outside", severity: str = "high") -> Report:
    if wall is None:
        bound, severity = "compute", "none"
    judged = Judged(bound=bound, severity=severity)  # type: ignore[arg-type]
    return build_report(healthy(wall=wall), target="train.py", judged=judged)


def test_the_verdict_counts_all_the_time_and_names_the_place() -> None:
    said = verdict_sentence("outside", "high", facts=healthy(wall=WALL))
    assert said.startswith(
        "Of 50.0 ms for each training step 40.0 pass outside the steps (80 %): "
        "validation (train.py:9), 200 ms every 5 steps, seen 12 times. The step itself takes "
        "10.0 ms."
    )
    assert cost_sentence("outside", "high", healthy(wall=WALL)) == said
    assert headline(report()) == ("Outside the steps: validation", "high")


def test_what_was_seen_once_says_so() -> None:
    wall = replace(WALL, outside=(replace(VALIDATION, n=1),))
    assert "seen once only" in verdict_sentence("outside", "uncertain", facts=healthy(wall=wall))
    assert headline(report(wall, severity="uncertain")) == (
        "Outside the steps: validation",
        "seen once",
    )


def test_another_verdict_is_followed_by_what_lies_outside() -> None:
    assert wall_sentence(report()) is None  # the verdict said it
    said = wall_sentence(report(bound="input"))
    assert said is not None
    assert "a training step takes 50.0 ms, 80 % of it outside" in said
    unknown = wall_sentence(report(replace(WALL, outside=(ONCE,)), bound="input"))
    assert unknown == (
        "Validation (train.py:9): 200 ms, seen once. How often it comes is not known after "
        "300 steps."
    )
    assert wall_sentence(report(replace(WALL, outside=()), bound="input")) is None
    assert wall_sentence(report(None, bound="input")) is None


def test_an_hour_shrinks_by_the_steps_part_alone() -> None:
    alone = structs.replace(report(None), recommendations=(FASTER,))
    step_ms = alone.step.wall_ms
    assert step_ms is not None
    assert "becomes 30 min" in (meaning(alone) or "")
    all_time = structs.replace(report(), recommendations=(FASTER,))
    assert "becomes 54 min" in (meaning(all_time) or "")  # 5 of 50 ms
    between = structs.replace(FASTER, speed_up_ci=(1.25, 8.0))
    known = structs.replace(report(None), recommendations=(between,))
    assert "becomes 30 min (7.5 to 48 in a new run)" in (meaning(known) or "")


@pytest.mark.parametrize(
    ("part", "becomes"),
    [
        ({"n": 4}, "becomes 45 min"),  # 5 of 20 ms
        ({"n": 4, "in_steps": True}, "becomes 30 min"),
        ({"n": 1}, None),  # how often it comes is not known
        ({"n": 4, "every_steps": None}, None),
    ],
)
def test_an_hour_holds_training_on_other_loaders_too(
    part: dict[str, Any], becomes: str | None
) -> None:
    known = {"seconds": 1.0, "every_steps": 100.0, **part}
    training = OutsideFacts(what="training", site="tune.py:9", **known)
    alone = WallFacts(step_ms=10.0, outside=(), n_steps=300, elsewhere=(training,))
    said = meaning(structs.replace(report(alone, bound="compute"), recommendations=(FASTER,)))
    assert (said or "").startswith(f"Every hour of this training {becomes}" if becomes else "")
    assert (said is None) == (becomes is None)


def test_other_programs_may_judge_it() -> None:
    (rule,) = share_rules(["outside>50%"])
    assert rule.holds(report())
    assert not rule.holds(report(None))
    assert share_of(report(), "outside") == 0.8


def test_two_runs_compare_what_lies_outside() -> None:
    rows = {row.name: row for row in compare(report(), report(None)).shares}
    assert (rows["outside"].before_ms, rows["outside"].after_ms) == (40.0, None)
    assert "outside" not in {row.name for row in compare(report(None), report(None)).shares}
