"""Whether what was measured leaves the verdict open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.claims import claimed
from loaderdoctor.attribution.combine import best_shares, lower_bounds
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import AblationFacts, Mechanisms, OutsideFacts, WallFacts
from loaderdoctor.findings.exposure import is_open, loader_is_open
from loaderdoctor.report.words.summary import verdict_sentence
from tests.findings.builders import estimate, healthy, step, trace

VALIDATION = OutsideFacts(what="validation", site="train.py:9", seconds=1.0, n=4, every_steps=50)


def on_a_cpu(difference: Estimate) -> Facts:
    """Steps of 100 ms that wait 2 for their batches, and what one round of windows says of it."""
    seen = Mechanisms(
        wait_ms=estimate(2.0, 0.5),
        exposed=True,
        run_queue_ms=None,
        cpu_ms=None,
        interpreter_ms=None,
    )
    ablation = claimed(
        AblationFacts(
            plain_ms=estimate(100.0, 1.0),
            no_input_ms=estimate(100.0 - difference.value, 1.0),
            no_copy_ms=None,
            input_ms=difference,
            copy_ms=None,
            n_rounds=difference.n,
            mechanisms=seen,
        )
    )
    recorded = trace(wall_ms=100.0, has_accelerator=False)
    return replace(
        healthy(step=step(wall_ms=100.0), trace=recorded, ablation=ablation),
        shares=best_shares(recorded, None, ablation),
        shares_low=lower_bounds(ablation),
    )


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Estimate(value=30.0, low=-40.0, high=97.0, n=1), True),
        (Estimate(value=3.0, low=-1.0, high=7.0, n=1), False),
    ],
)
def test_a_health_is_open_while_the_loader_may_cost_much(
    difference: Estimate, expected: bool
) -> None:
    facts = on_a_cpu(difference)
    assert judge_run(facts) == ("compute", "none")
    assert is_open("none", facts) is expected
    assert loader_is_open("moderate", facts) is expected  # of a verdict on something else
    assert not is_open("moderate", facts)
    wall = WallFacts(step_ms=100.0, outside=(VALIDATION,), n_steps=300)  # a sixth of all the time
    severity = "uncertain" if expected else "moderate"
    assert judge_run(replace(facts, wall=wall)) == ("outside", severity)
    longer = replace(wall, outside=(replace(VALIDATION, seconds=20.0),))  # four fifths of it
    assert judge_run(replace(facts, wall=longer)) == ("outside", "high")
    said = verdict_sentence("outside", "moderate", facts=replace(facts, wall=wall))
    assert ("What the loader costs is still open" in said) is expected


def test_a_health_with_the_loaders_part_known_is_settled() -> None:
    assert not is_open("none", healthy())
    assert not is_open("none", healthy(ablation=None))
    assert is_open("uncertain", healthy())
