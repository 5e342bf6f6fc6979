"""Rules about host-to-device copies: pinned or not, blocking or not, overlapped, small, wide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.copies import (
    blocking_copy,
    copy_not_overlapped,
    many_small_copies,
    pageable_copy,
    pin_ineffective,
    wide_dtype_copy,
)
from loaderdoctor.instrument.wire.records import TensorRecord
from tests.findings.builders import (
    FLOAT_IMAGE,
    IMAGE,
    LABELS,
    copy_facts,
    healthy,
    loader,
    machine,
    shares,
    trace,
    transfer,
    with_exposed,
)
from tests.findings.case import Case, fires, stays_silent

UNPINNED = (loader(settings={"pin_memory": False}),)
PAGEABLE = copy_facts(
    source="pageable", exposed_ms_per_step=3.0, busy_ms_per_step=2.9, host_blocked_ms_per_step=3.0
)
COPIES = shares(copy=0.3)
SAME_STREAM = copy_facts(exposed_ms_per_step=1.0, busy_ms_per_step=1.0)
BLOCKING = copy_facts(exposed_ms_per_step=1.0, busy_ms_per_step=1.0, host_blocked_ms_per_step=1.0)
SMALL = copy_facts(n_per_step=40.0, median_bytes=256.0, exposed_ms_per_step=0.6)
UNSEEN_BATCH = replace(with_exposed(copy=0.3), loaders=())

CASES = (
    Case(
        rule=pageable_copy,
        ill=with_exposed(
            copy=0.3,
            loaders=UNPINNED,
            transfers=(transfer(pinned=False),),
            trace=trace(shares=COPIES, copies=(PAGEABLE,)),
        ),
        share=0.3,
        severity=Severity.HIGH,
        evidence={
            "exposed_copy_ms_per_step": 3.0,
            "bytes_per_step": 9_634_304.0,
            "bandwidth_gb_per_s": 3.32,
            "host_blocked_ms_per_step": 3.0,
        },
        says=(
            "waits 3.00 of 10.0 ms a step for 9.19 MiB copied from pageable memory",
            "non_blocking=True does nothing for pageable memory",
        ),
        silent={
            "pinned": with_exposed(copy=0.3),
            "hidden behind the step": healthy(trace=trace(copies=(PAGEABLE,))),
            "only the labels are pageable": with_exposed(
                copy=0.3,
                trace=trace(
                    shares=COPIES,
                    copies=(
                        copy_facts(exposed_ms_per_step=2.9),
                        copy_facts(source="pageable", exposed_ms_per_step=0.1),
                    ),
                ),
            ),
        },
        missing={
            "shares": healthy(shares=None, trace=None, loaders=UNPINNED),
            "the source memory": with_exposed(
                copy=0.3,
                transfers=(),
                trace=trace(shares=COPIES, copies=(copy_facts(source="unknown"),)),
            ),
        },
    ),
    Case(
        rule=pin_ineffective,
        ill=with_exposed(
            copy=0.3,
            loaders=(
                loader(
                    batch=(TensorRecord(path=".x", shape=(8,), dtype="uint8", n_bytes=9_000_000),),
                    batch_type="Batch",
                ),
            ),
        ),
        share=0.3,
        severity=Severity.HIGH,
        evidence={"unpinned_bytes_per_step": 9_000_000, "first_unpinned": ".x"},
        says=("pin_memory=True has no effect: 8.58 MiB of the batch of type Batch",),
        silent={
            "pinned": with_exposed(copy=0.3),
            "not asked for": with_exposed(copy=0.3, loaders=UNPINNED),
            "only a label is unpinned": with_exposed(
                copy=0.3,
                loaders=(
                    loader(
                        batch=(
                            IMAGE,
                            TensorRecord(path="[1]", shape=(64,), dtype="int64", n_bytes=512),
                        )
                    ),
                ),
            ),
        },
        missing={
            "loader": UNSEEN_BATCH,
            "batch and copies": with_exposed(copy=0.3, loaders=(loader(batch=()),), transfers=()),
        },
    ),
    Case(
        rule=blocking_copy,
        ill=with_exposed(
            copy=0.1,
            transfers=(transfer(non_blocking=False),),
            trace=trace(shares=shares(copy=0.1), copies=(BLOCKING,)),
        ),
        share=0.1,
        severity=Severity.MODERATE,
        evidence={"exposed_copy_ms_per_step": 1.0, "sites": "train.py:57"},
        says=("The batch is pinned, but the copy at train.py:57 blocks the loop",),
        silent={
            "non_blocking already": with_exposed(
                copy=0.1, trace=trace(shares=shares(copy=0.1), copies=(BLOCKING,))
            ),
            "a copy of 2 %": healthy(transfers=(transfer(non_blocking=False),)),
            "pageable": with_exposed(
                copy=0.1,
                transfers=(transfer(pinned=False, non_blocking=False),),
                trace=trace(shares=shares(copy=0.1), copies=(PAGEABLE,)),
            ),
        },
        missing={
            "copies": with_exposed(copy=0.1, transfers=(), trace=trace(copies=())),
            "shares": healthy(shares=None, trace=None),
        },
    ),
    Case(
        rule=copy_not_overlapped,
        ill=with_exposed(copy=0.1, trace=trace(shares=shares(copy=0.1), copies=(SAME_STREAM,))),
        share=0.1,
        severity=Severity.MODERATE,
        evidence={"exposed_copy_ms_per_step": 1.0, "copy_busy_ms_per_step": 1.0},
        says=("copied on the stream that computes", "would gain at most these 1.00 ms"),
        silent={
            "a copy of 2 %": healthy(),
            "a side stream": with_exposed(
                copy=0.1,
                trace=trace(
                    shares=shares(copy=0.1),
                    copies=(replace(SAME_STREAM, same_stream_as_compute=False),),
                ),
            ),
            "blocking: another cause": with_exposed(
                copy=0.1,
                transfers=(transfer(non_blocking=False),),
                trace=trace(shares=shares(copy=0.1), copies=(SAME_STREAM,)),
            ),
        },
        missing={
            "streams": with_exposed(
                copy=0.1,
                trace=trace(copies=(replace(SAME_STREAM, same_stream_as_compute=None),)),
            ),
            "shares": healthy(shares=None, trace=None),
        },
    ),
    Case(
        rule=many_small_copies,
        ill=healthy(trace=trace(copies=(SMALL,), host_exposed_ms=1.0)),
        share=0.06,
        severity=Severity.MODERATE,
        evidence={"n_small_copies_per_step": 40.0, "median_bytes": 256.0},
        says=("40 small copies to the device a step (half of them under 256 B)",),
        silent={
            "images and labels": healthy(),
            "many large ones": healthy(
                trace=trace(
                    copies=(replace(SMALL, median_bytes=1e6, busy_ms_per_step=1.0),),
                    host_exposed_ms=1.0,
                )
            ),
            "made by another thread": healthy(
                trace=trace(copies=(replace(SMALL, n_beside_per_step=40.0),), host_exposed_ms=1.0)
            ),
            "hidden behind the step": healthy(
                trace=trace(copies=(replace(SMALL, exposed_ms_per_step=0.0),), host_exposed_ms=0.1)
            ),
        },
        missing={
            "trace": healthy(trace=None),
            "accelerator": healthy(trace=trace(has_accelerator=False, copies=(SMALL,))),
        },
    ),
    Case(
        rule=wide_dtype_copy,
        ill=with_exposed(copy=0.3, loaders=(loader(batch=(FLOAT_IMAGE, LABELS)),)),
        share=0.225,
        severity=Severity.HIGH,
        evidence={
            "dtype": "float32",
            "bytes_per_step": 38_535_168,
            "bytes_per_step_as_uint8": 9_633_792,
            "saved_ms_per_step": 2.25,
        },
        says=("Images travel as float32, 36.8 MiB a step. As uint8 it is 9.19 MiB",),
        silent={
            "uint8": with_exposed(copy=0.3),
            "a copy of 2 %": healthy(loaders=(loader(batch=(FLOAT_IMAGE,)),)),
            "features, not images": with_exposed(
                copy=0.3,
                loaders=(
                    loader(
                        batch=(
                            TensorRecord(
                                path="x", shape=(64, 4096), dtype="float32", n_bytes=1_048_576
                            ),
                        )
                    ),
                ),
            ),
        },
        missing={
            "batch": with_exposed(copy=0.3, loaders=(loader(batch=()),)),
            "loader": UNSEEN_BATCH,
            "shares": healthy(
                shares=None, trace=None, loaders=(loader(batch=(FLOAT_IMAGE, LABELS)),)
            ),
        },
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_pinning_without_effect_is_a_hint_even_where_the_copy_costs_nothing() -> None:
    image = TensorRecord(path="x", shape=IMAGE.shape, dtype="uint8", n_bytes=IMAGE.n_bytes)
    finding = pin_ineffective(healthy(loaders=(loader(batch=(image, LABELS)),)))
    assert finding is not None
    assert finding.severity is Severity.LOW
    assert finding.share is None


def test_nothing_is_pinned_for_want_of_an_accelerator_and_that_is_no_fault_of_the_batch() -> None:
    image = TensorRecord(path="x", shape=IMAGE.shape, dtype="uint8", n_bytes=IMAGE.n_bytes)
    facts = healthy(loaders=(loader(batch=(image, LABELS)),), machine=machine(device_name=None))
    assert pin_ineffective(facts) is None


def test_a_batch_nobody_could_look_into_is_judged_by_what_the_loop_copies() -> None:
    facts = healthy(loaders=(loader(batch=()),), transfers=(transfer(pinned=False),))
    assert pin_ineffective(facts) is not None
    assert pin_ineffective(replace(facts, transfers=(transfer(),))) is None


def test_pageable_copies_are_told_from_a_trace_alone() -> None:
    finding = pageable_copy(facts_of_trace(trace(shares=COPIES, copies=(PAGEABLE,))))
    assert finding is not None
    assert finding.share == pytest.approx(0.3)


def test_pageable_copies_are_told_from_the_loops_calls_without_a_trace() -> None:
    facts = with_exposed(copy=0.3, transfers=(transfer(pinned=False),))
    assert pageable_copy(replace(facts, trace=None)) is not None


def test_ablation_overrules_what_a_trace_says_of_copies() -> None:
    facts = with_exposed(copy=0.0, trace=trace(shares=COPIES, copies=(PAGEABLE,)))
    assert pageable_copy(facts) is None
