"""What a setting or a change of code does to what is trained is said with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from loaderdoctor.advice import CodeAdvice
from loaderdoctor.advice.ideas import KEPT_BATCHES
from loaderdoctor.advice.writing import changes_training, trains_by_code
from loaderdoctor.findings import Kind
from loaderdoctor.settings import AXES, Value
from tests.findings.builders import healthy


@pytest.mark.parametrize(
    ("kind", "own", "wanted", "dealt"),
    [
        ("iterable", 0, 4, True),
        ("iterable", 4, 2, True),
        ("iterable", 2, 0, True),
        ("iterable", 0, 1, False),
        ("iterable", 3, 3, False),
        ("map", 0, 4, False),
    ],
)
def test_a_stream_is_dealt_to_its_workers(kind: str, own: int, wanted: int, dealt: bool) -> None:
    facts = healthy()
    loaders = tuple(
        structs.replace(
            x,
            kind=kind,
            settings=replace(x.settings, num_workers=own),
        )
        for x in facts.loaders
    )
    found = changes_training(replace(facts, loaders=loaders), "num_workers", wanted)
    assert (found is not None and "other batches" in found) is dealt


def test_every_axis_that_changes_numerics_says_so_and_others_do_not() -> None:
    values: dict[str, Value] = {"in_order": False, "batch_size": 64}
    said = {x.name for x in AXES if changes_training(healthy(), x.name, values.get(x.name, True))}
    numerics = {x.name for x in AXES if x.numerics} - {"num_threads"}
    assert said == numerics | {"in_order", "device_decode"}


def test_code_says_it_by_what_it_answers() -> None:
    code = CodeAdvice(
        kind=Kind.TF32_OFF, title="", idea="", code=None, bound_ms=None, predicted_from=None
    )
    assert trains_by_code(code) == "numerics change"
    assert trains_by_code(replace(code, kind=Kind.MANY_SMALL_COPIES)) is None
    kept = replace(code, kind=Kind.COLLATE_BOUND, title=KEPT_BATCHES.title)
    assert "another order" in (trains_by_code(kept) or "")
