"""Ranks next to each other."""

from __future__ import annotations

from loaderdoctor.alerts import Alert
from loaderdoctor.alerts.job import Job
from tests.alerts.runs import T0_S, Phase, each


def together(*ranks: Phase) -> list[Alert]:
    job = Job(T0_S)
    running = [each([phase], seed=n, rank=n, job=job) for n, phase in enumerate(ranks)]
    alerts = []
    for found in zip(*running, strict=False):
        alerts += [a for some in found for a in some]
    return alerts


def test_a_rank_that_waits_for_its_batches_is_named() -> None:
    alerts = together(
        Phase(n_steps=300), Phase(n_steps=300, step_ms=60.0, wait_ms=41.0), Phase(n_steps=300)
    )
    assert [a.kind for a in alerts] == ["rank-behind"]
    assert alerts[0].text.startswith("Rank 1 waits")


def test_ranks_alike_are_not() -> None:
    assert not together(*(Phase(n_steps=3000, wait_ms=12.0, noise=0.4) for _ in range(3)))
