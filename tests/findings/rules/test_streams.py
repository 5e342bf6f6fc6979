"""A stream that each worker reads whole: proved by equal batches, and not by its code alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Severity
from loaderdoctor.findings.rules.streams import samples_repeated
from tests.findings.builders import healthy, loader
from tests.findings.case import Case, check_fires, check_silent


def stream(n: int = 4, *, equal: int | None = 4, unsharded: bool = True, **more: Any) -> Facts:
    record = loader(
        kind="iterable",
        settings={"num_workers": n},
        safety={"unsharded_iterable": unsharded},
        n_equal_first=equal,
        **more,
    )
    return replace(healthy(), loaders=(record,))


REPEATED = Case(
    rule=samples_repeated,
    ill=stream(),
    share=None,
    severity=Severity.HIGH,
    evidence={"num_workers": 4, "equal_batches": 4},
    says=("Each of the 4 workers", "4 times an epoch", "get_worker_info()"),
    silent={
        "split": stream(unsharded=False, equal=1),
        "shuffled by each worker": stream(equal=1),
        "one worker": stream(1, equal=1),
        "two batches that happen to be equal": stream(equal=2),
        "map-style": healthy(),
    },
    missing={
        "all batches alike, or not seen": stream(equal=None),
        "no loader": replace(healthy(), loaders=()),
    },
)


def test_samples_repeated() -> None:
    check_fires(REPEATED)
    check_silent(REPEATED)
