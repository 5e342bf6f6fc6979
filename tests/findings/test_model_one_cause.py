"""Findings about the same time are one cause with its aspects; other time is another cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.findings import PARTS, Finding, Kind, Severity, with_aspects
from loaderdoctor.findings.rules import find
from loaderdoctor.report.words.summary import CAUSES
from tests.findings.builders import line, loader, with_exposed, workers


def finding(kind: Kind, share: float | None, **more: Any) -> Finding:
    return Finding(kind=kind, severity=Severity.HIGH, share=share, summary="", **more)


def aspects(
    *found: Finding, input_: float = 0.68, copy: float = 0.02
) -> list[tuple[str, str | None]]:
    kept = with_aspects(found, with_exposed(input_=input_, copy=copy))
    return [(f.kind.value, f.aspect_of.value if f.aspect_of else None) for f in kept]


def test_three_findings_of_one_line_are_one_cause() -> None:
    main = finding(Kind.LOADER_IN_MAIN_PROCESS, 0.68)
    collate = finding(Kind.COLLATE_BOUND, 0.66)
    lists = finding(Kind.DATASET_FORMAT_BOUND, 0.64)
    assert aspects(main, collate, lists) == [
        ("loader-in-main-process", None),
        ("collate-bound", "loader-in-main-process"),
        ("dataset-format-bound", "loader-in-main-process"),
    ]


def test_an_aspect_stands_right_behind_its_cause() -> None:
    main = finding(Kind.LOADER_IN_MAIN_PROCESS, 0.6)
    copies = finding(Kind.PAGEABLE_COPY, 0.2)
    lists = finding(Kind.DATASET_FORMAT_BOUND, 0.5)
    found = aspects(main, copies, lists, input_=0.6, copy=0.2)
    assert [kind for kind, _ in found] == [
        "loader-in-main-process", "dataset-format-bound", "pageable-copy",
    ]  # fmt: skip
    assert found[2][1] is None


@pytest.mark.parametrize(
    "second",
    [
        finding(Kind.SAMPLER_BOUND, 0.2),  # both fit into what the loop waits
        finding(Kind.WORK_BETWEEN_STEPS, 0.4),  # another part of the step
        finding(Kind.COLLATE_BOUND, None),  # its share is not known
        finding(Kind.COLLATE_BOUND, 0.4, loader="train.py:9"),  # another loader
        finding(Kind.THREAD_OVERSUBSCRIPTION, 0.4, evidence={"threads_of": "loop"}),
        finding(Kind.TF32_OFF, 0.4),
    ],
)
def test_time_of_its_own_is_another_cause(second: Finding) -> None:
    first = finding(Kind.LOADER_IN_MAIN_PROCESS, 0.45, loader="train.py:3")
    assert aspects(first, second)[1][1] is None


def test_shares_that_exceed_the_part_by_the_noise_are_no_aspects() -> None:
    first, second = finding(Kind.TOO_FEW_WORKERS, 0.4), finding(Kind.SAMPLER_BOUND, 0.3)
    assert aspects(first, second, input_=0.66)[1][1] is None
    assert aspects(first, second, input_=0.64)[1][1] == "too-few-workers"


def test_whatever_explains_a_verdict_explains_a_part_or_is_named() -> None:
    of_parts = {kind for part in PARTS.values() for kind in part}
    of_none = {Kind.GC_IN_WORKERS, Kind.UNEVEN_SHARDS, Kind.GC_PAUSES, Kind.SLOW_RANK}
    assert set(CAUSES) == of_parts | of_none
    assert not of_parts & of_none


def test_a_kind_is_of_one_part_at_most() -> None:
    kinds = [kind for part in PARTS.values() for kind in part]
    assert len(kinds) == len(set(kinds))


def test_real_rules_that_blame_one_line_give_one_cause() -> None:
    made = workers(n_workers=0, batch_ms=40.0, fetch_ms=10.0, collate_ms=30.0, cores=())
    hot = line(phase="collate", code="x = torch.tensor(rows)", share=0.9)
    facts = with_exposed(
        input_=0.7,
        loaders=(loader(settings={"num_workers": 0, "prefetch_factor": None}),),
        workers=replace(made, lines=(hot,)),
    )
    found = find(facts)
    input_kinds = [f for f in found if f.kind in PARTS["input"]]
    assert len(input_kinds) > 1
    assert [f.aspect_of for f in input_kinds].count(None) == 1
