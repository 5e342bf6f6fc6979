"""Requests that fail: the pause before each is sent again is no latency of the storage's."""

from __future__ import annotations

import re
from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import LineHotspot
from loaderdoctor.findings.exposure import loader_id
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.line_names import MIN_STACK_SAMPLES, at, where
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.storage_words import where as on

# Where clients pause before a request is sent again, "file:function" by their own sources; each
# with its name. Clients that retry on an event loop (aiobotocore, gcsfs) do it in another thread.
_CLIENTS = (
    (r"/urllib3/util/retry\.py:(.*\.)?(_?sleep\w*)$", "urllib3"),
    (r"/tenacity/nap\.py:", "tenacity"),
    (r"/backoff/_sync\.py:", "backoff"),
    (r"/botocore/endpoint\.py:(.*\.)?_needs_retry$", "botocore"),
    (r"/google/api_core/retry/\w+\.py:.*retry", "google.api_core"),
    (r"/azure/core/pipeline/policies/_retry\.py:(.*\.)?_?sleep\w*$", "azure.core"),
    (r"/huggingface_hub/utils/_http\.py:\w*backoff\w*", "huggingface_hub"),
    (r"/retrying\.py:", "retrying"),
)
# Of making a batch: what surely lies above this, by the lower end of its stack samples.
MIN_LOW_PART = 0.05


def retried_requests(facts: Facts) -> Finding | None:
    """Requests fail and are sent again, and the pauses in between are a part of making a batch.

    Decides on: stack samples of making batches that fell within the pause of a client's retries,
    and the exposed input time that making batches explains.
    Abstains: too few stack samples, a client that retries on a thread of its own, or the pool keeps
    up with the step.
    Fooled by: such a library used to limit its own rate, or to poll.
    """
    workers, cost = facts.workers, making_cost(facts)
    if workers is None or cost is None:
        return None
    paused = [(line, client) for x in workers.lines for line, client in _paused(x)]
    lines = [line for line, _ in paused]
    if not lines or _low(lines) < MIN_LOW_PART:
        return None
    share = min(1.0, sum(line.share for line in lines))
    part = cost.part(cost.ms * share)
    if part.share < MODERATE_SHARE:
        return None
    most, client = max(paused, key=lambda x: x[0].n_stack_samples)
    n, of = sum(line.n_stack_samples for line in lines), most.of_stack_samples
    return Finding(
        kind=Kind.RETRIED_REQUESTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"Requests fail and are sent again{on(facts)}: {fmt.share(share)} of making a batch "
            f"({n} of {of} stack samples) is the pause that {client} makes in between{at(most)}, "
            f"while the loop waits {cost.of_step}."
        ),
        evidence={
            "client": client,
            "line": where(most),
            "line_code": most.code,
            "paused_share_of_batch": share,
            "paused_looks": n,
            "looks": of,
            "batch_ms": workers.batch_ms,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Find out what fails: log the status of each answer (logging.getLogger("
        '"urllib3").setLevel(logging.DEBUG), or the client\'s own). Answers 429 and 503 ask for '
        "fewer or larger requests, or another key prefix, and more workers make more of them; "
        "resets and time-outs are the connection's: keep it open in each worker.",
    )


def _paused(hotspot: LineHotspot) -> list[tuple[LineHotspot, str]]:
    """The stack samples of a line that fell within retries, by the client that pauses."""
    found = []
    for leaf in hotspot.leaves:
        place = f"{leaf.file}:{leaf.function}".replace("\\", "/")
        for pattern, client in _CLIENTS:
            if re.search(pattern, place):
                line = replace(hotspot, n_stack_samples=leaf.n_stack_samples, leaves=())
                found.append((line, client))
                break
    return found


def _low(lines: list[LineHotspot]) -> float:
    """Of making a batch, by the lower end of 95 % intervals; 0 of a phase seen too seldom."""
    low = 0.0
    for phase in {line.phase for line in lines}:
        of_phase = [line for line in lines if line.phase == phase]
        n, of = sum(line.n_stack_samples for line in of_phase), of_phase[0].of_stack_samples
        if of >= MIN_STACK_SAMPLES:
            low += of_phase[0].phase_share * binomial_interval(min(n, of), of)[0]
    return low
