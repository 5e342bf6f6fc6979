"""A line is named only where enough stack samples fell on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import Leaf, LineHotspot
from loaderdoctor.findings.line_names import (
    MIN_NAMED_SHARE,
    MIN_STACK_SAMPLES,
    hot_evidence,
    hot_sentence,
    seen_enough,
    spread_words,
)
from loaderdoctor.findings.rules import RULES, find
from loaderdoctor.report.console import console_text
from loaderdoctor.report.run_model import HotLine
from tests.findings.builders import line, loader, step, with_exposed, workers
from tests.report import samples


def starved(*lines: LineHotspot) -> Facts:
    """No workers; making batches is 70 % of the step, and these lines were seen at it."""
    return with_exposed(
        input_=0.7,
        loaders=(loader(settings={"num_workers": 0, "prefetch_factor": None}),),
        workers=workers(
            n_workers=0, batch_ms=7.0, collate_ms=5.0, cpu_share=0.2, cores=(), lines=lines
        ),
        step=step(raw_wait_ms=7.0, worker_cpu_cores=None),
    )


def test_the_fewest_samples_are_those_that_bear_out_half_of_them() -> None:
    fewest = next(n for n in range(2, 100, 2) if binomial_interval(n // 2, n)[0] >= MIN_NAMED_SHARE)
    assert fewest == MIN_STACK_SAMPLES


@pytest.mark.parametrize(
    ("n_stack_samples", "of_stack_samples", "named"),
    [(3, 3, False), (10, 10, False), (17, 17, False), (18, 18, True), (9, 18, True), (6, 18, False),
     (30, 100, False), (40, 100, True), (1, 18, False), (300, 1000, True)],
)  # fmt: skip
def test_a_line_is_named_by_the_lower_end_of_its_interval(
    n_stack_samples: int, of_stack_samples: int, named: bool
) -> None:
    hotspot = line(n_stack_samples=n_stack_samples, of_stack_samples=of_stack_samples)
    assert seen_enough((hotspot,)) is named
    facts = starved(hotspot)
    assert ("line" in hot_evidence(facts)) is named
    assert ("data.py" in hot_sentence(facts)) is named


def test_a_named_line_comes_with_its_stack_samples() -> None:
    facts = starved(line(n_stack_samples=19, of_stack_samples=24))
    assert "data.py:30 (__getitem__), 79 % (19 of 24 stack samples of fetching)" in hot_sentence(
        facts
    )
    assert hot_evidence(facts)["line_looks"] == 19
    assert hot_evidence(facts)["looks"] == 24


@pytest.mark.parametrize("code", ["x = self.load(i)", "torch.tensor(row)", "open(path)"])
def test_no_rule_names_a_line_or_rests_on_it_below_the_fewest_samples(code: str) -> None:
    few = starved(
        line(
            code=code, n_stack_samples=MIN_STACK_SAMPLES - 1, of_stack_samples=MIN_STACK_SAMPLES - 1
        )
    )
    without = starved()
    assert {f.kind for f in find(few)} == {f.kind for f in find(without)}
    for finding in (f for rule in RULES if (f := rule(few)) is not None):
        assert "data.py" not in finding.summary
        assert "line" not in finding.evidence


def test_the_report_carries_counts_and_says_where_they_are_too_few() -> None:
    def shown(*lines: LineHotspot) -> tuple[str, HotLine]:
        report = samples.built(facts=starved(*lines), target="x", bound="input", severity="high")
        assert report.workers is not None
        return console_text(report), report.workers.lines[0]

    text, row = shown(line(n_stack_samples=19, of_stack_samples=24))
    assert "79 % (19 of 24 stack samples of fetching) at /home/u/data.py:30" in text
    assert (row.n_looks, row.of_looks, row.named) == (19, 24, True)
    assert row.share_ci == binomial_interval(19, 24)
    text, row = shown(line(n_stack_samples=5, of_stack_samples=5))
    assert "5 stack samples of its code: too few, or too spread, to name a line." in text
    assert "data.py:30" not in text
    assert row.named is False


def test_a_phase_counts_for_its_time_not_for_its_samples() -> None:
    stack = line(
        n_stack_samples=60,
        of_stack_samples=60,
        phase="collate",
        phase_share=0.05,
        code="torch.stack(x)",
    )
    parse = line(
        line=31,
        n_stack_samples=18,
        of_stack_samples=20,
        phase_share=0.948,
        code="x = self.parse(i)",
    )
    facts = starved(parse, stack)
    assert "data.py:31 (__getitem__), 85 % (18 of 20 stack samples of fetching)" in hot_sentence(
        facts
    )
    assert not seen_enough((stack,))
    assert seen_enough((replace(parse, n_stack_samples=6), replace(stack, phase_share=0.4)))


def test_lines_that_only_together_are_seen_enough_are_not_named_alone() -> None:
    hotspots = tuple(
        line(line=n, n_stack_samples=7, of_stack_samples=28, code="open(p)") for n in (1, 2, 3)
    )
    facts = replace(
        starved(*hotspots),
        workers=workers(n_workers=4, batch_ms=80.0, cpu_share=0.2, lines=hotspots),
    )
    found = [f for rule in RULES if (f := rule(facts)) is not None]
    packed = next(f for f in found if f.kind.value == "many-small-files")
    assert "75 % (21 of 28 stack samples of fetching)" in packed.summary
    assert "data.py" not in packed.summary and "line" not in packed.evidence


def test_lines_too_spread_to_be_named_name_their_function_or_library() -> None:
    pandas = "/venv/lib/python3.11/site-packages/pandas/core/indexing.py"
    spread = tuple(
        line(line=n, function="Rows.__getitem__", n_stack_samples=7, of_stack_samples=30)
        for n in (1, 2, 3, 4)
    )
    assert spread_words(spread) == (
        "data.py (Rows.__getitem__), 93 % (28 of 30 stack samples of fetching)"
    )
    assert "Most of it: data.py (Rows.__getitem__), 93 %" in hot_sentence(starved(*spread))
    of_pandas = tuple(
        replace(one, leaves=(Leaf(file=pandas, function="_getitem", n_stack_samples=6),))
        for one in spread
    )
    assert spread_words(of_pandas) == "pandas, 80 % (24 of 30 stack samples of fetching)"
    elsewhere = tuple(replace(one, function=f"f{one.line}") for one in spread)
    assert spread_words(elsewhere) is None
    assert spread_words((line(n_stack_samples=25, of_stack_samples=30),)) is None
