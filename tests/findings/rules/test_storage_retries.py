"""Pauses between tries are told from a storage that is slow."""

from __future__ import annotations

from typing import Any

import pytest

from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import Leaf, LineHotspot
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.storage import retried_requests
from tests.findings.builders import line, loader, with_exposed, workers
from tests.findings.case import Case, check_fires, check_silent

PACKAGES = "/v/lib/python3.12/site-packages"
URLLIB3 = Leaf(
    file=f"{PACKAGES}/urllib3/util/retry.py", function="Retry._sleep_backoff", n_stack_samples=60
)
ANSWER = Leaf(
    file=f"{PACKAGES}/urllib3/connection.py", function="HTTPConnection.getresponse",
    n_stack_samples=60,
)  # fmt: skip


def asked(*leaves: Leaf, n: int = 80, of: int = 100, **changes: Any) -> LineHotspot:
    """A line that asks for an object: `n` of `of` stack samples, below it these."""
    return line(
        code="answer = self.client.request('GET', url)",
        n_stack_samples=n,
        of_stack_samples=of,
        leaves=leaves,
        **changes,
    )


def waits(*lines: LineHotspot, **changes: Any) -> Facts:
    """Two workers that mostly wait for 20 ms a batch: 8 of 10 ms a step."""
    made = {
        "n_workers": 2,
        "batch_ms": 20.0,
        "fetch_ms": 19.0,
        "cpu_share": 0.1,
        "idle_share": 0.0,
        "n_samples": 5120,
        "n_batches": 80,
        "run_wait_share": 0.0,
        "lines": lines,
    }
    return with_exposed(
        input_=changes.pop("input_", 0.8),
        workers=workers(**made | changes),
        loaders=(loader(settings={"num_workers": 2}),),
    )


CASE = Case(
    rule=retried_requests,
    ill=waits(asked(URLLIB3)),
    share=0.48,
    severity=Severity.HIGH,
    evidence={"client": "urllib3", "paused_share_of_batch": 0.6, "paused_looks": 60},
    says=("sent again", "60 % of making a batch (60 of 100 stack samples)", "429 and 503"),
    silent={
        "slow answers": waits(asked(ANSWER)),
        "a pause now and then": waits(
            asked(Leaf(file=URLLIB3.file, function=URLLIB3.function, n_stack_samples=7))
        ),
        "a sleep of the user's own, in a file of that name": waits(
            asked(Leaf(file="/home/u/retry.py", function="sleep", n_stack_samples=60))
        ),
        "urllib3 at work": waits(
            asked(Leaf(file=URLLIB3.file, function="Retry.increment", n_stack_samples=60))
        ),
        "the loop does not wait for it": waits(asked(URLLIB3), input_=0.0),
    },
    missing={
        "no stack samples": waits(),
        "too few": waits(
            asked(
                Leaf(file=URLLIB3.file, function=URLLIB3.function, n_stack_samples=8), n=10, of=12
            )
        ),
        "not which function": waits(asked()),
    },
)


def test_pauses_between_tries_are_told_where_they_are_and_nowhere_else() -> None:
    check_fires(CASE)
    check_silent(CASE)


@pytest.mark.parametrize(
    ("file", "function", "client"),
    [
        ("urllib3/util/retry.py", "sleep_for_retry", "urllib3"),  # Python 3.10 tells no class
        ("tenacity/nap.py", "sleep", "tenacity"),
        ("backoff/_sync.py", "retry_exception.<locals>.retry", "backoff"),
        ("botocore/endpoint.py", "Endpoint._needs_retry", "botocore"),
        ("google/api_core/retry/retry_unary.py", "retry_target", "google.api_core"),
        ("azure/core/pipeline/policies/_retry.py", "RetryPolicy._sleep_backoff", "azure.core"),
        ("huggingface_hub/utils/_http.py", "http_backoff", "huggingface_hub"),
    ],
)
def test_clients_are_known_by_where_they_pause(file: str, function: str, client: str) -> None:
    leaf = Leaf(file=f"{PACKAGES}/{file}", function=function, n_stack_samples=60)
    found = retried_requests(waits(asked(leaf)))
    assert found is not None and found.evidence["client"] == client


def test_they_stand_in_the_place_of_a_slow_storage() -> None:
    kinds = {x.kind for x in find(waits(asked(URLLIB3)))}
    assert Kind.RETRIED_REQUESTS in kinds and Kind.STORAGE_BOUND_WORKERS not in kinds
    assert Kind.STORAGE_BOUND_WORKERS in {x.kind for x in find(waits(asked(ANSWER)))}
